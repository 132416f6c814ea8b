"""Files of new rows, and lines of a dataset's files: delimited text by Python's csv, objects by its json, Parquet."""

import csv
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.codec.convert import plain, to_list, to_texts, truths_of, without_nan
from data_prep.codec.values import CORRECT, STANDARD, UTF_8, Dialect, Locator, RawRows, numbered_rows

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
OTHER_DELIMITERS = (",", "\t", ";", "|")  # tried if the suffix's own gives no known column
SUFFIXES = (*DELIMITERS, ".parquet", ".jsonl", ".ndjson", ".json")
READ_ROWS = 1 << 16  # rows of a file that are columns at once
csv.field_size_limit(2 << 20)  # limits a line, too: BLOCK_BYTES of data_prep/io.py


def decode_text(text: bytes, name: str, row: int, dialect: Dialect = STANDARD) -> str:
    """Decode text by its charset; `row` is the number of the first line. Raise UserError for invalid text."""
    if row == 1 and dialect.charset != UTF_8 and text.startswith(BYTE_ORDER_MARK):
        fault = f"begins with the byte-order mark of UTF-8, not of charset {dialect.charset}"
        raise UserError(f"{name}: row 1: {fault}; leave the charset out of the schema, or convert the file to it")
    try:
        return text.decode(dialect.encoding if row == 1 else dialect.charset)
    except UnicodeDecodeError as error:
        row += text.count(b"\n", 0, error.start)
        fault = "not UTF-8 text; convert the file, name its charset in the schema of a table (charset: windows-1252)"
        if dialect.charset != UTF_8:
            fault = f"not text in the charset {dialect.charset}; name another one in the schema, convert the file"
        raise UserError(f"{name}: row {row}: {fault}, or remove the row") from error


