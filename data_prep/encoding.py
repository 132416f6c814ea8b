"""New rows to the arrays of a dataset, by its manifest; the column that decides a split.

Each field becomes a 64-bit number: microseconds since 1970, or the value of its text (data_prep/dataset/spelling.py).
"""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import structs
from numpy.typing import NDArray

from common.errors import UserError
from common.files import FileDigest
from data_prep.dataset.format import Manifest, load_rows_manifest, verify_file
from data_prep.dataset.options import DenseTransform, Schema
from data_prep.dataset.spelling import (
    LIST_SEPARATOR,
    NUMBER,
    STANDARD,
    UTF_8,
    Bags,
    Dialect,
    Form,
    Locator,
    RawRows,
    TableBlock,
    from_text,
    numbered_rows,
    offsets_of,
    remainders,
    text_values,
)
from data_prep.dataset.table_spec import Table
from data_prep.lookup import (
    NO_ID,
    DenseRange,
    ValueTable,
    build_table,
    column_transforms,
    dense_limits,
    torchrec_ids,
    transform_rows,
    vocabulary_path,
)
from data_prep.parsing.convert import (
    EMPTY,
    convert,
    distinct,
    distinct_texts,
    excerpt,
    plain,
    refuse_row,
    times_of,
    to_list,
    to_texts,
    truths_of,
    without_marks,
    without_nan,
)
from data_prep.parsing.criteo import Block, parse_bytes
from data_prep.parsing.formats import (
    BYTE_ORDER_MARK,
    Chunk,
    FileLayout,
    LineFormat,
    format_named,
    format_of,
    suffix_of,
    table_layout,
    table_size,
)
from data_prep.parsing.labels import convert_rows
from data_prep.parsing.readers import Text, gather_column, read_names, read_objects, refuse_constants
from data_prep.sources.discover import DAMAGE, Source, packing_of, resolve_sources

DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
OTHER_DELIMITERS = (",", "\t", ";", "|")  # tried if the suffix's own gives no known column
SUFFIXES = (*DELIMITERS, ".parquet", ".jsonl", ".ndjson", ".json")


class NewRows(NamedTuple):
    """Rows by column; each column is an Arrow array or a list of Python values.

    `name` is the file's name in errors, `numbers` the rows' numbers in the file. JSON rows may lack columns: `absent`
    holds the indices of such rows, whose value is None.
    """

    name: str
    columns: dict[str, Any]
    numbers: Sequence[int]
    absent: Mapping[str, Sequence[int]] = {}

    def values(self, column: str) -> list[Any]:
        """Return a column as a list of Python values, [rows]; None for a missing one."""
        return to_list(self.columns[column])

    def texts(self, column: str) -> list[str]:
        """Return a column as text. Raise UserError for a value that is neither text nor a number."""
        return to_texts(self.columns[column], self._locator_of(column))

    def truths(self, column: str) -> NDArray[np.bool_]:
        """Return 0, 1 and words such as true as booleans [rows], an empty field as False. Raise UserError else."""
        return truths_of(plain(self.columns[column]), self._locator_of(column), 0.0)

    def _locator_of(self, column: str) -> Locator:
        """Return the locator of a column's fields, for errors."""
        batch = RawRows(self.columns, len(self.numbers), numbered_rows(self.name, self.numbers))
        return batch.locator_of(column)


class Shape(NamedTuple):
    """Expected form of new rows.

    names: all columns of a raw file, in order; delimiter: of its text; label: name of that column; required_columns:
    columns whose values are read and must be valid; None: all. dialect: of text.
    """

    names: tuple[str, ...]
    delimiter: str
    label: str
    required_columns: Collection[str] | None = None
    dialect: Dialect = STANDARD


