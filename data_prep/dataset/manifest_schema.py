"""Check the JSON document of a manifest: its keys, the types and ranges of their values, and their agreement."""

from collections.abc import Sequence
from math import isfinite
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from common.documents import UNKNOWN, Json, convert
from data_prep.dataset.bags import BAG_KINDS
from data_prep.dataset.dialect import charset_named
from data_prep.dataset.kinds import kind_of
from data_prep.dataset.misleading import misleading_sentences
from data_prep.dataset.multi_hot import Distribution
from data_prep.dataset.options import (
    GENERATORS,
    DenseTransform,
    Encoding,
    LabelKind,
    SplitMethod,
    VocabularyOrder,
)
from data_prep.dataset.schema import CRITEO, Feature, Schema, TableRows
from data_prep.dataset.spelling import from_text
from data_prep.dataset.table_spec import FORMATS, Table
from data_prep.dataset.transforms import FITS

SHARD_KINDS = ("labels", "dense", "sparse")
OF_ALL_ROWS = (DenseTransform.torchrec, DenseTransform.minmax)  # transforms that need a range

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
FileName = Annotated[str, Meta(pattern=r"\A(?!\.{1,2}\Z)[^/\\\0]+\Z")]


class JsonObject(Struct, forbid_unknown_fields=True):
    """A JSON object with these keys and no others."""


class _Digest(JsonObject):
    bytes: Count
    sha256: Sha256


class _Source(_Digest):
    name: str
    rows: Count
    split: Literal["train", "val", "test"] | UnsetType = UNSET


class VocabularyFiles(_Digest):
    """A feature's vocabulary: its file, its number of values, and the files of their texts."""

    values: Count
    texts: dict[Literal["texts", "offsets"], _Digest] | UnsetType = UNSET


class _Shard(JsonObject):
    name: FileName
    rows: Count
    files: dict[str, _Digest]


class _Split(JsonObject):
    rows: Count
    label_rate: Share | None
    shards: list[_Shard]


class _Range(JsonObject):
    low: list[float]
    high: list[float]


class _MultiHot(JsonObject):
    sizes: list[TableRows]
    distribution: Distribution
    seed: Count


class _RawEncoding(JsonObject):
    """Encoding of rows from raw files: `data_prep.config.presets.Rules`, and what `data_prep.pipeline` adds."""

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
    split: SplitMethod | None  # None: each source names its split
    held_out: Share
    split_seed: Count
    train_seed: Count | None
    test_first: bool
    negative_drop_rate: Share
    sampling_seed: Count
    chunk_bytes: Count
    table: Table | None
    raw_schema: Schema
    dense_range: list[_Range]
    multi_hot: _MultiHot | UnsetType = UNSET
    vocabulary: dict[Feature, VocabularyFiles] | UnsetType = UNSET
    spellings: dict[Feature, str] | UnsetType = UNSET
    keep_texts: bool | UnsetType = UNSET
    dense_fits: dict[str, list[float]] | UnsetType = UNSET
    split_column: str | UnsetType = UNSET
    mean_weight: Annotated[float, Meta(gt=0)] | UnsetType = UNSET


class _OtherEncoding(JsonObject):
    """Encoding of rows imported or generated, without the settings of a generator."""

    name: str
    raw_schema: Json | UnsetType | None = UNSET
    dense_transform: DenseTransform | UnsetType | None = UNSET


class _Extra(Struct):
    """Figures that no reader needs; further keys are allowed."""

    bayes: Json | UnsetType = UNSET


class Document(JsonObject):
    """A manifest without `format` and `format_version`; `encoding` is checked as _RawEncoding or _OtherEncoding."""

    schema: Schema
    encoding: Json
    num_embeddings: dict[Feature, TableRows]
    splits: dict[FileName, _Split]
    sources: list[_Source]
    rows: Count
    label_rate: Share | None
    tool_version: str
    extra: _Extra | UnsetType = UNSET


