r"""Parser of Criteo's TSV, compiled since every byte passes through it, and the errors of invalid rows.

A row is a label, N integers and F hexadecimal categories, separated by tabs, with \n or \r\n at the end.

A batch holds about as many rows as the nearest cache. The kernel first finds its separators, 64 bytes at a time. It
then loads each field as a word of eight characters; no load waits for the one before. Checks and arithmetic follow over
all words alike. A batch with anything unusual has an invalid row, which Python looks for: `diagnose_row` describes it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from common.jit import Int, count_ones, count_trailing_zeros, jit, load_u64, match_64
from data_prep.dataset.options import CRITEO
from data_prep.sources.files import copy_command, describe_bare_returns

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
U0, U3, U4, U6, U8, U9 = (np.uint64(n) for n in (0, 3, 4, 6, 8, 9))
U16, U32, U64 = np.uint64(16), np.uint64(32), np.uint64(64)


@jit
def digit_mask(word: np.uint64) -> np.uint64:
    """Return the high bits of those of eight bytes that are not '0'..'9': 0 if all are digits."""
    # With the high bits cleared, no addition carries into the next byte, so one word tests eight characters.
    ascii_only = word & ~HIGH_BITS
    digits = (ascii_only + FROM_0) & ~(ascii_only + PAST_9) & ~word
    return ~digits & HIGH_BITS


@jit
def hex_mask(word: np.uint64) -> np.uint64:
    """Return the high bits of those of eight bytes that are no hexadecimal digits: 0 if all are."""
    ascii_only = word & ~HIGH_BITS
    lower = ascii_only | CASE_BITS
    digits = (ascii_only + FROM_0) & ~(ascii_only + PAST_9)
    letters = (lower + FROM_A) & ~(lower + PAST_F)
    return ~((digits | letters) & ~word) & HIGH_BITS


@jit
def hex_value(word: np.uint64) -> np.uint64:
    """Return the value of eight hexadecimal digits, with the first in the lowest byte."""
    # Bit 6 is set in letters and clear in digits, so a multiplication adds 9 to letters without a branch.
    nibbles = (word & NIBBLES) + U9 * ((word >> U6) & ONES)
    pairs = ((nibbles & EVEN_BYTES) << U4) | ((nibbles >> U8) & EVEN_BYTES)
    quads = ((pairs & EVEN_PAIRS) << U8) | ((pairs >> U16) & EVEN_PAIRS)
    return ((quads & LOW_HALF) << U16) | ((quads >> U32) & LOW_HALF)


@jit
def decimal_value(word: np.uint64) -> np.uint64:
    """Return the value of eight decimal digits (zero bytes count as '0'), with the first in the lowest byte."""
    # Three multiplications join digits, then pairs, then quads; a loop over digits would wait for each product.
    pairs = (((word & NIBBLES) * TENS) >> U8) & BYTE_PAIRS
    quads = ((pairs * HUNDREDS) >> U16) & QUADS
    return (quads * MYRIADS) >> U32


TAB, NEWLINE, RETURN, MINUS, ZERO = 9, 10, 13, 45, 48


@jit
def parse_integer(buffer: NDArray[np.uint8], position: Int) -> tuple[Int, Int]:
    """Return (value, position after it) of an integer that fits int32, or a position of -1."""
    negative = buffer[position] == MINUS
    if negative:
        position += 1
    # One word holds any integer of up to eight digits; the loop below only serves longer ones.
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
            # An endless row of digits ends here, before it overflows int64. The lowest int32 has a magnitude of 2^31.
            if value > 2147483648:
                return np.int64(0), -1
    if negative:
        value = -value
    elif value > 2147483647:
        return np.int64(0), -1
    return value, position


BATCH_BYTES = 1 << 15  # bytes of rows parsed at once
SCAN_BYTES = 64  # bytes scanned at once; as many must be readable after the last row
MAX_DIGITS = 8
U1, U63 = np.uint64(1), np.uint64(63)
ZEROS = np.uint64(0x3030303030303030)
HALF = np.uint64(32)
NEGATIVE = np.uint64(8)  # bit of a shift that marks a negative number
NO_DIGITS = np.uint64(32)


@jit
def find_separators(buffer: NDArray[np.uint8], start: Int, end: Int, separators: NDArray[np.int64]) -> tuple[Int, Int]:
    """Write the positions of all tabs and newlines in buffer[start:end]; return their number and that of newlines."""
    count = newlines = np.int64(0)
    for position in range(start, end, SCAN_BYTES):
        breaks = match_64(buffer, position, NEWLINE)
        marks = breaks | match_64(buffer, position, TAB)
        # The last load reaches past the batch, into other rows or padding, whose marks do not count.
        if end - position < SCAN_BYTES:
            inside = (U1 << np.uint64(end - position)) - U1
            breaks &= inside
            marks &= inside
        newlines += np.int64(count_ones(breaks))
        after = count + np.int64(count_ones(marks))
        while count < after:
            # A loop of fixed length has no branch that depends on the data, which processors often predict wrongly.
            for ahead in range(8):  # always eight: later positions overwrite the excess
                separators[count + ahead] = position + np.int64(count_trailing_zeros(marks))
                marks &= marks - U1
            count += 8
        count = after
    return count, newlines


@jit
def _shift_of(length: int) -> np.uint64:
    """Return half the bits that shift all but a field's `length` characters out of a word of eight: 32 to 0."""
    # An empty field shifts by 64 bits, which one shift of a 64-bit word cannot do but two shifts by 32 can.
    return np.uint64(32 - 4 * length) & U63


