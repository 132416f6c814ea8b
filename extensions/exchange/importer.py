"""Import of other programs' files as shards, with checks."""

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from common.errors import UserError
from common.files import FileDigest, digest_file
from data_prep.dataset.bags import Bags
from data_prep.dataset.format import MANIFEST_NAME, SPLITS, Manifest, Shard, ShardArrays, build_manifest, write_shard
from data_prep.dataset.options import DenseTransform
from data_prep.dataset.schema import CRITEO
from data_prep.encoding.dense import transform_dense
from data_prep.engine.workspace import claimed, publish, refuse_foreign_files
from data_prep.io.arrays import open_array
from extensions.exchange.npz import MultiHotReader

MAX_ID = np.iinfo(np.int32).max
INTEGERS, FLOAT32 = "integers", "float32"


@dataclass(frozen=True)
class ImportSource:
    """Files with labels, dense values and ids of some rows, and the number of rows before them."""

    labels: Path
    dense: Path
    sparse: Path
    first_row: int


def open_rows(path: Path, width: int, kind: str, like: tuple[Path, int] | None = None) -> NDArray[Any]:
    """Map a .npy file [rows, width] of INTEGERS (of any size) or FLOAT32.

    Args:
        like: another file of the same day, and its number of rows.

    Raises:
        UserError: unreadable file, or another shape or dtype.
    """
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


def check_rows(
    labels: NDArray[Any], dense: NDArray[np.float32], ids: Sequence[NDArray[Any]], origin: ImportSource
) -> None:
    """Refuse values that no shard may hold.

    Args:
        labels, dense: [rows, 1] and [rows, N]; ids: [rows, size] for each feature.

    Raises:
        UserError: names the first bad value's file, row (from 1) and column.
    """
    first = origin.first_row
    _refuse(origin.labels, first, [CRITEO.label], labels, (labels != 0) & (labels != 1), "a label is neither 0 nor 1")
    _refuse(origin.dense, first, CRITEO.dense, dense, ~np.isfinite(dense), "not a finite number")
    for name, column in zip(CRITEO.sparse, ids, strict=True):
        if column.min() < 0 or column.max() > MAX_ID:
            bad, names = (column < 0) | (column > MAX_ID), [name] * column.shape[1]
            _refuse(origin.sparse, first, names, column, bad, "an id is negative or beyond int32")


def _refuse(
    path: Path, first: int, names: Sequence[str], values: NDArray[Any], bad: NDArray[np.bool_], why: str
) -> None:
    if bad.any():
        row, column = np.argwhere(bad)[0]
        value = values[row, column]
        raise UserError(
            f"{path}: row {first + row + 1}, column {names[column]}: {value}: {why}; correct the file, or get it again"
        )


SHARD_ROWS = 1 << 18
SHARD_IDS = 1 << 23  # ids in bags: 32 MiB per shard, and a few times that while it is checked and written
IMPORTED = Path("imported")  # in the directory of the job's work
RECORD_COLUMNS = 40


