"""Values to ids, by vocabularies or hashing; integers to floats.

data_prep/stages/write.py makes all ids of a dataset, and data_prep/encoding.py those of new rows; both call
the functions of this package.

A job's processes map lookup tables from files: they share their memory, and may exceed it.

    <root>/vocab/<feature>.texts.npy      [B] uint8           UTF-8 bytes of all texts
    <root>/vocab/<feature>.offsets.npy    [values + 1] int64  where each text begins, and the last one ends

They exist for a user's own table with a vocabulary that was prepared with data.keep_texts.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from common.jit import Int, jit
from data_prep.codec.values import HASHED, ColumnTransform, largest_input, transform_columns, transform_numbers
from data_prep.dataset.format import REMEDY, Manifest
from data_prep.dataset.options import DenseTransform, Table
from data_prep.io import open_array

VOCABULARY_DIRECTORY = "vocab"
OUT_OF_VOCABULARY = 0
HASH_MULTIPLIER = np.uint32(2654435769)  # 2^32 / golden ratio: Knuth's multiplicative hashing
EMPTY_SLOT = np.uint64(0)
NO_ID = -1  # marks values without an id


@dataclass(frozen=True)
class LookupTable:
    """Hash table with open addressing: a slot is value << 32 | number + 1, or 0 if empty. At most half are in use."""

    slots: NDArray[np.uint64]
    first_id: int = 1
    unknown_id: int = OUT_OF_VOCABULARY

    @property
    def shift(self) -> np.uint32:
        """Return how many low bits of a 32-bit hash are dropped to get the number of its slot."""
        return np.uint32(33 - len(self.slots).bit_length())

    def look_up(self, values: NDArray[np.uint32], ids: NDArray[np.int32]) -> None:
        """Write the ids of `values` [rows] to `ids` [rows], unknown_id for values without one."""
        offset = np.int64(self.first_id - 1)  # a slot holds the value's number plus one
        lookup_column(self.slots, self.shift, offset, self.unknown_id, values, ids)


@dataclass(frozen=True)
class SortedTable:
    """Sorted 64-bit values, searched by bisection, with the number of each."""

    values: NDArray[np.uint64]
    numbers: NDArray[np.uint32]
    first_id: int = 1
    unknown_id: int = OUT_OF_VOCABULARY

    def look_up(self, values: NDArray[np.uint64], ids: NDArray[np.int32]) -> None:
        """Write the ids of `values` [rows] to `ids` [rows], unknown_id for values without one."""
        if not len(self.values):
            ids[:] = self.unknown_id
            return
        places = np.searchsorted(self.values, values)
        # A value beyond the last has no place; the comparison with the first one then finds it missing.
        places[places == len(self.values)] = 0
        ids[:] = self.numbers[places].astype(np.int64) + self.first_id
        ids[self.values[places] != values] = self.unknown_id


ValueTable: TypeAlias = LookupTable | SortedTable


def build_table(values: NDArray[Any], first_id: int, unknown_id: int) -> ValueTable:
    """Build the table of a vocabulary [n], uint32 or uint64: values[i] gets the id first_id + i, others unknown_id."""
    if values.dtype == np.uint32:
        table = LookupTable(np.zeros(num_slots(len(values)), np.uint64), first_id, unknown_id)
        insert(table.slots, table.shift, np.ascontiguousarray(values))
        return table
    # A chunk looks up its distinct values alone, so bisection is fast enough, and takes less memory than hashing.
    order = np.argsort(values)
    return SortedTable(values[order], order.astype(np.uint32), first_id, unknown_id)


def look_up_codes(
    table: ValueTable, dictionary: NDArray[Any] | None
) -> Callable[[NDArray[np.unsignedinteger], NDArray[np.int32]], None]:
    """Return the `look_up` of a column's codes by their values in the dictionary; without one, codes are values."""
    if dictionary is None:
        return table.look_up
    ids = np.empty(len(dictionary), np.int32)
    table.look_up(dictionary, ids)
    return partial(take_ids, ids)


