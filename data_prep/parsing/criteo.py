r"""Parser of Criteo's TSV, compiled since every byte passes through it, and the errors of invalid rows.

Rows are parsed in batches; a batch with anything unusual is parsed row by row, up to the first invalid row.
`diagnose_row` describes that row.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from common.jit import Int, jit
from data_prep.dataset.schema import CRITEO, Schema
from data_prep.parsing.criteo_kernels import BATCH_BYTES, NEWLINE, SCAN_BYTES, batch_buffers, parse_batch, parse_rows
from data_prep.sources.discover import copy_by
from data_prep.sources.line_blocks import bare_returns

PADDING = SCAN_BYTES  # readable bytes after the last row
MISSING_INTEGER = np.int32(-(2**31))


class Block(NamedTuple):
    """Parsed Criteo rows; data_prep/parsing/table_block.py has those of a user's own table.

    labels [rows] int32; dense [rows, N] int32, MISSING_INTEGER for an empty field; sparse [rows, F] uint32, 0 for an
    empty field (TorchRec also treats it as a value).
    """

    labels: NDArray[np.int32]
    dense: NDArray[np.int32]
    sparse: NDArray[np.uint32]


@jit
def parse_lines(
    buffer: NDArray[np.uint8],
    start: Int,
    end: Int,
    labelled: bool,
    missing: np.int32,
    labels: NDArray[np.int32],
    dense: NDArray[np.int32],
    sparse: NDArray[np.uint32],
) -> tuple[int, int]:
    """Parse the whole lines in buffer[start:end]. They end with a newline; PADDING bytes follow them.

    Args:
        buffer: uint8; start, end: positions of the first row and after the last one.
        labelled: whether rows begin with the label; otherwise labels become 0.
        missing: int32 value of an empty integer.
        labels, dense, sparse: outputs as in `Block`, with room for all rows.

    Returns:
        (rows parsed, position of the first row not parsed); the position is `end` if all rows are valid.
    """
    buffers = batch_buffers()
    position = start
    row: Int = 0
    while position < end:
        batch_end = min(position + BATCH_BYTES, end)
        rows, after = parse_batch(buffer, position, batch_end, labelled, missing, row, labels, dense, sparse, buffers)
        if rows == 0:
            rows, after = parse_rows(buffer, position, batch_end, end, labelled, missing, row, labels, dense, sparse)
        if rows == 0:
            break
        row += rows
        position = after
    return int(row), int(position)


def empty_block(rows: int, schema: Schema = CRITEO) -> Block:
    """Allocate a block of `rows` rows."""
    return Block(
        labels=np.empty(rows, np.int32),
        dense=np.empty((rows, len(schema.dense)), np.int32),
        sparse=np.empty((rows, len(schema.sparse)), np.uint32),
    )


def max_rows(num_bytes: int, schema: Schema = CRITEO, labelled: bool = True) -> int:
    """Return the largest number of rows in `num_bytes`: rows with all fields empty but the label."""
    shortest = len(schema.columns) + 1 if labelled else len(schema.columns) - 1
    return num_bytes // shortest + 1


def parse_bytes(
    data: bytes,
    name: str,
    schema: Schema = CRITEO,
    labelled: bool = True,
    first_row: int = 1,
    missing: np.int32 = MISSING_INTEGER,
) -> Block:
    """Parse rows in memory, for instance candidates to score.

    Args:
        data: whole rows; the last may lack its newline.
        name: name of the source in errors.
        labelled: False for rows without the label column, which get label 0.
        first_row: number of the first row in errors.
        missing: value of an empty integer.
    """
    if not data:
        raise UserError(f"{name}: empty file; give at least one row")
    buffer = np.zeros(len(data) + 1 + PADDING, np.uint8)
    buffer[: len(data)] = np.frombuffer(data, np.uint8)
    end = len(data)
    if data[-1] != NEWLINE:
        buffer[end] = NEWLINE
        end += 1
    block = empty_block(max_rows(end, schema, labelled), schema)
    rows, position = parse_lines(buffer, 0, end, labelled, missing, *block)
    if position != end:
        line = bytes(buffer[position:end]).split(b"\n", 1)[0]
        is_last = position + len(line) + 1 >= end
        raise UserError(diagnose_row(line, name, first_row + rows, schema, labelled, is_last))
    return Block(block.labels[:rows], block.dense[:rows], block.sparse[:rows])


INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
MAX_CATEGORY_DIGITS = 8
SHOWN_BYTES = 40
TO_TABS = r"tr , '\t'"


def diagnose_row(line: bytes, name: str, row: int, schema: Schema, labelled: bool, is_last: bool) -> str:
    """Return a line for the user: file, row, column, what is wrong, and the remedy.

    Args:
        line: the row's bytes without the newline.
        row: the row's number in the file, from 1.
        is_last: whether it is the file's last row, which may be cut off.
    """
    location = f"{name}: row {row}"
    columns = schema.columns if labelled else schema.columns[1:]
    if line.endswith(b"\r"):
        line = line[:-1]
    if not line:
        return f"{location}: empty line; remove it"
    if b"\r" in line and _is_text(line):
        return f"{location}: {bare_returns(name)}"
    fields = line.split(b"\t")
    if len(fields) != len(columns) and not _is_text(line):
        return f"{location}: not text; give tab-separated rows, plain or gzip-compressed, or a table with data.schema"
    if row == 1 and (form := _other_form(fields, name, len(columns), len(schema.dense))):
        return f"{location}: {form}"
    if len(fields) != len(columns):
        column = columns[len(fields)] if len(fields) < len(columns) else columns[-1]
        if len(fields) < len(columns) and is_last:
            remedy = f"the file is cut off before column {column}: get the whole file, or remove this row"
        elif len(fields) < len(columns):
            remedy = f"column {column} is missing: correct or remove this row"
        else:
            remedy = f"something follows column {column}: correct or remove this row"
        return f"{location}: {len(fields)} columns, but a row has {len(columns)}; {remedy}"
    for field, column in zip(fields, columns, strict=True):
        fault = _fault(field, column, schema)
        if fault:
            return f"{location}, column {column}: {_excerpt(field)} {fault}; correct or remove this row"
    return f"{location}: not readable as a row; correct or remove this row"


def _other_form(fields: list[bytes], path: str, columns: int, numbers: int) -> str:
    """Describe the first row of a file in another format, with a remedy; "" if it is none.

    columns, numbers: of a Criteo row.
    """
    commas = fields[0].count(b",")
    if len(fields) > 1 and all(field[:1].isalpha() for field in fields[: 1 + numbers]):
        if len(fields) != columns:
            return r"names of columns; of a table of your own, name them in data.schema=FILE (delimiter: \"\t\")"
        return f"names of columns, which raw rows do without; remove it: {copy_by('tail -n +2', path)}"
    if len(fields) > 1 or commas < 2:
        return ""
    if commas == columns - 1:
        return f"separated by commas, not tabs; convert the file: {copy_by(TO_TABS, path)}"
    return "separated by commas, not tabs; of a table of your own, name its columns in data.schema=FILE"


def _is_text(line: bytes) -> bool:
    """Return whether bytes can be text: UTF-8 without control characters except tabs and line ends."""
    try:
        return not any(character < " " and character not in "\t\r\n" for character in line.decode())
    except UnicodeDecodeError:
        return False


def _fault(field: bytes, column: str, schema: Schema) -> str | None:
    """Describe the fault of one field; None if it has none."""
    if column == schema.label:
        return None if field in (b"0", b"1") else "is not a label (0 or 1)"
    if not field:
        return None
    if column in schema.dense:
        digits = field[1:] if field.startswith(b"-") else field
        if not (digits.isdigit() and digits.isascii()):
            return "is not an integer"
        in_range = INT32_MIN <= int(field) <= INT32_MAX
        return None if in_range else f"does not fit 32 bits ({INT32_MIN} to {INT32_MAX})"
    if any(byte not in b"0123456789abcdefABCDEF" for byte in field):
        return "is not a hexadecimal category"
    if len(field) > MAX_CATEGORY_DIGITS:
        return f"is longer than {MAX_CATEGORY_DIGITS} hexadecimal digits"
    return None


def _excerpt(field: bytes) -> str:
    text = field[:SHOWN_BYTES].decode("ascii", "backslashreplace")
    return ascii(text) + ("…" if len(field) > SHOWN_BYTES else "")
