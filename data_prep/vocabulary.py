"""From the values of a column to its vocabulary: counted per work unit, merged per column.

A *run* is a column's distinct values in rising order with their counts. Every work unit leaves one per column
on disk; a column is merged value range by value range, so memory does not grow with the data.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.counting import count_repeated, make_room

PART_BYTES_PER_ENTRY = 96  # of a run's entry while its range is merged: order, copies, sums
PART_BYTES = 128 << 20
SAMPLES_PER_RUN = 64


class Run(NamedTuple):
    """Distinct values [n] uint32 in rising order, how often each occurs [n] int64, in which row first [n] int64.

    Rows count from 0 over the whole dataset; where the order of appearance does not matter, `first` is all 0.
    """

    values: NDArray[np.uint32]
    counts: NDArray[np.int64]
    first: NDArray[np.int64]


def count_values(values: NDArray[np.uint32]) -> Run:
    """The run of a column, without the order of appearance; `values` may be sorted in place."""
    found = _count_repeated(values)
    if found is not None:
        return found._replace(first=np.zeros(len(found.first), np.int64))
    values.sort()
    starts = _starts(values)
    return Run(values[starts], np.diff(starts, append=len(values)), np.zeros(len(starts), np.int64))


def count_in_order(values: NDArray[np.uint32], rows: NDArray[np.int64]) -> Run:
    """The run of a column whose i-th value is of row rows[i], rising and less than 2^32 beyond rows[0]."""
    if not len(values):
        return count_values(values)
    found = _count_repeated(values)
    if found is not None:
        return found._replace(first=rows[found.first])
    keys = (values.astype(np.uint64) << np.uint64(32)) | (rows - rows[0]).astype(np.uint64)
    keys.sort()
    sorted_values = (keys >> np.uint64(32)).astype(np.uint32)
    starts = _starts(sorted_values)
    first = (keys[starts] & np.uint64(0xFFFFFFFF)).astype(np.int64) + rows[0]
    return Run(sorted_values[starts], np.diff(starts, append=len(values)), first)


def _count_repeated(values: NDArray[np.uint32]) -> Run | None:
    """The run of values most of which occur again and again, `first` counting from 0; None of others."""
    found, counts, first = make_room(len(values))
    number = count_repeated(values, found, counts, first)
    if number < 0:
        return None
    order = _sorting_order(found[:number])
    return Run(found[order], counts[order], first[order])


def _sorting_order(values: NDArray[np.uint32]) -> NDArray[np.int64]:
    """As a stable argsort, but by sorting numbers of 64 bits, which NumPy does several times faster."""
    keys = (values.astype(np.uint64) << np.uint64(32)) | np.arange(len(values), dtype=np.uint64)
    keys.sort()
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


def _starts(values: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Where each distinct value of a sorted array begins."""
    if not len(values):
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))


def merge_runs(runs: Sequence[Run]) -> Run:
    """One run with the counts of all, of which at least one is not empty."""
    values = np.concatenate([run.values for run in runs])
    counts = np.concatenate([run.counts.astype(np.int64) for run in runs])
    first = np.concatenate([run.first for run in runs])
    order = _sorting_order(values)
    values, counts, first = values[order], counts[order], first[order]
    starts = _starts(values)
    return Run(values[starts], np.add.reduceat(counts, starts), np.minimum.reduceat(first, starts))


def merge_in_parts(
    runs: Sequence[Run], part_bytes: int = PART_BYTES, begins: Sequence[int] | None = None
) -> Iterator[Run]:
    """Merge runs (memory-mapped, however large) into one, handed out in consecutive value ranges.

    `begins` are the numbers of the rows from which those in each run's `first` count; by default 0.
    """
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
            part = slice(starts[i], end)
            first = run.first[part] + (begins[i] if begins else 0)
            slices.append(Run(np.array(run.values[part]), np.array(run.counts[part]), first))
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
