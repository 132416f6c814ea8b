"""The on-disk contract of a dataset: a manifest, and shards of plain NumPy files beside it.

    <root>/manifest.json
    <root>/<split>/<shard>.{labels,dense,sparse}.npy
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

FORMAT_NAME = "clickwork-dataset"
FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
MAX_NUM_EMBEDDINGS = 1 << 31  # ids are int32
REMEDY = "preprocess again with data.overwrite=true"
ARRAY_DTYPES = {"labels": np.int32, "dense": np.float32, "sparse": np.int32}


class ShardArrays(NamedTuple):
    """One shard, memory-mapped: labels [rows, 1] int32, dense [rows, N] float32, sparse [rows, F] int32."""

    labels: NDArray[np.int32]
    dense: NDArray[np.float32]
    sparse: NDArray[np.int32]


@dataclass
class FileDigest:
    """Size in bytes and SHA-256 (hex) of one file."""

    bytes: int
    sha256: str


@dataclass
class Shard:
    """Consecutive rows of one split; `files` has the keys labels, dense, sparse."""

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
        schema: {"label": name, "dense": [N names], "sparse": [F names]}, in column order.
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
    def digest(self) -> str:
        """SHA-256 of what decides the data: everything but `extra` and `tool_version`."""
        content = {k: v for k, v in asdict(self).items() if k not in ("extra", "tool_version")}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def save_manifest(root: Path, manifest: Manifest) -> None:
    """Write `root`/manifest.json; it appears whole or not at all, after all it names is on disk."""
    document = {"format": FORMAT_NAME, "format_version": FORMAT_VERSION, **asdict(manifest)}
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
    if version != FORMAT_VERSION:
        raise UserError(
            f"{path}: format_version {version}, but this version reads {FORMAT_VERSION}; "
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
    """Write one shard's three files and return its entry for the manifest."""
    files = {}
    for kind, array in arrays._asdict().items():
        path = shard_path(root, split, name, kind)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            np.save(file, np.ascontiguousarray(array, dtype=ARRAY_DTYPES[kind]))
            file.flush()
            os.fsync(file.fileno())
        files[kind] = digest_file(path)
    return Shard(name=name, rows=len(arrays.labels), files=files)


def open_shard(root: Path, split: str, shard: Shard, num_dense: int, num_sparse: int) -> ShardArrays:
    """Memory-map one shard and check its files' sizes, shapes and dtypes (not their sums: `verify_shard`).

    Raises:
        UserError: a file is missing or is not what the manifest says.
    """
    widths = {"labels": 1, "dense": num_dense, "sparse": num_sparse}
    arrays = {}
    for kind, width in widths.items():
        path = shard_path(root, split, shard.name, kind)
        try:
            size = path.stat().st_size
            if size != shard.files[kind].bytes:
                raise UserError(f"{path}: {size} bytes, but the manifest says {shard.files[kind].bytes}; {REMEDY}")
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: shard file not readable ({error}); {REMEDY}") from error
        if array.shape != (shard.rows, width) or array.dtype != ARRAY_DTYPES[kind]:
            raise UserError(
                f"{path}: {array.dtype} {array.shape}, but the manifest says "
                f"{np.dtype(ARRAY_DTYPES[kind])} {(shard.rows, width)}; {REMEDY}"
            )
        arrays[kind] = array
    return ShardArrays(**arrays)


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
    """Where the array `kind` (labels, dense or sparse) of a shard lies."""
    return root / split / f"{name}.{kind}.npy"


def digest_file(path: Path) -> FileDigest:
    """Size and SHA-256 of a file, read in a stream."""
    sha256 = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(1 << 20):
            sha256.update(block)
        return FileDigest(bytes=file.tell(), sha256=sha256.hexdigest())


def write_atomically(path: Path, content: bytes) -> None:
    """Write a small file so that it is there whole or not at all, even after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fault(manifest: Manifest) -> str | None:
    """What in a manifest contradicts itself or cannot be."""
    for feature, rows in manifest.num_embeddings.items():
        if not isinstance(rows, int) or not 1 <= rows <= MAX_NUM_EMBEDDINGS or "." in feature:
            return f"num_embeddings of {feature!r} is {rows!r}"
    if list(manifest.num_embeddings) != manifest.schema["sparse"]:
        return "num_embeddings and schema name different sparse features"
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
