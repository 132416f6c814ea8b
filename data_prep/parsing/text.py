r"""Delimited text, parsed by pyarrow where it is sure to agree with Python's csv, and otherwise by csv.

pyarrow accepts blocks that csv refuses or reads otherwise: with an open quote in the last row, a carriage return inside
a line, a byte-order mark, or a blank line. So pyarrow reads a block only if it has none of these, and only if each line
becomes one row.
"""

import csv
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from common.errors import UserError
from data_prep.dataset.dialect import STANDARD, UTF_8, Dialect
from data_prep.io.read_ahead import BLOCK_BYTES
from data_prep.parsing.formats import BYTE_ORDER_MARK, Column, FileLayout, LineFormat
from data_prep.parsing.raw_rows import CORRECT
from data_prep.sources.discover import Source
from data_prep.sources.line_blocks import LineBlocks, bare_returns

csv.field_size_limit(BLOCK_BYTES)  # limits a line, too
MARK = "leave the charset out of the schema, or convert the file to it"
SENTINEL = "end"  # value of all fields in a line that is appended to a block


class Text(LineFormat):
    """Format of delimited text."""

    name = "text"
    has_layout = True

    def is_of(self, source: Source) -> bool:
        """Return True: any file may be text."""
        return True

    def columns(
        self, source: Source, delimiter: str = ",", header: bool = True, dialect: Dialect = STANDARD
    ) -> list[Column]:
        """Return the names in the first line, or column_0 and so on."""
        with LineBlocks(source) as lines:
            for block in lines.until(1):
                names = read_names(bytes(block.buffer[block.start : block.end]), delimiter, source.path, dialect)
                return [Column(name if header else f"column_{place}", "any") for place, name in enumerate(names)]
        raise UserError(f"{source.path}: empty file; get it again, or leave it out of {source.key}")

    def fields(
        self, text: bytes, columns: Sequence[str], layout: FileLayout, name: str, row: int
    ) -> tuple[dict[str, Any], Sequence[int]]:
        """Parse lines as `LineFormat.fields` describes."""
        if layout.header and row == 1:
            row, text = 2, text.partition(b"\n")[2]
        places, width = [layout.names.index(column) for column in columns], len(layout.names)
        dialect = layout.dialect
        block = text if dialect.charset == UTF_8 else decode(text, name, row, dialect).encode()
        fast = None if dialect.escape else read_fast(block, layout.delimiter, places, width, dialect.quoting)
        if fast is not None:
            return dict(zip(columns, fast.columns, strict=True)), range(row, row + fast.num_rows)
        rows, numbers = read_exact(text, layout.delimiter, name, row, dialect)
        for fields, number in zip(rows, numbers, strict=True):
            if len(fields) != width:
                column = layout.names[min(len(fields), width - 1)]
                fault, remedy = f"{len(fields)} columns, but a row has {width} (see column {column})", CORRECT
                if len(fields) == width + 1 and not fields[-1]:
                    fault = "ends in a delimiter, unlike row 1"
                    remedy = f"if every row does, end row 1 in one, too, else {CORRECT}"
                raise UserError(f"{name}: row {number}: {fault}; {remedy}")
        arrays = (pa.array([fields[place] for fields in rows], pa.string()) for place in places)
        return dict(zip(columns, arrays, strict=True)), numbers

    def lines_before(self, source: Source, layout: FileLayout, offset: int) -> int:
        """Count lines as `LineFormat.lines_before` describes. Raise UserError for an open quote before the offset."""
        row = 1
        with LineBlocks(source) as before:
            for block in before.until(offset):
                text = bytes(block.buffer[block.start : block.end])
                read_exact(text, layout.delimiter, source.path, row, layout.dialect)
                row += text.count(b"\n")
        return row - 1


def read_names(header: bytes, delimiter: str, name: str, dialect: Dialect = STANDARD) -> tuple[str, ...]:
    """Return the fields in a file's first line. Raise UserError for an invalid line."""
    rows, _ = read_exact(header, delimiter, name, 1, dialect)
    return tuple(rows[0]) if rows else ()


def decode(text: bytes, name: str, row: int, dialect: Dialect = STANDARD) -> str:
    """Decode text by its charset; `row` is the number of the first line. Raise UserError for invalid text."""
    if row == 1 and dialect.charset != UTF_8 and text.startswith(BYTE_ORDER_MARK):
        raise UserError(
            f"{name}: row 1: begins with the byte-order mark of UTF-8, not of charset {dialect.charset}; {MARK}"
        )
    try:
        return text.decode(dialect.encoding if row == 1 else dialect.charset)
    except UnicodeDecodeError as error:
        row += text.count(b"\n", 0, error.start)
        fault = "not UTF-8 text; convert the file, name its charset in the schema of a table (charset: windows-1252)"
        if dialect.charset != UTF_8:
            fault = f"not text in the charset {dialect.charset}; name another one in the schema, convert the file"
        raise UserError(f"{name}: row {row}: {fault}, or remove the row") from error