@jit
def take_ids(ids_of: NDArray[np.int32], codes: NDArray[np.uint8], ids: NDArray[np.int32]) -> None:
    """Write ids_of[codes[i]] to ids[i]."""
    for i in range(len(codes)):
        ids[i] = ids_of[codes[i]]


def num_slots(num_values: int) -> int:
    """Return the slots of a hash table of that many values: a power of two, of which at most half are in use."""
    return int(1 << max(4, math.ceil(math.log2(2 * num_values + 1))))


@jit
def insert(slots: NDArray[np.uint64], shift: np.uint32, values: NDArray[np.uint32]) -> None:
    """Insert distinct values, each with its index plus one; at least half of the slots must stay empty."""
    mask = np.uint32(len(slots) - 1)
    for i in range(len(values)):
        # The upper bits of the product depend on all bits of the value, its lower bits only on the lower ones.
        slot = np.uint32(values[i] * HASH_MULTIPLIER) >> shift
        while slots[slot] != EMPTY_SLOT:
            slot = (slot + np.uint32(1)) & mask
        slots[slot] = (np.uint64(values[i]) << np.uint64(32)) | np.uint64(i + 1)


@jit
def lookup_column(
    slots: NDArray[np.uint64],
    shift: np.uint32,
    offset: Int,
    unknown_id: int,
    values: NDArray[np.uint32],
    ids: NDArray[np.int32],
) -> None:
    """Write offset + the number in values[i]'s slot, or unknown_id, to ids[i]."""
    mask = np.uint32(len(slots) - 1)
    for i in range(len(values)):
        value = values[i]
        slot = np.uint32(value * HASH_MULTIPLIER) >> shift
        while True:
            entry = slots[slot]
            if entry == EMPTY_SLOT:
                ids[i] = unknown_id
                break
            if np.uint32(entry >> np.uint64(32)) == value:
                ids[i] = offset + np.int64(entry & np.uint64(0xFFFFFFFF))
                break
            slot = (slot + np.uint32(1)) & mask


def vocabulary_path(root: Path, feature: str) -> Path:
    """Return the path of a vocabulary: values in order of their ids, uint32, or uint64 for a user's own table."""
    return root / VOCABULARY_DIRECTORY / f"{feature}.npy"


def write_tables(root: Path, features: tuple[str, ...]) -> None:
    """Write the lookup tables of the vocabularies in `root`/vocab to the one file that `map_tables` maps."""
    for feature, (slots_or_values, numbers) in zip(features, _table_arrays(root, features, "r+"), strict=True):
        values = np.asarray(np.load(vocabulary_path(root, feature), mmap_mode="c"))
        if numbers is None:
            insert(slots_or_values, LookupTable(slots_or_values).shift, values)
        else:
            order = np.argsort(values)
            slots_or_values[:], numbers[:] = values[order], order


@lru_cache(maxsize=1)  # each process maps its job's tables once
def map_tables(
    root: Path, features: tuple[str, ...], digests: tuple[str, ...], first_id: int, unknown_id: int
) -> list[ValueTable]:
    """Map the tables of `write_tables`: processes share their pages, which the system may drop and read again.

    digests: of the vocabularies, since a cluster's worker may outlive a job and meet another one at the same path.
    """
    # Mode "c" makes arrays writable, as those in memory are, so that no kernel is compiled twice.
    return [
        LookupTable(slots_or_values, first_id, unknown_id)
        if numbers is None
        else SortedTable(slots_or_values, numbers, first_id, unknown_id)
        for slots_or_values, numbers in _table_arrays(root, features, "c")
    ]


