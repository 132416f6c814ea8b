r"""Blocks of delimited text to their fields: by pyarrow where it is sure to read as Python's csv does, else by that.

pyarrow takes blocks that csv refuses, or takes them otherwise: an open quote in the last row, a carriage return within
a line, a byte-order mark, a blank line. So a block is pyarrow's only where none of these is in it and each of its lines
has come back as one row.
"""

import csv
from collections.abc import Sequence
from typing import TYPE_CHECKING

from data_prep.parsing.table_csv import decode, split_rows

if TYPE_CHECKING:
    import pyarrow as pa

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SENTINEL = "end"  # what each field of the line holds that is appended to a block


def read_exact(block: bytes, delimiter: str, name: str, row: int) -> tuple[list[list[str]], Sequence[int]]:
    """The fields of each row of whole lines, and the number of its line; blank lines are no rows.

    Args:
        block: without the header; name: what to call the source in an error; row: the number of its first line.

    Raises:
        UserError: not UTF-8, a line that ends inside quotes, or a carriage return within one.
    """
    return split_rows(decode(block, name, row), delimiter, name, row)


def read_fast(block: bytes, delimiter: str) -> "pa.RecordBatch | None":
    """Columns of text, named by position ("0", "1", …), a row a line; None where `read_exact` has to read the block.

    A batch has the fields that `read_exact` gives, column by column. A missing field is the text "", never null.

    Args:
        block: whole lines, of which the last may lack its end.
    """
    if not _is_plain(block, delimiter):
        return None
    lines = block if block.endswith(b"\n") else block + b"\n"
    columns = _count_columns(lines, delimiter)
    if not columns:
        return None
    sentinel = delimiter.join([f'"{SENTINEL}"'] * columns) + "\n"
    batch = _read(lines + sentinel.encode(), delimiter, columns)
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
    )


def _count_columns(lines: bytes, delimiter: str) -> int:
    """Fields in the first line; 0 where csv refuses it."""
    first = lines[: lines.index(b"\n")].decode("utf-8", "replace")
    try:
        return len(next(csv.reader([first], delimiter=delimiter)))
    except csv.Error:
        return 0


def _read(lines: bytes, delimiter: str, columns: int) -> "pa.RecordBatch | None":
    """All fields as text, in one batch; None where pyarrow refuses them."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    names = [str(position) for position in range(columns)]
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(lines),
            arrow_csv.ReadOptions(column_names=names, use_threads=False, block_size=len(lines) + 1),
            arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=False, ignore_empty_lines=False),
            arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False),
        )
    except pa.ArrowInvalid:  # invalid UTF-8 included
        return None
    [batch] = table.to_batches()
    return batch


def _has_blank_lines(rows: "pa.RecordBatch", lines: bytes) -> bool:
    """Whether a line may be blank, which csv passes over and pyarrow takes for a row of empty fields."""
    import pyarrow.compute as pc

    has_empty = pc.min(pc.binary_length(rows.column(0))).as_py() == 0
    return has_empty and (b"\n\n" in lines or b"\n\r\n" in lines)


def _has_long_fields(rows: "pa.RecordBatch", lines: bytes) -> bool:
    """Whether a field may be longer than csv takes."""
    import pyarrow.compute as pc

    limit = csv.field_size_limit()
    return len(lines) > limit and any(pc.max(pc.binary_length(column)).as_py() > limit for column in rows.columns)
