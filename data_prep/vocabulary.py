"""Values counted, merged and ranked to a vocabulary, whose texts are kept for a user's table.

A run holds a column's distinct values in ascending order with their counts. Each chunk leaves one run per column on
disk, and the runs are merged. A coding represents a column with repeated values by small numbers.

Merging numbers the values in ascending order: `NumberedValues`. The 32-bit numbers are then counted, capped and ranked,
which gives the number of each id. `write_ranked` brings values and texts into that order. Memory does not grow with the
number of values.
"""

import mmap
import os
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from common.errors import UserError
from common.files import FileDigest, digest_file
from common.jit import Int, jit
from common.machine import share_allocator_with_arrow
from data_prep.dataset.options import VocabularyOrder
from data_prep.io import npy_header, open_array, unload
from data_prep.lookup import EMPTY_SLOT, HASH_MULTIPLIER, insert, text_buffers

FEW_CODES, MAX_CODES = 1 << 8, 1 << 16  # codes that fit one byte and two bytes
FIRST_BITS = 12  # of the number of a slot in the first hash table
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
        """Return n, the number of distinct values."""
        return len(self.values)

    def part(self, start: int, stop: int) -> "Run":
        """Return the entries start..stop as views."""
        return Run(self.values[start:stop], self.counts[start:stop], self.first[start:stop])


class Coding(NamedTuple):
    """A column as numbers: row i has the value dictionary[codes[i]]; uint32 [values], and uint8 or uint16 [rows]."""

    dictionary: NDArray[np.uint32]
    codes: NDArray[np.unsignedinteger]


def count_values(values: NDArray[np.uint32], rows: NDArray[np.int64] | None = None) -> tuple[Run, Coding | None]:
    """Return a column's run, and its coding, or None if values repeat too rarely or are too many.

    values: [n], may be sorted in place. rows: row of each value, ascending and less than 2^32 beyond rows[0]; None:
    `first` is all 0.
    """
    repeated = _count_repeated(values)
    if repeated is not None:
        run, coding = repeated
        return run._replace(first=np.zeros_like(run.first) if rows is None else rows[run.first]), coding
    if rows is None:
        values.sort()
        starts = _group_starts(values)
        return Run(values[starts], np.diff(starts, append=len(values)), np.zeros(len(starts), np.int64)), None
    # NumPy sorts 64-bit keys by vector instructions. The row in the lower half puts a first row first.
    keys = (values.astype(np.uint64) << np.uint64(32)) | (rows - rows[0]).astype(np.uint64)
    keys.sort()
    sorted_values = (keys >> np.uint64(32)).astype(np.uint32)
    starts = _group_starts(sorted_values)
    first = (keys[starts] & np.uint64(0xFFFFFFFF)).astype(np.int64) + rows[0]
    return Run(sorted_values[starts], np.diff(starts, append=len(values)), first), None


def _count_repeated(values: NDArray[np.uint32]) -> tuple[Run, Coding | None] | None:
    """Return the run, with `first` from 0, and the coding of values that mostly repeat; None for other values."""
    # The kernel gives up at this number of values, so its outputs need no more room.
    max_values = len(values) // ROWS_PER_VALUE + FREE_VALUES + 1
    repeated, codes = np.empty(max_values, np.uint32), np.empty(len(values), np.uint16)
    counts, first = np.empty(max_values, np.int64), np.empty(max_values, np.int64)
    number = count_repeated(values, repeated, counts, first, codes)
    if number < 0:
        return None
    # NumPy sorts 64-bit numbers several times faster than it sorts indices by values.
    keys = (repeated[:number].astype(np.uint64) << np.uint64(32)) | np.arange(number, dtype=np.uint64)
    keys.sort()
    order = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    run = Run(repeated[order], counts[order], first[order])
    # A code of more than two bytes would save little over the value itself.
    if number > MAX_CODES:
        return run, None
    return run, Coding(repeated[:number].copy(), codes if number > FEW_CODES else codes.astype(np.uint8))