def _table_arrays(
    root: Path, features: tuple[str, ...], mode: Literal["r+", "c"]
) -> list[tuple[NDArray[np.uint64], NDArray[np.uint32] | None]]:
    """Map each feature's lookup table: slots and None for values of 32 bits, else sorted values and their numbers.

    mode: r+ makes a new file, to write; c maps the file that is there, and writes nothing back.
    """
    sizes: list[tuple[int, int | None]] = []  # of slots (uint64) and None, or of values (uint64) and numbers (uint32)
    for feature in features:
        values = open_array(vocabulary_path(root, feature))
        is_hashed = values.dtype == np.uint32
        sizes.append((num_slots(len(values)), None) if is_hashed else (len(values), len(values)))
    # One file for all, as each mapped file takes a descriptor. Arrays begin at multiples of 8 bytes; eight more at the
    # end, as an empty file cannot be mapped.
    path, num_bytes = root / "lookup.bin", 8 + 8 * sum(first + -(-(second or 0) // 2) for first, second in sizes)
    if mode == "r+":
        # A page of a mapped file that finds no room on the disk would end the process by a signal.
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
    content, start, tables = np.asarray(np.memmap(path, np.uint64, mode)), 0, []
    for first, second in sizes:
        stop = start + first
        end = stop + -(-(second or 0) // 2)
        tables.append((content[start:stop], None if second is None else content[stop:end].view(np.uint32)[:second]))
        start = end
    return tables


@jit
def hash_block(sparse: NDArray[np.uint32], modulus: np.uint32, ids: NDArray[np.int32]) -> None:
    """Write sparse[r, f] modulo `modulus` to ids[r, f]; both arrays are contiguous.

    Floating-point quotients are off by one at most and, unlike integer division, are vectorised.
    """
    values, results = sparse.reshape(-1), ids.reshape(-1)
    divisor = np.int64(modulus)
    inverse = 1.0 / divisor
    for i in range(len(values)):
        value = np.int64(values[i])
        remainder = value - np.int64(np.float64(value) * inverse) * divisor
        remainder += divisor if remainder < 0 else 0
        remainder -= divisor if remainder >= divisor else 0
        results[i] = np.int32(remainder)


def encode_hash(
    sparse: NDArray[np.uint32], max_ind_range: int, ids: NDArray[np.int32] | None = None
) -> NDArray[np.int32]:
    """Return the values modulo max_ind_range as int32 in the same shape; writes to `ids` if given."""
    ids = np.empty(sparse.shape, np.int32) if ids is None else ids
    hash_block(sparse, np.uint32(max_ind_range), ids)
    return ids


def torchrec_ids(ids: NDArray[np.int32], rounds: bool, modulus: int | None) -> None:
    """Repeat TorchRec's changes to contiguous ids, in place.

    rounds: round to float32, as TorchRec's shuffle of the train split does. modulus: wrap ids at this number of rows,
    as TorchRec's reader does; None: do not.
    """
    if rounds:
        ids[:] = ids.astype(np.float32)
    if modulus is not None:
        ids %= np.int32(modulus)


LOG1P_TABLE_SIZE = 1 << 16  # integers from 0 whose logarithm is looked up
FOLDED_ROWS = 32  # rows that a range of columns is taken over as one long row


class DenseRange(NamedTuple):
    """Smallest and largest value of each column [N]; a missing value counts as 0."""

    low: NDArray[np.int64]
    high: NDArray[np.int64]


@jit
def log1p_block(dense: NDArray[np.int32], table: NDArray[np.float32], result: NDArray[np.float32]) -> None:
    """Write float32(log(1 + max(x, 0))) to `result`. The table covers small x; other values are computed in float64."""
    for row in range(dense.shape[0]):
        for column in range(dense.shape[1]):
            value = max(dense[row, column], np.int32(0))
            # Most integers are small, and a table is much faster than a logarithm.
            if value < LOG1P_TABLE_SIZE:
                result[row, column] = table[value]
            else:
                result[row, column] = np.float32(math.log1p(np.float64(value)))


@cache
def log1p_table() -> NDArray[np.float32]:
    """Return float32(log(1 + x)) for x = 0, 1, …, LOG1P_TABLE_SIZE - 1."""
    return np.log1p(np.arange(LOG1P_TABLE_SIZE, dtype=np.float64)).astype(np.float32)


def encode_dense(dense: NDArray[np.int32], result: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Return log(1 + max(x, 0)) of each value as float32; writes to `result` if given."""
    result = np.empty(dense.shape, np.float32) if result is None else result
    log1p_block(dense, log1p_table(), result)
    return result


def column_range(dense: NDArray[Any]) -> DenseRange:
    """Return the range of each column of a block [rows, N] with at least one row."""
    # NumPy is slow on short rows, so FOLDED_ROWS rows are first folded into a long one.
    folded = len(dense) // FOLDED_ROWS * FOLDED_ROWS
    limits = []
    for reducer in (np.minimum, np.maximum):
        rows = dense
        if folded:
            wide = reducer.reduce(dense[:folded].reshape(len(dense) // FOLDED_ROWS, -1))
            rows = np.concatenate((wide.reshape(FOLDED_ROWS, -1), dense[folded:]))
        limits.append(reducer.reduce(rows).astype(np.int64 if dense.dtype.kind == "i" else np.float64))
    return DenseRange(*limits)


def join_ranges(ranges: list[DenseRange]) -> DenseRange:
    """Return the smallest and largest value of each column [N] over the ranges of several blocks."""
    lows, highs = np.stack([part.low for part in ranges]), np.stack([part.high for part in ranges])
    return DenseRange(lows.min(axis=0), highs.max(axis=0))


def dense_limits(transform: DenseTransform, table: Table) -> list[float]:
    """Return the largest absolute value of each dense feature of a user's own table whose transform is finite."""
    own = dict(table.transforms)
    return [largest_input(own.get(feature, transform.value)) for feature in table.dense]


def column_transforms(table: Table | None, fits: Mapping[str, Sequence[float]]) -> list[ColumnTransform]:
    """Return the transforms that a user's own table gives single dense features.

    fits: the numbers that a transform of FITS takes, by feature.
    """
    if table is None:
        return []
    pairs = table.indexed_transforms
    return [ColumnTransform(index, name, tuple(fits.get(table.dense[index], ()))) for index, name in pairs]


def transform_dense(
    dense: NDArray[Any],
    transform: DenseTransform,
    dense_range: DenseRange | None = None,
    wraps: bool = False,
    column_transforms: Sequence[ColumnTransform] = (),
    result: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Apply a transform to all columns but those of `column_transforms`, which have their own.

    The result has the transform's dtype; it is written to `result` [rows, N] if given, which is contiguous.

    Args:
        dense: [rows, N] int32, or float64 for a user's table; 0 if missing.
        dense_range: range of the rows' source for `torchrec`, of all rows for `minmax`.
        wraps: with `torchrec`, differences beyond int32 wrap around as in TorchRec.
    """
    # The commonest case, log1p of Criteo's integers, needs no array of all rows beside the result.
    if transform is DenseTransform.log1p and dense.dtype == np.int32:
        return encode_dense(dense, result)
    low, high = (np.zeros(0), np.zeros(0)) if dense_range is None else dense_range
    with np.errstate(all="ignore"):  # numbers of the columns that follow may be too large
        converted = transform_numbers(dense, transform.value, low, high, wraps).astype(transform.dtype, copy=False)
    transform_columns(dense, column_transforms, converted)
    if result is None:
        return converted
    result[:] = converted
    return result


TEXT_KINDS = ("texts", "offsets")


def text_path(root: Path, feature: str, kind: str) -> Path:
    """Return the path of a feature's file of one of TEXT_KINDS."""
    return vocabulary_path(root, feature).with_name(f"{feature}.{kind}.npy")


class VocabularyTexts:
    """Texts of a feature's values, memory-mapped."""

    def __init__(self, root: Path, feature: str, first_id: int = 1) -> None:
        """Open the files of the dataset at `root`; its first value has the id `first_id`."""
        paths = [text_path(root, feature, kind) for kind in TEXT_KINDS]
        try:
            self._content, self._offsets = (open_array(path) for path in paths)
        except (OSError, ValueError) as error:
            raise UserError(f"{paths[0]}: the values' texts are not readable ({error}); {REMEDY}") from error
        are_typed = self._content.dtype == np.uint8 and self._offsets.dtype == np.int64
        if not are_typed or not len(self._offsets) or self._offsets[-1] != len(self._content):
            raise UserError(f"{paths[1]}: does not fit {paths[0].name}; {REMEDY}")
        self._first_id = first_id

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> str:
        """Return the text of an id. Raise IndexError for an id that no value has."""
        index = number - self._first_id
        if not 0 <= index < len(self):
            raise IndexError(number)
        return bytes(self._content[self._offsets[index] : self._offsets[index + 1]]).decode()

    def blocks(self, size: int) -> Iterator[Any]:
        """Yield the texts in order of their ids as Arrow arrays of at most `size`."""
        for start in range(0, len(self), size):
            offsets: NDArray[np.int64] = np.array(self._offsets[start : start + size + 1])
            content = np.array(self._content[offsets[0] : offsets[-1]])
            yield texts_from_buffers(offsets - offsets[0], content)


def texts_from_buffers(offsets: NDArray[np.int64], content: NDArray[np.uint8]) -> Any:
    """Return an Arrow array of texts; text i is content[offsets[i] : offsets[i + 1]]."""
    import pyarrow as pa

    # Arrow's usual text has 32-bit offsets, which end at 2 GiB; a vocabulary's texts may be longer.
    buffers = [pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.LargeStringArray.from_buffers(len(offsets) - 1, *buffers)


def text_buffers(texts: Any) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return the offsets [n + 1] and bytes of an Arrow array of texts: the arguments of `texts_from_buffers`."""
    import pyarrow as pa

    texts = texts.cast(pa.large_string())
    if not len(texts):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    _, offset_bytes, data = texts.buffers()
    # An array that is a slice has its parent's whole buffers, so its texts begin at `texts.offset`, not at byte 0.
    offsets = np.frombuffer(offset_bytes, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    content = np.frombuffer(b"" if data is None else data, np.uint8)[offsets[0] : offsets[-1]]
    return offsets - offsets[0], content


def vocabulary_values(root: Path, manifest: Manifest, feature: str, ids: Sequence[int]) -> list[str | None]:
    """Return the values of ids as text; None for an id that no value has.

    Criteo's values are eight hexadecimal digits. A user's own whole numbers are their text; other texts need the file
    that data.keep_texts leaves.

    Raises UserError: several values share an id, or a text is not kept.
    """
    encoding = manifest.encoding
    if encoding.get("raw_schema") is None or encoding.get("order") is None or encoding["wraps"]:
        raise UserError(f"{root}: an id of {feature} has no value of its own; prepare it with data.encoding=vocabulary")
    first = encoding["first_id"]
    if encoding["vocabulary"][feature].get("texts"):
        texts = VocabularyTexts(root, feature, first)
        return [texts[number] if 0 <= number - first < len(texts) else None for number in ids]
    values = open_array(vocabulary_path(root, feature))
    integers = [int(values[number - first]) if 0 <= number - first < len(values) else None for number in ids]
    if values.dtype == np.uint32:
        return [None if value is None else f"{value:08x}" for value in integers]
    if any(value is not None and value >= int(HASHED) for value in integers):
        raise UserError(f"{root}: the texts of {feature} are not kept; prepare it again with data.keep_texts=true")
    return [None if value is None else str(value) for value in integers]
