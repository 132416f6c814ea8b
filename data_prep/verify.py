"""Check a dataset against its manifest: checksums, shapes, ranges, counts, label rates.

python -m data_prep.verify data.path=DATASET
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from common.cli import run
    from data_prep.commands import COMMANDS

    run(COMMANDS["verify-data"])


from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.cli import EXIT_DONE
from common.errors import UserError
from common.files import FileDigest
from common.keys import refuse
from data_prep.config import PrepConfig, unused_key_faults
from data_prep.dataset.format import (
    MANIFEST_NAME,
    REMEDY,
    WEIGHTS,
    Manifest,
    Shard,
    load_manifest,
    open_shard,
    shard_path,
    verify_file,
    verify_shard,
)
from data_prep.dataset.kinds import split_directories
from data_prep.dataset.multi_hot import SUMS_NAME, TABLES_DIRECTORY, verify_sums
from data_prep.dataset.options import LabelKind
from data_prep.lookup import VOCABULARY_DIRECTORY, VocabularyTexts, text_path, vocabulary_path

CHECKED_ROWS = 1 << 18  # rows of a shard checked at once


def verify_dataset(root: Path) -> Manifest:
    """Check all files of a dataset, and return its manifest; raise UserError for the first fault."""
    manifest = load_manifest(root)
    vocabulary: dict[Path, Any] = {}
    for feature, entry in manifest.encoding.get("vocabulary", {}).items():
        texts = {text_path(root, feature, kind): digest for kind, digest in entry.get("texts", {}).items()}
        vocabulary |= {vocabulary_path(root, feature): entry} | texts
    _refuse_unnamed_files(root, manifest, vocabulary)
    (manifest.kind.verify or verify_rows)(root, manifest)
    for path, digest in vocabulary.items():
        verify_file(path, FileDigest(digest["bytes"], digest["sha256"]))
    for path in sorted((root / TABLES_DIRECTORY).glob(f"*/{SUMS_NAME}")):
        verify_sums(path)
    return manifest


def verify_rows(root: Path, manifest: Manifest) -> None:
    """Check all shards of a dataset of rows, and its label rates; raise UserError for the first fault."""
    positives, has_rate = 0, manifest.label_kind is LabelKind.click
    for name, split in manifest.splits.items():
        split_positives = sum(_check_shard(root, name, shard, manifest) for shard in split.shards)
        _check_rate(root, f"splits.{name}.label_rate", split.label_rate, split_positives, split.rows if has_rate else 0)
        positives += split_positives
    _check_rate(root, "label_rate", manifest.label_rate, positives, manifest.rows if has_rate else 0)


def _refuse_unnamed_files(root: Path, manifest: Manifest, vocabulary: Iterable[Path]) -> None:
    """Refuse the first file in the dataset's directories that the manifest does not name."""
    dataset_files = set(vocabulary)
    for name, split in manifest.splits.items():
        dataset_files |= {shard_path(root, name, shard.name, kind) for shard in split.shards for kind in shard.files}
    for name in dict.fromkeys((*split_directories(), *manifest.splits, VOCABULARY_DIRECTORY)):
        try:
            entries = sorted((root / name).iterdir())
        except FileNotFoundError:
            continue  # a split without rows
        for path in entries:
            if path not in dataset_files:
                raise UserError(f"{path}: does not belong to the dataset, whose manifest does not name it; remove it")


