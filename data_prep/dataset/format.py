"""The contract on disk: manifest, shards, samples of rows, rows unseen in train, and sampled negatives.

    <root>/manifest.json
    <root>/<split>/<shard>.{labels,dense,sparse}.npy
    <root>/<split>/<shard>.{values,offsets}.npy         if features are multi-hot: see data_prep/codec/values.py
    <root>/<split>/<shard>.weights.npy                  if the rows have sample weights
    <root>/vocab/

The manifest (data_prep/dataset/format.py) is written last and atomically: a directory without one is not a dataset.
"""

import hashlib
import json
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace
from numpy.typing import DTypeLike, NDArray

from common.documents import UNKNOWN, VERSION, convert, decode
from common.errors import UserError
from common.files import FileDigest, digest_file, write_atomically
from data_prep.codec.values import FITS, Bags, from_text, pack, unpack
from data_prep.dataset.kinds import ROWS, DatasetKind, kind_of, misleading_sentences
from data_prep.dataset.options import (
    CRITEO,
    DenseTransform,
    Encoding,
    Feature,
    LabelKind,
    Schema,
    SplitMethod,
    Table,
    TableRows,
    VocabularyOrder,
    to_json,
)
from data_prep.io import open_array, prefetch, write_array

ROW_KINDS = ("labels", "dense", "sparse")  # arrays with one row per sample, which all datasets have
RANGE_TRANSFORMS = (DenseTransform.torchrec, DenseTransform.minmax)  # transforms that need a range

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Share = Annotated[float, Meta(ge=0, le=1)]
FileName = Annotated[str, Meta(pattern=r"\A(?!\.{1,2}\Z)[^/\\\0]+\Z")]


class JsonObject(Struct, forbid_unknown_fields=True):
    """A JSON object with these keys and no others."""


class _Digest(JsonObject):
    """A file: its size in bytes, and its SHA-256."""

    bytes: Count
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class _Source(_Digest):
    """A raw file, with its rows; split: of a file that was given for one."""

    name: str
    rows: Count
    split: Literal["train", "val", "test"] | UnsetType = UNSET


class VocabularyFiles(_Digest):
    """A feature's vocabulary: its file, its number of values, and the files of their texts."""

    values: Count
    texts: dict[Literal["texts", "offsets"], _Digest] | UnsetType = UNSET


class _Range(JsonObject):
    """The lowest and the highest value of each dense column."""

    low: list[float]
    high: list[float]


class Rules(JsonObject, kw_only=True):
    """Rules by which values become ids and rows become splits.

    Attributes:
        name: encoding that the rules belong to, as in data.encoding.
        dense_transform: transform of integers.
        order: order of a vocabulary's values; None: ids are value modulo max_ind_range.
        first_id: id of a vocabulary's first value.
        unknown_id: id of values outside the vocabulary.
        fitted_on_train: whether a vocabulary is fitted on train only, not on all rows.
        frequency_threshold: values with a lower count are not in the vocabulary.
        max_ind_range: maximum rows per table, or None.
        wraps: ids are taken modulo max_ind_range; otherwise values beyond it get unknown_id.
        max_categories: features with more values are dropped, or None.
        rounds_ids: train's ids are rounded to float32, as in TorchRec's shuffle.
        split: method that chooses the held-out rows; None: the user gave files for each split.
        held_out: share that the split method holds out.
        split_seed: seed of the split method.
        train_seed: seed of train's permutation by NumPy's legacy generator; None: rows keep their order.
        test_first: whether test, not val, is the first half of the held-out rows.
        negative_drop_rate: share of negatives to leave out.
        sampling_seed: seed that chooses these negatives.
        split_column: column that the split method reads, if it reads one.
    """

    name: Encoding
    dense_transform: DenseTransform
    order: VocabularyOrder | None
    first_id: Count
    unknown_id: Count
    fitted_on_train: bool
    frequency_threshold: Count
    max_ind_range: TableRows | None
    wraps: bool
    max_categories: Count | None
    rounds_ids: bool
    split: SplitMethod | None
    held_out: Share
    split_seed: Count
    train_seed: Count | None
    test_first: bool
    negative_drop_rate: Share
    sampling_seed: Count
    split_column: str | UnsetType = UNSET

    @property
    def is_arranged(self) -> bool:
        """Return whether rows leave their order; otherwise shards are made of consecutive rows."""
        is_arranged = self.split is not None and self.split.algorithm.is_arranged
        return is_arranged or self.train_seed is not None or self.negative_drop_rate > 0

    @property
    def counts_while_parsing(self) -> bool:
        """Return whether values can be counted before the rows' positions are known."""
        # While parsing, train's rows are known only if rows keep their order, and dropped rows are never known.
        is_assignment_fixed = not self.is_arranged if self.fitted_on_train else not self.negative_drop_rate
        return self.order is not None and is_assignment_fixed

    @property
    def shares_unknown_id(self) -> bool:
        """Return whether the cap on a table's rows may give values of the vocabulary the id of unknown ones."""
        wraps = self.wraps and self.max_ind_range is not None
        return wraps and self.order is not None and self.frequency_threshold > 1

    @property
    def needs_statistics(self) -> bool:
        """Return whether the transform needs a range; `Job.needs_statistics` adds transforms of single columns."""
        return self.dense_transform in RANGE_TRANSFORMS