def manifest_fault(document: Json) -> str | None:
    """Return the first error in a manifest without `format` and `format_version`, with its key; None if none."""
    try:
        checked = convert(document, Document)
        # This raises ValueError for damaged figures.
        misleading_sentences(convert(document.get("extra", {}), Json))
        encoding, names = checked.encoding, [choice.value for choice in Encoding]
        kind = kind_of(str(encoding.get("name")))
        if kind.parts is not None:
            return kind.parts().fault(checked) or _contradiction(checked, kind.arrays)
        if encoding.get("raw_schema") is None and encoding.get("name") not in names:
            settings = encoding.keys() & set(GENERATORS)
            for group in sorted(settings):
                convert(encoding[group], dict[str, object], f"encoding.{group}")
            others = {key: value for key, value in encoding.items() if key not in settings}
            convert(others, _OtherEncoding, "encoding")
            return _contradiction(checked)
        rules = convert(encoding, _RawEncoding, "encoding")
    except ValueError as error:
        return str(error)
    return (
        _contradiction(checked)
        or _encoding_contradiction(rules, checked.schema)
        or _source_contradiction(checked, rules)
    )


def _contradiction(document: Document, arrays: Sequence[str] = ()) -> str | None:
    """Return which keys contradict each other; None if none do. arrays: names in a shard; empty: those of rows."""
    schema = document.schema
    if tuple(document.num_embeddings) != schema.sparse:
        return "keys 'num_embeddings' and 'schema.sparse' name different sparse features"
    if schema.ragged != tuple(name for name in schema.sparse if name in schema.ragged):
        return "key 'schema.ragged' is not of sparse features, in their order"
    weights = ["weights"] if schema.weight else []
    kinds = arrays or [*SHARD_KINDS, *weights, *(BAG_KINDS if schema.ragged else ())]
    for name, split in document.splits.items():
        if sum(shard.rows for shard in split.shards) != split.rows:
            return f"key 'splits.{name}.rows': split {name!r} has {split.rows} rows, but its shards have others"
        if len({shard.name for shard in split.shards}) != len(split.shards):
            return f"key 'splits.{name}.shards': two of the shards have one name"
        for number, shard in enumerate(split.shards):
            if set(shard.files) != set(kinds):
                return (
                    f"key 'splits.{name}.shards[{number}].files' names {', '.join(shard.files)}, "
                    f"but by 'schema' it is {', '.join(kinds)}"
                )
    if (document.label_rate is None) != (schema.label_kind is LabelKind.number):
        return f"key 'label_rate' is {document.label_rate}, but labels are {schema.label_kind.value}s by 'schema'"
    in_splits = sum(split.rows for split in document.splits.values())
    if document.rows != in_splits:
        return f"key 'rows' is {document.rows}, but the splits have {in_splits}"
    return None


def _encoding_contradiction(encoding: _RawEncoding, schema: Schema) -> str | None:
    """Return which keys of an encoding of raw rows contradict each other or the schema; None if none do."""
    raw = encoding.raw_schema
    if encoding.order is None and encoding.max_ind_range is None:
        return "key 'encoding.max_ind_range' is null, but ids without 'encoding.order' are taken modulo it"
    vocabulary = encoding.vocabulary or {}
    if encoding.order is not None and tuple(vocabulary) != schema.sparse:
        return "key 'encoding.vocabulary' is not of the features of 'schema.sparse'"
    for name, entry in vocabulary.items():
        if set(entry.texts or {}) != ({"texts", "offsets"} if encoding.keep_texts is True else set()):
            return f"keys 'encoding.keep_texts' and 'encoding.vocabulary.{name}' do not agree on 'texts'"
    sparse = tuple(name for name in raw.sparse if name in schema.sparse)
    if replace(raw, sparse=sparse, ragged=()) != replace(schema, ragged=()):
        return "keys 'encoding.raw_schema' and 'schema' name different columns"
    if encoding.multi_hot is UNSET and raw.ragged != schema.ragged:
        return "keys 'encoding.raw_schema' and 'schema' name different multi-hot features"
    if encoding.multi_hot is not UNSET and len(encoding.multi_hot.sizes) != len(raw.sparse):
        return "key 'encoding.multi_hot.sizes' is not of the features of 'encoding.raw_schema'"
    if encoding.dense_transform in OF_ALL_ROWS and not encoding.dense_range:
        return f"key 'encoding.dense_range' is empty, but {encoding.dense_transform.value} needs it"
    for number, bounds in enumerate(encoding.dense_range):
        if not len(bounds.low) == len(bounds.high) == len(schema.dense):
            return f"key 'encoding.dense_range[{number}]' is not of as many columns as 'schema.dense'"
        if any(low > high for low, high in zip(bounds.low, bounds.high, strict=True)):
            return f"key 'encoding.dense_range[{number}]': a lowest value is above the highest"
    return (
        _table_contradiction(encoding.table, raw) or _fit_contradiction(encoding) or _spelling_contradiction(encoding)
    )


