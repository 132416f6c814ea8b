r"""Bytes of a Criteo TSV to typed columns: the hot path.

A row is label, N integers, F hexadecimal categories, separated by tabs, ended by \n or \r\n. The kernel
handles eight bytes at a time ("SIMD within a register"): a category of eight digits is one load, one check
and four steps of arithmetic. It stops at the first row it does not understand; `diagnose_row` says why.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.diagnose import diagnose_row
from data_prep.jit import count_trailing_zeros, jit, load_u64
from data_prep.ragged import Bags
from data_prep.schema import CRITEO, Schema

PADDING = 16  # readable bytes behind the last row: the kernel loads eight at a time
MISSING_INTEGER = np.int32(-(2**31))
MISSING_CATEGORY = np.uint32(0)

TAB, NEWLINE, RETURN, MINUS, ZERO = 9, 10, 13, 45, 48
HIGH_BITS = np.uint64(0x8080808080808080)
CASE_BITS = np.uint64(0x2020202020202020)
NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
ONES = np.uint64(0x0101010101010101)
FROM_0, PAST_9 = np.uint64(0x5050505050505050), np.uint64(0x4646464646464646)  # 0x80 - '0', 0x80 - ('9' + 1)
FROM_A, PAST_F = np.uint64(0x1F1F1F1F1F1F1F1F), np.uint64(0x1919191919191919)  # 0x80 - 'a', 0x80 - ('f' + 1)
EVEN_BYTES, EVEN_PAIRS = np.uint64(0x000F000F000F000F), np.uint64(0x000000FF000000FF)
TENS = np.uint64(1 + (10 << 8))
HUNDREDS = np.uint64(1 + (100 << 16))
MYRIADS = np.uint64(1 + (10000 << 32))
BYTE_PAIRS, QUADS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
LOW_HALF = np.uint64(0xFFFF)
U0, U2, U3, U4, U6, U8, U9 = (np.uint64(n) for n in (0, 2, 3, 4, 6, 8, 9))
U16, U32, U64 = np.uint64(16), np.uint64(32), np.uint64(64)


class Block(NamedTuple):
    """Parsed rows.

    labels [rows] int32; dense [rows, N] int32, MISSING_INTEGER where the field is empty; sparse [rows, F]
    uint32, 0 where the field is empty (as in TorchRec, where it is a value like any other). Of a user's own table
    dense is float64, and `bags` has the values of the columns that hold any number of them, which `sparse` lacks.
    """

    labels: NDArray[np.int32]
    dense: NDArray[np.int32]
    sparse: NDArray[np.uint32]
    bags: tuple[Bags, ...] = ()


@jit
def _digit_mask(word):  # type: ignore[no-untyped-def]
    """High bit of every byte that is not '0'..'9'."""
    ascii_only = word & ~HIGH_BITS
    digits = (ascii_only + FROM_0) & ~(ascii_only + PAST_9) & ~word
    return ~digits & HIGH_BITS


@jit
def _hex_mask(word):  # type: ignore[no-untyped-def]
    """High bit of every byte that is not a hexadecimal digit."""
    ascii_only = word & ~HIGH_BITS
    lower = ascii_only | CASE_BITS
    digits = (ascii_only + FROM_0) & ~(ascii_only + PAST_9)
    letters = (lower + FROM_A) & ~(lower + PAST_F)
    return ~((digits | letters) & ~word) & HIGH_BITS


@jit
def _hex_value(word):  # type: ignore[no-untyped-def]
    """Value of eight hexadecimal digits, the first in the lowest byte."""
    nibbles = (word & NIBBLES) + U9 * ((word >> U6) & ONES)
    pairs = ((nibbles & EVEN_BYTES) << U4) | ((nibbles >> U8) & EVEN_BYTES)
    quads = ((pairs & EVEN_PAIRS) << U8) | ((pairs >> U16) & EVEN_PAIRS)
    return ((quads & LOW_HALF) << U16) | ((quads >> U32) & LOW_HALF)


@jit
def _decimal_value(word):  # type: ignore[no-untyped-def]
    """Value of eight decimal digits (zero bytes count as '0'), the first in the lowest byte."""
    pairs = (((word & NIBBLES) * TENS) >> U8) & BYTE_PAIRS
    quads = ((pairs * HUNDREDS) >> U16) & QUADS
    return (quads * MYRIADS) >> U32


@jit
def _parse_integer(buffer, position):  # type: ignore[no-untyped-def]
    """(value, position behind it) of an integer that fits int32; a position of -1 if it is none."""
    negative = buffer[position] == MINUS
    if negative:
        position += 1
    word = load_u64(buffer, position)
    length = count_trailing_zeros(_digit_mask(word)) >> U3
    if length == U0:
        return np.int64(0), -1
    value = np.int64(_decimal_value(word << (U64 - (length << U3))))
    position += np.int64(length)
    if length == U8:
        while 0 <= np.int64(buffer[position]) - ZERO <= 9:
            value = value * 10 + np.int64(buffer[position]) - ZERO
            position += 1
            if value > 2147483648:
                return np.int64(0), -1
    if negative:
        value = -value
    elif value > 2147483647:
        return np.int64(0), -1
    return value, position


@jit
def _parse_row(buffer, position, row, labelled, missing, labels, dense, sparse):  # type: ignore[no-untyped-def]
    """Parse the row at `position` into `row` of the arrays; the next row's start, or -1 if it is none."""
    if labelled:
        label = np.int64(buffer[position]) - ZERO
        if label < 0 or label > 1 or buffer[position + 1] != TAB:
            return -1
        labels[row] = label
        position += 2
    for column in range(dense.shape[1]):
        if buffer[position] == TAB:
            dense[row, column] = missing
            position += 1
            continue
        value, position = _parse_integer(buffer, position)
        if position < 0 or buffer[position] != TAB:
            return -1
        dense[row, column] = value
        position += 1
    last = sparse.shape[1] - 1
    for column in range(last + 1):
        word = load_u64(buffer, position)
        strangers = _hex_mask(word)
        if strangers == U0:
            sparse[row, column] = _hex_value(word)
            position += 8
        else:
            length = count_trailing_zeros(strangers) >> U3
            if length == U0:
                sparse[row, column] = 0
            else:
                sparse[row, column] = _hex_value(word) >> ((U8 - length) << U2)
                position += np.int64(length)
        if column < last:
            if buffer[position] != TAB:
                return -1
            position += 1
    if buffer[position] == RETURN:
        position += 1
    return position + 1 if buffer[position] == NEWLINE else -1


