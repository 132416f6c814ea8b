r"""Delimited text: blocks of lines to their fields, by pyarrow where it is sure to read as Python's csv does.

pyarrow takes blocks that csv refuses, or takes them otherwise: an open quote in the last row, a carriage return within
a line, a byte-order mark, a blank line. So a block is pyarrow's only where none of these is in it and each of its lines
has come back as one row.
"""

import csv
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from common.errors import UserError
from data_prep.io.read_ahead import BLOCK_BYTES
from data_prep.parsing.formats import BYTE_ORDER_MARK, CORRECT, Column, Layout, LineFormat
from data_prep.sources.discover import Source
from data_prep.sources.line_blocks import LineBlocks, bare_returns

csv.field_size_limit(BLOCK_BYTES)  # of a line, too
SENTINEL = "end"  # what each field of the line holds that is appended to a block


class Text(LineFormat):
    """See data_prep/parsing/formats.py."""

    name = "text"
    has_layout = True

    def is_of(self, source: Source) -> bool:
        """Any file may be text."""
        return True

    def columns(self, source: Source, delimiter: str = ",", header: bool = True) -> list[Column]:
        """By the names in the first line, or column_0 and so on."""
        with LineBlocks(source) as lines:
            for block in lines.until(1):
                names = read_names(bytes(block.buffer[block.start : block.end]), delimiter, source.path)
                return [Column(name if header else f"column_{place}", "any") for place, name in enumerate(names)]
        raise UserError(f"{source.path}: empty file; get it again, or leave it out of {source.key}")

    def fields(
        self, text: bytes, columns: Sequence[str], layout: Layout, name: str, row: int
    ) -> tuple[dict[str, Any], Sequence[int]]:
        """See `LineFormat`."""
        if layout.header and row == 1:
            row, text = 2, text.partition(b"\n")[2]
        places, width = [layout.names.index(column) for column in columns], len(layout.names)
        fast = read_fast(text, layout.delimiter, places, width)
        if fast is not None:
            return dict(zip(columns, fast.columns, strict=True)), range(row, row + fast.num_rows)
        rows, numbers = read_exact(text, layout.delimiter, name, row)
        for fields, number in zip(rows, numbers, strict=True):
            if len(fields) != width:
                column = layout.names[min(len(fields), width - 1)]
                fault = f"{len(fields)} columns, but a row has {width} (see column {column})"
                raise UserError(f"{name}: row {number}: {fault}; {CORRECT}")
        arrays = (pa.array([fields[place] for fields in rows], pa.string()) for place in places)
        return dict(zip(columns, arrays, strict=True)), numbers

    def lines_before(self, source: Source, layout: Layout, offset: int) -> int:
        """See `LineFormat`; where a quote is open, what follows is not rows."""
        row = 1
        with LineBlocks(source) as before:
            for block in before.until(offset):
                text = bytes(block.buffer[block.start : block.end])
                read_exact(text, layout.delimiter, source.path, row)
                row += text.count(b"\n")
        return row - 1


def read_names(header: bytes, delimiter: str, name: str) -> tuple[str, ...]:
    """The fields in a file's first line. Raises UserError where it is none."""
    rows, _ = read_exact(header, delimiter, name, 1)
    return tuple(rows[0]) if rows else ()


def decode(text: bytes, name: str, row: int) -> str:
    """UTF-8 text; `row`: the number of its first line. Raises UserError where it is not that."""
    try:
        return text.decode("utf-8-sig" if row == 1 else "utf-8")
    except UnicodeDecodeError as error:
        row += text.count(b"\n", 0, error.start)
        raise UserError(f"{name}: row {row}: not UTF-8 text; convert the file, or remove the row") from error