def read_new_rows(path: Path, shape: Shape) -> NewRows:
    """Read a file by its suffix.

    .tsv, .txt and .csv have a first row of names, or else the columns in a raw file's order, with or without the
    label. .jsonl has one object a line. .json has a list of objects, or an object {"user": {...}, "candidates":
    [{...}, ...]}, whose user columns are added to each candidate. Each may be compressed (NAME.csv.gz).
    """
    suffix = suffix_of(path.name)
    if suffix not in SUFFIXES:
        raise UserError(f"{path}: unknown kind of file; give one whose name ends in {', '.join(SUFFIXES)}")
    try:
        if suffix in DELIMITERS:
            return _read_text(path, _read_content(path).replace(b"\r\n", b"\n"), DELIMITERS[suffix], shape)
        if suffix == ".parquet":
            return _read_parquet(path, shape.required_columns)
        content = _read_content(path)
        objects = _read_json(path, content) if suffix == ".json" else read_objects(content, str(path))
        return rows_of_objects(str(path), objects)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; check the path") from error


def _read_content(path: Path) -> bytes:
    """Return a file's bytes, decompressed if needed. Raise UserError for damage."""
    packing = packing_of(path)
    with open(path, "rb") if packing is None else packing.open(path) as file:
        try:
            return bytes(file.read())
        except (EOFError, *DAMAGE) as error:
            raise UserError(f"{path}: damaged, or cut off ({error}); get it again") from error


def _read_text(path: Path, content: bytes, suffix_delimiter: str, shape: Shape) -> NewRows:
    """Read text columns, by the names in the first row or, if no name is known, by position."""
    mark = BYTE_ORDER_MARK if shape.dialect.charset == UTF_8 else b""  # decoding refuses it in another charset
    text = content.removeprefix(mark).lstrip(b"\n")
    row, first = 1 + content.count(b"\n") - text.count(b"\n"), text.partition(b"\n")[0]
    # The first row by each delimiter; the one that gives a known name, or else as many columns as a row has, is right.
    heads: dict[str, tuple[str, ...]] = {}
    for delimiter in dict.fromkeys((shape.delimiter, suffix_delimiter, *OTHER_DELIMITERS)):
        with suppress(UserError):  # raised for instance for a quote that another delimiter closes
            heads[delimiter] = read_names(first, delimiter, str(path), shape.dialect)
    delimiter = next((each for each, head in heads.items() if not set(shape.names).isdisjoint(head)), "")
    if delimiter:
        names, text, row = heads[delimiter], text.partition(b"\n")[2], row + 1
        require_distinct(f"{path}: row 1", names, shape.required_columns)
    else:
        by_width = {len(names): names for names in (tuple(n for n in shape.names if n != shape.label), shape.names)}
        fitting = (each for each, head in heads.items() if len(head) in by_width)
        delimiter = next(fitting, suffix_delimiter) if shape.delimiter in heads else shape.delimiter
        names = by_width.get(len(heads.get(delimiter, ())), shape.names)
    layout = FileLayout(names, delimiter, header=False, dialect=shape.dialect)
    columns, numbers = Text().fields(text, names, layout, str(path), row)
    return NewRows(str(path), columns, numbers)


def require_distinct(location: str, names: Sequence[str], required_columns: Collection[str] | None) -> None:
    """Raise UserError for a name that two columns have, if it is required; required_columns None: for any."""
    for name in names:
        if names.count(name) > 1 and (required_columns is None or name in required_columns):
            raise UserError(f"{location}: a column is named twice, {name}; rename one")


def _read_parquet(path: Path, required_columns: Collection[str] | None) -> NewRows:
    """Read a Parquet file, or the files of a directory, whose partitions NAME=VALUE become columns of text."""
    parts: list[tuple[Path, tuple[tuple[str, str | None], ...]]] = [(path, ())]
    if path.is_dir():
        try:
            parts = [(Path(source.path), source.partitions) for source in resolve_sources(path)]
        except UserError as error:
            raise UserError(
                f"{path}: no directory of Parquet files; give a file, or a directory as Spark writes it"
            ) from error
    try:
        tables = []
        for part, partitions in parts:
            with pq.ParquetFile(part) as file:  # unlike read_table, accepts two columns of one name
                table = file.read()
            for name, value in partitions:
                table = table.append_column(name, pa.repeat(pa.scalar(value, pa.string()), len(table)))
            tables.append(table)
        # Missing values may change a column's type from file to file, such as int64 to float64.
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowException, ValueError) as error:
        raise UserError(f"{path}: not readable as Parquet ({error})") from error
    require_distinct(str(path), table.column_names, required_columns)
    chunks = (column.combine_chunks() for column in table.columns)
    columns = dict(zip(table.column_names, map(without_nan, chunks), strict=True))
    return NewRows(str(path), columns, range(1, table.num_rows + 1))