@jit
def parse_lines(buffer, start, end, labelled, missing, labels, dense, sparse):  # type: ignore[no-untyped-def]
    """Parse the whole lines in buffer[start:end], which ends with a newline and has PADDING bytes behind.

    Args:
        buffer: uint8; start, end: positions of the first row and behind the last.
        labelled: whether a row begins with the label (else labels become 0).
        missing: int32 written for an empty integer.
        labels, dense, sparse: outputs as in `Block`, with room for all rows.

    Returns:
        (rows parsed, position of the first row not parsed): that position is `end` if all went well.
    """
    position = start
    row = 0
    while position < end:
        if not labelled:
            labels[row] = 0
        behind = _parse_row(buffer, position, row, labelled, missing, labels, dense, sparse)
        if behind < 0 or behind > end:
            return row, position
        position = behind
        row += 1
    return row, position


def empty_block(rows: int, schema: Schema = CRITEO) -> Block:
    """A block with room for `rows` rows, not initialised."""
    return Block(
        labels=np.empty(rows, np.int32),
        dense=np.empty((rows, len(schema.dense)), np.int32),
        sparse=np.empty((rows, len(schema.sparse)), np.uint32),
    )


def max_rows(num_bytes: int, schema: Schema = CRITEO, labelled: bool = True) -> int:
    """The most rows that `num_bytes` can hold: all fields empty but the label."""
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
    """Parse rows held in memory, e.g. candidates to be scored.

    Args:
        data: whole rows; the last may lack its newline.
        name: what to call the source in an error.
        labelled: False for rows without the label column; their labels are 0.
        first_row: the number of the first row, for an error.
        missing: what an empty integer becomes.

    Raises:
        UserError: no rows, or a row that does not fit the schema (file, row, column, remedy).
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
    rows, position = parse_lines(buffer, 0, end, labelled, missing, *block[:3])
    if position != end:
        line = bytes(buffer[position:end]).split(b"\n", 1)[0]
        is_last = position + len(line) + 1 >= end
        raise UserError(diagnose_row(line, name, first_row + rows, schema, labelled, is_last))
    return Block(block.labels[:rows], block.dense[:rows], block.sparse[:rows])