def read_exact(
    lines: Iterable[str],
    delimiter: str,
    name: str,
    row: int,
    dialect: Dialect = STANDARD,
    bare_returns: str = "lines end in carriage returns alone; convert them to line feeds",
) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each row's line, and its fields. Blank lines are no rows.

    lines: each ends in a line feed. name: name of the source in errors; row: number of the first line. bare_returns:
    what is said of lines that end in carriage returns alone.
    """
    begun: list[str] = []  # the lines of the current row

    def remember() -> Iterator[str]:
        for line in lines:
            begun.append(line)
            yield line

    reader = dialect.reader(remember(), delimiter)
    # Python's csv takes a backslash literally, so a quote escaped by one ends the field in the middle of it.
    has_plain_backslash = dialect.quoting == "csv" and "\\" not in (delimiter, dialect.escape)
    before, fault = 0, None
    try:
        for fields in reader:
            # Chunks begin at offsets, where an open quote cannot be seen, so no row may take more than one line.
            if reader.line_num > before + 1 or (fields and fields[-1].endswith("\n")):
                break
            if has_plain_backslash and '\\"' in begun[0] and _goes_on_after_quote(begun[0], delimiter):
                fault = (
                    r'\" in quotes, where a backslash escapes nothing; write a quote inside a field as "", or '
                    r'escape: "\\" in the schema'
                )
                break
            begun.clear()
            before += 1
            if fields:
                yield row + before - 1, fields
        else:
            return
    except csv.Error as error:
        if reader.line_num <= before + 1:
            fault = bare_returns if "new-line" in str(error) else f"{error}; correct or remove this row"
    place = "after an escape" if begun[0].rstrip("\r\n").endswith(dialect.escape or "\n") else "inside quotes"
    fault = fault or f"ends {place}; a row is one line: close the quotes, or remove the line break"
    raise UserError(f"{name}: row {row + before}: {fault}")


def _goes_on_after_quote(line: str, delimiter: str) -> bool:
    """Return whether strict csv refuses a line, as where text follows a closing quote."""
    try:
        return not list(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error:
        return True


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


def require_distinct(location: str, names: Sequence[str], required_columns: Collection[str] | None) -> None:
    """Raise UserError for a name that two columns have, if it is required; required_columns None: for any."""
    for name in names:
        if names.count(name) > 1 and (required_columns is None or name in required_columns):
            raise UserError(f"{location}: a column is named twice, {name}; rename one")


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


def parse_file(name: str, suffix: str, read: Callable[[], bytes], shape: Shape) -> NewRows:
    """Parse the content of a file, which `read` returns unpacked, by the suffix of its name.

    .tsv, .txt and .csv have a first row of names, or else the columns in a raw file's order, with or without the
    label. .jsonl has one object a line. .json has a list of objects, or an object {"user": {...}, "candidates":
    [{...}, ...]}, whose user columns are added to each candidate.

    Raises UserError: an invalid row (file, row, remedy), or a suffix of no such form.
    """
    if suffix not in SUFFIXES:
        raise UserError(f"{name}: unknown kind of file; give one whose name ends in {', '.join(SUFFIXES)}")
    content = read()
    if suffix in DELIMITERS:
        return _parse_text(name, DELIMITERS[suffix], content, shape)
    if suffix == ".parquet":
        return _parse_parquet(name, content, shape.required_columns)
    return rows_of_objects(name, _read_json(name, content) if suffix == ".json" else read_objects(content, name))


def _parse_text(name: str, suffix_delimiter: str, content: bytes, shape: Shape) -> NewRows:
    """Parse text columns, by the names in the first row or, if no name is known, by position."""
    numbered = enumerate(content.removesuffix(b"\n").split(b"\n"), start=1)
    texts: Iterator[str] = (decode_text(line + b"\n", name, row, shape.dialect) for row, line in numbered)
    number, first = next(((row, text) for row, text in enumerate(texts, start=1) if text.strip("\r\n")), (1, ""))
    # The first row by each delimiter; the one that gives a known name, or else as many columns as a row has, is right.
    heads: dict[str, list[str]] = {}
    for delimiter in dict.fromkeys((shape.delimiter, suffix_delimiter, *OTHER_DELIMITERS)):
        with suppress(UserError):  # raised for instance for a quote that another delimiter closes
            heads[delimiter] = next(
                (fields for _, fields in read_exact([first], delimiter, name, 1, shape.dialect)), []
            )
    by_width = {len(names): names for names in (tuple(n for n in shape.names if n != shape.label), shape.names)}
    named = next((delimiter for delimiter, head in heads.items() if not set(shape.names).isdisjoint(head)), None)
    if named is not None:
        delimiter, names, number = named, tuple(heads[named]), number + 1
        require_distinct(f"{name}: row {number - 1}", names, shape.required_columns)
    else:
        fitting = (delimiter for delimiter, head in heads.items() if len(head) in by_width)
        delimiter = next(fitting, suffix_delimiter) if shape.delimiter in heads else shape.delimiter
        names, texts = by_width.get(len(heads.get(delimiter, ())), shape.names), chain([first], texts)
    rows = read_exact(texts, delimiter, name, number, shape.dialect)
    numbers: list[int] = []
    parts: dict[str, list[Any]] = {}
    # Lists of Python texts take many times the memory of arrays, so a part of the rows is in lists at once.
    while part := list(islice(rows, READ_ROWS)):
        for row, fields in part:
            if len(fields) != len(names):
                column = names[min(len(fields), len(names) - 1)]
                fault = f"{len(fields)} columns, but a row has {len(names)} (see column {column})"
                raise UserError(f"{name}: row {row}: {fault}; {CORRECT}")
            numbers.append(row)
        columns = dict(zip(names, zip(*(fields for _, fields in part), strict=True), strict=True))
        for column, values in columns.items():
            parts.setdefault(column, []).append(pa.array(values, pa.string()))
    return NewRows(name, {column: pa.concat_arrays(arrays) for column, arrays in parts.items()}, numbers)


def _parse_parquet(name: str, content: bytes, required_columns: Collection[str] | None) -> NewRows:
    """Parse a Parquet file."""
    try:
        with pq.ParquetFile(pa.BufferReader(content)) as file:  # unlike read_table, accepts two columns of one name
            table = file.read()
    except (OSError, pa.ArrowException, ValueError) as error:
        raise UserError(f"{name}: not readable as Parquet ({error})") from error
    require_distinct(name, table.column_names, required_columns)
    chunks = (column.combine_chunks() for column in table.columns)
    columns = dict(zip(table.column_names, map(without_nan, chunks), strict=True))
    return NewRows(name, columns, range(1, table.num_rows + 1))


class Constant(str):
    """NaN or an infinity that stood in JSON without quotes; its type distinguishes it from a text of the row."""


def _refuse_constant(text: str) -> None:
    """Raise ValueError for a NaN or infinity, as Python's json writes them."""
    raise ValueError(f"{text}, which JSON does not have")


def _parse_fraction(text: str) -> float:
    """Parse a number with a fraction or an exponent. Raise ValueError for one that float64 has only as infinity."""
    number = float(text)
    if np.isinf(number):
        raise ValueError(f"{text} is out of range")
    return number


