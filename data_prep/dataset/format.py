"""The on-disk contract of a dataset: a manifest and shards of plain NumPy files.

    <root>/manifest.json
    <root>/<split>/<shard>.{labels,dense,sparse}.npy
    <root>/<split>/<shard>.{values,offsets}.npy         if features are multi-hot: see data_prep/dataset/bags.py
    <root>/<split>/<shard>.weights.npy                  if the rows have sample weights
    <root>/vocab/

The manifest (data_prep/dataset/manifest.py) is written last and atomically: a directory without one is not a dataset.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from common.errors import UserError
from common.files import FileDigest, digest_file
from data_prep.dataset.bags import Bags, pack, unpack
from data_prep.dataset.manifest import MANIFEST_NAME as MANIFEST_NAME
from data_prep.dataset.manifest import SPLITS as SPLITS
from data_prep.dataset.manifest import WEIGHTS as WEIGHTS
from data_prep.dataset.manifest import Manifest as Manifest
from data_prep.dataset.manifest import Shard as Shard
from data_prep.dataset.manifest import Split as Split
from data_prep.dataset.manifest import build_manifest as build_manifest
from data_prep.dataset.manifest import load_manifest as load_manifest
from data_prep.dataset.manifest import load_rows_manifest as load_rows_manifest
from data_prep.dataset.manifest import save_manifest as save_manifest
from data_prep.io.arrays import open_array, will_need, write_array

REMEDY = "preprocess again with data.overwrite=true"
ARRAY_DTYPES: dict[str, DTypeLike] = {
    "labels": np.int32,
    "dense": np.float32,
    "sparse": np.int32,
    "values": np.int32,
    "offsets": np.int64,
    WEIGHTS: np.float32,
}
ROW_KINDS = ("labels", "dense", "sparse")  # arrays with one row per sample, which all datasets have


class ShardArrays(NamedTuple):
    """One shard, memory-mapped: labels [rows, 1] int32, dense [rows, N] float32, sparse [rows, F] int32.

    Labels of kind `number` are float32; dense is int32 with the transform `integers`. If features are multi-hot,
    `sparse` has only the columns of the other features, and `bags` has one entry per multi-hot feature. `weights`
    [rows, 1] float32 are sample weights, if there are any.
    """

    labels: NDArray[Any]
    dense: NDArray[np.float32]
    sparse: NDArray[np.int32]
    bags: tuple[Bags, ...] = ()
    weights: NDArray[np.float32] | None = None

    def part(self, start: int, stop: int) -> "ShardArrays":
        """Return rows [start, stop) of a whole shard as views, and let the system read them ahead."""
        for array in self[:3]:
            will_need(array, start, stop)
        rows = slice(start, stop)
        bags = tuple(bags.part(start, stop) for bags in self.bags)
        weights = None if self.weights is None else self.weights[rows]
        return ShardArrays(self.labels[rows], self.dense[rows], self.sparse[rows], bags, weights)


def write_shard(
    root: Path, split: str, name: str, arrays: ShardArrays, dense_dtype: DTypeLike = ARRAY_DTYPES["dense"]
) -> Shard:
    """Write one shard's files and return its entry for the manifest."""
    files = {}
    dtypes = {**ARRAY_DTYPES, "dense": dense_dtype}
    kinds: dict[str, NDArray[Any]] = {"labels": arrays.labels, "dense": arrays.dense, "sparse": arrays.sparse}
    if arrays.bags:
        kinds["values"], kinds["offsets"] = pack(arrays.bags)
    for kind, array in kinds.items():
        path = shard_path(root, split, name, kind)
        path.parent.mkdir(parents=True, exist_ok=True)
        files[kind] = write_array(path, np.ascontiguousarray(array, dtype=dtypes[kind]))
    return Shard(name=name, rows=len(arrays.labels), files=files)


