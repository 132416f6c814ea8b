"""From the values of a column to its vocabulary: counted per work unit, merged per column, ranked.

A *run* is a column's distinct values in rising order with their counts. Every work unit leaves one per column
on disk; a column is merged value range by value range, so memory does not grow with the data.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.jit import jit

PART_BYTES_PER_ENTRY = 64  # of a run's entry while its range is merged: sort keys, their copy, sums
PART_BYTES = 128 << 20
SAMPLES_PER_RUN = 64


class Run(NamedTuple):
    """Distinct values [n] uint32 in rising order and how often each occurs [n] int64."""

    values: NDArray[np.uint32]
    counts: NDArray[np.int64]


def count_values(values: NDArray[np.uint32]) -> Run:
    """The run of a column; `values` is sorted in place."""
    values.sort()
    if not len(values):
        return Run(values, np.zeros(0, np.int64))
    first = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
    return Run(values[first], np.diff(first, append=len(values)))


def merge_runs(runs: Sequence[Run]) -> Run:
    """One run with the counts of all, of which at least one is not empty."""
    values = np.concatenate([run.values for run in runs])
    counts = np.concatenate([run.counts.astype(np.int64) for run in runs])
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    first = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
    return Run(values[first], np.add.reduceat(counts, first))


def merge_in_parts(runs: Sequence[Run], part_bytes: int = PART_BYTES) -> Iterator[Run]:
    """Merge runs (memory-mapped, however large) into one, handed out in consecutive value ranges."""
    entries = sum(len(run.values) for run in runs)
    if entries == 0:
        return
    num_parts = max(1, -(-entries * PART_BYTES_PER_ENTRY // part_bytes))
    cuts = _value_cuts(runs, num_parts)
    starts = [0] * len(runs)
    for cut in [*cuts, None]:
        slices = []
        for i, run in enumerate(runs):
            end = len(run.values) if cut is None else int(np.searchsorted(run.values, cut))
            slices.append(Run(np.array(run.values[starts[i] : end]), np.array(run.counts[starts[i] : end])))
            starts[i] = end
        if any(len(run.values) for run in slices):
            yield merge_runs(slices)


def _value_cuts(runs: Sequence[Run], num_parts: int) -> list[np.uint32]:
    """Values that cut the union of the runs into about equal parts."""
    if num_parts == 1:
        return []
    samples, weights = [], []
    for run in runs:
        step = max(1, len(run.values) // SAMPLES_PER_RUN)
        sample = np.array(run.values[::step])
        samples.append(sample)
        weights.append(np.full(len(sample), len(run.values) / max(1, len(sample))))
    values, weight = np.concatenate(samples), np.concatenate(weights)
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weight[order])
    positions = np.searchsorted(cumulative, cumulative[-1] * np.arange(1, num_parts) / num_parts)
    return sorted(set(values[order][positions]))


def rank_values(parts: Sequence[Run], path: Path, frequency_threshold: int, max_ind_range: int | None) -> int:
    """Write the vocabulary of a column: values in the order of their ids, the first having id 1.

    Ids go by falling count, ties by rising value. A value that occurs fewer than `frequency_threshold` times,
    or comes behind the most frequent max_ind_range - 1, has no id of its own (it shares 0).

    Args:
        parts: the merged run, in consecutive value ranges (memory-mapped where large).
        path: the .npy file to write, [n] uint32.

    Returns:
        n, the number of values with an id of their own.
    """
    totals = merge_count_classes(parts)
    kept = totals.counts_of_class >= max(frequency_threshold, 1)
    classes = totals.counts_of_class[kept][::-1]
    sizes = totals.class_sizes[kept][::-1]
    starts = np.concatenate(([0], np.cumsum(sizes)))
    num_values = int(starts[-1])
    if max_ind_range is not None:
        num_values = min(num_values, max_ind_range - 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    if num_values == 0:
        np.save(path, np.zeros(0, np.uint32))
        return 0
    vocabulary = np.lib.format.open_memmap(path, "w+", np.uint32, (num_values,))
    rising, next_rank = classes[::-1].copy(), starts[:-1][::-1].copy()
    for part in parts:
        place_by_rank(part.values, part.counts, rising, next_rank, vocabulary)
    vocabulary.flush()
    return num_values


class CountClasses(NamedTuple):
    """How many values occur how often: counts_of_class rising, class_sizes beside it."""

    counts_of_class: NDArray[np.int64]
    class_sizes: NDArray[np.int64]


def merge_count_classes(parts: Sequence[Run]) -> CountClasses:
    """The number of values per count over all parts."""
    pairs = [np.unique(part.counts, return_counts=True) for part in parts]
    if not pairs:
        return CountClasses(np.zeros(0, np.int64), np.zeros(0, np.int64))
    counts, inverse = np.unique(np.concatenate([pair[0] for pair in pairs]), return_inverse=True)
    sizes = np.zeros(len(counts), np.int64)
    np.add.at(sizes, inverse, np.concatenate([pair[1] for pair in pairs]))
    return CountClasses(counts, sizes)


@jit
def place_by_rank(values, counts, classes, next_rank, vocabulary):  # type: ignore[no-untyped-def]
    """Put each value at the next rank of its count's class; ranks beyond the vocabulary are dropped.

    Args:
        values, counts: a part of a run.
        classes: the counts that are kept, rising.
        next_rank: of each class, advanced here.
        vocabulary: output, values by rank.
    """
    for i in range(len(values)):
        index = np.searchsorted(classes, counts[i])
        if index == len(classes) or classes[index] != counts[i]:
            continue
        rank = next_rank[index]
        next_rank[index] = rank + 1
        if rank < len(vocabulary):
            vocabulary[rank] = values[i]