class _RawEncoding(Rules, kw_only=True):
    """Encoding of rows from raw files: its rules, and what `data_prep.pipeline` adds.

    chunk_bytes: bytes of raw text in a unit of work. table: schema of an own table. raw_schema: columns of the raw
    files. dense_range: lowest and highest values of dense columns. vocabulary: files by feature. spellings: how typed
    values of a feature are written as text. dense_fits: what transforms learned from train, by column. mean_weight: of
    the rows of train.
    """

    chunk_bytes: Count
    table: Table | None
    raw_schema: Schema
    dense_range: list[_Range]
    vocabulary: dict[Feature, VocabularyFiles] | UnsetType = UNSET
    spellings: dict[Feature, str] | UnsetType = UNSET
    keep_texts: bool | UnsetType = UNSET
    dense_fits: dict[str, list[float]] | UnsetType = UNSET
    mean_weight: Annotated[float, Meta(gt=0)] | UnsetType = UNSET


SPLITS = ("train", "val", "test")  # in the order of a dataset's rows
FORMAT_NAME = "clickwork-dataset"
FORMAT_VERSION = 5
MANIFEST_NAME = "manifest.json"
WEIGHTS = "weights"  # kind of the array of sample weights


@dataclass
class Shard:
    """Consecutive rows of one split; `files` has a key for each kind of array (data_prep/dataset/format.py)."""

    name: FileName
    rows: Count
    files: dict[str, FileDigest]


@dataclass
class Split:
    """A split's shards in row order; label_rate is None for an empty split and for labels that are numbers."""

    rows: Count
    label_rate: Share | None
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
    num_embeddings: dict[Feature, TableRows]
    splits: dict[FileName, Split]
    sources: list[dict[str, Any]]
    rows: Count
    label_rate: Share | None
    tool_version: str
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def ragged(self) -> list[str]:
        """Return the names of the multi-hot features."""
        return list(self.schema.get("ragged", []))

    @property
    def label_kind(self) -> LabelKind:
        """Return the kind of the labels, `click` unless the schema names another."""
        return LabelKind(self.schema.get("label_kind", LabelKind.click.value))

    @property
    def weight(self) -> str:
        """Return the name of the column of sample weights; empty if there is none."""
        return str(self.schema.get("weight", ""))

    @property
    def kind(self) -> DatasetKind:
        """Return the kind of the dataset, rows or an extension's, by the name of its encoding."""
        return kind_of(self.encoding.get("name"))

    def require_kind(self, root: Path, kind: DatasetKind, remedy: str = "") -> None:
        """Raise UserError if the dataset at `root` is of another kind. `remedy` replaces the kind's own."""
        if self.kind is not kind:
            raise UserError(f"{root}: holds {self.kind.name}, not {kind.name}; {remedy or kind.remedy}")

    @property
    def has_given_splits(self) -> bool:
        """Return whether the user gave files for each split, so that no method divides the rows."""
        # Null: files were given. Generated and imported rows, and events, have no such key.
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