def _check_shard(root: Path, split: str, shard: Shard, manifest: Manifest) -> int:
    """Refuse a shard with a wrong checksum, shape or value; return the number of its labels 1."""

    def refuse(kind: str, bad: NDArray[np.bool_], columns: list[str]) -> None:
        """Raise UserError for the first value that `bad` [rows, columns] marks, in the rows from `start` on."""
        if bad.any():
            row, column = np.argwhere(bad)[0]
            place = f"{shard_path(root, split, shard.name, kind)}: row {start + row + 1}, column {columns[column]}"
            raise UserError(f"{place}: value out of range; preprocess again")

    # Checksums come first, so that a changed file is named as such, not by some value in it.
    verify_shard(root, split, shard)
    features = [name for name in manifest.schema["sparse"] if name not in manifest.ragged]
    arrays = open_shard(root, split, shard, manifest)
    limits = np.array([manifest.num_embeddings[name] for name in features])
    is_number, positives = manifest.label_kind is LabelKind.number, 0
    for start in range(0, shard.rows, CHECKED_ROWS):
        part = arrays.part(start, min(start + CHECKED_ROWS, shard.rows))
        bad = ~np.isfinite(part.labels) if is_number else ~np.isin(part.labels, (0, 1))
        refuse("labels", bad, [manifest.schema["label"]])
        if manifest.encoding["name"] != "torchrec":  # its integers may overflow, as in TorchRec
            refuse("dense", ~np.isfinite(part.dense), manifest.schema["dense"])
        refuse("sparse", (part.sparse < 0) | (part.sparse >= limits), features)
        if part.weights is not None:
            refuse(WEIGHTS, ~(np.isfinite(part.weights) & (part.weights >= 0)), [manifest.weight])
        for feature, bags in zip(manifest.ragged, part.bags, strict=True):
            bad = (bags.lengths < 0) | (bags.offsets[:-1] < 0) | (bags.offsets[1:] > len(bags.values))
            refuse("offsets", bad[:, None], [feature])
            # The bag of a bad id is the one whose offsets enclose the id's place.
            is_outside = (bags.ids < 0) | (bags.ids >= manifest.num_embeddings[feature])
            places = np.flatnonzero(is_outside) + bags.offsets[0]
            bad = np.isin(np.arange(1, len(bags.offsets)), np.searchsorted(bags.offsets, places, "right"))
            refuse("values", bad[:, None], [feature])
        positives += int(np.count_nonzero(part.labels == 1))
    return positives


def _check_rate(root: Path, key: str, rate: float | None, positives: int, rows: int) -> None:
    """Raise UserError if a label rate in the manifest is not positives / rows; without rows it has to be None."""
    actual = positives / rows if rows else None
    same = actual is None if rate is None else actual is not None and abs(actual - rate) <= 1e-12
    if not same:
        raise UserError(f"{root / MANIFEST_NAME}: key {key!r} is {rate}, but in the shards it is {actual}; {REMEDY}")


def main(config: PrepConfig) -> int:
    """Verify the dataset at data.path, print what its columns hold, and return an exit status."""
    # The YAML file of data.source sets data.path, and others, which may so differ from their defaults.
    of_source = {"source", "days", "schema", "remote"} if config.data.source is not None else set()
    refuse(unused_key_faults(config.data, {"path", *of_source}, "on this command"))
    root = config.data.root
    manifest = verify_dataset(root)
    shards = sum(len(split.shards) for split in manifest.splits.values())
    print(
        f"{root}: {manifest.rows:,} {manifest.kind.name} in {shards} shards match the manifest "
        f"(digest {manifest.digest[:12]}…)"
    )
    # A line on each categorical column of a user's own table, with its first values in the order of ids.
    encoding = manifest.encoding
    if encoding.get("keep_texts") is False:
        print("data.keep_texts=false: the texts of the columns' values are not in the dataset")
    for feature, entry in (encoding.get("vocabulary") or {}).items():
        if entry.get("texts"):
            first = encoding["first_id"]
            texts = VocabularyTexts(root, feature, first)
            examples = [repr(texts[first + place][:40]) for place in range(min(5, len(texts)))]
            more = ", …" if len(texts) > len(examples) else ""
            order = encoding["order"].replace("_", " ")
            print(f"{feature}: {len(texts):,} values by {order}: {', '.join(examples)}{more}")
    return EXIT_DONE