@jit
def load_fields(
    buffer: NDArray[np.uint8],
    start: Int,
    rows: Int,
    separators: NDArray[np.int64],
    row: Int,
    labels: NDArray[np.int32],
    shape: tuple[int, int],
    words: NDArray[np.uint64],
    shifts: NDArray[np.uint64],
    long: NDArray[np.int64],
) -> int:
    """Load every field of a batch.

    Returns number of values written to `long`; -1 if anything is unusual.

    Args:
        start, rows: position of the first row in `buffer`, and the number of rows.
        separators: positions of tabs and newlines in the batch. row: index of its first row in `labels`.
        shape: (N, F).
        words, shifts: outputs [rows * (N + F)], all integers first: a field's first eight characters, and `_shift_of`
            its length, with the bit NEGATIVE for a minus.
        long: output: index and value of each integer with more than eight digits.
    """
    num_dense, num_sparse = shape
    # Faults are collected, and tested once at the end: a branch for each field would hold up the loads.
    unusual, too_long, num_long = np.int64(0), np.int64(0), 0
    index, category = 0, rows * num_dense
    separator, begin = 0, start
    for r in range(rows):
        label = np.int64(buffer[begin]) - ZERO
        # 0 or 1, and one character long.
        unusual |= np.int64((label & ~1) != 0) | (separators[separator] - begin - 1)
        labels[row + r] = label
        begin = separators[separator] + 1
        separator += 1
        for _ in range(num_dense):
            end = separators[separator]
            separator += 1
            negative = np.int64(buffer[begin] == MINUS)
            length = end - begin - negative
            words[index] = load_u64(buffer, begin + negative)
            shifts[index] = _shift_of(length) | (np.uint64(negative) << NEGATIVE)
            unusual |= negative & np.int64(length == 0)
            if length > MAX_DIGITS:
                value, after = parse_integer(buffer, begin)
                unusual |= after - end
                long[num_long], long[num_long + 1] = index, value
                num_long += 2
                shifts[index] = NO_DIGITS
            index += 1
            begin = end + 1
        for _ in range(num_sparse):
            end = separators[separator]
            separator += 1
            length = end - begin
            words[category] = load_u64(buffer, begin)
            shifts[category] = _shift_of(length)
            too_long += np.int64(length > MAX_DIGITS)
            category += 1
            begin = end + 1
        # Tabs and newlines are equal separators above, so a row with too many or too few fields shows only here.
        if buffer[begin - 1] != NEWLINE:
            return -1
        # The field ends before the carriage return, not at the separator after it.
        if buffer[begin - 2] == RETURN:
            length = begin - 2 - (separators[separator - 2] + 1)
            shifts[category - 1] = _shift_of(length)
            too_long -= np.int64(length == MAX_DIGITS)
    return -1 if unusual or too_long else num_long


