"""Datasets to and from the files of other programs, streaming.

    python -m extensions.exchange data.path=DATASET exchange.to=DIRECTORY exchange.format=FORMAT
    python -m extensions.exchange data.path=DATASET exchange.source=DIRECTORY exchange.format=FORMAT

Formats: `npy`, TorchRec's and MLPerf's day_N_{dense,sparse,labels}.npy, the last day holding val, then test;
`bin`, the terabyte_processed_{train,val,test}.bin of NVIDIA's v0.7 submission and DeepSpark: per row 40
int32, the label, the integers as they are in the raw file, the ids.
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from app.commands import COMMANDS
    from common.cli import run

    run(COMMANDS["interchange"])


import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.cli import EXIT_DONE
from common.errors import UserError
from common.files import Need, digest_file, require_room
from common.keys import MISSING, key
from data_prep.dataset.format import (
    MANIFEST_NAME,
    SPLITS,
    Manifest,
    Shard,
    ShardArrays,
    build_manifest,
    load_rows_manifest,
    open_shard,
    write_shard,
)
from data_prep.dataset.options import CRITEO, DenseTransform, Encoding, LabelKind
from data_prep.io import ArrayWriter, open_array
from data_prep.job import claim_work, publish, refuse_foreign_files
from data_prep.lookup import transform_dense
from data_prep.stages.write import FIELD_BYTES


@dataclass(frozen=True)
class DatasetConfig:
    """The dataset to export, or to make from imported files."""

    path: str = key(MISSING, "the dataset's directory", example="data/criteo")
    dense_transform: DenseTransform | None = key(None, "imports of bin: how integers become numbers; null: log1p")


@dataclass(frozen=True)
class ExchangeConfig:
    """The other program's files."""

    to: str | None = key(None, "directory to export to")
    source: str | None = key(None, "directory to import from")
    format: Literal["npy", "bin"] = key("npy", "format of the other program's files")


@dataclass(frozen=True)
class InterchangeConfig:
    """Configuration of `clickwork interchange`."""

    data: DatasetConfig = field(default_factory=DatasetConfig)
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)


BLOCK_ROWS = 1 << 16  # rows exported at once
KINDS = ("labels", "dense", "sparse")


def read_blocks(root: Path, manifest: Manifest, split: str, first: int, stop: int) -> Iterator[ShardArrays]:
    """Yield labels, numbers and ids of the rows first..stop of a split; a dataset to export has no bags or weights."""
    begin = 0
    for shard in manifest.splits[split].shards:
        arrays, end = open_shard(root, split, shard, manifest), min(stop - begin, shard.rows)
        for start in range(max(0, first - begin), end, BLOCK_ROWS):
            yield arrays.part(start, min(start + BLOCK_ROWS, end))
        begin += shard.rows


def days_of(manifest: Manifest) -> list[list[tuple[str, int, int]]]:
    """Return the splits of each day file in order, with their rows [start, stop); the last day is val and test.

    The other days are the raw files if the rows of these make up train; otherwise all of train is one day.
    """
    train = manifest.splits["train"].rows
    rows = [source["rows"] for source in manifest.sources[:-1]]
    bounds = [0, *accumulate(rows if rows and sum(rows) == train else [train])]
    held_out = [(split, 0, manifest.splits[split].rows) for split in ("val", "test")]
    return [*([("train", start, stop)] for start, stop in pairwise(bounds)), held_out]


