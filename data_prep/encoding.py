"""New rows to the arrays of a dataset, by its manifest; the column that decides a split.

Each field becomes a 64-bit number: microseconds since 1970, or the value of its text (data_prep/codec/values.py).
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from common.errors import UserError
from common.files import FileDigest
from data_prep.codec.convert import (
    EMPTY,
    distinct,
    distinct_texts,
    excerpt,
    plain,
    refuse_row,
    times_of,
    to_list,
    without_marks,
    without_nan,
)
from data_prep.codec.files import NewRows, Shape, parse_file, require_distinct
from data_prep.codec.rows import ParsedRows, RowCodec
from data_prep.codec.values import NUMBER, STANDARD, Dialect, RawRows, numbered_rows, offsets_of, text_values
from data_prep.dataset.format import Manifest, ShardArrays, load_rows_manifest, verify_file
from data_prep.dataset.options import DenseTransform, Schema, Table
from data_prep.lookup import NO_ID, column_transforms, dense_limits, vocabulary_path
from data_prep.parsing.readers import read_targets
from data_prep.parsing.table import Chunk, LineFormat, format_named, read_columns, row_bytes, suffix_of, table_layout
from data_prep.sources.files import DAMAGE, Source, packing_of, resolve_sources


def read_new_rows(path: Path, shape: Shape) -> NewRows:
    """Read a file by its suffix, compressed or not (NAME.csv.gz), or a directory of Parquet: see `parse_file`.

    Partitions NAME=VALUE of a directory become columns of text.
    """

    def read() -> bytes:
        packing = packing_of(path)
        with open(path, "rb") if packing is None else packing.open(path) as file:
            return bytes(file.read())

    suffix = suffix_of(path.name)
    try:
        if suffix == ".parquet" and path.is_dir():
            return _read_directory(path, shape)
        return parse_file(str(path), suffix, read, shape)
    except (EOFError, *DAMAGE) as error:
        raise UserError(f"{path}: damaged, or cut off ({error}); get it again") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; check the path") from error


def _read_directory(path: Path, shape: Shape) -> NewRows:
    """Read the Parquet files of a directory."""
    try:
        sources = resolve_sources(path)
    except UserError as error:
        raise UserError(
            f"{path}: no directory of Parquet files; give a file, or a directory as Spark writes it"
        ) from error
    tables = []
    for source in sources:
        rows = parse_file(source.path, ".parquet", Path(source.path).read_bytes, shape)
        table = pa.table(rows.columns)
        for name, value in source.partitions:
            table = table.append_column(name, pa.repeat(pa.scalar(value, pa.string()), len(table)))
        tables.append(table)
    try:
        # Missing values may change a column's type from file to file, such as int64 to float64.
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise UserError(f"{path}: not readable as Parquet ({error})") from error
    # A partition may have the name of a column in the files.
    require_distinct(str(path), table.column_names, shape.required_columns)
    chunks = (column.combine_chunks() for column in table.columns)
    return NewRows(str(path), dict(zip(table.column_names, chunks, strict=True)), range(1, len(table) + 1))


FIRST_BYTES = 1 << 20  # beginning of a text file, with its first row
FILL = "it decides the row's split, so fill it in, or remove the row"
LONGEST = 200  # most characters of column names in an error
KINDS = ("text", "any", "integer", "number", "null")  # kinds of columns with one value a row


@dataclass(frozen=True)
class SplitColumn:
    """The column, with the form of its fields.

    Attributes:
        column: its name.
        is_time: whether it holds times, not values of a group.
        format: format of the times; None: ISO 8601, or numbers that count seconds since 1970.
        example: value of the first row; all others are of its type, text or number. None: the files tell the type.
    """

    column: str
    is_time: bool
    format: str | None = None
    example: Any = None

    def keys(self, batch: RawRows, table: Table) -> NDArray[np.int64]:
        """Return the number [rows] that decides each row's split: time in microseconds, or a group's `text_values`."""
        locator = batch.locator_of(self.column)
        values = without_marks(plain(without_nan(batch.columns[self.column])), table.missing)
        if self.example is not None:
            # A column has numbers or texts, as its first value says.
            column = distinct(values)
            is_number = self._is_number(self.example)
            is_other = [value not in EMPTY and self._is_number(value) != is_number for value in column.values]
            names = ("text", "a number") if is_number else ("a number", "text")
            fault = f"is {names[0]}, but the first row has {names[1]} ({excerpt(self.example)})"
            column.refuse(is_other, locator, fault, "write all values of the column alike")
        if self.is_time:
            times = times_of(values, self.format, locator, f"time: {{column: {self.column}", takes_numbers=True)
            refuse_row(np.isnat(times), locator, lambda _: "no value", FILL)
            return times.astype(np.int64)
        texts = distinct_texts(values, locator)
        texts.refuse([text == "" for text in texts.values], locator, "", FILL)
        return text_values(pa.array(texts.values, pa.string())).view(np.int64)[texts.codes]

    def _is_number(self, value: Any) -> bool:
        """Return whether a value is a number: by its type or, of a time in text, by its characters."""
        if isinstance(value, str):
            return self.is_time and re.fullmatch(NUMBER, value) is not None
        return isinstance(value, int | float | Decimal)


def find_split_column(name: str, is_time: bool, table: Table, sources: Sequence[Source]) -> SplitColumn:
    """Look the column up in the files that it divides, with the format that the schema gives it."""
    # Files of val and test are not divided, so they need not have the column.
    divided = [source for source in sources if source.split in (None, "train")]
    kinds: dict[str, str] = {}  # the kind of the column, and a file that has it
    form, layout = format_named(table.format), table_layout(table)[1]
    columns = read_columns(form, divided, layout)
    for source, kind_of in zip(divided, map(dict, columns), strict=True):
        if name not in kind_of:
            known = ", ".join(kind_of)[:LONGEST]
            raise UserError(f"{source.path}: no column {name}, which data.split.column names; it has {known}")
        kinds.setdefault(kind_of[name], source.path)
    for kind, path in kinds.items():
        if kind not in (*KINDS, *(("time",) if is_time else ())):
            remedy = "name a column of times or numbers" if is_time else "name a column of text or integers"
            raise UserError(f"{path}, column {name}: {kind}, which data.split.column cannot be; {remedy}")
        if kind not in ("null", (first := next(iter(kinds)))):
            fault = f"{kind}, but {first} in {kinds[first]}"
            raise UserError(f"{path}, column {name}: {fault}; write both files with one type")
    formats = [entry.format for entry in (table.time, *table.parts) if entry is not None and entry.column == name]
    form_of_times = formats[0] if formats and is_time else None
    example = None
    if form_of_times is None and "time" not in kinds:
        # The value of the first row, by which all others are judged.
        is_text = isinstance(form, LineFormat)
        chunk = Chunk(0, FIRST_BYTES) if is_text else form.chunks(divided[0], layout, row_bytes(table), FIRST_BYTES)[0]
        for batch, _ in form.batches(divided[0], chunk, [name], layout):
            [value] = to_list(plain(without_nan(batch.columns[name]))[:1])
            example = None if value in (*EMPTY, *table.missing) else value
            break
    return SplitColumn(name, is_time, form_of_times, example)


def rules_of(manifest: Manifest) -> dict[str, Any]:
    """Return the rules by which rows become a dataset's features: see data_prep/codec/rows.py."""
    encoding, label = manifest.encoding, manifest.schema["label"]
    dense, features = manifest.schema["dense"], list(manifest.num_embeddings)
    columns = list(dict.fromkeys([*dense, *features]))
    # Rows of a dataset that was generated or imported hold ids.
    rules: dict[str, Any] = {
        "kind": "ids",
        "label": label,
        "columns": columns,
        "names": [label, *columns],
        "delimiter": ",",
    }
    rules |= {"dialect": STANDARD._asdict(), "dense": dense, "sparse": features, "vocabularies": [], "table": None}
    rules |= {"spellings": encoding.get("spellings", {})}
    if encoding.get("raw_schema") is None:
        return rules
    transform, ranges = DenseTransform(encoding["dense_transform"]), encoding["dense_range"]
    rules |= {
        "kind": "criteo",
        "names": list(msgspec.convert(encoding["raw_schema"], Schema).columns),
        "delimiter": "\t",
        "dense_transform": transform.value,
        # The encoding torchrec shifts integers by the lowest of their file; new rows count to the last one.
        "dense_range": ranges[-1] if ranges else None,
        "transforms": [],
        "wraps_integers": encoding["rounds_ids"],  # the encoding torchrec does both
        "vocabularies": features if encoding["order"] is not None else [],
        "unknown_id": encoding["unknown_id"],
        "max_ind_range": encoding["max_ind_range"],
        "wraps": encoding["wraps"],
    }
    if (entry := encoding.get("table")) is None:
        return rules
    table = msgspec.convert(entry, Table)
    # What the conversion reads of a table; the encoding may have left features out.
    kept = [part for part in table.parts if part.feature in (*table.dense, *features)]
    read: dict[str, Any] = {"sparse": features}
    for name, parts in (("parts", kept), ("vectors", table.vectors)):
        read[name] = [{key: getattr(part, key) for key in part.__struct_fields__} for part in parts]
    read["limits"] = dense_limits(transform, table)
    for name in ("dense", "transforms", "separators", "decimal", "thousands", "missing"):
        read[name] = getattr(table, name)
    return rules | {
        "kind": "table",
        "columns": list(dict.fromkeys(map(table.columns_of_features.__getitem__, columns))),
        "names": list(table.names),
        "delimiter": table.delimiter,
        "dialect": table.dialect._asdict(),
        "table": read,
        "transforms": column_transforms(table, encoding.get("dense_fits", {})),
    }