@jit
def convert_integers(
    words: NDArray[np.uint64], shifts: NDArray[np.uint64], results: NDArray[np.int32], first: Int, count: int
) -> np.uint64:
    """Write the integers of words[:count] to `results` from index `first` on.

    Return nonzero if a character is no digit. words, shifts: of `load_fields`. An empty field is 0.
    """
    invalid = U0
    for i in range(count):
        shift = shifts[i] & U63
        # Shifting leaves zero bytes where a short field has no digits; the test fills them with '0', which it accepts.
        word = (words[i] << shift) << shift
        invalid |= digit_mask(word | ((ZEROS >> (HALF - shift)) >> (HALF - shift)))
        value = np.int64(decimal_value(word))
        results[first + i] = np.int32(-value if shifts[i] > U63 else value)
    return invalid


@jit
def convert_categories(
    words: NDArray[np.uint64],
    shifts: NDArray[np.uint64],
    offset: Int,
    results: NDArray[np.uint32],
    first: Int,
    count: int,
) -> np.uint64:
    """Write the categories of words[offset : offset + count] to `results` from index `first` on.

    Return nonzero if a character is no hexadecimal digit. words, shifts: of `load_fields`.
    """
    invalid = U0
    for i in range(count):
        shift = shifts[offset + i]
        word = (words[offset + i] << shift) << shift
        invalid |= hex_mask(word | ((ZEROS >> (HALF - shift)) >> (HALF - shift)))
        results[first + i] = np.uint32(hex_value(word))
    return invalid


@jit
def parse_batch(
    buffer: NDArray[np.uint8],
    start: Int,
    end: Int,
    row: Int,
    labels: NDArray[np.int32],
    dense: NDArray[np.int32],
    sparse: NDArray[np.uint32],
    buffers: tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]],
) -> tuple[Int, Int]:
    """Parse the whole rows in buffer[start:end] into the arrays, from index `row` on.

    Args:
        labels, dense, sparse: as in `parse_lines`.
        start, end: at most BATCH_BYTES apart, for which `buffers` have room.
        buffers: separators, words, shifts and long integers, outputs of `find_separators` and `load_fields`.

    Returns:
        (rows parsed, position after them); no rows if anything is unusual; the arrays are then spoilt from `row` on.
    """
    separators, words, shifts, long = buffers
    num_dense, num_sparse = dense.shape[1], sparse.shape[1]
    columns = num_dense + num_sparse + 1
    count, rows = find_separators(buffer, start, end, separators)
    # `load_fields` reads a separator for each field, and looks back at the one before the last.
    if rows == 0 or rows * columns > count or columns < 2:
        return 0, start
    shape = (num_dense, num_sparse)
    num_long = load_fields(buffer, start, rows, separators, row, labels, shape, words, shifts, long)
    if num_long < 0:
        return 0, start
    integers, categories = dense.reshape(-1), sparse.reshape(-1)
    num_integers = rows * num_dense
    invalid = convert_integers(words, shifts, integers, row * num_dense, num_integers)
    invalid |= convert_categories(words, shifts, num_integers, categories, row * num_sparse, rows * num_sparse)
    if invalid != U0:
        return 0, start
    # Integers of more than eight digits do not fit a word, so the kernel above left them 0; `long` has the place
    # and the value of each.
    for i in range(0, num_long, 2):
        integers[row * num_dense + long[i]] = long[i + 1]
    return rows, separators[rows * columns - 1] + 1


