"""The keys of a dataset's manifest, the kinds of their values, and what they must agree in."""

import re
from enum import Enum
from typing import Any

from data_prep.dataset.bags import BAG_KINDS
from data_prep.dataset.json_shape import ListOf, MapOf, OrNull, Record, Shape, Value, find_fault
from data_prep.dataset.multi_hot import Distribution
from data_prep.dataset.options import DenseTransform, Encoding, SplitMethod, VocabularyOrder
from data_prep.dataset.schema import CRITEO
from data_prep.dataset.table_spec import RULE

MAX_NUM_EMBEDDINGS = 1 << 31  # ids are int32
SHARD_KINDS = ("labels", "dense", "sparse")
OF_ALL_ROWS = (DenseTransform.torchrec.value, DenseTransform.minmax.value)  # the transforms that need a range


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_share(value: Any) -> bool:
    return (_is_int(value) or isinstance(value, float)) and 0 <= value <= 1


def _is_file_name(value: Any) -> bool:
    return isinstance(value, str) and value not in ("", ".", "..") and not set(value) & set("/\\\0")


def _one_of(choices: type[Enum]) -> Value:
    values = [choice.value for choice in choices]
    return Value(f"one of {', '.join(values)}", lambda value: value in values)


TEXT = Value("text", lambda value: isinstance(value, str))
FLAG = Value("true or false", lambda value: isinstance(value, bool))
COUNT = Value("a whole number from 0 on", lambda value: _is_int(value) and 0 <= value < 1 << 63)
NUMBER = Value("a number", lambda value: _is_int(value) or isinstance(value, float))
SHARE = Value("a number from 0 to 1", _is_share)
TABLE_ROWS = Value("a whole number from 1 to 2^31", lambda value: _is_int(value) and 1 <= value <= MAX_NUM_EMBEDDINGS)
SHA256 = Value("a SHA-256 in hex", lambda value: isinstance(value, str) and bool(re.fullmatch("[0-9a-f]{64}", value)))
FILE_NAME = Value("the name of a file", _is_file_name)
FEATURE = Value("a feature's name, without . / and \\", lambda value: _is_file_name(value) and "." not in value)
CHARACTER = Value("one character", lambda value: isinstance(value, str) and len(value) == 1)
LABEL_RULE = Value('a rule such as ">= 4"', lambda value: isinstance(value, str) and bool(RULE.fullmatch(value)))
PAIR = Value("two texts", lambda value: isinstance(value, list) and [type(text) for text in value] == [str, str])

DIGEST = Record({"bytes": COUNT, "sha256": SHA256})
SHARD = Record({
    "name": FILE_NAME, "rows": COUNT, "files": Record(dict.fromkeys(SHARD_KINDS, DIGEST),
                                                      dict.fromkeys(BAG_KINDS, DIGEST)),
})  # fmt: skip
SPLIT = Record({"rows": COUNT, "label_rate": OrNull(SHARE), "shards": ListOf(SHARD)})
SCHEMA = Record({"label": TEXT, "dense": ListOf(TEXT), "sparse": ListOf(FEATURE)}, {"ragged": ListOf(FEATURE)})
TABLE = Record(
    {"delimiter": CHARACTER, "header": FLAG, "label": TEXT, "dense": ListOf(TEXT), "sparse": ListOf(FEATURE),
     "rule": OrNull(LABEL_RULE), "names": ListOf(TEXT)},
    {"separators": ListOf(PAIR), "is_parquet": FLAG},
)  # fmt: skip
MULTI_HOT = Record({"sizes": ListOf(TABLE_ROWS), "distribution": _one_of(Distribution), "seed": COUNT})
VOCABULARY = Record({"values": COUNT, "bytes": COUNT, "sha256": SHA256})
ANYTHING = Record({}, is_open=True)
# of rows made from raw files: data_prep.config.presets.Rules, and what data_prep.pipeline adds
FROM_RAW = Record(
    {
        "name": _one_of(Encoding), "dense_transform": _one_of(DenseTransform),
        "order": OrNull(_one_of(VocabularyOrder)), "first_id": COUNT, "unknown_id": COUNT, "fitted_on_train": FLAG,
        "frequency_threshold": COUNT, "max_ind_range": OrNull(TABLE_ROWS), "wraps": FLAG,
        "max_categories": OrNull(COUNT), "rounds_ids": FLAG, "split": _one_of(SplitMethod), "held_out": SHARE,
        "split_seed": COUNT, "train_seed": OrNull(COUNT), "test_first": FLAG, "negative_drop_rate": SHARE,
        "sampling_seed": COUNT, "chunk_bytes": COUNT, "table": OrNull(TABLE), "raw_schema": SCHEMA,
        "dense_range": ListOf(Record({"low": ListOf(NUMBER), "high": ListOf(NUMBER)})),
    },
    {"multi_hot": MULTI_HOT, "vocabulary": MapOf(FEATURE, VOCABULARY)},
)  # fmt: skip
# of rows imported or generated
OTHERS = Record(
    {"name": TEXT},
    {"raw_schema": OrNull(ANYTHING), "dense_transform": OrNull(_one_of(DenseTransform)),
     "random": ANYTHING, "trace": ANYTHING},
)  # fmt: skip
SOURCE = Record({"name": TEXT, "bytes": COUNT, "sha256": SHA256, "rows": COUNT})
MANIFEST = Record({
    "schema": SCHEMA, "encoding": Record({"name": TEXT}, is_open=True), "num_embeddings": MapOf(FEATURE, TABLE_ROWS),
    "splits": MapOf(FILE_NAME, SPLIT), "sources": ListOf(SOURCE), "rows": COUNT, "label_rate": SHARE,
    "tool_version": TEXT,
}, {"extra": Record({}, {"bayes": ANYTHING}, is_open=True)})  # fmt: skip


