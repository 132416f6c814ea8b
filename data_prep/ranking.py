"""The ids of a column's values, by frequency, first appearance or value; memory does not grow with them."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.choices import VocabularyOrder
from data_prep.jit import jit
from data_prep.merging import SAMPLES_PER_RUN
from data_prep.vocabulary import Run

ROWS_PER_KEY = 1 << 32  # a key has room for so many rows, and a value beside them


class CountClasses(NamedTuple):
    """How many values occur how often: counts rising, sizes beside them."""

    counts: NDArray[np.int64]
    sizes: NDArray[np.int64]


def most_frequent(parts: Sequence[Run], limit: int) -> Iterator[Run]:
    """Of every part the values that are among the `limit` most frequent of all; of equal counts the smaller values."""
    counts, sizes = count_classes(parts)
    no_rarer = np.cumsum(sizes[::-1])[::-1]  # how many values occur as often or more often
    whole = int(np.searchsorted(-no_rarer, -limit))  # from this class on, all are
    least = counts[whole] if whole < len(counts) else counts[-1] + 1
    left = limit - int(no_rarer[whole]) if whole < len(counts) else limit
    for part in parts:
        kept = part.counts >= least
        if whole and left:
            equal = np.flatnonzero(part.counts == counts[whole - 1])[:left]
            kept[equal] = True
            left -= len(equal)
        if kept.any():
            yield Run(part.values[kept], part.counts[kept], part.first[kept])


def rank_values(parts: Sequence[Run], path: Path, order: VocabularyOrder) -> int:
    """Write the vocabulary of a column: values in the order of their ids.

    Args:
        parts: the merged run, in consecutive value ranges (memory-mapped where large).
        path: the .npy file to write, [n] uint32.

    Returns:
        n, the number of values with an id of their own.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    size = sum(len(part.values) for part in parts)
    if size == 0:
        np.save(path, np.zeros(0, np.uint32))
        return 0
    vocabulary = np.lib.format.open_memmap(path, "w+", np.uint32, (size,))
    if order is VocabularyOrder.frequency:
        _rank_by_frequency(parts, vocabulary)
        return size
    position = 0
    for values in _batches(parts, order):
        vocabulary[position : position + len(values)] = values
        position += len(values)
    return size


def _batches(parts: Sequence[Run], order: VocabularyOrder) -> Iterator[NDArray[np.uint32]]:
    """The values by rising value or by first appearance."""
    if order is VocabularyOrder.value:
        for part in parts:
            yield part.values
    else:
        for low, high in _row_ranges(parts):
            yield _first_seen_between(parts, low, high)


def _row_ranges(parts: Sequence[Run]) -> list[tuple[int, int]]:
    """Ranges of first rows, none beyond a key's, that hold about as many values as one part."""
    samples = [part.first[:: max(1, len(part.first) // SAMPLES_PER_RUN)] for part in parts]
    sample = np.sort(np.concatenate(samples))
    even = sample[np.arange(1, len(parts)) * len(sample) // len(parts)]
    end = max(int(part.first.max()) for part in parts) + 1
    cuts = np.unique(np.concatenate((even, np.arange(0, end, ROWS_PER_KEY), [end]))).tolist()
    return list(pairwise(cuts))


def _first_seen_between(parts: Sequence[Run], low: int, high: int) -> NDArray[np.uint32]:
    """Values first seen in the rows low..high, in that order."""
    keys = []
    for part in parts:
        kept = (part.first >= low) & (part.first < high)
        mine = (part.first[kept] - low).view(np.uint64)
        mine <<= np.uint64(32)
        mine |= part.values[kept]
        keys.append(mine)
    joined = np.concatenate(keys)
    joined.sort()
    return joined.astype(np.uint32)


def _rank_by_frequency(parts: Sequence[Run], vocabulary: NDArray[np.uint32]) -> None:
    """Values by falling count, ties by rising value: a counting sort over the counts."""
    counts, sizes = count_classes(parts)
    larger = np.cumsum(sizes[::-1])[::-1] - sizes
    for part in parts:
        place_by_rank(part.values, part.counts, counts, larger, vocabulary)


def count_classes(parts: Sequence[Run]) -> CountClasses:
    """The number of values per count over all parts, of which there is at least one."""
    pairs = [np.unique(part.counts, return_counts=True) for part in parts]
    counts, inverse = np.unique(np.concatenate([pair[0] for pair in pairs]), return_inverse=True)
    sizes = np.zeros(len(counts), np.int64)
    np.add.at(sizes, inverse, np.concatenate([pair[1] for pair in pairs]))
    return CountClasses(counts, sizes)


@jit
def place_by_rank(values, counts, classes, next_rank, vocabulary):  # type: ignore[no-untyped-def]
    """Put each value at the next rank of its count's class.

    Args:
        values, counts: a part of a run.
        classes: the counts that occur, rising.
        next_rank: of each class, advanced here.
        vocabulary: output, values by rank.
    """
    for i in range(len(values)):
        index = np.searchsorted(classes, counts[i])
        rank = next_rank[index]
        next_rank[index] = rank + 1
        vocabulary[rank] = values[i]