def _read_json(path: Path, content: bytes) -> dict[int, Any]:
    """Return the objects of a JSON file by their number from 1: its list, or candidates joined with their user."""
    try:
        document = msgspec.json.decode(content.removeprefix(BYTE_ORDER_MARK))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        refuse_constants(content, f"{path}: ")
        raise UserError(f"{path}: not JSON ({error}); JSON lines want the ending .jsonl") from error
    if isinstance(document, dict) and document.keys() == {"user", "candidates"}:
        user, candidates = document["user"], document["candidates"]
        if isinstance(user, dict) and isinstance(candidates, list) and all(isinstance(c, dict) for c in candidates):
            document = [user | candidate for candidate in candidates]
    if not isinstance(document, list):
        raise UserError(f'{path}: give a list of objects, or {{"user": {{...}}, "candidates": [{{...}}, ...]}}')
    for row, item in enumerate(document, start=1):
        if not isinstance(item, dict):
            raise UserError(f"{path}: row {row}: not an object of columns")
    return dict(enumerate(document, start=1))


def rows_of_objects(name: str, objects: Mapping[int, Mapping[str, Any]]) -> NewRows:
    """Return objects by the numbers of their rows; an object may lack columns."""
    names = list(dict.fromkeys(column for item in objects.values() for column in item))
    absent = {column: [index for index, item in enumerate(objects.values()) if column not in item] for column in names}
    columns = {column: gather_column(objects, column) for column in names}
    return NewRows(name, columns, list(objects), {column: rows for column, rows in absent.items() if rows})


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
    for source in divided:
        form = format_of(source)
        columns = {column.name: column.kind for column in form.columns(source, table_layout(table)[1])}
        if name in columns:
            kinds.setdefault(columns[name], source.path)
        elif not form.merges_columns or (source is divided[-1] and not kinds):
            known = ", ".join(columns)
            raise UserError(f"{source.path}: no column {name}, which data.split.column names; it has {known[:LONGEST]}")
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
        form = format_of(divided[0])
        is_text = isinstance(form, LineFormat)
        chunk = Chunk(0, FIRST_BYTES) if is_text else form.chunks(divided[0], table_size(table), FIRST_BYTES)[0]
        for batch, _ in form.batches(divided[0], chunk, [name], table_layout(table)[1]):
            [value] = to_list(plain(without_nan(batch.columns[name]))[:1])
            example = None if value in (*EMPTY, *table.missing) else value
            break
    return SplitColumn(name, is_time, form_of_times, example)


ParsedRows: TypeAlias = Block | TableBlock  # rows of Criteo's format, or of a user's own table


class EncodedBlock(NamedTuple):
    """labels [rows] int32, dense [rows, N] float32, sparse [rows, F] int32 ids, out_of_vocabulary [F] int64.

    out_of_vocabulary counts each feature's values without an id of their own (always 0 with `hash`). If features are
    multi-hot, `sparse` has only the columns of the other features, and `bags` has one entry per multi-hot feature.
    weights: sample weights [rows] float32 of labelled rows, if the dataset has them.
    """

    labels: NDArray[np.int32]
    dense: NDArray[np.float32]
    sparse: NDArray[np.int32]
    out_of_vocabulary: NDArray[np.int64]
    bags: tuple[Bags, ...] = ()
    weights: NDArray[np.float32] | None = None