def load_vocabulary(root: Path, manifest: Manifest, feature: str) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Return a feature's values [n] in ascending order and the id [n] of each. Raises UserError if the file changed."""
    entry, path = manifest.encoding["vocabulary"][feature], vocabulary_path(root, feature)
    verify_file(path, FileDigest(entry["bytes"], entry["sha256"]))
    values = np.load(path)
    order = np.argsort(values)
    return values[order], (order + manifest.encoding["first_id"]).astype(np.int32)


class Encoder:
    """Parser and encoder for new rows, with a dataset's own settings and vocabularies.

    `features` has the sparse features, `input_columns` the columns that new rows must have, `target_columns` those that
    labelled rows have besides: the label, and the weight if there is one.
    """

    def __init__(self, manifest: Manifest, vocabularies: Mapping[str, tuple[NDArray[Any], NDArray[np.int32]]]) -> None:
        rules = rules_of(manifest)
        self._codec, self._rules = RowCodec(rules, vocabularies), rules
        self.features, self.input_columns = tuple(rules["sparse"]), tuple(rules["columns"])
        self._ragged = frozenset(manifest.ragged)
        entry = manifest.encoding.get("table")
        self._table = None if entry is None else msgspec.convert(entry, Table)
        self.target_columns = (rules["label"],) if self._table is None else self._table.targets

    @classmethod
    def load(cls, root: Path) -> "Encoder":
        """Load the encoder of the dataset at `root`.

        Raises UserError: no dataset, an imported or generated one, or a missing or changed vocabulary.
        """
        manifest = load_rows_manifest(root)
        if manifest.encoding.get("raw_schema") is None:
            raise UserError(f"{root}: imported or generated, not made from raw rows; new rows cannot be encoded for it")
        names = () if manifest.encoding["order"] is None else manifest.schema["sparse"]
        return cls(manifest, {name: load_vocabulary(root, manifest, name) for name in names})

    def shape(self, required_columns: Collection[str] | None = None) -> Shape:
        """Return the shape of files with new rows, of which only the `required_columns` are read; None: all."""
        rules = self._rules
        dialect = Dialect(**rules["dialect"])
        return Shape(tuple(rules["names"]), rules["delimiter"], rules["label"], required_columns, dialect)

    def parse_columns(
        self, columns: Mapping[str, Any], name: str, numbers: Sequence[int] | None = None, labelled: bool = False
    ) -> ParsedRows:
        """Parse rows given by column, as text in a raw file's form or as typed values.

        Args:
            columns: all `input_columns` and, if labelled, `target_columns`, each an Arrow array or a list of Python
                values, of equal lengths.
            name: name of the rows in errors; numbers: the rows' numbers, by default from 1.
            labelled: whether to read labels; otherwise they are 0.
        """
        rows = len(next(iter(columns.values())))
        batch = RawRows(columns, rows, numbered_rows(name, range(1, rows + 1) if numbers is None else numbers))
        parsed = self._codec.parse(batch)
        if not labelled:
            return parsed
        if self._table is not None:
            labels, _, weights = read_targets(batch, self._table)
            return parsed._replace(labels=labels, weights=weights)
        [label] = self.target_columns
        column = distinct_texts(columns[label], batch.locator_of(label))
        column.refuse([text not in ("0", "1") for text in column.values], batch.locator_of(label), "is not 0 or 1")
        return parsed._replace(labels=np.array([text == "1" for text in column.values], np.int32)[column.codes])

    def unknown(self, rows: ParsedRows) -> NDArray[np.bool_]:
        """Return a mask [rows, F] of fields with a value that has no id of its own, any of a bag; False with `hash`."""
        unknown = np.zeros((len(rows.labels), len(self.features)), np.bool_)
        for index, feature in enumerate(self.features):
            bags, missing = self._codec.bags(rows, feature)
            # How many unknown ids precede each bag; the number grows within a bag that has any.
            counts = offsets_of(missing.astype(np.int64))[bags.offsets]
            unknown[:, index] = np.diff(counts) > 0
        return unknown

    def ids_of(self, feature: str, values: Any) -> NDArray[np.int32]:
        """Return the ids [n] of single values of a sparse feature, -1 for a value without an id.

        values: an Arrow array or a list of Python values, as raw rows have them: of a feature that is a part of a date,
        the date; of a multi-hot one, one of a list's values.
        """
        column, rules = feature, {**self._rules, "dense": [], "sparse": [feature]}
        if (table := rules["table"]) is not None:
            parts = [part for part in table["parts"] if part["feature"] == feature]
            column = parts[0]["column"] if parts else feature
            # Without separators, as a value may contain one.
            alone = {"dense": (), "limits": (), "vectors": (), "sparse": (feature,), "separators": (), "parts": parts}
            rules["table"] = {**table, **alone}
        batch = RawRows({column: values}, len(values), numbered_rows(f"values of {feature}", range(1, len(values) + 1)))
        distinct_values, codes, _ = RowCodec(rules, {}).parse(batch).values[feature]
        ids, missing = self._codec.ids(feature, distinct_values)
        ids[missing] = NO_ID
        return ids[codes]

    def encode(self, rows: ParsedRows) -> ShardArrays:
        """Return the arrays of parsed rows as a shard of the dataset would have them: same ids, transforms and bags.

        Labels and weights are [rows].
        """
        bags = {feature: self._codec.bags(rows, feature)[0] for feature in self.features}
        single = [bag.ids for feature, bag in bags.items() if feature not in self._ragged]
        ids = np.stack(single, axis=1) if single else np.zeros((len(rows.labels), 0), np.int32)
        ragged = tuple(bag for feature, bag in bags.items() if feature in self._ragged)
        return ShardArrays(rows.labels, self._codec.dense(rows), ids, ragged, rows.weights)
