"""Many rows at a time, fast: first where their fields end, then the fields as vectors.

A batch is about as many rows as the nearest cache holds. Its separators are found 64 bytes at a time; each field is
then loaded as a word of eight characters, on its own, so that none waits for the one before; then come checks and
arithmetic over all words alike. A batch with anything unusual in it is refused, and parsed row by row instead.
"""

import numpy as np

from common.jit import count_ones, count_trailing_zeros, jit, load_u64, match_64
from data_prep.parsing.criteo_row import MINUS, NEWLINE, RETURN, TAB, ZERO, parse_integer
from data_prep.parsing.swar import U0, decimal_value, digit_mask, hex_mask, hex_value

BATCH_BYTES = 1 << 15
AT_ONCE = 64  # bytes in which separators are looked for, and that must be readable behind the last row
MOST_DIGITS = 8
U1, U63 = np.uint64(1), np.uint64(63)
ZEROS = np.uint64(0x3030303030303030)
HALF = np.uint64(32)
NEGATIVE = np.uint64(8)  # the bit of a shift that says so
NO_DIGITS = np.uint64(32)


@jit
def batch_room():  # type: ignore[no-untyped-def]
    """(separators, words, shifts, long) for the most fields that a batch can have."""
    return (
        np.empty(BATCH_BYTES + AT_ONCE, np.int64),
        np.empty(BATCH_BYTES, np.uint64),
        np.empty(BATCH_BYTES, np.uint64),
        np.empty(BATCH_BYTES, np.int64),
    )


@jit
def find_separators(buffer, start, end, separators):  # type: ignore[no-untyped-def]
    """Write the positions of all tabs and newlines in buffer[start:end]; how many, and how many are newlines."""
    count = newlines = np.int64(0)
    for position in range(start, end, AT_ONCE):
        breaks = match_64(buffer, position, NEWLINE)
        found = breaks | match_64(buffer, position, TAB)
        if end - position < AT_ONCE:
            inside = (U1 << np.uint64(end - position)) - U1
            breaks &= inside
            found &= inside
        newlines += np.int64(count_ones(breaks))
        behind = count + np.int64(count_ones(found))
        while count < behind:
            for ahead in range(8):  # more than there are do no harm: the next ones overwrite them
                separators[count + ahead] = position + np.int64(count_trailing_zeros(found))
                found &= found - U1
            count += 8
        count = behind
    return count, newlines


@jit
def _shift_of(length):  # type: ignore[no-untyped-def]
    """Half the bits by which a word with a field of that many characters is shifted to be rid of all others."""
    return np.uint64(32 - 4 * length) & U63


@jit
def load_fields(buffer, start, rows, labelled, separators, row, labels, shape, words, shifts, long):  # type: ignore[no-untyped-def]
    """Load every field of a batch.

    Args:
        separators: positions of those of the batch; row: the batch's first in `labels`.
        shape: (N, F).
        words, shifts: outputs, [rows * (N + F)] uint64, all integers first.
        long: output, the places of integers of more than eight digits and their values, two by two.

    Returns:
        how many numbers were written to `long`; -1 where something is not as it should be.
    """
    num_dense, num_sparse = shape
    strange = np.int64(0)
    num_long = 0
    place, category = 0, rows * num_dense
    separator = 0
    begin = start
    for r in range(rows):
        if labelled:
            label = np.int64(buffer[begin]) - ZERO
            strange |= np.int64((label & ~1) != 0) | (separators[separator] - begin - 1)
            labels[row + r] = label
            begin = separators[separator] + 1
            separator += 1
        else:
            labels[row + r] = 0
        for _ in range(num_dense):
            end = separators[separator]
            separator += 1
            negative = np.int64(buffer[begin] == MINUS)
            length = end - begin - negative
            words[place] = load_u64(buffer, begin + negative)
            shifts[place] = _shift_of(length) | (np.uint64(negative) << NEGATIVE)
            strange |= negative & np.int64(length == 0)
            if length > MOST_DIGITS:
                value, behind = parse_integer(buffer, begin)
                strange |= behind - end
                long[num_long], long[num_long + 1] = place, value
                num_long += 2
                shifts[place] = NO_DIGITS
            place += 1
            begin = end + 1
        for _ in range(num_sparse):
            end = separators[separator]
            separator += 1
            length = end - begin
            words[category] = load_u64(buffer, begin)
            shifts[category] = _shift_of(length)
            strange |= np.int64(length > MOST_DIGITS)
            category += 1
            begin = end + 1
        if buffer[begin - 1] != NEWLINE:
            return -1
        if buffer[begin - 2] == RETURN:
            length = begin - 2 - (separators[separator - 2] + 1)
            shifts[category - 1] = _shift_of(length)
            strange |= np.int64(length > MOST_DIGITS)
    return -1 if strange else num_long


@jit
def convert_integers(words, shifts, missing, results, first, count):  # type: ignore[no-untyped-def]
    """results[first + i] = the integer in words[i]; not 0 if a character is no digit."""
    strangers = U0
    for i in range(count):
        shift = shifts[i] & U63
        word = (words[i] << shift) << shift
        strangers |= digit_mask(word | ((ZEROS >> (HALF - shift)) >> (HALF - shift)))
        value = np.int64(decimal_value(word))
        value = -value if shifts[i] > U63 else value
        results[first + i] = np.int32(missing) if shift == NO_DIGITS else np.int32(value)
    return strangers


@jit
def convert_categories(words, shifts, offset, results, first, count):  # type: ignore[no-untyped-def]
    """results[first + i] = the category in words[offset + i]; not 0 if a character is no hexadecimal digit."""
    strangers = U0
    for i in range(count):
        shift = shifts[offset + i]
        word = (words[offset + i] << shift) << shift
        strangers |= hex_mask(word | ((ZEROS >> (HALF - shift)) >> (HALF - shift)))
        results[first + i] = np.uint32(hex_value(word))
    return strangers


@jit
def parse_batch(buffer, start, end, labelled, missing, row, labels, dense, sparse, room):  # type: ignore[no-untyped-def]
    """Parse the whole rows in buffer[start:end] into `row` and following of the arrays.

    Args:
        labelled, missing, labels, dense, sparse: as in `parse_lines`.
        room: of `batch_room`.

    Returns:
        (rows parsed, position behind them), no rows if there is anything unusual.
    """
    separators, words, shifts, long = room
    num_dense, num_sparse = dense.shape[1], sparse.shape[1]
    columns = num_dense + num_sparse + np.int64(labelled)
    count, rows = find_separators(buffer, start, end, separators)
    if rows == 0 or rows * columns > count or columns < 2:
        return 0, start
    shape = (num_dense, num_sparse)
    num_long = load_fields(buffer, start, rows, labelled, separators, row, labels, shape, words, shifts, long)
    if num_long < 0:
        return 0, start
    integers, categories = dense.reshape(-1), sparse.reshape(-1)
    num_integers = rows * num_dense
    strangers = convert_integers(words, shifts, missing, integers, row * num_dense, num_integers)
    strangers |= convert_categories(words, shifts, num_integers, categories, row * num_sparse, rows * num_sparse)
    if strangers != U0:
        return 0, start
    for i in range(0, num_long, 2):
        integers[row * num_dense + long[i]] = long[i + 1]
    return rows, separators[rows * columns - 1] + 1