def _source_contradiction(document: Document, encoding: _RawEncoding) -> str | None:
    """Return how the numbers of rows read and written contradict each other; negatives may have been dropped."""
    if encoding.split is None and any(source.split is UNSET for source in document.sources):
        return "key 'encoding.split' is null, but not each of 'sources' has a 'split'"
    if (encoding.split is not None and encoding.split.algorithm.has_column) != (encoding.split_column is not UNSET):
        return "key 'encoding.split_column' does not agree with 'encoding.split'"
    source_rows, dataset_rows = sum(source.rows for source in document.sources), document.rows
    if source_rows < dataset_rows or (source_rows > dataset_rows and not encoding.negative_drop_rate):
        return f"key 'sources' is of {source_rows} rows, but 'rows' of {dataset_rows}"
    return None


def _fit_contradiction(encoding: _RawEncoding) -> str | None:
    """Return an error if fits are not those of the columns whose own transforms need one, or are malformed.

    The mean weight is a fit, too.
    """
    if bool(encoding.raw_schema.weight) != (encoding.mean_weight is not UNSET):
        return "keys 'encoding.mean_weight' and 'encoding.raw_schema.weight' belong together"
    fits, fitted = encoding.dense_fits or {}, {}
    if encoding.table is not None:
        fitted = {feature: name for feature, name in encoding.table.transforms if name in FITS}
    if set(fits) != set(fitted):
        return "keys 'encoding.dense_fits' and 'encoding.table.transforms' name different columns"
    for feature, name in fitted.items():
        fit = fits[feature]
        is_possible = fit[-1:] >= [0.0] if name == "standard" else fit == sorted(fit)
        if len(fit) != FITS[name] or not is_possible or not all(map(isfinite, fit)):
            return f"key 'encoding.dense_fits.{feature}' is no fit of {name}"
    return None


def _spelling_contradiction(encoding: _RawEncoding) -> str | None:
    """Return an error if spellings are not those of the table's sparse columns, or have an unknown name."""
    if (encoding.spellings is UNSET) != (encoding.table is None):
        return "key 'encoding.spellings' belongs to 'encoding.table'"
    if encoding.spellings is UNSET or encoding.table is None:
        return None
    if set(encoding.spellings) != set(encoding.table.sparse):
        return "keys 'encoding.spellings' and 'encoding.table.sparse' name different columns"
    for name, spellings in encoding.spellings.items():
        try:
            from_text(spellings)
        except KeyError:
            return f"key 'encoding.spellings.{name}' {UNKNOWN}"
    return None


def _table_contradiction(table: Table | None, raw: Schema) -> str | None:
    """Return an error if the table and the schema of raw rows contradict each other."""
    if table is None:
        is_criteo = raw == CRITEO
        return None if is_criteo else "key 'encoding.table' is null, but 'encoding.raw_schema' is not of Criteo's rows"
    for key in ("label", "label_kind", "dense", "sparse", "weight"):
        if getattr(table, key) != getattr(raw, key):
            return f"keys 'encoding.table.{key}' and 'encoding.raw_schema.{key}' name different columns"
    if not set(table.named) <= set(table.names):
        return "key 'encoding.table.names' lacks columns of 'encoding.table'"
    features = {feature for vector in table.vectors for feature in vector.features}
    if not features | {feature for feature, _ in table.transforms} <= set(table.dense):
        return "keys 'encoding.table.vectors' and '.transforms' name columns that 'encoding.table.dense' lacks"
    if table.positive and (table.rule is not None or table.label_kind is LabelKind.number):
        return "key 'encoding.table.positive' is given beside a rule or labels that are numbers"
    if table.negative and not table.positive:
        return "key 'encoding.table.negative' is given without 'encoding.table.positive'"
    if charset_named(table.charset) != table.charset:
        return f"key 'encoding.table.charset' {UNKNOWN}"
    if table.format not in FORMATS:
        return f"key 'encoding.table.format' {UNKNOWN}"
    if {name for name, _ in table.separators} != set(raw.ragged):
        return "keys 'encoding.table.separators' and 'encoding.raw_schema.ragged' name different columns"
    return None
