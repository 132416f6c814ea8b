"""Delimited text by Python's csv: lines of a dataset's files, and files of new rows."""

import csv
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any, NamedTuple

import pyarrow as pa

from common.errors import UserError
from data_prep.codec.values import CORRECT, STANDARD, UTF_8, Dialect

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
OTHER_DELIMITERS = (",", "\t", ";", "|")  # tried if the suffix's own gives no known column
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
            # Chunks begin at offsets, where nothing tells an open quote, so no row may take more than one line.
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


def read_delimited(
    lines: Iterable[bytes], name: str, suffix_delimiter: str, shape: Shape
) -> Iterator[tuple[dict[str, Any], Sequence[int]]]:
    """Yield the columns of at most READ_ROWS rows of a file, and the number of each row's line.

    The first row has names, or else columns have the order of the dataset's raw rows, with or without the label.

    Raises UserError: an invalid row (file, row, remedy).
    """
    numbered = enumerate(lines, start=1)
    texts: Iterator[str] = (decode_text(line.rstrip(b"\n") + b"\n", name, row, shape.dialect) for row, line in numbered)
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
    while part := list(islice(rows, READ_ROWS)):
        for row, fields in part:
            if len(fields) != len(names):
                column = names[min(len(fields), len(names) - 1)]
                fault = f"{len(fields)} columns, but a row has {len(names)} (see column {column})"
                raise UserError(f"{name}: row {row}: {fault}; {CORRECT}")
        columns = zip(names, zip(*(fields for _, fields in part), strict=True), strict=True)
        yield {column: pa.array(values, pa.string()) for column, values in columns}, [row for row, _ in part]