class _Builder:
    """Writes shards, collects their manifest, and publishes both at the end."""

    def __init__(self, root: Path, work: Path, name: str, transform: DenseTransform | None = None) -> None:
        """`work`: the directory from `workspace.claimed`; `transform`: transform of the integers, if known.

        Raises:
            UserError: there is something else at `root`.
        """
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
        self._schema = CRITEO

    def add(
        self, split: str, labels: NDArray[Any], dense: NDArray[Any], ids: Sequence[NDArray[Any]], origin: ImportSource
    ) -> None:
        """Check one shard, and write it.

        Args:
            ids: [rows, size] for each feature; sizes above 1 are bags.
        """
        check_rows(labels, dense, ids, origin)
        ragged = tuple(name for name, column in zip(CRITEO.sparse, ids, strict=True) if column.shape[1] > 1)
        if self._shards and ragged != self._schema.ragged:
            raise UserError(
                f"{origin.sparse}: bags of other sizes than the files before it; give files that belong together"
            )
        self._schema = replace(CRITEO, ragged=ragged)
        multi_hot = [column for column in ids if column.shape[1] > 1]
        offsets = np.arange(len(labels) + 1, dtype=np.int64)
        bags = tuple(Bags(column.reshape(-1), offsets * column.shape[1]) for column in multi_hot)
        single = [column for column in ids if column.shape[1] == 1]
        sparse = np.concatenate(single, axis=1) if single else np.zeros((len(labels), 0), np.int32)
        name = f"{self._num_shards[split]:05d}"
        self._num_shards[split] += 1
        arrays = ShardArrays(labels, dense, sparse, bags)
        dense_dtype = (self._transform or DenseTransform.raw).dtype
        shard = write_shard(self._work / IMPORTED, split, name, arrays, dense_dtype)
        self._shards.append((split, shard, int(labels.sum(dtype=np.int64))))
        self._largest = np.maximum(self._largest, [int(column.max()) for column in ids])

    def note_source(self, path: Path, rows: int) -> None:
        """Record a file that was read."""
        self._sources.append((path.name, digest_file(path), rows))

    def finish(self) -> Manifest:
        """Publish the shards and the manifest."""
        if not any(shard.rows for _, shard, _ in self._shards):
            raise UserError(f"{self._root}: nothing to import; check exchange.source")
        num_embeddings = dict(zip(CRITEO.sparse, (self._largest + 1).tolist(), strict=True))
        manifest = build_manifest(self._schema, self._encoding, num_embeddings, self._shards, self._sources)
        files = [path.relative_to(self._work / IMPORTED) for path in (self._work / IMPORTED).rglob("*.npy")]
        moves = [(str(IMPORTED / file), str(file)) for file in sorted(files)]
        return publish(self._work, self._root, manifest, moves)


def import_npy(source: Path, root: Path, is_multi_hot: bool = False) -> Manifest:
    """Import day_N_{dense,sparse,labels}.npy; halve the last day into val and test as TorchRec's reader does.

    Args:
        is_multi_hot: read ids from day_N_sparse_multi_hot.npz, as in MLPerf v2.

    Raises:
        UserError: missing or invalid files, or another job writes to `root`.
    """
    labels = _find_days(source, is_multi_hot)
    with claimed(root) as work:
        builder = _Builder(root, work, "imported_multi_hot" if is_multi_hot else "imported_npy")
        for index, path in enumerate(labels):
            is_last = index == len(labels) - 1 and len(labels) > 1
            builder.note_source(path, _import_day(builder, path, is_multi_hot, is_last))
        return builder.finish()


def _find_days(source: Path, is_multi_hot: bool) -> list[Path]:
    """Return the label files of all days, in order.

    Raises:
        UserError: no days, a day without one of its files, or a missing day between two others.
    """
    kinds = ("labels.npy", "dense.npy", "sparse_multi_hot.npz" if is_multi_hot else "sparse.npy")
    matches = [re.fullmatch(r"day_(\d+)_(.*)", path.name) for path in source.glob("day_*")]
    days = {int(match[1]): match[1] for match in matches if match and match[2] in kinds}
    if not days:
        raise UserError(f"{source}: no day_N_labels.npy here; check exchange.source")
    for day in range(min(days), max(days) + 1):
        for kind in kinds:
            path = source / f"day_{days.get(day, day)}_{kind}"
            if not path.exists():
                neighbours = f"beside other files of day {day}" if day in days else "between other days"
                raise UserError(f"{path}: no such file {neighbours}; get it, or import what belongs together")
    return [source / f"day_{days[day]}_labels.npy" for day in sorted(days)]


