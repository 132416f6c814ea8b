"""Import of other programs' files as shards, with checks."""

import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from common.files import FileDigest, digest_file
from data_prep.dataset.format import MANIFEST_NAME, SPLITS, Manifest, Shard, ShardArrays, build_manifest, write_shard
from data_prep.dataset.options import DenseTransform
from data_prep.dataset.schema import CRITEO
from data_prep.encoding.dense import transform_dense
from data_prep.engine.workspace import claimed, publish, refuse_foreign_files
from data_prep.io.arrays import open_array

MAX_ID = np.iinfo(np.int32).max
INTEGERS, FLOAT32 = "integers", "float32"
KINDS = ("labels", "dense", "sparse")


def open_rows(path: Path, width: int, kind: str, like: tuple[Path, int] | None = None) -> NDArray[Any]:
    """Map a .npy file [rows, width] of INTEGERS (of any size) or FLOAT32; like: a file of its day, and its rows."""
    try:
        array = open_array(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not readable as a NumPy file ({error}); get it again") from error
    if array.ndim != 2 or array.shape[1] != width:
        raise UserError(f"{path}: an array {array.shape}, not (rows, {width}); get it again")
    if array.dtype != np.float32 if kind == FLOAT32 else array.dtype.kind not in "iu":
        raise UserError(f"{path}: {array.dtype}, not {kind}; convert it, or get it again")
    if like is not None and len(array) != like[1]:
        raise UserError(f"{path}: {len(array)} rows, but {like[0].name} has {like[1]}; get them again")
    return array


def check_rows(arrays: Sequence[NDArray[Any]], paths: Sequence[Path], first: int) -> None:
    """Refuse labels, numbers and ids, [rows, columns] each, that no shard may hold, by file, row and column."""
    labels, dense, ids = arrays
    checks = (
        ([CRITEO.label], labels, (labels != 0) & (labels != 1), "a label is neither 0 nor 1"),
        (CRITEO.dense, dense, ~np.isfinite(dense), "not a finite number"),
        (CRITEO.sparse, ids, (ids < 0) | (ids > MAX_ID), "an id is negative or beyond int32"),
    )
    for path, (names, values, bad, why) in zip(paths, checks, strict=True):
        if bad.any():
            row, column = np.argwhere(bad)[0]
            place = f"row {first + row + 1}, column {names[column]}: {values[row, column]}"
            raise UserError(f"{path}: {place}: {why}; correct the file, or get it again")


SHARD_ROWS = 1 << 18
IMPORTED = Path("imported")  # in the directory of the job's work
RECORD_COLUMNS = 40


class _Builder:
    """Writes shards, collects their manifest, and publishes both at the end."""

    def __init__(self, root: Path, work: Path, name: str, transform: DenseTransform | None = None) -> None:
        """work: the directory from `workspace.claimed`; transform: transform of the integers, if known."""
        if (root / MANIFEST_NAME).exists():
            raise UserError(f"{root}: holds a dataset already; choose another data.path")
        refuse_foreign_files(root, work, ())
        shutil.rmtree(work / IMPORTED, ignore_errors=True)
        self._root, self._work, self._transform = root, work, transform
        self._encoding = {"name": name, "dense_transform": transform and transform.value, "raw_schema": None}
        self._num_shards: Counter[str] = Counter()
        self._shards: list[tuple[str, Shard, int]] = []
        self._largest = np.zeros(len(CRITEO.sparse), np.int64)
        self._sources: list[tuple[str, FileDigest, int]] = []

    def add(self, split: str, arrays: Sequence[NDArray[Any]], paths: Sequence[Path], first: int) -> None:
        """Check one shard of the rows from `first` on of these files, and write it."""
        check_rows(arrays, paths, first)
        labels, dense, ids = arrays
        name = f"{self._num_shards[split]:05d}"
        self._num_shards[split] += 1
        dense_dtype = (self._transform or DenseTransform.raw).dtype
        shard = write_shard(self._work / IMPORTED, split, name, ShardArrays(labels, dense, ids), dense_dtype)
        self._shards.append((split, shard, int(labels.sum(dtype=np.int64))))
        self._largest = np.maximum(self._largest, ids.max(axis=0))

    def note_source(self, path: Path, rows: int) -> None:
        """Record a file that was read."""
        self._sources.append((path.name, digest_file(path), rows))

    def finish(self) -> Manifest:
        """Publish the shards and the manifest."""
        if not any(shard.rows for _, shard, _ in self._shards):
            raise UserError(f"{self._root}: nothing to import; check exchange.source")
        num_embeddings = dict(zip(CRITEO.sparse, (self._largest + 1).tolist(), strict=True))
        manifest = build_manifest(CRITEO, self._encoding, num_embeddings, self._shards, self._sources)
        files = [path.relative_to(self._work / IMPORTED) for path in (self._work / IMPORTED).rglob("*.npy")]
        moves = [(str(IMPORTED / file), str(file)) for file in sorted(files)]
        return publish(self._work, self._root, manifest, moves)


def import_npy(source: Path, root: Path) -> Manifest:
    """Import day_N_{dense,sparse,labels}.npy; halve the last day into val and test as TorchRec's reader does."""
    days = _find_days(source)
    with claimed(root) as work:
        builder = _Builder(root, work, "imported_npy")
        for index, day in enumerate(days):
            paths = [source / f"day_{day}_{kind}.npy" for kind in KINDS]
            labels = open_rows(paths[0], 1, INTEGERS)
            rows = len(labels)
            dense = open_rows(paths[1], len(CRITEO.dense), FLOAT32, (paths[0], rows))
            ids = open_rows(paths[2], len(CRITEO.sparse), INTEGERS, (paths[0], rows))
            is_last, half = index == len(days) - 1 and len(days) > 1, -(-rows // 2)
            for split, first, stop in [("val", 0, half), ("test", half, rows)] if is_last else [("train", 0, rows)]:
                for start in range(first, stop, SHARD_ROWS):
                    part = slice(start, min(start + SHARD_ROWS, stop))
                    arrays = [np.array(array[part]) for array in (labels, dense, ids)]
                    builder.add(split, arrays, paths, start)
            builder.note_source(paths[0], rows)
        return builder.finish()


def _find_days(source: Path) -> list[str]:
    """Return the names of all days, in order; refuse a missing day between two others, and a day that lacks a file."""
    matches = [re.fullmatch(r"day_(\d+)_(\w+)\.npy", path.name) for path in source.glob("day_*")]
    days = {int(match[1]): match[1] for match in matches if match and match[2] in KINDS}
    if not days:
        raise UserError(f"{source}: no day_N_labels.npy here; check exchange.source")
    for day in range(min(days), max(days) + 1):
        for kind in KINDS:
            path = source / f"day_{days.get(day, day)}_{kind}.npy"
            if not path.exists():
                neighbours = f"beside other files of day {day}" if day in days else "between other days"
                raise UserError(f"{path}: no such file {neighbours}; get it, or import what belongs together")
    return [days[day] for day in sorted(days)]


def import_bin(source: Path, root: Path, transform: DenseTransform | None) -> Manifest:
    """Import terabyte_processed_{train,val,test}.bin, and transform their integers (None: by log1p)."""
    transform = transform or DenseTransform.log1p
    if transform in (DenseTransform.torchrec, DenseTransform.minmax):
        alternatives = "log1p, log_float32, raw or integers"
        raise UserError(f"data.dense_transform={transform.value}: not possible while importing; use {alternatives}")
    with claimed(root) as work:
        builder = _Builder(root, work, "imported_bin", transform)
        for split in SPLITS:
            path = source / f"terabyte_processed_{split}.bin"
            if not path.is_file():
                raise UserError(f"{path}: no such file; check exchange.source")
            rows, rest = divmod(path.stat().st_size, 4 * RECORD_COLUMNS)
            if rest:
                whole = f"whole records of {4 * RECORD_COLUMNS}"
                raise UserError(f"{path}: {path.stat().st_size} bytes are not {whole}; get it again")
            for start in range(0, rows, SHARD_ROWS):
                count, offset = min(SHARD_ROWS, rows - start), 4 * RECORD_COLUMNS * start
                records = np.fromfile(path, np.int32, count * RECORD_COLUMNS, offset=offset).reshape(count, -1)
                dense = transform_dense(np.ascontiguousarray(records[:, 1:14]), transform)
                builder.add(split, (records[:, :1], dense, records[:, 14:]), [path] * 3, start)
            builder.note_source(path, rows)
        return builder.finish()
