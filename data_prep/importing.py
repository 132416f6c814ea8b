"""Files of other programs as our shards."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.choices import DenseTransform
from data_prep.dense import transform_dense
from data_prep.format import (
    MANIFEST_NAME,
    Manifest,
    Shard,
    ShardArrays,
    Split,
    digest_file,
    save_manifest,
    write_shard,
)
from data_prep.schema import CRITEO
from data_prep.sources import natural_key

SHARD_ROWS = 1 << 20
SPLITS = ("train", "val", "test")
RECORD_COLUMNS = 40


class _Builder:
    """Collects shards and what the manifest says of them."""

    def __init__(self, root: Path, name: str) -> None:
        if (root / MANIFEST_NAME).exists():
            raise UserError(f"{root}: holds a dataset already; choose another data.path")
        self._root, self._name = root, name
        self._shards: dict[str, list[Shard]] = {split: [] for split in SPLITS}
        self._positives = dict.fromkeys(SPLITS, 0)
        self._largest = np.zeros(len(CRITEO.sparse), np.int64)
        self._sources: list[dict[str, Any]] = []

    def add(self, split: str, labels: NDArray[Any], dense: NDArray[Any], sparse: NDArray[Any], where: Path) -> None:
        """Write one shard, after checking what a reader relies on."""
        if labels.min() < 0 or labels.max() > 1:
            raise UserError(f"{where}: a label is neither 0 nor 1; not a file of this format")
        if sparse.min() < 0 or sparse.max() > np.iinfo(np.int32).max:
            raise UserError(f"{where}: an id is negative or beyond int32; not a file of this format")
        name = f"{len(self._shards[split]):05d}"
        self._shards[split].append(write_shard(self._root, split, name, ShardArrays(labels, dense, sparse)))
        self._positives[split] += int(labels.sum(dtype=np.int64))
        self._largest = np.maximum(self._largest, sparse.max(axis=0))

    def note_source(self, path: Path, rows: int) -> None:
        """Name a file that was read."""
        digest = digest_file(path)
        self._sources.append({"name": path.name, "bytes": digest.bytes, "sha256": digest.sha256, "rows": rows})

    def finish(self, transform: str | None) -> Manifest:
        """Write the manifest."""
        splits = {}
        for split, shards in self._shards.items():
            rows = sum(shard.rows for shard in shards)
            splits[split] = Split(rows, self._positives[split] / rows if rows else None, shards)
        total = sum(split.rows for split in splits.values())
        if not total:
            raise UserError(f"{self._root}: nothing to import; check exchange.source")
        manifest = Manifest(
            schema=CRITEO.to_manifest(),
            encoding={"name": self._name, "dense_transform": transform, "raw_schema": None},
            num_embeddings=dict(zip(CRITEO.sparse, (self._largest + 1).tolist(), strict=True)),
            splits=splits,
            sources=self._sources,
            rows=total,
            label_rate=sum(self._positives.values()) / total,
            tool_version="clickwork 0.1.0",
        )
        save_manifest(self._root, manifest)
        return manifest


def import_npy(source: Path, root: Path, is_multi_hot: bool = False) -> Manifest:
    """Take over day_N_{dense,sparse,labels}.npy, halving the last day into val and test as TorchRec's reader does.

    Of multi-hot bags the first id is taken, which is the one the others follow from (data_prep/multi_hot.py).

    Raises:
        UserError: no such files, or not what they should be.
    """
    labels = sorted(source.glob("day_*_labels.npy"), key=natural_key)
    if not labels:
        raise UserError(f"{source}: no day_N_labels.npy here; check exchange.source")
    builder = _Builder(root, "imported_multi_hot" if is_multi_hot else "imported_npy")
    for index, path in enumerate(labels):
        arrays = _open_day(path, is_multi_hot)
        rows = len(arrays[0])
        half = -(-rows // 2)
        is_last = index == len(labels) - 1 and len(labels) > 1
        parts = [("val", 0, half), ("test", half, rows)] if is_last else [("train", 0, rows)]
        for split, first, stop in parts:
            for start in range(first, stop, SHARD_ROWS):
                end = min(start + SHARD_ROWS, stop)
                labels_part, dense, sparse = (np.array(array[start:end]) for array in arrays)
                builder.add(split, labels_part, dense, sparse, path)
        builder.note_source(path, rows)
    return builder.finish(None)


def _open_day(labels: Path, is_multi_hot: bool) -> list[NDArray[Any]]:
    """labels [rows, 1], dense, sparse of a day, memory-mapped."""
    stem = labels.name.removesuffix("_labels.npy")
    dense = _open(labels.with_name(f"{stem}_dense.npy"))
    if is_multi_hot:
        sparse = _first_ids(labels.with_name(f"{stem}_sparse_multi_hot.npz"))
    else:
        sparse = _open(labels.with_name(f"{stem}_sparse.npy"))
    arrays = [_open(labels), dense, sparse]
    rows = len(arrays[0])
    expected = [(rows, 1), (rows, len(CRITEO.dense)), (rows, len(CRITEO.sparse))]
    if [array.shape for array in arrays] != expected:
        raise UserError(f"{labels}: its day's arrays are {[a.shape for a in arrays]}, not {expected}; get them again")
    return arrays


def _open(path: Path) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not readable as a NumPy file ({error}); get it again") from error


def _first_ids(path: Path) -> NDArray[Any]:
    """The first id of every bag, [rows, F]."""
    try:
        with np.load(path, allow_pickle=False) as members:
            columns = [members[str(feature)][:, 0] for feature in range(len(CRITEO.sparse))]
    except (OSError, ValueError, KeyError, IndexError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: not readable as multi-hot bags ({error}); get it again") from error
    return np.stack(columns, axis=1)


def import_bin(source: Path, root: Path, transform: DenseTransform | None) -> Manifest:
    """Take over terabyte_processed_{train,val,test}.bin, transforming their integers (log1p unless told otherwise).

    Raises:
        UserError: no such files, not whole records, or a transform that needs all rows first.
    """
    transform = transform or DenseTransform.log1p
    if transform in (DenseTransform.torchrec, DenseTransform.minmax):
        raise UserError(f"data.dense_transform={transform.value}: not possible while importing; use log1p or raw")
    builder = _Builder(root, "imported_bin")
    for split in SPLITS:
        path = source / f"terabyte_processed_{split}.bin"
        if not path.is_file():
            raise UserError(f"{path}: no such file; check exchange.source")
        size = path.stat().st_size
        if size % (4 * RECORD_COLUMNS):
            raise UserError(f"{path}: {size} bytes are not whole records of {4 * RECORD_COLUMNS}; get it again")
        for records in _records(path, size // (4 * RECORD_COLUMNS)):
            dense = transform_dense(np.ascontiguousarray(records[:, 1:14]), transform)
            builder.add(split, records[:, :1], dense, records[:, 14:], path)
        builder.note_source(path, size // (4 * RECORD_COLUMNS))
    return builder.finish(transform.value)


def _records(path: Path, rows: int) -> Iterator[NDArray[np.int32]]:
    for start in range(0, rows, SHARD_ROWS):
        count = min(SHARD_ROWS, rows - start) * RECORD_COLUMNS
        yield np.fromfile(path, np.int32, count, offset=4 * RECORD_COLUMNS * start).reshape(-1, RECORD_COLUMNS)