def _manifest_fault(manifest: Manifest) -> str | None:
    """Return the first error in a manifest whose values have the right types, with its key; None if none."""
    try:
        # This raises ValueError for damaged figures.
        misleading_sentences(manifest.extra)
        encoding, names = manifest.encoding, [choice.value for choice in Encoding]
        schema, sources = (
            convert(manifest.schema, Schema, "schema"),
            convert(manifest.sources, list[_Source], "sources"),
        )
        checks = _check_rows(manifest, schema)
        if manifest.kind.fault is not None:
            fault = manifest.kind.fault(manifest)
            checks = chain([(fault is not None, fault or "")], checks)
        elif encoding.get("raw_schema") is not None or encoding.get("name") in names:  # not imported or generated
            raw_encoding = convert(encoding, _RawEncoding, "encoding")
            checks = chain(checks, _check_encoding(manifest, schema, sources, raw_encoding))
    except ValueError as error:
        return str(error)
    # Later checks rely on earlier ones, so none runs after the first that fails.
    return next((fault for is_wrong, fault in checks if is_wrong), None)


def _check_rows(manifest: Manifest, schema: Schema) -> Iterator[tuple[bool, str]]:
    """Yield whether keys of any dataset contradict each other, and the message if they do."""
    names = tuple(manifest.num_embeddings)
    yield names != schema.sparse, "keys 'num_embeddings' and 'schema.sparse' name different sparse features"
    for name, split in manifest.splits.items():
        key, rows = f"key 'splits.{name}", sum(shard.rows for shard in split.shards)
        yield rows != split.rows, f"{key}.rows': split {name!r} has {split.rows} rows, but its shards have others"
    in_splits = sum(split.rows for split in manifest.splits.values())
    yield manifest.rows != in_splits, f"key 'rows' is {manifest.rows}, but the splits have {in_splits}"


def _check_encoding(
    manifest: Manifest, schema: Schema, sources: Sequence[_Source], encoding: _RawEncoding
) -> Iterator[tuple[bool, str]]:
    """Yield checks as `_check_rows` does, of an encoding of raw rows against the schema, the sources and itself."""
    raw = encoding.raw_schema
    is_modulo, vocabulary = encoding.order is None, encoding.vocabulary or {}
    has_range = encoding.max_ind_range is not None
    yield is_modulo and not has_range, "key 'encoding.max_ind_range' is null, but without 'encoding.order' it is needed"
    is_other = not is_modulo and tuple(vocabulary) != schema.sparse
    yield is_other, "key 'encoding.vocabulary' is not of the features of 'schema.sparse'"
    texts = {"texts", "offsets"} if encoding.keep_texts is True else set()
    for name, entry in vocabulary.items():
        key = f"'encoding.vocabulary.{name}'"
        yield set(entry.texts or {}) != texts, f"keys 'encoding.keep_texts' and {key} do not agree on 'texts'"
    # An encoding may drop sparse columns.
    sparse = tuple(name for name in raw.sparse if name in schema.sparse)
    yield replace(raw, sparse=sparse) != schema, "keys 'encoding.raw_schema' and 'schema' name different columns"
    transform, ranges = encoding.dense_transform, encoding.dense_range
    yield transform in RANGE_TRANSFORMS and not ranges, f"key 'encoding.dense_range': {transform.value} needs one"
    for number, (low, high) in enumerate((bounds.low, bounds.high) for bounds in ranges):
        is_range = len(low) == len(high) == len(schema.dense) and all(map(operator.le, low, high))
        yield not is_range, f"key 'encoding.dense_range[{number}]' is no range of the columns of 'schema.dense'"
    yield from _check_table(encoding)

    # Without a method, the user gave files for each split.
    is_unnamed = encoding.split is None and any(source.split is UNSET for source in sources)
    yield is_unnamed, "key 'encoding.split' is null, but not each of 'sources' has a 'split'"
    source_rows, rows = sum(source.rows for source in sources), manifest.rows
    is_other = source_rows < rows or (source_rows > rows and not encoding.negative_drop_rate)
    yield is_other, f"key 'sources' is of {source_rows} rows, but 'rows' of {rows}"


