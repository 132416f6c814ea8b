"""Merging of a column's runs, one range of values after another, so that memory does not grow with the data."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from common.jit import Int, jit
from data_prep.vocabulary.count import Run

PART_BYTES = 128 << 20
PART_BYTES_PER_ENTRY = 96  # a merged entry, its copies, and the memory to rank it
STEP_ENTRIES = 1 << 17  # merged at once, in the processor's cache
STEP_ENTRIES_PER_RUN = 1 << 12  # calls would dominate if there were fewer
SAMPLES_PER_RUN = 64


class Mergeable(Protocol):
    """A run in memory or on disk."""

    @property
    def entries(self) -> int:
        """Return the number of distinct values."""

    @property
    def values(self) -> NDArray[np.uint32]:
        """Return all values."""

    def part(self, start: int, stop: int) -> Run:
        """Return the entries start..stop."""


def merge_in_parts(
    runs: Sequence[Mergeable],
    part_bytes: int = PART_BYTES,
    begins: Sequence[int] | None = None,
    threshold: int = 1,
) -> Iterator[Run]:
    """Merge any number of runs into one, and yield it in consecutive ranges of values.

    Args:
        part_bytes: memory for merging and ranking a part.
        begins: number of the row at which each run's `first` begins to count; by default 0.
        threshold: values with a lower total count are left out.
    """
    max_entries = part_bytes // PART_BYTES_PER_ENTRY
    step_entries = max(1, min(max_entries, max(STEP_ENTRIES, STEP_ENTRIES_PER_RUN * len(runs))))
    num_steps = -(-sum(run.entries for run in runs) // step_entries)
    cuts = value_cuts(runs, num_steps)
    bounds = np.array([[0, *np.searchsorted(run.values, cuts), run.entries] for run in runs], np.int64)
    sizes = np.diff(bounds).sum(axis=0).tolist()
    buffers = _MergeBuffers(max(sizes))
    part, number = _empty_run(max(max_entries, *sizes)), 0
    for starts, ends, size in zip(bounds.T[:-1].tolist(), bounds.T[1:].tolist(), sizes, strict=True):
        if number + size > len(part.values):
            yield part.part(0, number)
            part, number = _empty_run(len(part.values)), 0
        rest = part.part(number, len(part.values))
        number += buffers.merge(runs, starts, ends, begins or [0] * len(runs), threshold, rest)
    if number:
        yield part.part(0, number)


def _empty_run(entries: int) -> Run:
    """Allocate a run; the system assigns memory only to the part that is written."""
    return Run(np.empty(entries, np.uint32), np.empty(entries, np.int64), np.empty(entries, np.int64))


class _MergeBuffers:
    """Reusable memory to merge up to `entries` entries: allocating it each time would cost more than merging."""

    def __init__(self, entries: int) -> None:
        self._keys = np.empty(entries, "<u8")
        self._numbers = np.arange(entries, dtype=np.uint32)
        self._counts, self._first = np.empty(entries, np.int64), np.empty(entries, np.int64)

    def merge(
        self,
        runs: Sequence[Mergeable],
        starts: list[int],
        ends: list[int],
        begins: Sequence[int],
        threshold: int,
        out: Run,
    ) -> int:
        """Merge the entries starts[i]..ends[i] of each run into the first ones of `out`; return their number.

        `begins` and `threshold` are as in `merge_in_parts`.
        """
        halves = self._keys.view("<u4").reshape(-1, 2)
        end = 0
        for run, start, stop, begin in zip(runs, starts, ends, begins, strict=True):
            if start == stop:
                continue
            target = slice(end, end + stop - start)
            end = target.stop
            values, counts, first = run.part(start, stop)
            halves[target, 1] = values
            self._counts[target] = counts
            np.add(first, begin, out=self._first[target], dtype=np.int64)
        halves[:end, 0] = self._numbers[:end]
        keys = self._keys[:end]
        keys.sort()  # Sorting 64-bit numbers is several times faster than merging by comparisons.
        return int(sum_equal(keys, self._counts, self._first, threshold, *out))


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

    Args:
        keys: [n] uint64, ascending: value << 32 | entry.
        counts, first: [n] int64, one per entry.
        threshold: values with a lower total count are left out.
        out_values, out_counts, out_first: outputs.

    Returns:
        The number of values in the outputs.
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


class Valued(Protocol):
    """Distinct values in ascending order."""

    @property
    def entries(self) -> int:
        """Return the number of values."""

    @property
    def values(self) -> NDArray[Any]:
        """Return all values."""


def value_cuts(runs: Sequence[Valued], num_parts: int) -> NDArray[Any]:
    """Return values that divide the union of the runs into about equal parts."""
    if num_parts <= 1:
        return np.zeros(0, np.uint32)
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
    """A run on disk; each access to an array reads it."""

    def __init__(self, run: Run, stem: Path) -> None:
        self._stem = stem
        stem.parent.mkdir(parents=True, exist_ok=True)
        for name, array in run._asdict().items():
            array.tofile(self._path(name))

    def _path(self, name: str) -> Path:
        return self._stem.with_name(f"{self._stem.name}.{name}")

    @property
    def values(self) -> NDArray[np.uint32]:
        return np.fromfile(self._path("values"), np.uint32)

    @property
    def counts(self) -> NDArray[np.int64]:
        return np.fromfile(self._path("counts"), np.int64)

    @property
    def first(self) -> NDArray[np.int64]:
        return np.fromfile(self._path("first"), np.int64)


AnyRun: TypeAlias = Run | SpilledRun


def spill_parts(runs: Iterator[Run], directory: Path) -> Sequence[AnyRun]:
    """Return all parts: a single one in memory, several on disk."""
    first = next(runs, None)
    if first is None:
        return []
    second = next(runs, None)
    if second is None:
        return [first]
    spilled = [SpilledRun(first, directory / "0"), SpilledRun(second, directory / "1")]
    del first, second
    spilled += [SpilledRun(part, directory / str(i)) for i, part in enumerate(runs, 2)]
    return spilled
