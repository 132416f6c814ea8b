"""Passes for vocabularies that exceed the memory budget: slices whose lookup tables fit, one pass after another.

A slice is a feature's vocabulary or a part of it: 32-bit values whose second hash has one number, or a range of ids of
64-bit values.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.encoding.lookup import LookupTable, SortedTable, ValueTable, vocabulary_path

NOT_FOUND = -1
BUILD_OVERHEAD = 2  # values and numbers lie beside a table that is built
SORTED_OVERHEAD = 3  # 64-bit values need their order, too
SLICE_MARGIN = 1.2  # parts of a vocabulary differ a little
MAX_BITS = 12
READ_VALUES = 1 << 20  # read at once from a vocabulary
PART_MULTIPLIER = np.uint32(0x85EBCA6B)


@dataclass(frozen=True)
class Slice:
    """The values of a feature whose part number has `bits` bits and is `part`; without bits, all values."""

    feature: str
    part: int
    bits: int


def plan_passes(
    values: Mapping[str, int],
    allowance: int,
    bytes_for: Callable[[int], int] = LookupTable.bytes_for,
    overhead: int = BUILD_OVERHEAD,
) -> list[tuple[Slice, ...]]:
    """Divide vocabularies into passes whose tables need at most `allowance` bytes.

    Args:
        values: number of values of each feature.
        bytes_for: returns the memory of a table of that many values; overhead: factor of it while one is built.
    """
    max_bytes = int(allowance / overhead)
    passes: list[list[Slice]] = []
    free_bytes = 0
    for feature, count in values.items():
        bits = 0
        while _slice_bytes(count, bits, bytes_for) > max_bytes:
            bits += 1
            if bits > MAX_BITS:
                raise UserError(
                    f"data.memory_budget: too small for the {count:,} values of column {feature}; raise it, "
                    "or set data.frequency_threshold or data.max_ind_range"
                )
        size = _slice_bytes(count, bits, bytes_for)
        for part in range(1 << bits):
            if size > free_bytes:
                passes.append([])
                free_bytes = max_bytes
            passes[-1].append(Slice(feature, part, bits))
            free_bytes -= size
    return [tuple(slices) for slices in passes]


def _slice_bytes(count: int, bits: int, bytes_for: Callable[[int], int]) -> int:
    return bytes_for(count if bits == 0 else int(count / (1 << bits) * SLICE_MARGIN) + 1)


def part_numbers(values: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    """Return the part of each value. Its hash differs from the tables', whose slots would otherwise collide."""
    if bits == 0:
        return np.zeros(len(values), np.uint32)
    mixed = (values ^ (values >> np.uint32(16))) * PART_MULTIPLIER
    return (mixed ^ (mixed >> np.uint32(13))) & np.uint32((1 << bits) - 1)


def pass_name(number: int, slices: tuple[Slice, ...]) -> str:
    """Return a pass's name for files; it differs for other slices, as of another budget or number of workers."""
    return f"pass-{number}-{hashlib.sha256(repr(slices).encode()).hexdigest()[:8]}"


def load_slice(root: Path, part: Slice, first_id: int) -> ValueTable:
    """Build the lookup table of one slice; values outside it become NOT_FOUND."""
    vocabulary = np.load(vocabulary_path(root, part.feature), mmap_mode="r")
    if vocabulary.dtype == np.uint64:
        start, stop = (len(vocabulary) * (part.part + i) >> part.bits for i in range(2))
        return SortedTable.build(np.array(vocabulary[start:stop]), first_id, NOT_FOUND, start)
    values, numbers = [], []
    for start in range(0, max(1, len(vocabulary)), READ_VALUES):
        block = np.array(vocabulary[start : start + READ_VALUES])
        rows = np.flatnonzero(part_numbers(block, part.bits) == part.part)
        values.append(block[rows])
        numbers.append((rows + start).astype(np.uint32))
    return LookupTable.build(np.concatenate(values), first_id, NOT_FOUND, np.concatenate(numbers))