def export_npy(root: Path, manifest: Manifest, target: Path) -> list[Path]:
    """Write day_N_{dense,sparse,labels}.npy; with the encoding torchrec they equal TorchRec's byte for byte."""
    require_exportable(root, manifest, target)
    days = days_of(manifest)
    # Readers would take files of further days for this dataset's.
    for path in sorted(target.glob("day_*")):
        match = re.fullmatch(r"day_(\d+)_(labels|dense|sparse)\.npy", path.name)
        if match and int(match[1]) >= len(days):
            raise UserError(
                f"{path}: of another dataset, as this one has {len(days)} days; remove it, or export elsewhere"
            )
    is_torchrec = manifest.encoding["name"] in (Encoding.torchrec.value, Encoding.torchrec_fixed.value)
    dtypes: dict[str, Any] = {"labels": np.int32, "dense": np.float32, "sparse": np.int32}
    with _publish_together(target) as (scratch, files):
        for day, parts in enumerate(days):
            rows = sum(stop - start for _, start, stop in parts)
            for kind in KINDS:
                # TorchRec copies its last day unchanged before the shuffle.
                is_wide = kind == "sparse" and day == len(days) - 1 and is_torchrec
                width, dtype = 1 if kind == "labels" else len(manifest.schema[kind]), dtypes[kind]
                name = f"day_{day}_{kind}.npy"
                writer = ArrayWriter(scratch / name, np.int64 if is_wide else dtype, width, rows)
                for part in parts:
                    for block in read_blocks(root, manifest, *part):
                        writer.append(getattr(block, kind))
                writer.close()
                files.append(target / name)
    return files