def _import_day(builder: _Builder, path: Path, is_multi_hot: bool, is_last: bool) -> int:
    """Import one day, and return its number of rows."""
    stem = path.name.removesuffix("_labels.npy")
    labels = open_rows(path, 1, INTEGERS)
    rows = len(labels)
    dense_path = path.with_name(f"{stem}_dense.npy")
    dense = open_rows(dense_path, len(CRITEO.dense), FLOAT32, (path, rows))
    sparse_path = path.with_name(f"{stem}_sparse_multi_hot.npz" if is_multi_hot else f"{stem}_sparse.npy")
    reader = MultiHotReader if is_multi_hot else _OneHotReader
    with reader(sparse_path, len(CRITEO.sparse)) as ids:
        if ids.rows != rows:
            raise UserError(f"{sparse_path}: {ids.rows} rows, but {path.name} has {rows}; get them again")
        step = max(1, min(SHARD_ROWS, SHARD_IDS // sum(ids.sizes)))
        half = -(-rows // 2)
        for split, first, stop in [("val", 0, half), ("test", half, rows)] if is_last else [("train", 0, rows)]:
            for start in range(first, stop, step):
                part = slice(start, min(start + step, stop))
                columns = ids.read(part.stop - part.start)
                origin = ImportSource(path, dense_path, sparse_path, start)
                builder.add(split, np.array(labels[part]), np.array(dense[part]), columns, origin)
    return rows


class _OneHotReader:
    """Reader of day_N_sparse.npy [rows, F] with the interface of `MultiHotReader`."""

    def __init__(self, path: Path, features: int) -> None:
        self._array, self._position = open_rows(path, features, INTEGERS), 0
        self.rows, self.sizes = len(self._array), (1,) * features

    def __enter__(self) -> "_OneHotReader":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def read(self, rows: int) -> list[NDArray[Any]]:
        """Return the next rows of each feature, [rows, 1]."""
        part = np.array(self._array[self._position : self._position + rows])
        self._position += rows
        return [part[:, feature : feature + 1] for feature in range(part.shape[1])]


def import_bin(source: Path, root: Path, transform: DenseTransform | None) -> Manifest:
    """Import terabyte_processed_{train,val,test}.bin, and transform their integers (None: by log1p).

    Raises:
        UserError: missing files, incomplete records, or a transform that needs all rows first.
    """
    transform = transform or DenseTransform.log1p
    if transform in (DenseTransform.torchrec, DenseTransform.minmax):
        alternatives = "log1p, log_float32, raw or integers"
        raise UserError(f"data.dense_transform={transform.value}: not possible while importing; use {alternatives}")
    with claimed(root) as work:
        builder = _Builder(root, work, "imported_bin", transform)
        for split in SPLITS:
            _import_records(builder, split, source / f"terabyte_processed_{split}.bin", transform)
        return builder.finish()


def _import_records(builder: _Builder, split: str, path: Path, transform: DenseTransform) -> None:
    if not path.is_file():
        raise UserError(f"{path}: no such file; check exchange.source")
    size = path.stat().st_size
    if size % (4 * RECORD_COLUMNS):
        raise UserError(f"{path}: {size} bytes are not whole records of {4 * RECORD_COLUMNS}; get it again")
    for start, records in _records(path, size // (4 * RECORD_COLUMNS)):
        dense = transform_dense(np.ascontiguousarray(records[:, 1:14]), transform)
        ids = [records[:, column : column + 1] for column in range(14, RECORD_COLUMNS)]
        builder.add(split, records[:, :1], dense, ids, ImportSource(path, path, path, start))
    builder.note_source(path, size // (4 * RECORD_COLUMNS))


def _records(path: Path, rows: int) -> Iterator[tuple[int, NDArray[np.int32]]]:
    """Yield blocks of records, each with the number of its first record."""
    for start in range(0, rows, SHARD_ROWS):
        count = min(SHARD_ROWS, rows - start) * RECORD_COLUMNS
        block = np.fromfile(path, np.int32, count, offset=4 * RECORD_COLUMNS * start)
        yield start, block.reshape(-1, RECORD_COLUMNS)
