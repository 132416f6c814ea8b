"""Readers of new rows for a dataset's encoder, from text, JSON and Parquet files."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.dataset.dialect import STANDARD, UTF_8, Dialect
from data_prep.parsing.convert import plain, to_list, to_texts, truths_of, without_nan
from data_prep.parsing.formats import BYTE_ORDER_MARK, FileLayout, suffix_of
from data_prep.parsing.json_lines import column_of, read_objects, refuse_constants
from data_prep.parsing.raw_rows import Locator, RawRows, numbered_rows
from data_prep.parsing.text import Text, read_names
from data_prep.sources.discover import DAMAGE, packing_of, resolve_sources

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
        """Return a column as a list of Python values."""
        return to_list(self.columns[column])

    def texts(self, column: str) -> list[str]:
        """Return a column as text. Raise UserError for a value that is neither text nor a number."""
        return to_texts(self.columns[column], self._locator_of(column))

    def truths(self, column: str) -> NDArray[np.bool_]:
        """Return a column of 0 and 1 as booleans; an empty field is False. Raise UserError for another value."""
        return truths_of(plain(self.columns[column]), self._locator_of(column), 0.0)

    def _locator_of(self, column: str) -> Locator:
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
    """Read a file, decompressed if needed."""
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
    """Raise UserError for a name that two columns have; None: of any column, else of a required one."""
    for name in names:
        if names.count(name) > 1 and (required_columns is None or name in required_columns):
            raise UserError(f"{location}: a column is named twice, {name}; rename one")


def _read_parquet(path: Path, required_columns: Collection[str] | None) -> NewRows:
    try:
        tables = []
        for part, partitions in _parts(path):
            with pq.ParquetFile(part) as file:  # unlike read_table, accepts two columns of one name
                table = file.read()
            for name, value in partitions:
                table = table.append_column(name, pa.repeat(pa.scalar(value, pa.string()), len(table)))
            tables.append(table)
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowException, ValueError) as error:
        raise UserError(f"{path}: not readable as Parquet ({error})") from error
    require_distinct(str(path), table.column_names, required_columns)
    chunks = (column.combine_chunks() for column in table.columns)
    columns = dict(zip(table.column_names, map(without_nan, chunks), strict=True))
    return NewRows(str(path), columns, range(1, table.num_rows + 1))


def _parts(path: Path) -> list[tuple[Path, tuple[tuple[str, str | None], ...]]]:
    """Return the files of a path (a file or directory), each with its partitions NAME=VALUE."""
    if not path.is_dir():
        return [(path, ())]
    try:
        return [(Path(source.path), source.partitions) for source in resolve_sources(path)]
    except UserError as error:
        raise UserError(
            f"{path}: no directory of Parquet files; give a file, or a directory as Spark writes it"
        ) from error


def _read_json(path: Path, content: bytes) -> dict[int, Any]:
    """Return the objects of a document by their number from 1."""
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
    columns = {column: column_of(objects, column) for column in names}
    return NewRows(name, columns, list(objects), {column: rows for column, rows in absent.items() if rows})