def read_exact(
    block: bytes, delimiter: str, name: str, row: int, dialect: Dialect = STANDARD
) -> tuple[list[list[str]], Sequence[int]]:
    """Parse whole lines with csv: the fields of each row and the number of its line. Blank lines are no rows.

    Args:
        block: whole lines; name: name of the source in errors; row: number of the first line.
    """
    lines = decode(block, name, row, dialect).removesuffix("\n").split("\n")
    reader = dialect.reader((f"{line}\n" for line in lines), delimiter)
    has_plain_backslash = dialect.quoting == "csv" and "\\" not in (delimiter, dialect.escape)
    rows: list[list[str]] = []
    numbers: list[int] = []
    before = 0
    fault = None
    try:
        for fields in reader:
            if reader.line_num > before + 1 or (fields and fields[-1].endswith("\n")):
                break
            if has_plain_backslash and '\\"' in lines[before] and _goes_on_after_quote(lines[before], delimiter):
                fault = (
                    r'\" in quotes, where a backslash escapes nothing; write a quote inside a field as "", or '
                    r'escape: "\\" in the schema'
                )
                break
            before += 1
            if fields:
                rows.append(fields)
                numbers.append(row + before - 1)
        else:
            return rows, numbers
    except csv.Error as error:
        if reader.line_num <= before + 1:
            fault = f"{bare_returns(name)}" if "new-line" in str(error) else f"{error}; correct or remove this row"
    place = "after an escape" if lines[before].removesuffix("\r").endswith(dialect.escape or "\n") else "inside quotes"
    fault = fault or f"ends {place}; a row is one line: close the quotes, or remove the line break"
    raise UserError(f"{name}: row {row + before}: {fault}")


def _goes_on_after_quote(line: str, delimiter: str) -> bool:
    try:
        return not list(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error:
        return True


def read_fast(
    block: bytes, delimiter: str, places: Sequence[int], width: int, quoting: str = STANDARD.quoting
) -> pa.RecordBatch | None:
    """Parse whole lines with pyarrow; None if `read_exact` must parse the block.

    The columns are named by position ("0", "1", …) and have the same fields as `read_exact` gives. A missing field is
    "".

    Args:
        block: whole lines in UTF-8; the last may lack its line end.
        places: positions of the columns to return; width: number of columns in a row.
        quoting: see `Dialect`.
    """
    has_quotes = quoting == STANDARD.quoting
    if not _is_plain(block, delimiter, has_quotes):
        return None
    lines = block if block.endswith(b"\n") else block + b"\n"
    sentinel = delimiter.join([f'"{SENTINEL}"' if has_quotes else SENTINEL] * width) + "\n"
    batch = _read(lines + sentinel.encode(), delimiter, width, places, has_quotes)
    if batch is None or batch.num_rows != lines.count(b"\n") + 1:
        return None
    if any(column[-1].as_py() != SENTINEL for column in batch.columns):
        return None
    rows = batch.slice(0, batch.num_rows - 1)
    return None if _has_blank_lines(rows, lines) or _has_long_fields(rows, lines) else rows


def _is_plain(block: bytes, delimiter: str, has_quotes: bool) -> bool:
    r"""Return whether a block begins with a row, has \r only before \n, and has a delimiter of one byte."""
    return (
        block != b""
        and len(delimiter.encode()) == 1
        and delimiter not in '"\r\n\0'
        and not block.startswith((b"\n", b"\r\n", BYTE_ORDER_MARK))
        and b"\0" not in block  # Python 3.10's csv refuses it
        and (b"\r" not in block or block.count(b"\r") == block.count(b"\r\n"))
        and (delimiter == "\\" or not has_quotes or b'\\"' not in block)  # read_exact refuses it as an escape
        and (block.isascii() or _is_utf8(block))
    )


def _is_utf8(block: bytes) -> bool:
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read(lines: bytes, delimiter: str, width: int, places: Sequence[int], has_quotes: bool) -> pa.RecordBatch | None:
    """Parse some columns as text in one batch; None if pyarrow refuses the lines."""
    names = [str(position) for position in range(width)]
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(lines),
            arrow_csv.ReadOptions(column_names=names, use_threads=False, block_size=len(lines) + 1),
            arrow_csv.ParseOptions(
                delimiter=delimiter,
                quote_char='"' if has_quotes else False,
                newlines_in_values=False,
                ignore_empty_lines=False,
            ),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                strings_can_be_null=False,
                include_columns=[names[place] for place in places],
                check_utf8=False,  # `_is_plain` has checked the block
            ),
        )
    except pa.ArrowInvalid:
        return None
    [batch] = table.to_batches()
    return batch


def _has_blank_lines(rows: pa.RecordBatch, lines: bytes) -> bool:
    """Return whether a line may be blank: csv skips it, but pyarrow makes a row of empty fields."""
    has_empty = pc.min(pc.binary_length(rows.column(0))).as_py() == 0
    return has_empty and (b"\n\n" in lines or b"\n\r\n" in lines)


def _has_long_fields(rows: pa.RecordBatch, lines: bytes) -> bool:
    limit = csv.field_size_limit()
    return len(lines) > limit and any(pc.max(pc.binary_length(column)).as_py() > limit for column in rows.columns)