def open_shard(root: Path, split: str, shard: Shard, manifest: Manifest) -> ShardArrays:
    """Memory-map one shard and check its files' sizes, shapes and dtypes (not their checksums: `verify_shard`)."""

    def open_array(kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
        return _open_array(root, split, shard, kind, (shape, dtypes.get(kind, np.dtype(ARRAY_DTYPES[kind]))))

    dtypes = {"labels": manifest.label_kind.dtype, "dense": manifest.dense_dtype}
    num_ragged = len(manifest.ragged)
    labels = open_array("labels", (shard.rows, 1))
    dense = open_array("dense", (shard.rows, len(manifest.schema["dense"])))
    sparse = open_array("sparse", (shard.rows, len(manifest.schema["sparse"]) - num_ragged))
    weights = open_array(WEIGHTS, (shard.rows, 1)) if manifest.weight else None
    if not num_ragged:
        return ShardArrays(labels, dense, sparse, weights=weights)
    offsets = open_array("offsets", (num_ragged * shard.rows + 1,))
    values = open_array("values", (int(offsets[-1]),))
    return ShardArrays(labels, dense, sparse, unpack(values, offsets, num_ragged), weights)


def mean_bag_sizes(root: Path, manifest: Manifest, split: str = "train") -> dict[str, float]:
    """Return the mean number of ids per bag of each multi-hot feature; empty if the split has no rows."""
    ids, rows = np.zeros(len(manifest.ragged)), 0
    shards = manifest.splits[split].shards if manifest.ragged and split in manifest.splits else []
    for shard in (shard for shard in shards if shard.rows):
        kind = ((len(manifest.ragged) * shard.rows + 1,), np.dtype(ARRAY_DTYPES["offsets"]))
        ids += np.diff(_open_array(root, split, shard, "offsets", kind)[:: shard.rows])
        rows += shard.rows
    return dict(zip(manifest.ragged, (ids / rows).tolist(), strict=True)) if rows else {}


def _open_array(
    root: Path, split: str, shard: Shard, kind: str, expected: tuple[tuple[int, ...], np.dtype[Any]]
) -> NDArray[Any]:
    path = shard_path(root, split, shard.name, kind)
    try:
        size = path.stat().st_size
        if size != shard.files[kind].bytes:
            raise UserError(f"{path}: {size} bytes, but the manifest says {shard.files[kind].bytes}; {REMEDY}")
        array = open_array(path)
    except KeyError as error:
        raise UserError(f"{path}: the manifest does not name it; {REMEDY}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: file not readable ({error}); {REMEDY}") from error
    if (array.shape, array.dtype) != expected:
        shape, dtype = expected
        raise UserError(f"{path}: {array.dtype} {array.shape}, but the manifest says {dtype} {shape}; {REMEDY}")
    if not array.flags.c_contiguous:
        raise UserError(f"{path}: column by column (Fortran's order), but shards are row by row; {REMEDY}")
    return array


def verify_shard(root: Path, split: str, shard: Shard) -> None:
    """Compare one shard's files with the manifest's checksums. The error names the first file that differs."""
    for kind, expected in shard.files.items():
        verify_file(shard_path(root, split, shard.name, kind), expected)


def verify_file(path: Path, expected: FileDigest) -> None:
    """Compare one file of a dataset with its checksum in the manifest."""
    try:
        digest = digest_file(path)
    except OSError as error:
        raise UserError(f"{path}: file not readable ({error}); {REMEDY}") from error
    if digest != expected:
        raise UserError(
            f"{path}: sha256 {digest.sha256[:12]}… of {digest.bytes} bytes, but the manifest says "
            f"{expected.sha256[:12]}… of {expected.bytes}; the file changed: {REMEDY}"
        )


def shard_path(root: Path, split: str, name: str, kind: str) -> Path:
    """Return the path of a shard's array `kind`: labels, dense, sparse, weights, values or offsets."""
    return root / split / f"{name}.{kind}.npy"