@contextmanager
def _publish_together(target: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Provide a directory to write to, and a list; at the end the files move to the paths in it, all below `target`."""
    target.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    # On the same file system, finished files move by renaming.
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        yield Path(scratch), files
        for path in files:
            (Path(scratch) / path.name).replace(path)


def require_exportable(root: Path, manifest: Manifest, target: Path) -> None:
    """Refuse a dataset with bags, numbers as labels or weights, which the files cannot hold, and a disk too small."""
    lacks = {
        f"has multi-hot columns ({', '.join(manifest.ragged)})": manifest.ragged,
        "its labels are numbers": manifest.label_kind is LabelKind.number,
        f"its rows have sample weights ({manifest.weight})": manifest.weight,
    }
    if reason := next((words for words, is_so in lacks.items() if is_so), None):
        raise UserError(
            f"data.path={root}: {reason}, which these files cannot hold; read the shards themselves, which are plain "
            "NumPy files"
        )
    columns = 1 + len(manifest.schema["dense"]) + len(manifest.schema["sparse"])
    require_room([Need(target, FIELD_BYTES * manifest.rows * columns, "for the files")])


def export_bin(root: Path, manifest: Manifest, target: Path) -> list[Path]:
    """Write terabyte_processed_{train,val,test}.bin of a dataset that holds the exact raw integers.

    A record has RECORD_COLUMNS int32: the label, the integers, the ids.
    """
    require_exportable(root, manifest, target)
    columns = len(manifest.schema["dense"]), len(manifest.schema["sparse"])
    if columns != (len(CRITEO.dense), len(CRITEO.sparse)):
        raise UserError(
            f"{root}: has {columns[0]} dense and {columns[1]} sparse columns, but a record of .bin files is of "
            f"Criteo's {len(CRITEO.dense)} and {len(CRITEO.sparse)}; use exchange.format=npy"
        )
    transform = manifest.encoding.get("dense_transform")
    if (manifest.encoding.get("table") or {}).get("transforms"):
        transform = "by column"
    if transform not in (DenseTransform.raw.value, DenseTransform.integers.value):
        raise UserError(
            f"{root}: integers are transformed ({transform or 'how, is not known'}), but .bin files hold them as they "
            "are; preprocess, or import, with data.dense_transform=integers"
        )
    with _publish_together(target) as (scratch, files):
        for split, entry in manifest.splits.items():
            files.append(target / f"terabyte_processed_{split}.bin")
            with open(scratch / files[-1].name, "wb") as file:
                for labels, dense, ids, *_ in read_blocks(root, manifest, split, 0, entry.rows):
                    if dense.dtype != np.int32 and np.abs(dense).max(initial=0) >= 2**24:  # such as 2^24 + 1
                        raise UserError(
                            f"{root}: split {split} has an integer of 2^24 or more, which float32 has rounded; "
                            "preprocess with data.dense_transform=integers to export it as bin"
                        )
                    integers = dense.astype(np.int32)
                    if (integers != dense).any():
                        raise UserError(
                            f"{root}: split {split} has a number with a fraction, which .bin files cannot hold"
                        )
                    file.write(np.concatenate((labels, integers, ids), axis=1).astype(np.int32).data)
    return files


MAX_ID = np.iinfo(np.int32).max


def open_rows(path: Path, kind: str, width: int) -> NDArray[Any]:
    """Map a .npy file [rows, width] of one of KINDS: float32 for `dense`, else integers of any size."""
    try:
        array = open_array(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not readable as a NumPy file ({error}); get it again") from error
    if array.ndim != 2 or array.shape[1] != width:
        raise UserError(f"{path}: an array {array.shape}, not (rows, {width}); get it again")
    expected = "float32" if kind == "dense" else "integers"
    if array.dtype != np.float32 if kind == "dense" else array.dtype.kind not in "iu":
        raise UserError(f"{path}: {array.dtype}, not {expected}; convert it, or get it again")
    return array


SHARD_ROWS = 1 << 18  # rows of an imported shard
IMPORTED = Path("imported")  # in the directory of the job's work
RECORD_COLUMNS = 40  # numbers of a row in a .bin file: label, 13 integers, 26 ids


class ImportedRows(NamedTuple):
    """Rows of one shard: labels, numbers and ids [rows, columns].

    paths: file of the labels, of the numbers and of the ids. first: rows before these there.
    """

    split: str
    arrays: Sequence[NDArray[Any]]
    paths: Sequence[Path]
    first: int


def import_rows(
    root: Path, name: str, blocks: Iterable[ImportedRows], transform: DenseTransform | None = None
) -> Manifest:
    """Write rows to shards, and publish them with their manifest; refuse values that no shard may hold.

    transform: transform of the numbers, if known.
    """
    with claim_work(root) as work:
        if (root / MANIFEST_NAME).exists():
            raise UserError(f"{root}: holds a dataset already; choose another data.path")
        refuse_foreign_files(root, work, ())
        shutil.rmtree(work / IMPORTED, ignore_errors=True)
        shards: list[tuple[str, Shard, int]] = []
        largest, num_shards, rows_of = np.zeros(len(CRITEO.sparse), np.int64), Counter[str](), Counter[Path]()
        for split, arrays, paths, first in blocks:
            labels, dense, ids = arrays
            checks = (
                ([CRITEO.label], labels, (labels != 0) & (labels != 1), "a label is neither 0 nor 1"),
                (CRITEO.dense, dense, ~np.isfinite(dense), "not a finite number"),
                (CRITEO.sparse, ids, (ids < 0) | (ids > MAX_ID), "an id is negative or beyond int32"),
            )
            for path, (names, values, is_bad, why) in zip(paths, checks, strict=True):
                if is_bad.any():
                    row, column = np.argwhere(is_bad)[0]
                    place = f"row {first + row + 1}, column {names[column]}: {values[row, column]}"
                    raise UserError(f"{path}: {place}: {why}; correct the file, or get it again")
            shard_arrays = ShardArrays(labels, dense, ids)
            dense_dtype = (transform or DenseTransform.raw).dtype
            shard = write_shard(work / IMPORTED, split, f"{num_shards[split]:05d}", shard_arrays, dense_dtype)
            shards.append((split, shard, int(labels.sum(dtype=np.int64))))
            largest = np.maximum(largest, ids.max(axis=0))
            num_shards[split] += 1
            rows_of[paths[0]] += len(labels)
        if not shards:
            raise UserError(f"{root}: nothing to import; check exchange.source")
        num_embeddings = dict(zip(CRITEO.sparse, (largest + 1).tolist(), strict=True))
        encoding = {"name": name, "dense_transform": transform and transform.value, "raw_schema": None}
        sources = [(path.name, digest_file(path), rows) for path, rows in rows_of.items()]
        manifest = build_manifest(CRITEO, encoding, num_embeddings, shards, sources)
        files = sorted(path.relative_to(work / IMPORTED) for path in (work / IMPORTED).rglob("*.npy"))
        return publish(work, root, manifest, [(str(IMPORTED / file), str(file)) for file in files])


def import_npy(source: Path, root: Path) -> Manifest:
    """Import day_N_{dense,sparse,labels}.npy; the last of several days is val and test, as in TorchRec's reader."""
    matches = [re.fullmatch(r"day_(0|[1-9]\d*)_(labels|dense|sparse)\.npy", path.name) for path in source.glob("day_*")]
    days = sorted({int(match[1]) for match in matches if match})
    if not days:
        raise UserError(f"{source}: no day_N_labels.npy here; check exchange.source")
    for day in range(days[0], days[-1] + 1):
        for kind in KINDS:
            if not (path := source / f"day_{day}_{kind}.npy").exists():
                neighbours = f"beside other files of day {day}" if day in days else "between other days"
                raise UserError(f"{path}: no such file {neighbours}; get it, or import what belongs together")

    def read_days() -> Iterator[ImportedRows]:
        widths = (1, len(CRITEO.dense), len(CRITEO.sparse))
        for day in days:
            paths = [source / f"day_{day}_{kind}.npy" for kind in KINDS]
            arrays = list(map(open_rows, paths, KINDS, widths))
            rows = len(arrays[0])
            for path, array in zip(paths, arrays, strict=True):
                if len(array) != rows:
                    raise UserError(f"{path}: {len(array)} rows, but {paths[0].name} has {rows}; get them again")
            is_last, half = day == days[-1] and len(days) > 1, -(-rows // 2)
            for split, first, stop in [("val", 0, half), ("test", half, rows)] if is_last else [("train", 0, rows)]:
                for start in range(first, stop, SHARD_ROWS):
                    part = slice(start, min(start + SHARD_ROWS, stop))
                    yield ImportedRows(split, [np.array(array[part]) for array in arrays], paths, start)

    return import_rows(root, "imported_npy", read_days())


def import_bin(source: Path, root: Path, transform: DenseTransform | None) -> Manifest:
    """Import terabyte_processed_{train,val,test}.bin, and transform their integers (None: by log1p)."""
    transform = transform or DenseTransform.log1p
    if transform in (DenseTransform.torchrec, DenseTransform.minmax):
        alternatives = "log1p, log_float32, raw or integers"
        raise UserError(f"data.dense_transform={transform.value}: not possible while importing; use {alternatives}")

    def read_records() -> Iterator[ImportedRows]:
        for split in SPLITS:
            path = source / f"terabyte_processed_{split}.bin"
            if not path.is_file():
                raise UserError(f"{path}: no such file; check exchange.source")
            size = path.stat().st_size
            rows, rest = divmod(size, 4 * RECORD_COLUMNS)
            if rest:
                raise UserError(f"{path}: {size} bytes are not whole records of {4 * RECORD_COLUMNS}; get it again")
            for start in range(0, rows, SHARD_ROWS):
                count, offset = min(SHARD_ROWS, rows - start), 4 * RECORD_COLUMNS * start
                records = np.fromfile(path, np.int32, count * RECORD_COLUMNS, offset=offset).reshape(count, -1)
                # A record is the label, 13 integers and 26 ids, as Criteo's rows.
                dense = transform_dense(np.ascontiguousarray(records[:, 1:14]), transform)
                yield ImportedRows(split, (records[:, :1], dense, records[:, 14:]), [path] * 3, start)

    return import_rows(root, "imported_bin", read_records(), transform)


def main(config: InterchangeConfig) -> int:
    """Export or import as configured, and return an exit status."""
    root, exchange, transform = Path(config.data.path), config.exchange, config.data.dense_transform
    exports, is_bin = exchange.to is not None, exchange.format == "bin"
    if exports == (exchange.source is not None):
        raise UserError("exchange: give either exchange.to, to export, or exchange.source, to import")
    if transform is not None and (exports or not is_bin):
        raise UserError("data.dense_transform: has no effect but where exchange.format=bin is imported; leave it out")
    directory = Path(exchange.to or exchange.source or "")
    try:
        if exports:
            manifest = load_rows_manifest(root)
            export = export_bin if is_bin else export_npy
            print(f"{directory}: {len(export(root, manifest, directory))} files of {manifest.rows:,} rows")
            return EXIT_DONE
        manifest = import_bin(directory, root, transform) if is_bin else import_npy(directory, root)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{error.filename or exchange.to or root}: {reason}; check the paths and the disk") from error
    print(f"{root}: {manifest.rows:,} rows imported from {', '.join(source['name'] for source in manifest.sources)}")
    return EXIT_DONE