def _group_starts(values: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the index of the first of each group of equal values in a sorted array."""
    return np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1]))[: len(values)])


@jit
def count_repeated(
    values: NDArray[np.uint32],
    distinct_values: NDArray[np.uint32],
    counts: NDArray[np.int64],
    first: NDArray[np.int64],
    codes: NDArray[np.uint16],
) -> int:
    """Count the distinct values of a column in order of appearance.

    values: [rows] uint32. distinct_values, counts, first, codes: outputs. The first three hold each distinct value, its
    count and its first index; `codes` holds each row's index in `distinct_values`, modulo 2^16: beyond MAX_CODES values
    nobody reads it. Returns the number of distinct values, or -1 if values repeat too rarely.
    """
    # A small table fits the nearest cache; it grows only if the values need it.
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
        # Sorting counts rare repetitions faster. The share is judged on the way, so that little work is lost.
        if number >= FREE_VALUES + i // ROWS_PER_VALUE:
            return -1
        distinct_values[number], counts[number], first[number], codes[i] = value, 1, i, np.uint16(number)
        number += 1
        slots[slot] = (np.uint64(value) << np.uint64(32)) | np.uint64(number)
        # At most half of the slots are in use, so that probes stay short. Growth by four makes moves rare.
        if 2 * number > len(slots):
            bits += 2
            slots, mask, shift = np.zeros(1 << bits, np.uint64), np.uint32((1 << bits) - 1), np.uint32(32 - bits)
            insert(slots, shift, distinct_values[:number])
    return number


PART_BYTES = 128 << 20
PART_BYTES_PER_ENTRY = 96  # a merged entry, its copies, and the memory to rank it
STEP_ENTRIES = 1 << 17  # merged at once, in the processor's cache
STEP_ENTRIES_PER_RUN = 1 << 12  # calls would dominate if there were fewer
SAMPLES_PER_RUN = 64


def merge_in_parts(
    runs: Sequence[Any], part_bytes: int = PART_BYTES, begins: Sequence[int] | None = None, threshold: int = 1
) -> Iterator[Run]:
    """Merge any number of runs into one, and yield it in consecutive ranges of values.

    Args:
        runs: each with `entries`, `values` and `part`, in memory or on disk.
        part_bytes: memory for merging and ranking a part.
        begins: number of the row at which each run's `first` begins to count; by default 0.
        threshold: values with a lower total count are left out.
    """
    max_entries = part_bytes // PART_BYTES_PER_ENTRY
    step_entries = max(1, min(max_entries, max(STEP_ENTRIES, STEP_ENTRIES_PER_RUN * len(runs))))
    num_steps = -(-sum(run.entries for run in runs) // step_entries)
    # Runs are cut at the same values, so each step merges whole values and its result only has to be appended.
    cuts = value_cuts(runs, num_steps)
    bounds = np.array([[0, *np.searchsorted(run.values, cuts), run.entries] for run in runs], np.int64)
    sizes = np.diff(bounds).sum(axis=0).tolist()
    # All steps share this memory, since allocating it each time would cost more than merging. The value is the upper
    # half of a little-endian key, so keys sort by value; the lower half finds the entry.
    keys, numbers = np.empty(max(sizes), "<u8"), np.arange(max(sizes), dtype=np.uint32)
    counts, first = np.empty(max(sizes), np.int64), np.empty(max(sizes), np.int64)
    halves = keys.view("<u4").reshape(-1, 2)
    part, number = _empty_run(max(max_entries, *sizes)), 0
    for starts, stops, size in zip(bounds.T[:-1].tolist(), bounds.T[1:].tolist(), sizes, strict=True):
        # The size counts entries of all runs, so it is an upper bound of the values that the step adds.
        if number + size > len(part.values):
            yield part.part(0, number)
            part, number = _empty_run(len(part.values)), 0
        end = 0
        for run, start, stop, begin in zip(runs, starts, stops, begins or [0] * len(runs), strict=True):
            if start == stop:
                continue
            target = slice(end, end + stop - start)
            end = target.stop
            run_values, run_counts, run_first = run.part(start, stop)
            halves[target, 1] = run_values
            counts[target] = run_counts
            np.add(run_first, begin, out=first[target], dtype=np.int64)
        halves[:end, 0] = numbers[:end]
        step_keys = keys[:end]
        step_keys.sort()  # Sorting 64-bit numbers is several times faster than merging by comparisons.
        rest = part.part(number, len(part.values))
        number += int(sum_equal(step_keys, counts, first, threshold, *rest))
    if number:
        yield part.part(0, number)


def _empty_run(entries: int) -> Run:
    """Allocate a run; the system assigns memory only to the part that is written."""
    return Run(np.empty(entries, np.uint32), np.empty(entries, np.int64), np.empty(entries, np.int64))


@jit
def sum_equal(
    keys: NDArray[np.uint64],
    counts: NDArray[np.int64],
    first: NDArray[np.int64],
    threshold: int,
    out_values: NDArray[np.uint32],
    out_counts: NDArray[np.int64],
    out_first: NDArray[np.int64],
) -> Int:
    """Sum the counts and take the earliest row of each value, without branches.

    Returns the number of values in the outputs.

    Args:
        keys: [n] uint64, ascending: value << 32 | entry.
        counts, first: [n] int64, one per entry.
        threshold: values with a lower total count are left out.
        out_values, out_counts, out_first: outputs.
    """
    number, total, earliest, last = np.int64(0), np.int64(0), np.int64(0), np.uint32(0)
    for i in range(len(keys)):
        value = np.uint32(keys[i] >> np.uint64(32))
        entry = np.int64(keys[i] & np.uint64(0xFFFFFFFF))
        is_same = (value == last) & (i > 0)
        number += np.int64((not is_same) & (i > 0) & (total >= threshold))  # otherwise overwrite the last value
        total = counts[entry] + (total if is_same else 0)
        earliest = min(first[entry], earliest) if is_same else first[entry]
        out_values[number], out_counts[number], out_first[number] = value, total, earliest
        last = value
    return number + np.int64(len(keys) > 0 and total >= threshold)


def value_cuts(runs: Sequence[Any], num_parts: int) -> NDArray[Any]:
    """Return values that divide the union of the runs into `num_parts` about equal parts: fewer than `num_parts`."""
    if num_parts <= 1:
        return np.zeros(0, np.uint32)
    # Parts need only be about equal, so evenly spaced samples of each run, weighted by its entries, are enough.
    samples, weights = [], []
    for run in runs:
        sample = np.array(run.values[:: max(1, run.entries // SAMPLES_PER_RUN)])
        samples.append(sample)
        weights.append(np.full(len(sample), run.entries / max(1, len(sample))))
    values, weight = np.concatenate(samples), np.concatenate(weights)
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weight[order])
    positions = np.searchsorted(cumulative, cumulative[-1] * np.arange(1, num_parts) / num_parts)
    return np.unique(values[order][positions])


class SpilledRun:
    """A run on disk, in files that begin with `stem`; each access to an array reads it, so none stays in memory."""

    def __init__(self, run: Run, stem: Path) -> None:
        stem.parent.mkdir(parents=True, exist_ok=True)
        self._paths = [stem.with_name(f"{stem.name}.{name}") for name in Run._fields]
        arrays: list[NDArray[Any]] = [run.values, run.counts, run.first]
        for path, array in zip(self._paths, arrays, strict=True):
            array.tofile(path)

    @property
    def values(self) -> NDArray[np.uint32]:
        """Read the values [n] uint32."""
        return np.fromfile(self._paths[0], np.uint32)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Read the counts [n] int64."""
        return np.fromfile(self._paths[1], np.int64)

    @property
    def first(self) -> NDArray[np.int64]:
        """Read the first rows [n] int64."""
        return np.fromfile(self._paths[2], np.int64)


AnyRun: TypeAlias = Run | SpilledRun


def spill_parts(runs: Iterator[Run], directory: Path) -> Sequence[AnyRun]:
    """Return all parts of a merged run: a single one stays in memory, several go to disk in `directory`."""
    # A single part needs no disk, and only asking for the next one tells whether there are several.
    first, second = next(runs, None), next(runs, None)
    if first is None or second is None:
        return [] if first is None else [first]
    spilled = [SpilledRun(first, directory / "0"), SpilledRun(second, directory / "1")]
    del first, second  # so that a part on disk is not in memory, too, while the next one is merged
    spilled += [SpilledRun(part, directory / str(i)) for i, part in enumerate(runs, 2)]
    return spilled


ROWS_PER_KEY = 1 << 32  # rows that a 64-bit key can hold beside a value


def most_frequent(parts: Sequence[AnyRun], limit: int) -> Iterator[Run]:
    """Yield from each part the values among the `limit` most frequent overall; ties go to smaller values."""
    counts, sizes = count_classes(parts)
    # Classes of values with equal counts are taken whole from the most frequent one on; the limit cuts the next class.
    no_rarer = np.cumsum(sizes[::-1])[::-1]  # number of values with at least this count
    last_whole = int(np.searchsorted(-no_rarer, -limit))  # the rarest class that is taken whole
    min_count = counts[last_whole] if last_whole < len(counts) else counts[-1] + 1
    remaining = limit - int(no_rarer[last_whole]) if last_whole < len(counts) else limit
    for part in parts:
        part_counts = part.counts
        is_frequent = part_counts >= min_count
        # Parts ascend by value, so the first values of the class that is cut are the smallest.
        if last_whole and remaining:
            smallest = np.flatnonzero(part_counts == counts[last_whole - 1])[:remaining]
            is_frequent[smallest] = True
            remaining -= len(smallest)
        if is_frequent.any():
            yield Run(part.values[is_frequent], part_counts[is_frequent], part.first[is_frequent])


def rank_values(parts: Sequence[AnyRun], path: Path, order: VocabularyOrder) -> int:
    """Write a column's vocabulary: its values in the order of their ids.

    Returns n, the number of values with an id of their own.

    Args:
        parts: the merged run in consecutive ranges of values.
        path: .npy file to write, [n] uint32.
        order: by descending count, by first row, or by value.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    size = sum(len(part.values) for part in parts)
    if size and order is VocabularyOrder.frequency:
        # A counting sort: values go to places all over the file, so it is mapped. The number of values with larger
        # counts is the first rank of a class. Parts ascend by value, and so do ties.
        mapped, vocabulary = map_new_file(path, np.uint32, size)
        counts, sizes = count_classes(parts)
        larger = np.cumsum(sizes[::-1])[::-1] - sizes
        for part in parts:
            place_by_rank(part.values, np.searchsorted(counts, part.counts), larger, vocabulary)
            unload(mapped)  # Pages all over the file would soon count as resident memory.
        return size
    with open(path, "wb") as file:
        file.write(npy_header(np.dtype(np.uint32), size, None))
        in_order = size and order is VocabularyOrder.first_appearance
        for values in _by_first_row(parts) if in_order else (part.values for part in parts):
            values.tofile(file)
    return size


def map_new_file(path: Path, dtype: DTypeLike, size: int) -> tuple[mmap.mmap, NDArray[Any]]:
    """Make a .npy file [size] and map it; its space is reserved, as writing to a hole on a full disk would be fatal."""
    with open(path, "wb+") as file:
        file.write(npy_header(np.dtype(dtype), size, None))
        file.flush()
        num_bytes = file.tell() + size * np.dtype(dtype).itemsize
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        else:
            os.ftruncate(file.fileno(), num_bytes)
        mapped = mmap.mmap(file.fileno(), 0)
        return mapped, np.frombuffer(mapped, dtype, offset=file.tell())


def _by_first_row(parts: Sequence[AnyRun]) -> Iterator[NDArray[np.uint32]]:
    """Yield the values of all parts in the order of their first rows; values of the same row ascend."""
    firsts = (part.first for part in parts)
    sample = np.sort(np.concatenate([first[:: max(1, len(first) // SAMPLES_PER_RUN)].copy() for first in firsts]))
    quantiles = sample[np.arange(1, len(parts)) * len(sample) // len(parts)]
    end = max(int(part.first.max()) for part in parts) + 1
    # Each range of rows has about as many values as one part. A key has 32 bits for the row, so no range may cross a
    # multiple of 2^32 rows.
    cuts = np.unique(np.concatenate((quantiles, np.arange(0, end, ROWS_PER_KEY), [end]))).tolist()
    for low, high in pairwise(cuts):
        keys = []
        for part in parts:
            first = part.first
            is_in_range = (first >= low) & (first < high)
            # The row is the upper half of the key, so sorting orders by row, and then by value.
            first_seen = (first[is_in_range] - low).view(np.uint64)
            first_seen <<= np.uint64(32)
            first_seen |= part.values[is_in_range]
            keys.append(first_seen)
        joined = np.concatenate(keys)
        joined.sort()
        yield joined.astype(np.uint32)


def count_classes(parts: Sequence[AnyRun]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ascending counts that occur in all parts (at least one part), and the number of values of each."""
    pairs = [np.unique(part.counts, return_counts=True) for part in parts]
    counts, inverse = np.unique(np.concatenate([pair[0] for pair in pairs]), return_inverse=True)
    sizes = np.zeros(len(counts), np.int64)
    np.add.at(sizes, inverse, np.concatenate([pair[1] for pair in pairs]))
    return counts, sizes


@jit
def place_by_rank(
    values: NDArray[np.uint32], classes: NDArray[np.int64], next_rank: NDArray[np.int64], vocabulary: NDArray[np.uint32]
) -> None:
    """Put each value at the next rank of its count's class.

    Args:
        values, classes: a part of a run; a class is the place of a value's count among the counts that occur.
        next_rank: next rank of each class; advanced here.
        vocabulary: output, values by rank.
    """
    for i in range(len(values)):
        rank = next_rank[classes[i]]
        next_rank[classes[i]] = rank + 1
        vocabulary[rank] = values[i]


BYTES_PER_ENTRY = 160  # an entry without its text: merging, copies, ranking
COPIES_OF_TEXT = 4  # in memory while texts are merged
ORDER_VALUES = 1 << 20  # ids read at once
SHOWN_CHARACTERS = 40


class Entries(NamedTuple):
    """Entries of a dictionary: values [n] uint64, ascending, counts and first rows [n] int64, texts [n] of Arrow."""

    values: NDArray[np.uint64]
    counts: NDArray[np.int64]
    first: NDArray[np.int64]
    texts: Any


def refuse_collisions(column: str, texts: Any, is_new: NDArray[np.bool_]) -> None:
    """Refuse two texts with the same value.

    texts: in the order of their values. is_new: whether each value differs from the one before.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    repeat_indices = np.flatnonzero(~is_new)
    before, after = texts.take(pa.array(repeat_indices - 1)), texts.take(pa.array(repeat_indices))
    differ = pc.not_equal(before, after).to_numpy(zero_copy_only=False)
    if differ.any():
        pair = int(differ.argmax())
        first, second = (pair_texts[pair].as_py()[:SHOWN_CHARACTERS] for pair_texts in (before, after))
        raise UserError(
            f"data.raw: column {column}: {first!a} and {second!a} have the same value of 64 bits, so they would share "
            "an id; write one of them differently in the raw files"
        )


def merge_dictionaries(
    column: str, dictionaries: Sequence[Any], part_bytes: int, begins: Sequence[int], threshold: int
) -> Iterator[Entries]:
    """Merge any number of dictionaries into one, and yield it in consecutive ranges of values.

    Args:
        column: the column's name in errors.
        dictionaries: of chunks, each with `text_bytes` and what runs have.
        part_bytes: memory for merging and ranking a part.
        begins: number of the row at which each dictionary's `first` begins to count.
        threshold: values with a lower total count, or none, are left out.
    """
    num_bytes = sum(
        BYTES_PER_ENTRY * dictionary.entries + COPIES_OF_TEXT * dictionary.text_bytes for dictionary in dictionaries
    )
    cuts = value_cuts(dictionaries, -(-num_bytes // part_bytes))
    bounds = np.array(
        [[0, *np.searchsorted(dictionary.values, cuts), dictionary.entries] for dictionary in dictionaries], np.int64
    )
    for starts, stops in zip(bounds.T[:-1].tolist(), bounds.T[1:].tolist(), strict=True):
        parts = []
        for dictionary, start, stop, begin in zip(dictionaries, starts, stops, begins, strict=True):
            if start < stop:
                part = dictionary.part(start, stop)
                parts.append(part._replace(first=part.first + begin))
        if parts:
            yield _merge_entries(column, parts, max(1, threshold))


def _merge_entries(column: str, parts: Sequence[Entries], threshold: int) -> Entries:
    """Merge entries of one range of values, one part per dictionary; leave out values counted less than `threshold`."""
    import pyarrow as pa

    values, counts, first = (np.concatenate(arrays) for arrays in list(zip(*parts, strict=True))[:3])
    texts = pa.concat_arrays([part.texts for part in parts])
    # A chunk's dictionary also holds values of rows that do not count, and such a value must not get an id.
    occurs = np.flatnonzero(counts)
    order = occurs[np.argsort(values[occurs])]
    values = values[order]
    is_new = np.concatenate(([True], values[1:] != values[:-1]))[: len(values)]
    starts = np.flatnonzero(is_new)
    if not len(starts):
        return Entries(values, counts[:0], first[:0], texts[:0])
    # Two texts can only collide where a value repeats.
    if len(starts) < len(values):
        refuse_collisions(column, texts.take(pa.array(order)), is_new)
    totals = np.add.reduceat(counts[order], starts)
    is_frequent = totals >= threshold
    earliest = np.minimum.reduceat(first[order], starts)
    return Entries(
        values[starts][is_frequent],
        totals[is_frequent],
        earliest[is_frequent],
        texts.take(pa.array(order[starts][is_frequent])),
    )


class NumberedValues:
    """Merged values in a directory, numbered in ascending order, with their texts if these are kept."""

    def __init__(self, directory: Path, with_texts: bool) -> None:
        share_allocator_with_arrow()
        self._directory, self._with_texts = directory, with_texts
        self.sizes: list[int] = []  # values of each part
        directory.mkdir(parents=True, exist_ok=True)

    def runs(self, parts: Iterator[Entries]) -> Iterator[Run]:
        """Store the parts of a merged dictionary; yield each as a run, with numbers over all parts as its values."""
        # Numbers keep the order of values, so ties break alike, and ranking needs no second form for 64 bits.
        number = 0
        for part in parts:
            if not len(part.values):
                continue
            # The 64-bit values and their texts wait on disk until `write_ranked` brings them into the order of ids.
            import pyarrow as pa

            columns = {"value": part.values, **({"text": part.texts} if self._with_texts else {})}
            batch = pa.record_batch({name: pa.array(column) for name, column in columns.items()})
            path = self._directory / f"{len(self.sizes)}.arrow"
            with pa.ipc.new_stream(str(path), batch.schema) as writer:
                writer.write_batch(batch)
            self.sizes.append(len(batch))
            numbers = np.arange(number, number + len(part.values), dtype=np.uint32)
            number += len(numbers)
            yield Run(numbers, part.counts, part.first)

    def parts(self) -> Iterator[tuple[slice, Any]]:
        """Yield the numbers of each part, and it as a table with the columns `value` and, if texts are kept, `text`."""
        import pyarrow as pa

        for index, end in enumerate(accumulate(self.sizes)):
            with pa.OSFile(str(self._directory / f"{index}.arrow")) as file, pa.ipc.open_stream(file) as stream:
                yield slice(end - self.sizes[index], end), stream.read_all()


def write_ranked(numbered: NumberedValues, order: Path, paths: Sequence[Path], scratch: Path) -> list[FileDigest]:
    """Write the values, and texts, in the order of their ids.

    Returns the digests of `paths`.

    Args:
        order: file with the number of each id's value, from `rank_values`.
        paths: files to write: values and, if texts are kept, texts and their offsets.
        scratch: temporary file.
    """
    # The places of ids are random, so files are mapped, touched everywhere, and released block by block. First the rank
    # of each number's value plus one, or 0 for a value without an id.
    numbers = open_array(order)
    mapped, ranks = map_new_file(scratch, np.uint32, sum(numbered.sizes))
    for start in range(0, len(numbers), ORDER_VALUES):
        block = np.array(numbers[start : start + ORDER_VALUES])
        ranks[block] = np.arange(start + 1, start + 1 + len(block), dtype=np.uint32)
        unload(mapped)
    mapped, values = map_new_file(paths[0], np.uint64, len(numbers))
    for part, table in numbered.parts():
        with_id = np.flatnonzero(ranks[part])
        values[ranks[part][with_id] - 1] = table.column("value").to_numpy()[with_id]
        unload(mapped)
    if len(paths) > 1:
        _write_texts(numbered, ranks, paths[1], paths[2], len(numbers))
    return [digest_file(path) for path in paths]


def _write_texts(
    numbered: NumberedValues, ranks: NDArray[np.uint32], texts_path: Path, offsets_path: Path, size: int
) -> None:
    """Write the texts of values by their ranks, and their offsets; size: number of values with a rank."""
    mapped_offsets, offsets = map_new_file(offsets_path, np.int64, size + 1)
    for part, table in numbered.parts():
        with_id = np.flatnonzero(ranks[part])
        begins, _ = text_buffers(table.column("text").combine_chunks())
        offsets[ranks[part][with_id]] = np.diff(begins)[with_id]
    np.cumsum(offsets, out=offsets)
    mapped, texts = map_new_file(texts_path, np.uint8, int(offsets[-1]))
    for part, table in numbered.parts():
        begins, content = text_buffers(table.column("text").combine_chunks())
        copy_texts(content, begins, ranks[part], offsets, texts)
        unload(mapped)
        unload(mapped_offsets)


@jit
def copy_texts(
    content: NDArray[np.uint8],
    begins: NDArray[np.int64],
    ranks: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    texts: NDArray[np.uint8],
) -> None:
    """Copy text i, content[begins[i] : begins[i + 1]], to texts[offsets[ranks[i] - 1] :]; none with rank 0."""
    for i in range(len(ranks)):
        if ranks[i] > 0:
            target = offsets[ranks[i] - 1]
            for place in range(begins[i], begins[i + 1]):
                texts[target] = content[place]
                target += 1