PADDING = SCAN_BYTES  # readable bytes after the last row


class Block(NamedTuple):
    """Parsed Criteo rows; data_prep/codec/values.py has those of a user's own table.

    labels [rows] int32; dense [rows, N] int32; sparse [rows, F] uint32. An empty field is 0, also in TorchRec, which
    treats it as a value.
    """

    labels: NDArray[np.int32]
    dense: NDArray[np.int32]
    sparse: NDArray[np.uint32]


@jit
def parse_batches(
    buffer: NDArray[np.uint8],
    start: Int,
    end: Int,
    labels: NDArray[np.int32],
    dense: NDArray[np.int32],
    sparse: NDArray[np.uint32],
) -> tuple[int, int]:
    """Parse lines as `parse_lines` does, up to the batch with the first invalid row."""
    # Separators, words, shifts and long integers as `load_fields` takes them, for the most fields of a batch. All
    # batches share these buffers, which therefore stay in the cache.
    separators = np.empty(BATCH_BYTES + SCAN_BYTES, np.int64)
    words, shifts = np.empty(BATCH_BYTES, np.uint64), np.empty(BATCH_BYTES, np.uint64)
    buffers = (separators, words, shifts, np.empty(BATCH_BYTES, np.int64))
    position = start
    row = np.int64(0)  # A plain 0 is a type of its own, for which all below would be compiled again.
    while position < end:
        batch_end = min(position + BATCH_BYTES, end)
        rows, after = parse_batch(buffer, position, batch_end, row, labels, dense, sparse, buffers)
        if rows == 0:
            break
        row += rows
        position = after
    return int(row), int(position)


def parse_lines(
    buffer: NDArray[np.uint8],
    start: int,
    end: int,
    labels: NDArray[np.int32],
    dense: NDArray[np.int32],
    sparse: NDArray[np.uint32],
) -> tuple[int, int]:
    """Parse the whole lines in buffer[start:end]. They end with a newline; PADDING bytes follow them.

    Returns (rows, position of the first invalid row); the position is `end` if all rows are valid. Otherwise the arrays
    lack the last rows.

    Args:
        buffer: uint8; start, end: positions of the first row and after the last one.
        labels, dense, sparse: outputs as in `Block`, with room for all rows.
    """
    rows, position = parse_batches(buffer, start, end, labels, dense, sparse)
    lines = bytes(buffer[position:end]).removesuffix(b"\n").split(b"\n")
    valid = next((number for number, line in enumerate(lines) if not _is_row(line)), 0) if position < end else 0
    return rows + valid, position + sum(len(line) + 1 for line in lines[:valid])


def _is_row(line: bytes) -> bool:
    """Return whether a line is a valid row."""
    fields = line.removesuffix(b"\r").split(b"\t")
    return len(fields) == len(CRITEO.columns) and not any(map(_describe_fault, fields, CRITEO.columns))


def empty_block(rows: int) -> Block:
    """Allocate a block of `rows` rows, whose values the parser has to write."""
    return Block(
        labels=np.empty(rows, np.int32),
        dense=np.empty((rows, len(CRITEO.dense)), np.int32),
        sparse=np.empty((rows, len(CRITEO.sparse)), np.uint32),
    )


def max_rows(num_bytes: int) -> int:
    """Return an upper bound of the rows in `num_bytes`, for an allocation: rows with all fields empty but the label."""
    # A label, a tab before each other column, and a newline.
    return num_bytes // (len(CRITEO.columns) + 1) + 1