# A decoder that is made once saves making one for each line.
_DECODER = json.JSONDecoder(parse_float=_parse_fraction, parse_constant=_refuse_constant)


def decode_json(text: bytes) -> Any:
    """Decode a document. Raises ValueError: it is not JSON."""
    value = _DECODER.decode(text.decode())
    # A half of a pair of surrogates is no character, which json does not mind.
    if b"\\ud" in text or b"\\uD" in text:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _decode(text: bytes, name: str, row: int, remedy: str, decode: Callable[[bytes], Any] = decode_json) -> Any:
    """Decode a document. Raise UserError if it is not JSON; row: its number, 0: it is the whole file."""
    location = f"{name}: row {row}" if row else name
    try:
        return decode(text)
    except (ValueError, RecursionError) as error:
        # No hook of Python's json gets the column of a constant, so it is found by reading again.
        with suppress(ValueError, RecursionError):
            members: list[tuple[str, Any]] = []
            json.loads(text, parse_constant=Constant, object_pairs_hook=members.extend)
            for column, member in members:
                for constant in member if isinstance(member, list) else [member]:
                    if isinstance(constant, Constant):
                        fault = f"column {column}: {constant}, which JSON does not have; write null"
                        raise UserError(f"{location}{', ' if row else ': '}{fault}") from None
        raise UserError(f"{location}: not JSON ({error}); {remedy}") from error


def _read_json(name: str, content: bytes) -> dict[int, Any]:
    """Return the objects of a JSON file by their number from 1: its list, or candidates joined with their user."""
    text, remedy = content.removeprefix(BYTE_ORDER_MARK), "JSON lines want the ending .jsonl"
    document = _decode(text, name, 0, remedy)
    if isinstance(document, dict) and document.keys() == {"user", "candidates"}:
        user, candidates = document["user"], document["candidates"]
        if isinstance(user, dict) and isinstance(candidates, list) and all(isinstance(c, dict) for c in candidates):
            document = [user | candidate for candidate in candidates]
    if not isinstance(document, list):
        raise UserError(f'{name}: give a list of objects, or {{"user": {{...}}, "candidates": [{{...}}, ...]}}')
    for row, item in enumerate(document, start=1):
        if not isinstance(item, dict):
            raise UserError(f"{name}: row {row}: not an object of columns")
    return dict(enumerate(document, start=1))


def read_objects(
    text: bytes, name: str, first: int = 1, decode: Callable[[bytes], Any] = decode_json
) -> dict[int, dict[str, Any]]:
    """Return the objects of whole lines by line number, without blank lines. Only a line feed ends a line.

    decode: a faster decoder than Python's, which raises ValueError for what is not JSON.
    """
    objects = {}
    # Python would also split lines at separators that JSON allows within texts.
    for row, line in enumerate(text.removeprefix(BYTE_ORDER_MARK).split(b"\n"), start=first):
        if not line.strip(b" \t\r"):
            continue
        item = _decode(line, name, row, "give one object a line", decode)
        if not isinstance(item, dict):
            raise UserError(f"{name}: row {row}: not an object of columns; give one object a line")
        objects[row] = item
    return objects


ARROW_TYPES = {str: pa.string(), float: pa.float64(), int: pa.int64(), bool: pa.bool_()}


def gather_column(objects: Mapping[int, Mapping[str, Any]], column: str) -> Any:
    """Return a column's values: an Arrow array if all have one type, otherwise a list of Python values.

    objects: rows by their numbers; a row may lack the column, and then has None.
    """
    values = [item.get(column) for item in objects.values()]
    kinds = {type(value) for value in values} - {type(None)}
    if len(kinds) == 1 and (kind := ARROW_TYPES.get(kinds.pop())):
        with suppress(OverflowError):  # Arrow holds integers of 64 bits only; larger ones stay Python objects.
            return pa.array(values, kind)
    return values


def rows_of_objects(name: str, objects: Mapping[int, Mapping[str, Any]]) -> NewRows:
    """Return objects by the numbers of their rows; an object may lack columns."""
    names = list(dict.fromkeys(column for item in objects.values() for column in item))
    absent = {column: [index for index, item in enumerate(objects.values()) if column not in item] for column in names}
    columns = {column: gather_column(objects, column) for column in names}
    return NewRows(name, columns, list(objects), {column: rows for column, rows in absent.items() if rows})
