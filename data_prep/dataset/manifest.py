"""The manifest of a dataset: what it holds and how it was made."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from common.documents import UNKNOWN, decode
from common.errors import UserError
from common.files import FileDigest, write_atomically
from common.version import VERSION
from data_prep.dataset.kinds import ROWS, DatasetKind, kind_of
from data_prep.dataset.manifest_schema import manifest_fault
from data_prep.dataset.options import DenseTransform, LabelKind
from data_prep.dataset.schema import Schema

SPLITS = ("train", "val", "test")  # in the order of a dataset's rows
FORMAT_NAME = "clickwork-dataset"
FORMAT_VERSION = 5
MANIFEST_NAME = "manifest.json"
WEIGHTS = "weights"  # kind of the array of sample weights


@dataclass
class Shard:
    """Consecutive rows of one split; `files` has a key for each kind of array (data_prep/dataset/format.py)."""

    name: str
    rows: int
    files: dict[str, FileDigest]


@dataclass
class Split:
    """A split's shards in row order; label_rate is None for an empty split and for labels that are numbers."""

    rows: int
    label_rate: float | None
    shards: list[Shard]


@dataclass
class Manifest:
    """Contents and origin of a dataset.

    Attributes:
        schema: {"label": name, "dense": [N names], "sparse": [F names]}, in column order. "ragged" lists the
            multi-hot features in the order of `sparse`, if there are any; "label_kind" is "number" for such labels;
            "weight" is the column of sample weights, if there is one.
        encoding: name of the encoding and every parameter that decides the shards' bytes; "mean_weight" is the mean of
            train's sample weights.
        num_embeddings: table rows of each sparse feature; ids are in [0, num_embeddings).
        splits: train, val and test; a dataset of events has a single split with another name.
        sources: the raw files: {"name", "bytes", "sha256", "rows"}, and "split" if the user gave files per split.
        rows: rows over all splits.
        label_rate: share of positive labels over all splits; None for labels that are numbers.
        extra: figures that no reader needs (peak memory, the Bayes AUC of the ground-truth model, …).
    """

    schema: dict[str, Any]
    encoding: dict[str, Any]
    num_embeddings: dict[str, int]
    splits: dict[str, Split]
    sources: list[dict[str, Any]]
    rows: int
    label_rate: float | None
    tool_version: str
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def ragged(self) -> list[str]:
        """Return the names of the multi-hot features."""
        return list(self.schema.get("ragged", []))

    @property
    def label_kind(self) -> LabelKind:
        """Return the kind of the labels."""
        return LabelKind(self.schema.get("label_kind", LabelKind.click.value))

    @property
    def weight(self) -> str:
        """Return the name of the column of sample weights; empty if there is none."""
        return str(self.schema.get("weight", ""))

    @property
    def kind(self) -> DatasetKind:
        """Return the kind of the dataset."""
        return kind_of(self.encoding.get("name"))

    def require_kind(self, root: Path, kind: DatasetKind, remedy: str = "") -> None:
        """Raise UserError if the dataset at `root` is of another kind. `remedy` replaces the kind's own."""
        if self.kind is not kind:
            raise UserError(f"{root}: holds {self.kind.name}, not {kind.name}; {remedy or kind.remedy}")

    @property
    def has_given_splits(self) -> bool:
        """Return whether the user gave files for each split, so that no method divides the rows."""
        return self.encoding.get("split", "") is None

    @property
    def dense_dtype(self) -> np.dtype[Any]:
        """Return the dtype of the shards' dense arrays."""
        is_exact = self.encoding.get("dense_transform") == DenseTransform.integers.value
        return (DenseTransform.integers if is_exact else DenseTransform.raw).dtype

    @property
    def digest(self) -> str:
        """Return the SHA-256 of everything that decides the data: all but `extra` and `tool_version`."""
        content = {k: v for k, v in asdict(self).items() if k not in ("extra", "tool_version")}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def build_manifest(
    schema: Schema,
    encoding: dict[str, Any],
    num_embeddings: dict[str, int],
    shards: Sequence[tuple[str, Shard, int]],
    sources: Iterable[tuple[str, FileDigest, int]] = (),
    extra: dict[str, Any] | None = None,
) -> Manifest:
    """Build the manifest of a dataset made by this version of the tool.

    Args:
        schema, encoding, num_embeddings, extra: see `Manifest`.
        shards: split, shard and number of positive labels, in row order within a split; at least one row in total.
        sources: name, digest and number of rows of each raw file.
    """
    splits, has_rate = {}, schema.label_kind is LabelKind.click
    for name in SPLITS:
        rows = sum(shard.rows for split, shard, _ in shards if split == name)
        positives = sum(count for split, _, count in shards if split == name)
        of_split = [shard for split, shard, _ in shards if split == name]
        splits[name] = Split(rows, positives / rows if rows and has_rate else None, of_split)
    total = sum(split.rows for split in splits.values())
    return Manifest(
        schema=schema.to_manifest(),
        encoding=encoding,
        num_embeddings=num_embeddings,
        splits=splits,
        sources=[{"name": name, **asdict(digest), "rows": rows} for name, digest, rows in sources],
        rows=total,
        label_rate=sum(positives for _, _, positives in shards) / total if has_rate else None,
        tool_version=f"clickwork {VERSION}",
        extra=extra or {},
    )


def save_manifest(root: Path, manifest: Manifest) -> None:
    """Write `root`/manifest.json atomically. Call it after all files that the manifest names are on disk."""
    document = {
        "format": FORMAT_NAME,
        "format_version": FORMAT_VERSION,
        "kind": manifest.kind.name,
        **asdict(manifest),
    }
    write_atomically(root / MANIFEST_NAME, (json.dumps(document, indent=1) + "\n").encode())


def load_rows_manifest(root: Path) -> Manifest:
    """Read the manifest of a dataset of rows."""
    manifest = load_manifest(root)
    manifest.require_kind(root, ROWS)
    return manifest


def load_manifest(root: Path) -> Manifest:
    """Read a dataset's manifest.

    Raises:
        UserError: missing file, another format or version, or an invalid key.
    """
    path = root / MANIFEST_NAME
    try:
        content = decode(path.read_bytes(), object)
    except FileNotFoundError as error:
        raise UserError(
            f"{root}: no dataset here (no {MANIFEST_NAME}); make one with `make preprocess`, or give data.raw"
        ) from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not readable as a manifest ({error}); preprocess again") from error
    document: dict[str, Any] = content if isinstance(content, dict) else {}
    if document.pop("format", None) != FORMAT_NAME:
        raise UserError(f"{path}: key 'format' is not {FORMAT_NAME!r}; not a dataset of this tool")
    version = document.pop("format_version", None)
    if version != FORMAT_VERSION:
        raise UserError(
            f"{path}: format_version {version}, but this version reads {FORMAT_VERSION}; preprocess again, by the "
            "command that made it with data.overwrite=true"
        )
    kind = document.pop("kind", None)
    if fault := manifest_fault(document):
        remedy = "use that version, or preprocess again" if fault.endswith(UNKNOWN) else "preprocess again"
        raise UserError(f"{path}: {fault}; {remedy}")
    if kind != kind_of(document["encoding"].get("name")).name:
        raise UserError(f"{path}: key 'kind' is {kind!r}, but 'encoding.name' is of another kind; preprocess again")
    return Manifest(**{**document, "splits": msgspec.convert(document["splits"], dict[str, Split])})
