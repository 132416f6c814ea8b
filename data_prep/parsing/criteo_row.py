r"""One row at a time, exactly: what a row may be is defined here.

A row is label, N integers, F hexadecimal categories, separated by tabs, ended by \n or \r\n.
"""

import numpy as np

from common.jit import count_trailing_zeros, jit, load_u64
from data_prep.parsing.swar import U0, U2, U3, U8, U64, decimal_value, digit_mask, hex_mask, hex_value

TAB, NEWLINE, RETURN, MINUS, ZERO = 9, 10, 13, 45, 48


@jit
def parse_integer(buffer, position):  # type: ignore[no-untyped-def]
    """(value, position behind it) of an integer that fits int32; a position of -1 if it is none."""
    negative = buffer[position] == MINUS
    if negative:
        position += 1
    word = load_u64(buffer, position)
    length = count_trailing_zeros(digit_mask(word)) >> U3
    if length == U0:
        return np.int64(0), -1
    value = np.int64(decimal_value(word << (U64 - (length << U3))))
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
def parse_row(buffer, position, row, labelled, missing, labels, dense, sparse):  # type: ignore[no-untyped-def]
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
        value, position = parse_integer(buffer, position)
        if position < 0 or buffer[position] != TAB:
            return -1
        dense[row, column] = value
        position += 1
    last = sparse.shape[1] - 1
    for column in range(last + 1):
        word = load_u64(buffer, position)
        strangers = hex_mask(word)
        if strangers == U0:
            sparse[row, column] = hex_value(word)
            position += 8
        else:
            length = count_trailing_zeros(strangers) >> U3
            if length == U0:
                sparse[row, column] = 0
            else:
                sparse[row, column] = hex_value(word) >> ((U8 - length) << U2)
                position += np.int64(length)
        if column < last:
            if buffer[position] != TAB:
                return -1
            position += 1
    if buffer[position] == RETURN:
        position += 1
    return position + 1 if buffer[position] == NEWLINE else -1


@jit
def parse_rows(buffer, start, stop, end, labelled, missing, row, labels, dense, sparse):  # type: ignore[no-untyped-def]
    """Parse the rows that begin in buffer[start:stop] into `row` and following of the arrays.

    Returns:
        (rows parsed, position behind them): that of the first row that is none, or goes beyond `end`, if there is one.
    """
    position = start
    rows = 0
    while position < stop:
        if not labelled:
            labels[row + rows] = 0
        behind = parse_row(buffer, position, row + rows, labelled, missing, labels, dense, sparse)
        if behind < 0 or behind > end:
            break
        position = behind
        rows += 1
    return rows, position