def read_exact(block: bytes, delimiter: str, name: str, row: int) -> tuple[list[list[str]], Sequence[int]]:
    """The fields of each row of whole lines, and the number of its line; blank lines are no rows.

    Args:
        block: whole lines; name: what to call the source in an error; row: the number of the first line.

    Raises:
        UserError: not UTF-8, a line that ends inside quotes, a quote escaped by a backslash, or a carriage return
            within a line.
    """
    lines = decode(block, name, row).removesuffix("\n").split("\n")
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter)
    rows: list[list[str]] = []
    numbers: list[int] = []
    before = 0
    fault = None
    try:
        for fields in reader:
            if reader.line_num > before + 1 or (fields and fields[-1].endswith("\n")):
                break
            if delimiter != "\\" and '\\"' in lines[before] and _goes_on_after_quote(lines[before], delimiter):
                fault = r'\" in quotes, where a backslash escapes nothing; write a quote inside a field as ""'
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
    fault = fault or "ends inside quotes; a row is one line: close the quotes, or remove the line break"
    raise UserError(f"{name}: row {row + before}: {fault}")


def _goes_on_after_quote(line: str, delimiter: str) -> bool:
    """Whether a field of a line has text after its closing quote."""
    try:
        return not list(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error:
        return True


def read_fast(block: bytes, delimiter: str, places: Sequence[int], width: int) -> pa.RecordBatch | None:
    """Columns of text, named by position ("0", "1", …), a row a line; None where `read_exact` has to read the block.

    A batch has the fields that `read_exact` gives, column by column. A missing field is the text "", never null.

    Args:
        block: whole lines, of which the last may lack its end.
        places: the columns to return, by position. width: how many a row has.
    """
    if not _is_plain(block, delimiter):
        return None
    lines = block if block.endswith(b"\n") else block + b"\n"
    sentinel = delimiter.join([f'"{SENTINEL}"'] * width) + "\n"
    batch = _read(lines + sentinel.encode(), delimiter, width, places)
    if batch is None or batch.num_rows != lines.count(b"\n") + 1:
        return None
    if any(column[-1].as_py() != SENTINEL for column in batch.columns):
        return None
    rows = batch.slice(0, batch.num_rows - 1)
    return None if _has_blank_lines(rows, lines) or _has_long_fields(rows, lines) else rows


def _is_plain(block: bytes, delimiter: str) -> bool:
    r"""Whether a block begins with a row, has \r only before \n, and a delimiter of one byte."""
    return (
        block != b""
        and len(delimiter.encode()) == 1
        and delimiter not in '"\r\n\0'
        and not block.startswith((b"\n", b"\r\n", BYTE_ORDER_MARK))
        and b"\0" not in block  # Python 3.10's csv refuses it
        and (b"\r" not in block or block.count(b"\r") == block.count(b"\r\n"))
        and (delimiter == "\\" or b'\\"' not in block)  # read_exact refuses it where it is meant as an escape
        and (block.isascii() or _is_utf8(block))
    )


def _is_utf8(block: bytes) -> bool:
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read(lines: bytes, delimiter: str, width: int, places: Sequence[int]) -> pa.RecordBatch | None:
    """Some of the columns as text, in one batch; None where pyarrow refuses the lines."""
    names = [str(position) for position in range(width)]
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(lines),
            arrow_csv.ReadOptions(column_names=names, use_threads=False, block_size=len(lines) + 1),
            arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=False, ignore_empty_lines=False),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                strings_can_be_null=False,
                include_columns=[names[place] for place in places],
                check_utf8=False,  # all of the block is
            ),
        )
    except pa.ArrowInvalid:
        return None
    [batch] = table.to_batches()
    return batch


def _has_blank_lines(rows: pa.RecordBatch, lines: bytes) -> bool:
    """Whether a line may be blank, which csv passes over and pyarrow takes for a row of empty fields."""
    has_empty = pc.min(pc.binary_length(rows.column(0))).as_py() == 0
    return has_empty and (b"\n\n" in lines or b"\n\r\n" in lines)


def _has_long_fields(rows: pa.RecordBatch, lines: bytes) -> bool:
    """Whether a field may be longer than csv takes."""
    limit = csv.field_size_limit()
    return len(lines) > limit and any(pc.max(pc.binary_length(column)).as_py() > limit for column in rows.columns)
