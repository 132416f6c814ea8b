"""Vocabularies on disk, and lookup tables from values to ids."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from common.jit import Int, jit

VOCABULARY_DIRECTORY = "vocab"
OUT_OF_VOCABULARY = 0
HASH_MULTIPLIER = np.uint32(2654435769)  # 2^32 / golden ratio: Knuth's multiplicative hashing
EMPTY_SLOT = np.uint64(0)
NO_ID = -1  # marks values without an id


@dataclass(frozen=True)
class LookupTable:
    """Hash table with open addressing: a slot is value << 32 | number + 1, or 0 if empty. At most half are in use."""

    slots: NDArray[np.uint64]
    shift: int
    first_id: int = 1
    unknown_id: int = OUT_OF_VOCABULARY

    @classmethod
    def build(
        cls,
        values: NDArray[np.uint32],
        first_id: int = 1,
        unknown_id: int = OUT_OF_VOCABULARY,
        numbers: NDArray[np.uint32] | None = None,
    ) -> "LookupTable":
        """Give values[i] the id first_id + numbers[i] (by default i), and other values unknown_id."""
        if numbers is None:
            numbers = np.arange(len(values), dtype=np.uint32)
        bits = max(4, math.ceil(math.log2(2 * len(values) + 1)))
        table = cls(np.zeros(1 << bits, np.uint64), 32 - bits, first_id, unknown_id)
        insert(table.slots, np.uint32(table.shift), np.ascontiguousarray(values), numbers)
        return table

    def look_up(self, values: NDArray[np.uint32], ids: NDArray[np.int32]) -> int:
        """Write the ids of `values` [rows] and return the number of values without one."""
        last_before = np.int64(self.first_id - 1)
        return int(lookup_column(self.slots, np.uint32(self.shift), last_before, self.unknown_id, values, ids))

    @staticmethod
    def bytes_for(num_values: int) -> int:
        """Return the memory of a table of that many values."""
        return 8 << max(4, math.ceil(math.log2(2 * num_values + 1)))


@dataclass(frozen=True)
class SortedTable:
    """Sorted 64-bit values, searched by bisection, with the number of each."""

    values: NDArray[np.uint64]
    numbers: NDArray[np.uint32]
    first_id: int = 1
    unknown_id: int = OUT_OF_VOCABULARY

    @classmethod
    def build(
        cls,
        values: NDArray[np.uint64],
        first_id: int = 1,
        unknown_id: int = OUT_OF_VOCABULARY,
        first_number: int = 0,
    ) -> "SortedTable":
        """Give values[i] the id first_id + first_number + i, and other values unknown_id."""
        order = np.argsort(values)
        numbers = order.astype(np.uint32)
        numbers += np.uint32(first_number)
        return cls(values[order], numbers, first_id, unknown_id)

    def look_up(self, values: NDArray[np.uint64], ids: NDArray[np.int32]) -> int:
        """Write the ids of `values` [rows] and return the number of values without one."""
        if not len(self.values):
            ids[:] = self.unknown_id
            return len(ids)
        places = np.searchsorted(self.values, values)
        places[places == len(self.values)] = 0
        missing = self.values[places] != values
        ids[:] = self.numbers[places].astype(np.int64) + self.first_id
        ids[missing] = self.unknown_id
        return int(np.count_nonzero(missing))

    @staticmethod
    def bytes_for(num_values: int) -> int:
        """Return the memory of a table of that many values."""
        return 12 * num_values


ValueTable: TypeAlias = LookupTable | SortedTable


def table_of(values: NDArray[Any], first_id: int, unknown_id: int) -> ValueTable:
    """Build the lookup table of a vocabulary with values of 32 or 64 bits."""
    kind: Any = LookupTable if values.dtype == np.uint32 else SortedTable
    table: ValueTable = kind.build(values, first_id, unknown_id)
    return table


@dataclass(frozen=True)
class CodeTable:
    """Lookup table for the codes of a dictionary: each code's id, and a mask of codes without one of their own."""

    ids: NDArray[np.int32]
    missing: NDArray[np.bool_] | None

    @classmethod
    def build(cls, table: ValueTable, dictionary: NDArray[Any]) -> "CodeTable":
        """Give each code the id of its value in the dictionary."""
        ids = np.empty(len(dictionary), np.int32)
        if not replace(table, unknown_id=NO_ID).look_up(dictionary, ids):
            return cls(ids, None)
        missing = ids == NO_ID
        ids[missing] = table.unknown_id
        return cls(ids, missing)

    def look_up(self, codes: NDArray[np.unsignedinteger], ids: NDArray[np.int32]) -> int:
        """Write the ids of `codes` [rows] and return the number of codes without an id of their own."""
        take_ids(self.ids, codes, ids)
        return 0 if self.missing is None else int(np.count_nonzero(self.missing[codes]))


def table_of_codes(table: ValueTable, dictionary: NDArray[Any] | None) -> ValueTable | CodeTable:
    """Build the table for a column's codes; without a dictionary, codes are the values."""
    return table if dictionary is None else CodeTable.build(table, dictionary)


@jit
def take_ids(ids_of: NDArray[np.int32], codes: NDArray[np.uint8], ids: NDArray[np.int32]) -> None:
    """Write ids_of[codes[i]] to ids[i]."""
    for i in range(len(codes)):
        ids[i] = ids_of[codes[i]]


@jit
def insert(
    slots: NDArray[np.uint64], shift: np.uint32, values: NDArray[np.uint32], numbers: NDArray[np.uint32]
) -> None:
    """Insert distinct values with their numbers; at least half of the slots must stay empty."""
    mask = np.uint32(len(slots) - 1)
    for i in range(len(values)):
        slot = np.uint32(values[i] * HASH_MULTIPLIER) >> shift
        while slots[slot] != EMPTY_SLOT:
            slot = (slot + np.uint32(1)) & mask
        slots[slot] = (np.uint64(values[i]) << np.uint64(32)) | np.uint64(np.int64(numbers[i]) + 1)


@jit
def lookup_column(
    slots: NDArray[np.uint64],
    shift: np.uint32,
    offset: Int,
    unknown_id: int,
    values: NDArray[np.uint32],
    ids: NDArray[np.int32],
) -> int:
    """Write offset + the number in values[i]'s slot, or unknown_id, to ids[i]; return the number of unknown values."""
    mask = np.uint32(len(slots) - 1)
    unknown = 0
    for i in range(len(values)):
        value = values[i]
        slot = np.uint32(value * HASH_MULTIPLIER) >> shift
        while True:
            entry = slots[slot]
            if entry == EMPTY_SLOT:
                ids[i] = unknown_id
                unknown += 1
                break
            if np.uint32(entry >> np.uint64(32)) == value:
                ids[i] = offset + np.int64(entry & np.uint64(0xFFFFFFFF))
                break
            slot = (slot + np.uint32(1)) & mask
    return unknown


def vocabulary_path(root: Path, feature: str) -> Path:
    """Return the path of a vocabulary: values in order of their ids, uint32, or uint64 for a user's own table."""
    return root / VOCABULARY_DIRECTORY / f"{feature}.npy"


def load_tables(root: Path, features: tuple[str, ...], first_id: int, unknown_id: int) -> list[ValueTable]:
    """Load the features' lookup tables from `root`/vocab."""
    vocabularies = (np.load(vocabulary_path(root, feature)) for feature in features)
    return [table_of(vocabulary, first_id, unknown_id) for vocabulary in vocabularies]