def _check_table(encoding: _RawEncoding) -> Iterator[tuple[bool, str]]:
    """Yield checks as `_check_rows` does, of a user's own table and of what was learned from its columns."""
    table, raw, different = encoding.table, encoding.raw_schema, "name different columns"
    fits, spellings = encoding.dense_fits or {}, encoding.spellings or {}
    if table is None:
        yield raw != CRITEO, "key 'encoding.table' is null, but 'encoding.raw_schema' is not of Criteo's rows"
        return
    yield table.schema != raw, f"keys 'encoding.table' and 'encoding.raw_schema' {different}"
    is_unnamed = not set(table.named_columns) <= set(table.names)
    yield is_unnamed, "key 'encoding.table.names' lacks columns of 'encoding.table'"
    features = {feature for vector in table.vectors for feature in vector.features}
    features |= {feature for feature, _ in table.transforms}
    is_other = not features <= set(table.dense)
    yield is_other, "keys 'encoding.table.vectors' and '.transforms' name columns that 'encoding.table.dense' lacks"
    transform_of = {feature: transform for feature, transform in table.transforms if transform in FITS}
    yield set(fits) != set(transform_of), f"keys 'encoding.dense_fits' and 'encoding.table.transforms' {different}"
    for feature, transform in transform_of.items():
        fit = fits[feature]
        # standard: mean and deviation; minmax and quantile: ascending values.
        is_fit = fit[-1:] >= [0.0] if transform == "standard" else fit == sorted(fit)
        is_fit &= len(fit) == FITS[transform] and all(map(isfinite, fit))
        yield not is_fit, f"key 'encoding.dense_fits.{feature}' is no fit of {transform}"
    yield set(spellings) != set(table.sparse), f"keys 'encoding.spellings' and 'encoding.table.sparse' {different}"
    for name, text in spellings.items():
        try:
            from_text(text)
        except KeyError:
            yield True, f"key 'encoding.spellings.{name}' {UNKNOWN}"


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
        split_shards = [shard for split, shard, _ in shards if split == name]
        splits[name] = Split(rows, positives / rows if rows and has_rate else None, split_shards)
    total = sum(split.rows for split in splits.values())
    return Manifest(
        schema=to_json(schema),
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
    document = {"format": FORMAT_NAME, "format_version": FORMAT_VERSION, "kind": manifest.kind.name, **asdict(manifest)}
    write_atomically(root / MANIFEST_NAME, (json.dumps(document, indent=1) + "\n").encode())


def load_rows_manifest(root: Path) -> Manifest:
    """Read the manifest of a dataset of rows; raise UserError if it is of another kind, such as events."""
    manifest = load_manifest(root)
    manifest.require_kind(root, ROWS)
    return manifest


def load_manifest(root: Path) -> Manifest:
    """Read a dataset's manifest.

    Raises UserError: missing file, another format or version, or an invalid key.
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
    try:
        manifest = convert(document, Manifest)
        # What is not read is not written again, either.
        written = msgspec.to_builtins(manifest)
        unknown = next((key for key, value in document.items() if written.get(key) != value), None)
        fault = _manifest_fault(manifest) if unknown is None else f"key {unknown!r}, or one in it, {UNKNOWN}"
    except ValueError as error:
        fault = str(error)
    if fault is not None:
        remedy = "use that version, or preprocess again" if fault.endswith(UNKNOWN) else "preprocess again"
        raise UserError(f"{path}: {fault}; {remedy}")
    if kind != manifest.kind.name:
        raise UserError(f"{path}: key 'kind' is {kind!r}, but 'encoding.name' is of another kind; preprocess again")
    return manifest


REMEDY = "preprocess again with data.overwrite=true"  # for a file of the dataset that is missing or changed
ARRAY_DTYPES: dict[str, DTypeLike] = {
    "labels": np.int32,
    "dense": np.float32,
    "sparse": np.int32,
    "values": np.int32,
    "offsets": np.int64,
    WEIGHTS: np.float32,
}


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
        # At each access the system would read few pages; it reads the whole range if it is told in advance.
        for array in self[:3]:
            prefetch(array, start, stop)
        rows = slice(start, stop)
        bags = tuple(bags.part(start, stop) for bags in self.bags)
        weights = None if self.weights is None else self.weights[rows]
        return ShardArrays(self.labels[rows], self.dense[rows], self.sparse[rows], bags, weights)


def write_shard(
    root: Path, split: str, name: str, arrays: ShardArrays, dense_dtype: DTypeLike = ARRAY_DTYPES["dense"]
) -> Shard:
    """Write the arrays of a shard that has no sample weights, and return its entry for the manifest."""
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

    def open_kind(kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
        return _open_checked(root, split, shard, kind, (shape, dtypes.get(kind, np.dtype(ARRAY_DTYPES[kind]))))

    dtypes = {"labels": manifest.label_kind.dtype, "dense": manifest.dense_dtype}
    num_ragged = len(manifest.ragged)
    labels = open_kind("labels", (shard.rows, 1))
    dense = open_kind("dense", (shard.rows, len(manifest.schema["dense"])))
    sparse = open_kind("sparse", (shard.rows, len(manifest.schema["sparse"]) - num_ragged))
    weights = open_kind(WEIGHTS, (shard.rows, 1)) if manifest.weight else None
    if not num_ragged:
        return ShardArrays(labels, dense, sparse, weights=weights)
    offsets = open_kind("offsets", (num_ragged * shard.rows + 1,))
    values = open_kind("values", (int(offsets[-1]),))
    return ShardArrays(labels, dense, sparse, unpack(values, offsets, num_ragged), weights)


def mean_bag_sizes(root: Path, manifest: Manifest, split: str = "train") -> dict[str, float]:
    """Return the mean number of ids per bag of each multi-hot feature; empty if the split has no rows."""
    ids, rows = np.zeros(len(manifest.ragged)), 0
    shards = manifest.splits[split].shards if manifest.ragged and split in manifest.splits else []
    for shard in (shard for shard in shards if shard.rows):
        expected = ((len(manifest.ragged) * shard.rows + 1,), np.dtype(ARRAY_DTYPES["offsets"]))
        # Each rows-th offset is where a feature ends, so a few pages of the file tell the sizes.
        ids += np.diff(_open_checked(root, split, shard, "offsets", expected)[:: shard.rows])
        rows += shard.rows
    return dict(zip(manifest.ragged, (ids / rows).tolist(), strict=True)) if rows else {}


def _open_checked(
    root: Path, split: str, shard: Shard, kind: str, expected: tuple[tuple[int, ...], np.dtype[Any]]
) -> NDArray[Any]:
    """Memory-map one array of a shard; refuse other bytes than the manifest's, and a shape and dtype not `expected`."""
    path = shard_path(root, split, shard.name, kind)
    try:
        size = path.stat().st_size
        # Reading a mapping beyond the end of a truncated file would end the process by a signal.
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
    """Compare one shard's files with the manifest's checksums; the error names the first file that differs."""
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


# Key of a manifest's `extra`: by feature, the share of val's and test's values, each as often as it occurs, that no row
# of train has, less train's own share without an id if the vocabulary is of train; None: not counted.
UNSEEN = "unseen_in_train"
NAMED_SHARE = 0.2  # a larger share is reported
SHOWN_COLUMNS = 4


def unseen_sentence(manifest: Manifest) -> str | None:
    """Return a sentence on columns with a share above NAMED_SHARE of held-out values not in train; None without one.

    It names SHOWN_COLUMNS of them, and a remedy.
    """
    shares = manifest.extra.get(UNSEEN) or {}
    large = {name: share for name, share in shares.items() if share > NAMED_SHARE}
    if not large:
        return None
    ordered = sorted(large, key=lambda name: -large[name])
    column_list = ", ".join(f"{name} ({large[name]:.0%})" for name in ordered[:SHOWN_COLUMNS])
    more = f" and {len(large) - SHOWN_COLUMNS} more columns" if len(large) > SHOWN_COLUMNS else ""
    if manifest.encoding.get("split") in [method.value for method in SplitMethod if method.algorithm.reads == "values"]:
        column = manifest.encoding["split_column"]
        remedy = f"the score is of new values, as data.split puts all rows of a value of {column} into one split"
    elif any("split" in source for source in manifest.sources):  # of some splits at least, unlike `has_given_splits`
        remedy = "the score is of new values, as the files of the splits are given"
    elif manifest.encoding.get("split") in [method.value for method in SplitMethod if method.algorithm.is_random]:
        # A random split puts a value that occurs often into train, too.
        remedy = "most of them occur once, so no split helps; leave such a column out of data.schema"
    else:
        remedy = (
            "the score is of new values; data.split.method=random divides the rows of values that occur often; leave a "
            "column whose values occur once out of data.schema"
        )
    return f"of the values of val and test these shares are not in train: {column_list}{more}; {remedy}"


def kept_share(manifest: Manifest) -> float:
    """Return the share of rows with label 0 that the dataset kept; 1 without sampling."""
    return 1 - float(manifest.encoding.get("negative_drop_rate") or 0)


def odds_factor(kept: float, class_weights: Sequence[float] | None) -> float:
    """Return the factor f that turns a predicted probability p into p / (p + (1 - p) / f), the rate over all rows.

    Keeping the share `kept` of the negatives multiplies the odds of a click by 1 / kept. The weights of label 0 and 1
    multiply them by their ratio; None: both 1.
    """
    negative, positive = class_weights or (1.0, 1.0)
    return kept * negative / positive


def logit_correction(kept: float, class_weights: Sequence[float] | None = None) -> float:
    """Return what to add to predicted logits so that they give rates over all rows: the logarithm of `odds_factor`.

    Raises ValueError: no row with label 0 was kept.
    """
    return math.log(odds_factor(kept, class_weights))


def sampling_sentence(manifest: Manifest, class_weights: Sequence[float] | None = None) -> str | None:
    """Return a sentence about probabilities that are not the rates of all rows; None if they are."""
    kept = kept_share(manifest)
    factor = odds_factor(kept, class_weights)
    if factor == 1:
        return None
    reasons = []
    if kept != 1:
        reasons.append(
            f"{1 - kept:.4g} of the rows with label 0 were left out of all splits (data.sampling.negative_drop_rate)"
        )
    if class_weights:
        negative, positive = class_weights
        reasons.append(f"the loss weighs label 0 by {negative:g} and label 1 by {positive:g} (loss.class_weights)")
    return (
        f"{' and '.join(reasons)}, so predicted probabilities are too {'high' if factor < 1 else 'low'} for the rates "
        "of all rows; evaluate, recommend and export give those rates with correct_sampling=true"
    )


BLOCK_ROWS = 256  # rows read together
INCREMENT = np.uint64(0x9E3779B97F4A7C15)


def splitmix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64 mixed bits of each value, by Sebastiano Vigna's generator of that name, a bijection."""
    # Neighbouring numbers get unrelated hashes, so the hashes of any numbers are a fair sample.
    mixed = values + INCREMENT
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def sampled_blocks(rows: int, share: float, number: int, block_rows: int) -> list[tuple[int, int]]:
    """Return [start, stop) of the sampled blocks of a shard of `rows` rows.

    share: probability of each block; a hash of shard and block numbers decides. number: the shard's number in its
    split.
    """
    starts = np.arange(0, rows, block_rows)
    if share < 1:
        # The shard's number belongs to the hash, or all shards would have the same blocks.
        hashes = splitmix64(np.arange(len(starts)).astype(np.uint64) + (np.uint64(number) << np.uint64(32)))
        starts = starts[hashes < np.uint64(int(share * 2**64))]
    return [(start, min(start + block_rows, rows)) for start in starts.tolist()]


def rows_of_blocks(blocks: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """Return the row numbers in the blocks [start, stop), in order."""
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(start, stop) for start, stop in blocks)])


def sample_split(shard_rows: Sequence[int], limit: int | None) -> list[NDArray[np.int64]]:
    """Return the sampled row numbers within each shard of a split: at most `limit` in all; None: all rows."""
    total = sum(shard_rows)
    share = 1.0 if limit is None or limit >= total else limit / total
    parts, rows_left = [], total if limit is None else limit
    for number, rows in enumerate(shard_rows):
        # Chance may choose a few rows too many.
        part = rows_of_blocks(sampled_blocks(rows, share, number, BLOCK_ROWS))[:rows_left]
        rows_left -= len(part)
        parts.append(part)
    return parts


def sampled_row_numbers(shard_rows: Sequence[int], limit: int | None) -> NDArray[np.int64]:
    """Return the rows that `sample_split` chooses by their numbers within the split, in order."""
    starts = np.cumsum([0, *shard_rows])  # and the end of the split, which begins no shard
    parts = sample_split(shard_rows, limit)
    return np.concatenate([np.zeros(0, np.int64), *(start + part for start, part in zip(starts, parts, strict=False))])
