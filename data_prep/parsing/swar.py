"""Eight characters at a time ("SIMD within a register"): digits told from others, and their value.

A word holds the first character in its lowest byte.
"""

import numpy as np

from common.jit import jit

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


@jit
def digit_mask(word):  # type: ignore[no-untyped-def]
    """High bit of every byte that is not '0'..'9'."""
    ascii_only = word & ~HIGH_BITS
    digits = (ascii_only + FROM_0) & ~(ascii_only + PAST_9) & ~word
    return ~digits & HIGH_BITS


@jit
def hex_mask(word):  # type: ignore[no-untyped-def]
    """High bit of every byte that is not a hexadecimal digit."""
    ascii_only = word & ~HIGH_BITS
    lower = ascii_only | CASE_BITS
    digits = (ascii_only + FROM_0) & ~(ascii_only + PAST_9)
    letters = (lower + FROM_A) & ~(lower + PAST_F)
    return ~((digits | letters) & ~word) & HIGH_BITS


@jit
def hex_value(word):  # type: ignore[no-untyped-def]
    """Value of eight hexadecimal digits, the first in the lowest byte."""
    nibbles = (word & NIBBLES) + U9 * ((word >> U6) & ONES)
    pairs = ((nibbles & EVEN_BYTES) << U4) | ((nibbles >> U8) & EVEN_BYTES)
    quads = ((pairs & EVEN_PAIRS) << U8) | ((pairs >> U16) & EVEN_PAIRS)
    return ((quads & LOW_HALF) << U16) | ((quads >> U32) & LOW_HALF)


@jit
def decimal_value(word):  # type: ignore[no-untyped-def]
    """Value of eight decimal digits (zero bytes count as '0'), the first in the lowest byte."""
    pairs = (((word & NIBBLES) * TENS) >> U8) & BYTE_PAIRS
    quads = ((pairs * HUNDREDS) >> U16) & QUADS
    return (quads * MYRIADS) >> U32
