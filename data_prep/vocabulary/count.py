"""Counts of a column's values in one chunk.

A run holds a column's distinct values in ascending order with their counts. Each chunk leaves one run per column on
disk; data_prep/vocabulary/merge.py merges them. A coding represents a column with repeated values by small numbers.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.jit import jit
from data_prep.encoding.lookup import EMPTY_SLOT, HASH_MULTIPLIER, insert

FEW_CODES, MAX_CODES = 1 << 8, 1 << 16  # codes that fit one byte and two bytes
FIRST_BITS = 12
ROWS_PER_VALUE = 4  # on average; if values repeat less often, sorting is faster
FREE_VALUES = 4096  # values seen before this is judged


class Run(NamedTuple):
    """Distinct values [n] uint32 in ascending order, the count of each [n] int64, and its first row [n] int64.

    Rows count from 0 over the whole dataset; `first` is all 0 if the order of appearance does not matter.
    """

    values: NDArray[np.uint32]
    counts: NDArray[np.int64]
    first: NDArray[np.int64]

    @property
    def entries(self) -> int:
        """Return n."""
        return len(self.values)

    def part(self, start: int, stop: int) -> "Run":
        """Return the entries start..stop as views."""
        return Run(self.values[start:stop], self.counts[start:stop], self.first[start:stop])


class Coding(NamedTuple):
    """A column as numbers: row i has the value dictionary[codes[i]]; uint32 [values], and uint8 or uint16 [rows]."""

    dictionary: NDArray[np.uint32]
    codes: NDArray[np.unsignedinteger]


class Counted(NamedTuple):
    """A column's run, and its coding if counting produced one."""

    run: Run
    coding: Coding | None


def count_values(values: NDArray[np.uint32]) -> Counted:
    """Count a column without the order of appearance; `values` may be sorted in place."""
    repeated = _count_repeated(values)
    if repeated is not None:
        return repeated._replace(run=repeated.run._replace(first=np.zeros(len(repeated.run.first), np.int64)))
    values.sort()
    starts = _starts(values)
    return Counted(Run(values[starts], np.diff(starts, append=len(values)), np.zeros(len(starts), np.int64)), None)


def count_in_order(values: NDArray[np.uint32], rows: NDArray[np.int64]) -> Counted:
    """Count a column whose value i belongs to row rows[i]; rows ascend and stay less than 2^32 beyond rows[0]."""
    if not len(values):
        return count_values(values)
    repeated = _count_repeated(values)
    if repeated is not None:
        return repeated._replace(run=repeated.run._replace(first=rows[repeated.run.first]))
    keys = (values.astype(np.uint64) << np.uint64(32)) | (rows - rows[0]).astype(np.uint64)
    keys.sort()
    sorted_values = (keys >> np.uint64(32)).astype(np.uint32)
    starts = _starts(sorted_values)
    first = (keys[starts] & np.uint64(0xFFFFFFFF)).astype(np.int64) + rows[0]
    return Counted(Run(sorted_values[starts], np.diff(starts, append=len(values)), first), None)


def _count_repeated(values: NDArray[np.uint32]) -> Counted | None:
    """Return the run, with `first` from 0, and the coding of values that mostly repeat; None for other values."""
    max_values = len(values) // ROWS_PER_VALUE + FREE_VALUES + 1
    repeated, codes = np.empty(max_values, np.uint32), np.empty(len(values), np.uint16)
    counts, first = np.empty(max_values, np.int64), np.empty(max_values, np.int64)
    number = count_repeated(values, repeated, counts, first, codes)
    if number < 0:
        return None
    order = _sorting_order(repeated[:number])
    run = Run(repeated[order], counts[order], first[order])
    if number > MAX_CODES:
        return Counted(run, None)
    return Counted(run, Coding(repeated[:number].copy(), codes if number > FEW_CODES else codes.astype(np.uint8)))


def _sorting_order(values: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the stable argsort; sorts 64-bit numbers, which NumPy does several times faster."""
    keys = (values.astype(np.uint64) << np.uint64(32)) | np.arange(len(values), dtype=np.uint64)
    keys.sort()
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


def _starts(values: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the index at which each distinct value of a sorted array begins."""
    if not len(values):
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))


@jit
def count_repeated(
    values: NDArray[np.uint32],
    distinct_values: NDArray[np.uint32],
    counts: NDArray[np.int64],
    first: NDArray[np.int64],
    codes: NDArray[np.uint16],
) -> int:
    """Count the distinct values of a column in order of appearance.

    Args:
        values: [rows] uint32.
        distinct_values, counts, first, codes: outputs. The first three hold each distinct value, its count and its
            first index; `codes` holds each row's index in `distinct_values`, modulo 2^16.

    Returns:
        The number of distinct values, or -1 if values repeat too rarely.
    """
    bits = FIRST_BITS
    slots, mask, shift = np.zeros(1 << bits, np.uint64), np.uint32((1 << bits) - 1), np.uint32(32 - bits)
    number = 0
    for i in range(len(values)):
        value = values[i]
        slot = np.uint32(value * HASH_MULTIPLIER) >> shift
        entry = slots[slot]
        while entry != EMPTY_SLOT and np.uint32(entry >> np.uint64(32)) != value:
            slot = (slot + np.uint32(1)) & mask
            entry = slots[slot]
        if entry != EMPTY_SLOT:
            code = (entry & np.uint64(0xFFFFFFFF)) - np.uint64(1)
            counts[code] += 1
            codes[i] = np.uint16(code)
            continue
        if number >= FREE_VALUES + i // ROWS_PER_VALUE:
            return -1
        distinct_values[number], counts[number], first[number], codes[i] = value, 1, i, np.uint16(number)
        number += 1
        slots[slot] = (np.uint64(value) << np.uint64(32)) | np.uint64(number)
        if 2 * number > len(slots):
            bits += 2
            slots, mask, shift = np.zeros(1 << bits, np.uint64), np.uint32((1 << bits) - 1), np.uint32(32 - bits)
            insert(slots, shift, distinct_values[:number], np.arange(number, dtype=np.uint32))
    return number