class Encoder:
    """Parser and encoder for new rows, with a dataset's own settings and vocabularies.

    `schema` has the columns of raw rows, `features` the sparse features of encoded ones. The encoding torchrec shifts
    integers by their file's minimum; new rows use the last file's.
    """

    def __init__(self, manifest: Manifest, tables: list[ValueTable]) -> None:
        self.schema = msgspec.convert(manifest.encoding["raw_schema"], Schema)
        self.features: tuple[str, ...] = tuple(manifest.schema["sparse"])
        self._max_ind_range: int | None = manifest.encoding["max_ind_range"]
        self._wraps: bool = manifest.encoding["wraps"]
        self._tables = dict(zip(self.features, tables, strict=False))  # empty with `hash`, which has no vocabularies
        entry = manifest.encoding.get("table")
        self._table = None if entry is None else msgspec.convert(entry, Table)
        self._forms = {name: from_text(text) for name, text in manifest.encoding.get("spellings", {}).items()}
        self._transform = DenseTransform(manifest.encoding["dense_transform"])
        self._column_transforms = column_transforms(self._table, manifest.encoding.get("dense_fits", {}))
        self._wraps_integers: bool = manifest.encoding["rounds_ids"]  # integers in the shards do so, too
        self._range = None
        if manifest.encoding["dense_range"]:
            last = manifest.encoding["dense_range"][-1]
            self._range = DenseRange(np.array(last["low"]), np.array(last["high"]))

    @classmethod
    def load(cls, root: Path) -> "Encoder":
        """Load the encoder of the dataset at `root`.

        Raises UserError: no dataset, an imported or generated one, or a missing or changed vocabulary.
        """
        manifest = load_rows_manifest(root)
        encoding = manifest.encoding
        if encoding.get("raw_schema") is None:
            raise UserError(f"{root}: imported or generated, not made from raw rows; new rows cannot be encoded for it")
        if encoding["order"] is None:
            return cls(manifest, [])
        tables = []
        for feature in manifest.schema["sparse"]:
            entry, path = encoding["vocabulary"][feature], vocabulary_path(root, feature)
            verify_file(path, FileDigest(entry["bytes"], entry["sha256"]))
            tables.append(build_table(np.load(path), encoding["first_id"], encoding["unknown_id"]))
        return cls(manifest, tables)

    def parse(self, data: bytes, name: str, labelled: bool = True) -> ParsedRows:
        """Parse rows of a raw file in memory; a user's table includes its header, if it has one.

        Args:
            data: whole rows.
            name: name of the rows in errors.
            labelled: False for rows without the label column, which get label 0.
        """
        if self._table is None:
            return parse_bytes(data, name, self.schema, labelled, missing=np.int32(0))
        if not data:
            raise UserError(f"{name}: empty file; give at least one row")
        form = format_named(self._table.format)
        # Parquet has no rows as lines, so rows in memory for such a dataset are delimited text.
        form = form if isinstance(form, LineFormat) else Text()
        layout, table = self.layout, self._table
        columns = list(dict.fromkeys((*table.targets, *table.inputs) if labelled else table.inputs))
        if isinstance(form, Text):
            fields = read_names(data.partition(b"\n")[0] + b"\n", layout.delimiter, name, layout.dialect)
            if layout.header:
                layout = layout._replace(names=fields)
            elif not labelled and len(fields) == len(table.names) - 1:
                # Rows without a header have no names, so only their width tells whether the label is among them.
                layout = layout._replace(names=tuple(column for column in table.names if column != table.label))
            for column in columns if layout.header else ():
                if column not in fields:
                    raise UserError(f"{name}: row 1: no column {column}; the first row must name the columns")
        by_column, numbers = form.fields(data, columns, layout, name, 1)
        return self._convert(RawRows(by_column, len(numbers), numbered_rows(name, numbers)), labelled)

    @property
    def layout(self) -> FileLayout:
        """Return the layout of a raw file: its columns in order, its delimiter, and whether row 1 names the columns."""
        if self._table is None:
            return FileLayout(self.schema.columns, "\t", header=False)
        return table_layout(self._table)[1]

    def shape(self, required_columns: Collection[str] | None = None) -> Shape:
        """Return the shape of files with new rows, of which only the `required_columns` are read; None: all."""
        layout = self.layout
        return Shape(layout.names, layout.delimiter, self.schema.label, required_columns, layout.dialect)

    @property
    def input_columns(self) -> tuple[str, ...]:
        """Return the columns that new rows must have: those that features are read from."""
        return (*self.schema.dense, *self.schema.sparse) if self._table is None else self._table.inputs

    @property
    def target_columns(self) -> tuple[str, ...]:
        """Return the further columns that labelled rows must have: the label, and the weight if there is one."""
        return (self.schema.label,) if self._table is None else self._table.targets

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
        numbers = range(1, rows + 1) if numbers is None else numbers
        batch = RawRows(columns, rows, numbered_rows(name, numbers))
        if self._table is not None:
            return self._convert(batch, labelled)
        names = (self.schema.label, *self.input_columns) if labelled else self.input_columns
        texts = [to_texts(columns[column], batch.locator_of(column)) for column in names]
        for column, values in zip(names, texts, strict=True):
            for number, text in zip(numbers, values, strict=True):
                if any(character in text for character in "\t\r\n"):
                    raise UserError(f"{name}: row {number}, column {column}: a tab or a line break in it; remove it")
        # One parser reads all of Criteo's rows, so values in memory take the form of its text.
        lines = "".join("\t".join(fields) + "\n" for fields in zip(*texts, strict=True))
        return parse_bytes(lines.encode(), name, self.schema, labelled, numbers[0], np.int32(0))

    def _convert(self, batch: RawRows, labelled: bool) -> TableBlock:
        """Convert columns of a user's table, by the limits of its transforms and the dataset's spellings."""
        assert self._table is not None
        return convert_rows(batch, self._table, labelled, dense_limits(self._transform, self._table), self._forms)

    def unknown(self, block: ParsedRows) -> NDArray[np.bool_]:
        """Return a mask [rows, F] of fields with a value that has no id of its own, any of a bag; False with `hash`."""
        unknown = np.zeros((len(block.labels), len(self.features)), np.bool_)
        for index, feature in enumerate(self.features if self._tables else ()):
            ids, _ = self._encode_feature(block, feature, unknown_id=-1)
            # How many unknown ids precede each bag; the number grows within a bag that has any.
            counts = offsets_of((ids.ids < 0).astype(np.int64))[ids.offsets]
            unknown[:, index] = np.diff(counts) > 0
        return unknown

    def _encode_feature(self, block: ParsedRows, feature: str, unknown_id: int | None = None) -> tuple[Bags, int]:
        """Return a feature's ids as bags (of one id each if it is not multi-hot), and the number of unknown values.

        unknown_id: id for unknown values; None: the dataset's.
        """
        offsets = np.arange(len(block.labels) + 1)
        if isinstance(block, Block):
            values: NDArray[Any] = np.ascontiguousarray(block.sparse[:, self.schema.single.index(feature)])
            codes = None
        else:
            column = block.categories[self.schema.sparse.index(feature)]
            offsets = offsets if column.offsets is None else column.offsets
            values, codes = text_values(column.values.dictionary), column.values.indices.to_numpy()
        ids, missing = self._look_up(feature, values, unknown_id)
        if codes is not None:
            ids, missing = ids[codes], missing[codes]
        return Bags(ids, offsets), int(np.count_nonzero(missing))

    def _look_up(
        self, feature: str, values: NDArray[Any], unknown_id: int | None
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return the ids of a feature's values [n], and a mask of those without an id.

        unknown_id: id for unknown values; None: the dataset's.
        """
        if not self._tables:
            assert self._max_ind_range is not None
            return remainders(values, self._max_ind_range), np.zeros(len(values), np.bool_)
        ids = np.empty(len(values), np.int32)
        # The table's own id for unknown values may be an id that known values have, too.
        replace(self._tables[feature], unknown_id=NO_ID).look_up(values, ids)
        missing = ids == NO_ID
        ids[missing] = self._tables[feature].unknown_id if unknown_id is None else unknown_id
        return ids, missing

    def ids_of(self, feature: str, values: Any) -> NDArray[np.int32]:
        """Return the ids [n] of single values of a sparse feature, -1 for a value without an id.

        values: an Arrow array or a list of Python values, as raw rows have them: of a feature that is a part of a date,
        the date; of a multi-hot one, one of a list's values.
        """
        name = f"values of {feature}"
        if self._table is None:
            columns: dict[str, list[Any]] = {column: [""] * len(values) for column in self.input_columns}
            block = self.parse_columns({**columns, feature: values}, name)
            assert isinstance(block, Block)
            ids, _ = self._look_up(feature, np.ascontiguousarray(block.sparse[:, self.features.index(feature)]), NO_ID)
        else:
            texts = self._texts_of(feature, values, name)
            ids, _ = self._look_up(feature, text_values(texts.dictionary), NO_ID)
            ids = ids[texts.indices.to_numpy()]
        # Wrapping would turn -1 into an id, so only the ids of known values pass.
        known = ids[ids >= 0]
        torchrec_ids(known, rounds=False, modulus=self._max_ind_range if self._wraps and self._tables else None)
        ids[ids >= 0] = known
        return ids

    def _texts_of(self, feature: str, values: Any, name: str) -> Any:
        """Return single values of a feature of a user's table as texts, an Arrow dictionary array; see `ids_of`."""
        assert self._table is not None
        parts = tuple(part for part in self._table.parts if part.feature == feature)
        column = parts[0].column if parts else feature
        batch = RawRows({column: values}, len(values), numbered_rows(name, range(1, len(values) + 1)))
        separator = dict(self._table.separators).get(feature)
        # A text that joins several values is none of them; a list's own values may hold any character.
        if separator or (separator is not None and not self._forms[feature] & Form.UNJOINABLE):
            mark, distinct_values = separator or LIST_SEPARATOR, distinct(plain(values))
            is_joined = [isinstance(value, str) and mark in value for value in distinct_values.values]
            fault = f"holds {mark!r}, which joins values"
            distinct_values.refuse(is_joined, batch.locator_of(column), fault, "give each value by itself")
        table = structs.replace(self._table, dense=(), vectors=(), sparse=(feature,), separators=(), parts=parts)
        try:
            [texts] = convert(batch, table, forms=self._forms).categories
        except UserError as error:
            if not parts:
                raise
            remedy = f"ids of {feature} take times of {column}; dataset.values({feature!r}) lists the {parts[0].part}s"
            raise UserError(f"{error}; {remedy}") from None
        return texts.values

    def encode(self, block: ParsedRows) -> EncodedBlock:
        """Return the arrays of parsed rows as a shard of the dataset would have them: same ids, transforms and bags."""
        integers = block.dense
        if self._transform is DenseTransform.torchrec and self._range is not None:
            integers = np.maximum(integers, self._range.low.min())  # the logarithm of smaller ones is undefined
        dense = transform_rows(integers, self._transform, self._column_transforms, self._range, self._wraps_integers)
        dense = dense.astype(np.float32, copy=False)  # the dtype that shard readers give, too
        unknown = np.zeros(len(self.features), np.int64)
        single: list[NDArray[np.int32]] = []
        bags: list[Bags] = []
        for index, feature in enumerate(self.features):
            encoded, unknown[index] = self._encode_feature(block, feature)
            if feature in self.schema.ragged:
                bags.append(encoded)
            else:
                single.append(encoded.values)
        ids = np.stack(single, axis=1) if single else np.zeros((len(block.labels), 0), np.int32)
        torchrec_ids(ids, rounds=False, modulus=self._max_ind_range if self._wraps and self._tables else None)
        weights = block.weights if isinstance(block, TableBlock) else None
        return EncodedBlock(block.labels, dense, ids, unknown, tuple(bags), weights)
