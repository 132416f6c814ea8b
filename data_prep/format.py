"""The on-disk contract of a dataset: a manifest, and shards of plain NumPy files beside it.

    <root>/manifest.json
    <root>/<split>/<shard>.{labels,dense,sparse}.npy
    <root>/<split>/<shard>.{values,offsets}.npy         only where features are multi-hot: see data_prep/ragged.py
    <root>/vocab/

The manifest is written last and atomically: a directory without one is not a dataset.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.files import FileDigest as FileDigest
from data_prep.files import digest_file as digest_file
from data_prep.files import sync as sync
from data_prep.files import write_atomically as write_atomically
from data_prep.ragged import Bags, pack, unpack

FORMAT_NAME = "clickwork-dataset"
ONE_HOT_VERSION, FORMAT_VERSION = 1, 2  # a manifest without multi-hot features is still of the first
MANIFEST_NAME = "manifest.json"
MAX_NUM_EMBEDDINGS = 1 << 31  # ids are int32
REMEDY = "preprocess again with data.overwrite=true"
ARRAY_DTYPES = {
    "labels": np.int32, "dense": np.float32, "sparse": np.int32, "values": np.int32, "offsets": np.int64
}  # fmt: skip


class ShardArrays(NamedTuple):
    """One shard, memory-mapped: labels [rows, 1] int32, dense [rows, N] float32, sparse [rows, F] int32.

    Where features are multi-hot `sparse` has the columns of the others, and `bags` theirs, one entry a feature.
    """

    labels: NDArray[np.int32]
    dense: NDArray[np.float32]
    sparse: NDArray[np.int32]
    bags: tuple[Bags, ...] = ()


@dataclass
class Shard:
    """Consecutive rows of one split; `files` has the keys labels, dense, sparse, and maybe values, offsets."""

    name: str
    rows: int
    files: dict[str, FileDigest]


@dataclass
class Split:
    """The shards of a split in the order of its rows; label_rate is None for a split without rows."""

    rows: int
    label_rate: float | None
    shards: list[Shard]


@dataclass
class Manifest:
    """All that a reader must know of a dataset.

    Attributes:
        schema: {"label": name, "dense": [N names], "sparse": [F names]}, in column order, and, where features are
            multi-hot, "ragged": their names, in the order of `sparse`.
        encoding: its name and every parameter that decides the shards' bytes.
        num_embeddings: rows of the table of each sparse feature; ids are in [0, num_embeddings).
        splits: train, val, test.
        sources: the raw files read: {"name", "bytes", "sha256", "rows"}.
        rows: rows over all splits.
        label_rate: share of positive labels over all splits.
        extra: figures nobody needs to read the data (peak memory, the planted teacher's Bayes AUC, …).
    """

    schema: dict[str, Any]
    encoding: dict[str, Any]
    num_embeddings: dict[str, int]
    splits: dict[str, Split]
    sources: list[dict[str, Any]]
    rows: int
    label_rate: float
    tool_version: str
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def ragged(self) -> list[str]:
        """The multi-hot features."""
        return list(self.schema.get("ragged", []))

    @property
    def digest(self) -> str:
        """SHA-256 of what decides the data: everything but `extra` and `tool_version`."""
        content = {k: v for k, v in asdict(self).items() if k not in ("extra", "tool_version")}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def save_manifest(root: Path, manifest: Manifest) -> None:
    """Write `root`/manifest.json; it appears whole or not at all, after all it names is on disk."""
    version = FORMAT_VERSION if manifest.ragged else ONE_HOT_VERSION
    document = {"format": FORMAT_NAME, "format_version": version, **asdict(manifest)}
    write_atomically(root / MANIFEST_NAME, (json.dumps(document, indent=1) + "\n").encode())


def load_manifest(root: Path) -> Manifest:
    """Read a dataset's manifest.

    Raises:
        UserError: there is none, it is not one of ours, or it is of a newer format.
    """
    path = root / MANIFEST_NAME
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise UserError(
            f"{root}: no dataset here (no {MANIFEST_NAME}); make one with `make preprocess`, or give data.raw"
        ) from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not readable as a manifest ({error}); preprocess again") from error
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT_NAME:
        raise UserError(f"{path}: key 'format' is not {FORMAT_NAME!r}; not a dataset of this tool")
    version = document.pop("format_version", None)
    if version not in (ONE_HOT_VERSION, FORMAT_VERSION):
        raise UserError(
            f"{path}: format_version {version}, but this version reads {ONE_HOT_VERSION} and {FORMAT_VERSION}; "
            "use the version that wrote it, or preprocess again"
        )
    try:
        document["splits"] = {name: _split(value) for name, value in document["splits"].items()}
        manifest = Manifest(**document)
        if fault := _fault(manifest):
            raise UserError(f"{path}: {fault}; preprocess again")
        return manifest
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not a whole manifest ({error!r}); preprocess again") from error


def write_shard(root: Path, split: str, name: str, arrays: ShardArrays) -> Shard:
    """Write one shard's files and return its entry for the manifest."""
    files = {}
    kinds: dict[str, NDArray[Any]] = {"labels": arrays.labels, "dense": arrays.dense, "sparse": arrays.sparse}
    if arrays.bags:
        kinds["values"], kinds["offsets"] = pack(arrays.bags)
    for kind, array in kinds.items():
        path = shard_path(root, split, name, kind)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            np.save(file, np.ascontiguousarray(array, dtype=ARRAY_DTYPES[kind]))
            file.flush()
            os.fsync(file.fileno())
        files[kind] = digest_file(path)
    return Shard(name=name, rows=len(arrays.labels), files=files)


def open_shard(
    root: Path, split: str, shard: Shard, num_dense: int, num_sparse: int, num_ragged: int = 0
) -> ShardArrays:
    """Memory-map one shard and check its files' sizes, shapes and dtypes (not their sums: `verify_shard`).

    Args:
        num_sparse: F, multi-hot features included; num_ragged: how many are multi-hot.

    Raises:
        UserError: a file is missing or is not what the manifest says.
    """
    widths = {"labels": 1, "dense": num_dense, "sparse": num_sparse - num_ragged}
    labels, dense, sparse = (
        _open_array(root, split, shard, kind, (shard.rows, width)) for kind, width in widths.items()
    )
    if not num_ragged:
        return ShardArrays(labels, dense, sparse)
    offsets = _open_array(root, split, shard, "offsets", (num_ragged * shard.rows + 1,))
    values = _open_array(root, split, shard, "values", (int(offsets[-1]),))
    return ShardArrays(labels, dense, sparse, unpack(values, offsets, num_ragged))


def _open_array(root: Path, split: str, shard: Shard, kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
    path = shard_path(root, split, shard.name, kind)
    try:
        size = path.stat().st_size
        if size != shard.files[kind].bytes:
            raise UserError(f"{path}: {size} bytes, but the manifest says {shard.files[kind].bytes}; {REMEDY}")
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except KeyError as error:
        raise UserError(f"{path}: the manifest does not name it; {REMEDY}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: shard file not readable ({error}); {REMEDY}") from error
    if array.shape != shape or array.dtype != ARRAY_DTYPES[kind]:
        raise UserError(
            f"{path}: {array.dtype} {array.shape}, but the manifest says "
            f"{np.dtype(ARRAY_DTYPES[kind])} {shape}; {REMEDY}"
        )
    return array


def verify_shard(root: Path, split: str, shard: Shard) -> None:
    """Compare one shard's files with the manifest's sums.

    Raises:
        UserError: a file is missing or differs; the message names the first one.
    """
    for kind, expected in shard.files.items():
        path = shard_path(root, split, shard.name, kind)
        try:
            found = digest_file(path)
        except OSError as error:
            raise UserError(f"{path}: shard file not readable ({error}); {REMEDY}") from error
        if found != expected:
            raise UserError(
                f"{path}: sha256 {found.sha256[:12]}… of {found.bytes} bytes, but the manifest says "
                f"{expected.sha256[:12]}… of {expected.bytes}; the file changed: {REMEDY}"
            )


def shard_path(root: Path, split: str, name: str, kind: str) -> Path:
    """Where the array `kind` (labels, dense, sparse, values or offsets) of a shard lies."""
    return root / split / f"{name}.{kind}.npy"


def _fault(manifest: Manifest) -> str | None:
    """What in a manifest contradicts itself or cannot be."""
    for feature, rows in manifest.num_embeddings.items():
        if not isinstance(rows, int) or not 1 <= rows <= MAX_NUM_EMBEDDINGS or "." in feature:
            return f"num_embeddings of {feature!r} is {rows!r}"
    if list(manifest.num_embeddings) != manifest.schema["sparse"]:
        return "num_embeddings and schema name different sparse features"
    if manifest.ragged != [name for name in manifest.schema["sparse"] if name in manifest.ragged]:
        return "schema's ragged features are not all sparse features, in their order"
    for name, split in manifest.splits.items():
        if sum(shard.rows for shard in split.shards) != split.rows:
            return f"split {name!r} has {split.rows} rows, but its shards have others"
    return None


def _split(value: dict[str, Any]) -> Split:
    shards = [
        Shard(shard["name"], shard["rows"], {kind: FileDigest(**digest) for kind, digest in shard["files"].items()})
        for shard in value["shards"]
    ]
    return Split(rows=value["rows"], label_rate=value["label_rate"], shards=shards)