def manifest_fault(document: Any) -> str | None:
    """What in a manifest (its document without `format` and `format_version`) cannot be; None if all is well."""
    fault = find_fault(document, MANIFEST, "")
    if fault is not None:
        return fault
    encoding, schema = document["encoding"], document["schema"]
    is_raw = encoding.get("raw_schema") is not None or encoding["name"] in [choice.value for choice in Encoding]
    shape: Shape = FROM_RAW if is_raw else OTHERS
    fault = find_fault(encoding, shape, "encoding") or _contradiction(document, schema)
    if fault is None and is_raw:
        fault = _encoding_contradiction(encoding, schema) or _source_contradiction(document, encoding)
    return fault


def _contradiction(document: dict[str, Any], schema: dict[str, Any]) -> str | None:
    """Keys that do not agree with each other."""
    if list(document["num_embeddings"]) != schema["sparse"]:
        return "keys 'num_embeddings' and 'schema.sparse' name different sparse features"
    ragged = schema.get("ragged", [])
    if ragged != [name for name in schema["sparse"] if name in ragged]:
        return "key 'schema.ragged' is not of sparse features, in their order"
    kinds = [*SHARD_KINDS, *(BAG_KINDS if ragged else ())]
    for name, split in document["splits"].items():
        if sum(shard["rows"] for shard in split["shards"]) != split["rows"]:
            return f"key 'splits.{name}.rows': split {name!r} has {split['rows']} rows, but its shards have others"
        if len({shard["name"] for shard in split["shards"]}) != len(split["shards"]):
            return f"key 'splits.{name}.shards': two of the shards have one name"
        for number, shard in enumerate(split["shards"]):
            if set(shard["files"]) != set(kinds):
                return (
                    f"key 'splits.{name}.shards[{number}].files' names {', '.join(shard['files'])}, "
                    f"but by 'schema' it is {', '.join(kinds)}"
                )
    rows, in_splits = document["rows"], sum(split["rows"] for split in document["splits"].values())
    if rows != in_splits:
        return f"key 'rows' is {rows}, but the splits have {in_splits}"
    return None


def _encoding_contradiction(encoding: dict[str, Any], schema: dict[str, Any]) -> str | None:
    """Keys of an encoding of raw rows that do not agree with each other or with the schema."""
    raw = encoding["raw_schema"]
    if encoding["order"] is None and encoding["max_ind_range"] is None:
        return "key 'encoding.max_ind_range' is null, but ids without 'encoding.order' are taken modulo it"
    if encoding["order"] is not None and list(encoding.get("vocabulary", ())) != schema["sparse"]:
        return "key 'encoding.vocabulary' is not of the features of 'schema.sparse'"
    kept = [name for name in raw["sparse"] if name in schema["sparse"]]
    if [raw["label"], raw["dense"], kept] != [schema["label"], schema["dense"], schema["sparse"]]:
        return "keys 'encoding.raw_schema' and 'schema' name different columns"
    if "multi_hot" not in encoding and raw.get("ragged", []) != schema.get("ragged", []):
        return "keys 'encoding.raw_schema' and 'schema' name different multi-hot features"
    if "multi_hot" in encoding and len(encoding["multi_hot"]["sizes"]) != len(raw["sparse"]):
        return "key 'encoding.multi_hot.sizes' is not of the features of 'encoding.raw_schema'"
    if encoding["dense_transform"] in OF_ALL_ROWS and not encoding["dense_range"]:
        return f"key 'encoding.dense_range' is empty, but {encoding['dense_transform']} needs it"
    for number, known in enumerate(encoding["dense_range"]):
        if not len(known["low"]) == len(known["high"]) == len(schema["dense"]):
            return f"key 'encoding.dense_range[{number}]' is not of as many columns as 'schema.dense'"
        if any(low > high for low, high in zip(known["low"], known["high"], strict=True)):
            return f"key 'encoding.dense_range[{number}]': a lowest value is above the highest"
    return _table_contradiction(encoding["table"], raw)


def _source_contradiction(document: dict[str, Any], encoding: dict[str, Any]) -> str | None:
    """Rows that were read and rows that were written, of which negatives may have been dropped."""
    read, written = sum(source["rows"] for source in document["sources"]), document["rows"]
    if read < written or (read > written and not encoding["negative_drop_rate"]):
        return f"key 'sources' is of {read} rows, but 'rows' of {written}"
    return None


def _table_contradiction(table: dict[str, Any] | None, raw: dict[str, Any]) -> str | None:
    """Columns that the table and the schema of raw rows do not both have."""
    if table is None:
        is_criteo = raw == CRITEO.to_manifest()
        return None if is_criteo else "key 'encoding.table' is null, but 'encoding.raw_schema' is not of Criteo's rows"
    for key in ("label", "dense", "sparse"):
        if table[key] != raw[key]:
            return f"keys 'encoding.table.{key}' and 'encoding.raw_schema.{key}' name different columns"
    if not {table["label"], *table["dense"], *table["sparse"]} <= set(table["names"]):
        return "key 'encoding.table.names' lacks columns of 'encoding.table'"
    if {name for name, _ in table.get("separators", ())} != set(raw.get("ragged", ())):
        return "keys 'encoding.table.separators' and 'encoding.raw_schema.ragged' name different columns"
    return None
