"""Order of ids by frequency, first appearance or value; memory does not grow with the number of values."""

import mmap
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.jit import jit
from data_prep.dataset.options import VocabularyOrder
from data_prep.io.arrays import npy_header, unload
from data_prep.vocabulary.count import Run
from data_prep.vocabulary.merge import SAMPLES_PER_RUN, AnyRun

ROWS_PER_KEY = 1 << 32  # rows that a 64-bit key can hold beside a value


class CountClasses(NamedTuple):
    """Number of values (sizes) with each count (counts, ascending)."""

    counts: NDArray[np.int64]
    sizes: NDArray[np.int64]


def most_frequent(parts: Sequence[AnyRun], limit: int) -> Iterator[Run]:
    """Yield from each part the values among the `limit` most frequent overall; ties go to smaller values."""
    counts, sizes = count_classes(parts)
    no_rarer = np.cumsum(sizes[::-1])[::-1]  # number of values with at least this count
    whole = int(np.searchsorted(-no_rarer, -limit))  # all values of this class and the following ones are in
    min_count = counts[whole] if whole < len(counts) else counts[-1] + 1
    remaining = limit - int(no_rarer[whole]) if whole < len(counts) else limit
    for part in parts:
        occurs = part.counts
        is_frequent = occurs >= min_count
        if whole and remaining:
            equal = np.flatnonzero(occurs == counts[whole - 1])[:remaining]
            is_frequent[equal] = True
            remaining -= len(equal)
        if is_frequent.any():
            yield Run(part.values[is_frequent], occurs[is_frequent], part.first[is_frequent])


def rank_values(parts: Sequence[AnyRun], path: Path, order: VocabularyOrder) -> int:
    """Write a column's vocabulary: its values in the order of their ids.

    Args:
        parts: the merged run in consecutive ranges of values.
        path: .npy file to write, [n] uint32.

    Returns:
        n, the number of values with an id of their own.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    size = sum(len(part.values) for part in parts)
    with open(path, "wb+") as file:
        file.write(npy_header(np.dtype(np.uint32), size, None))
        if size and order is VocabularyOrder.frequency:
            file.flush()
            reserve(file.fileno(), file.tell() + size * np.dtype(np.uint32).itemsize)
            _rank_by_frequency(parts, mmap.mmap(file.fileno(), 0), file.tell())
        elif size:
            for values in _batches(parts, order):
                values.tofile(file)
    return size


def reserve(file: int, size: int) -> None:
    """Set a file's size, and reserve the space if possible: writing to a mapped hole on a full disk would be fatal."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)


def _batches(parts: Sequence[AnyRun], order: VocabularyOrder) -> Iterator[NDArray[np.uint32]]:
    if order is VocabularyOrder.value:
        for part in parts:
            yield part.values
    else:
        for low, high in _row_ranges(parts):
            yield _first_seen_between(parts, low, high)


def _row_ranges(parts: Sequence[AnyRun]) -> list[tuple[int, int]]:
    """Return ranges of first rows, each within a key, that hold about as many values as one part."""
    firsts = (part.first for part in parts)
    sample = np.sort(np.concatenate([first[:: max(1, len(first) // SAMPLES_PER_RUN)].copy() for first in firsts]))
    even = sample[np.arange(1, len(parts)) * len(sample) // len(parts)]
    end = max(int(part.first.max()) for part in parts) + 1
    cuts = np.unique(np.concatenate((even, np.arange(0, end, ROWS_PER_KEY), [end]))).tolist()
    return list(pairwise(cuts))


def _first_seen_between(parts: Sequence[AnyRun], low: int, high: int) -> NDArray[np.uint32]:
    """Return the values first seen in rows low..high, in that order."""
    keys = []
    for part in parts:
        first = part.first
        is_in_range = (first >= low) & (first < high)
        first_seen = (first[is_in_range] - low).view(np.uint64)
        first_seen <<= np.uint64(32)
        first_seen |= part.values[is_in_range]
        keys.append(first_seen)
    joined = np.concatenate(keys)
    joined.sort()
    return joined.astype(np.uint32)


def _rank_by_frequency(parts: Sequence[AnyRun], mapped: mmap.mmap, offset: int) -> None:
    """Write values by descending count, ties by ascending value, to a file from an offset on, by a counting sort."""
    counts, sizes = count_classes(parts)
    larger = np.cumsum(sizes[::-1])[::-1] - sizes
    vocabulary = np.frombuffer(mapped, np.uint32, offset=offset)
    for part in parts:
        place_by_rank(part.values, part.counts, counts, larger, vocabulary)
        unload(mapped)


def count_classes(parts: Sequence[AnyRun]) -> CountClasses:
    """Count the values with each count over all parts, of which there is at least one."""
    pairs = [np.unique(part.counts, return_counts=True) for part in parts]
    counts, inverse = np.unique(np.concatenate([pair[0] for pair in pairs]), return_inverse=True)
    sizes = np.zeros(len(counts), np.int64)
    np.add.at(sizes, inverse, np.concatenate([pair[1] for pair in pairs]))
    return CountClasses(counts, sizes)


@jit
def place_by_rank(
    values: NDArray[np.uint32],
    counts: NDArray[np.int64],
    classes: NDArray[np.int64],
    next_rank: NDArray[np.int64],
    vocabulary: NDArray[np.uint32],
) -> None:
    """Put each value at the next rank of its count's class.

    Args:
        values, counts: a part of a run.
        classes: the counts that occur, ascending.
        next_rank: next rank of each class; advanced here.
        vocabulary: output, values by rank.
    """
    for i in range(len(values)):
        index = np.searchsorted(classes, counts[i])
        rank = next_rank[index]
        next_rank[index] = rank + 1
        vocabulary[rank] = values[i]