def parse_bytes(data: bytes, name: str) -> Block:
    """Parse whole rows in memory, of which the last may lack its newline; `name`: of the source in errors."""
    # The kernel loads whole words, also past the last row.
    buffer = np.zeros(len(data) + 1 + PADDING, np.uint8)
    buffer[: len(data)] = np.frombuffer(data, np.uint8)
    end = len(data)
    if data[-1] != NEWLINE:
        buffer[end] = NEWLINE
        end += 1
    block = empty_block(max_rows(end))
    rows, position = parse_lines(buffer, 0, end, *block)
    if position != end:
        line = bytes(buffer[position:end]).split(b"\n", 1)[0]
        is_last = position + len(line) + 1 >= end
        raise UserError(diagnose_row(line, name, 1 + rows, is_last))
    return Block(block.labels[:rows], block.dense[:rows], block.sparse[:rows])


def diagnose_row(line: bytes, name: str, row: int, is_last: bool) -> str:
    """Return a line for the user: file, row, column, what is wrong, and the remedy.

    Args:
        line: the row's bytes without the newline.
        row: the row's number in the file, from 1.
        is_last: whether it is the file's last row, which may be cut off.
    """
    location = f"{name}: row {row}"
    columns = CRITEO.columns
    if line.endswith(b"\r"):
        line = line[:-1]
    if not line:
        return f"{location}: empty line; remove it"
    if b"\r" in line and _is_text(line):
        return f"{location}: {describe_bare_returns(name)}"
    fields = line.split(b"\t")
    if len(fields) != len(columns) and not _is_text(line):
        return f"{location}: not text; give tab-separated rows, plain or gzip-compressed, or a table with data.schema"
    # Another format shows in the first row already, and its remedy converts the whole file, not a row.
    if row == 1 and (form := _describe_other_form(fields, name)):
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
        if fault := _describe_fault(field, column):
            # Bytes that are not ASCII appear as escapes.
            shown = ascii(field[:40].decode("ascii", "backslashreplace")) + ("…" if len(field) > 40 else "")
            return f"{location}, column {column}: {shown} {fault}; correct or remove this row"
    return f"{location}: not readable as a row; correct or remove this row"


def _describe_other_form(fields: list[bytes], path: str) -> str:
    """Describe the first row of a file in another format, with a remedy; "" if it is none."""
    commas, columns = fields[0].count(b","), len(CRITEO.columns)
    if len(fields) > 1 and all(field[:1].isalpha() for field in fields[: 1 + len(CRITEO.dense)]):
        if len(fields) != columns:
            return r"names of columns; of a table of your own, name them in data.schema=FILE (delimiter: \"\t\")"
        return f"names of columns, which raw rows do without; remove it: {copy_command('tail -n +2', path)}"
    if len(fields) > 1 or commas < 2:
        return ""
    if commas == columns - 1:
        command = r"tr , '\t'"
        return f"separated by commas, not tabs; convert the file: {copy_command(command, path)}"
    return "separated by commas, not tabs; of a table of your own, name its columns in data.schema=FILE"


def _is_text(line: bytes) -> bool:
    """Return whether bytes can be text: UTF-8 without control characters except tabs and line ends."""
    try:
        return not any(character < " " and character not in "\t\r\n" for character in line.decode())
    except UnicodeDecodeError:
        return False


def _describe_fault(field: bytes, column: str) -> str | None:
    """Describe the fault of one field by the rules of the kernels; None if it has none."""
    if column == CRITEO.label:
        return None if field in (b"0", b"1") else "is not a label (0 or 1)"
    if not field:
        return None
    if column in CRITEO.dense:
        digits = field[1:] if field.startswith(b"-") else field
        if not (digits.isdigit() and digits.isascii()):
            return "is not an integer"
        low, high = -(2**31), 2**31 - 1
        return None if low <= int(field) <= high else f"does not fit 32 bits ({low} to {high})"
    if any(byte not in b"0123456789abcdefABCDEF" for byte in field):
        return "is not a hexadecimal category"
    return f"is longer than {MAX_DIGITS} hexadecimal digits" if len(field) > MAX_DIGITS else None
