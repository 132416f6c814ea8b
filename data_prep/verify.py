"""Check a dataset against its manifest: sums, shapes, ranges, counts, label rates.

python -m data_prep.verify data.path=DATASET
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.cli import EXIT_DONE, run_command
from common.errors import UserError
from data_prep.config import PrepConfig, dataset_path
from data_prep.format import Manifest, Shard, digest_file, load_manifest, open_shard, shard_path, verify_shard
from data_prep.lookup import vocabulary_path
from data_prep.ragged import Bags

CONFIG_DIRECTORY = Path(__file__).parent / "conf"
CHECKED_ROWS = 1 << 18
RATE_TOLERANCE = 1e-12


def verify_dataset(root: Path) -> Manifest:
    """Check everything; the manifest if all is well.

    Raises:
        UserError: naming the first bad file, row and column.
    """
    manifest = load_manifest(root)
    rows = positives = 0
    for name, split in manifest.splits.items():
        found = [_verify_shard(root, name, shard, manifest) for shard in split.shards]
        split_rows, split_positives = sum(shard.rows for shard in split.shards), sum(found)
        _check_rate(root, f"split {name}", split.rows, split.label_rate, split_rows, split_positives)
        rows += split_rows
        positives += split_positives
    _check_rate(root, "the dataset", manifest.rows, manifest.label_rate, rows, positives)
    for feature, entry in manifest.encoding.get("vocabulary", {}).items():
        path = vocabulary_path(root, feature)
        if not path.is_file() or digest_file(path).sha256 != entry["sha256"]:
            raise UserError(f"{path}: missing or changed; preprocess again")
    return manifest


def _verify_shard(root: Path, split: str, shard: Shard, manifest: Manifest) -> int:
    """Check one shard; the number of its positive labels."""
    verify_shard(root, split, shard)
    features = [name for name in manifest.schema["sparse"] if name not in manifest.ragged]
    arrays = open_shard(root, split, shard, manifest)
    for feature, bags in zip(manifest.ragged, arrays.bags, strict=True):
        _verify_bags(root, split, shard, feature, bags, manifest.num_embeddings[feature])
    limits = np.array([manifest.num_embeddings[name] for name in features])
    positives = 0
    for start in range(0, shard.rows, CHECKED_ROWS):
        labels = arrays.labels[start : start + CHECKED_ROWS, 0]
        dense = arrays.dense[start : start + CHECKED_ROWS]
        sparse = arrays.sparse[start : start + CHECKED_ROWS]
        _refuse(root, split, shard, "labels", start, ~np.isin(labels, (0, 1))[:, None], [manifest.schema["label"]])
        if manifest.encoding["name"] != "torchrec":  # there integers may overflow, as they do in TorchRec
            _refuse(root, split, shard, "dense", start, ~np.isfinite(dense), manifest.schema["dense"])
        _refuse(root, split, shard, "sparse", start, (sparse < 0) | (sparse >= limits), features)
        positives += int(labels.sum(dtype=np.int64))
    return positives


def _verify_bags(root: Path, split: str, shard: Shard, feature: str, bags: Bags, limit: int) -> None:
    """Check the bags of one multi-hot feature: offsets that rise within the values, ids of its table."""
    for start in range(0, shard.rows, CHECKED_ROWS):
        part = bags.part(start, min(start + CHECKED_ROWS, shard.rows))
        bad = (part.lengths < 0) | (part.offsets[:-1] < 0) | (part.offsets[1:] > len(part.values))
        _refuse(root, split, shard, "offsets", start, bad[:, None], [feature])
        wrong = np.flatnonzero((part.ids < 0) | (part.ids >= limit))
        bad = np.isin(np.arange(1, len(part.offsets)), np.searchsorted(part.offsets, wrong + part.offsets[0], "right"))
        _refuse(root, split, shard, "values", start, bad[:, None], [feature])


def _refuse(
    root: Path,
    split: str,
    shard: Shard,
    kind: str,
    start: int,
    bad: NDArray[Any],
    columns: list[str],
) -> None:
    """Name the first bad value, if there is one."""
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise UserError(
            f"{shard_path(root, split, shard.name, kind)}: row {start + row + 1}, column {columns[column]}: "
            "value out of range; preprocess again"
        )


def _check_rate(root: Path, what: str, rows: int, rate: float | None, found_rows: int, found_positives: int) -> None:
    found = found_positives / found_rows if found_rows else None
    same = found is None if rate is None else found is not None and abs(found - rate) <= RATE_TOLERANCE
    if rows != found_rows or not same:
        raise UserError(
            f"{root}: the manifest gives {what} {rows} rows with label rate {rate}, "
            f"its shards have {found_rows} with {found}; preprocess again"
        )


def main(config: PrepConfig) -> int:
    """Verify the dataset at data.path; an exit status."""
    root = dataset_path(config.data)
    manifest = verify_dataset(root)
    shards = sum(len(split.shards) for split in manifest.splits.values())
    print(
        f"{root}: {manifest.rows:,} rows in {shards} shards are as the manifest says (digest {manifest.digest[:12]}…)"
    )
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(run_command(main, PrepConfig, CONFIG_DIRECTORY))
