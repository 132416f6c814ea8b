"""Split of each row by methods that look at rows, not only at their number: by chance, time, group or label.

A method takes `OpenRows` and returns a function that yields, chunk by chunk, the place of each row's split: 0 for
train, 1 and 2 for the held-out splits. It yields the same at each call and for any size of chunks. Memory holds one
chunk's rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from common.command import load
from common.errors import UserError
from common.jit import jit
from data_prep.dataset.format import SPLITS
from data_prep.dataset.sample import mix
from data_prep.engine.job import SPLIT_KEYS, ChunkRecord, Job
from data_prep.io.arrays import open_array

LEFT_OUT = -1
BINS = 1 << 16  # bins of a histogram of times
Choices: TypeAlias = NDArray[np.signedinteger]


def kept_rows(job: Job, records: list[ChunkRecord]) -> Iterator[NDArray[np.bool_]]:
    """Yield each chunk's mask of rows that are not dropped; equal at each call."""
    rules = job.rules
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([rules.sampling_seed, 0xD809])))
    for record in records:
        if rules.negative_drop_rate:
            labels = _labels(job, record)
            yield (labels == 1) | (rng.random(record.rows) >= rules.negative_drop_rate)
        else:
            yield np.ones(record.rows, np.bool_)


def _labels(job: Job, record: ChunkRecord) -> NDArray[np.int32]:
    return np.array(open_array(job.chunk_path(record.source, record.chunk, "labels.npy"))[:, 0])


def held_out_splits(job: Job) -> tuple[str, ...]:
    """Return the splits that the method fills: val and test, but for those that have files of their own."""
    given = {source.split for source in job.sources}
    return tuple(split for split in SPLITS[1:] if split not in given)


@dataclass(frozen=True)
class OpenRows:
    """The rows that the method divides: those that are not dropped, of files that are not val's or test's."""

    job: Job
    records: list[ChunkRecord]

    @property
    def num_held_out(self) -> int:
        """Return the number of held-out splits."""
        return len(held_out_splits(self.job))

    def masks(self) -> Iterator[NDArray[np.bool_]]:
        """Yield each chunk's mask of these rows."""
        for record, is_kept in zip(self.records, kept_rows(self.job, self.records), strict=True):
            is_open = self.job.sources[record.source].split in (None, "train")
            yield is_kept if is_open else np.zeros(record.rows, np.bool_)

    def arrays(self, suffix: str) -> Iterator[NDArray[np.int64]]:
        """Yield one of each chunk's arrays with one number a row; zeros for a chunk without such rows."""
        for record in self.records:
            path = self.job.chunk_path(record.source, record.chunk, suffix)
            yield np.array(open_array(path)[:, 0]) if path.exists() else np.zeros(record.rows, np.int64)

    def bounds(self) -> list[float]:
        """Return the number in [0, 1) from which on a row with that draw is in each held-out split."""
        share, parts = self.job.rules.held_out, self.num_held_out
        return [1 - share * (parts - part) / parts for part in range(parts)]

    def held_out(self, rows: int) -> list[int]:
        """Return how many of some rows each held-out split gets; the first gets the larger half."""
        algorithm = self.job.rules.split and self.job.rules.split.algorithm
        assert algorithm is not None
        assert algorithm.held_out is not None
        total, parts = algorithm.held_out([rows], self.job.rules.held_out), self.num_held_out
        return [total // parts + (part < total % parts) for part in range(parts)]


Choose: TypeAlias = Callable[[OpenRows], Callable[[], Iterator[Choices]]]


def split_numbers(job: Job, records: list[ChunkRecord]) -> Callable[[], Iterator[Choices]]:
    """Return a function that yields each chunk's split numbers, as in SPLITS, or LEFT_OUT."""
    assert job.rules.split is not None
    rows = OpenRows(job, records)
    choose: Choose = load(job.rules.split.algorithm.chooses)
    places = choose(rows)
    numbers = np.array([SPLITS.index(split) for split in (SPLITS[0], *held_out_splits(job))])

    def chunks() -> Iterator[Choices]:
        for record, is_kept, place in zip(records, kept_rows(job, records), places(), strict=True):
            own = job.sources[record.source].split
            choice = numbers[place] if own in (None, "train") else np.full(record.rows, SPLITS.index(own))
            yield np.where(is_kept, choice, LEFT_OUT)

    return chunks


def by_chance(rows: OpenRows) -> Callable[[], Iterator[Choices]]:
    """Choose by a draw for each row."""

    def chunks() -> Iterator[Choices]:
        rng = _generator(rows)
        for record in rows.records:
            yield np.searchsorted(rows.bounds(), rng.random(record.rows), side="right")

    return chunks


def _generator(rows: OpenRows) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([rows.job.rules.split_seed, 0x5B117])))


def by_group(rows: OpenRows) -> Callable[[], Iterator[Choices]]:
    """Choose by a hash of each row's value and the seed, so that all rows of a value are in one split."""
    seed = mix(np.array([rows.job.rules.split_seed], np.uint64))

    def chunks() -> Iterator[Choices]:
        for keys in rows.arrays(SPLIT_KEYS):
            draws = (mix(keys.view(np.uint64) ^ seed) >> np.uint64(11)) * 2.0**-53
            yield np.searchsorted(rows.bounds(), draws, side="right")

    return chunks


# ---- labels


@jit
def draw_without_replacement(
    labels: NDArray[Any], draws: NDArray[np.float64], left: NDArray[np.int64], places: NDArray[np.int64]
) -> None:
    """Draw the place of each row from those that are left for its label, and count them down.

    Args:
        labels: 0 or 1 [rows]; draws: in [0, 1) [rows]; left: rows of each label and place [2, places].
    """
    for row in range(len(labels)):
        of_label = left[labels[row]]
        rest = draws[row] * of_label.sum()
        place = 0
        while place < len(of_label) - 1 and rest >= of_label[place]:
            rest -= of_label[place]
            place += 1
        of_label[place] -= 1
        places[row] = place


def by_label(rows: OpenRows) -> Callable[[], Iterator[Choices]]:
    """Choose by chance, with the same share of the rows of each label in each split."""
    counts = np.zeros(2, np.int64)
    for labels, mask in zip(rows.arrays("labels.npy"), rows.masks(), strict=True):
        counts += np.bincount(labels[mask], minlength=2)
    sizes = [rows.held_out(count) for count in counts.tolist()]
    totals = [[count - sum(each), *each] for count, each in zip(counts.tolist(), sizes, strict=True)]

    def chunks() -> Iterator[Choices]:
        rng, left = _generator(rows), np.array(totals)
        for labels, mask in zip(rows.arrays("labels.npy"), rows.masks(), strict=True):
            places = np.zeros(len(labels), np.int64)
            drawn = np.zeros(int(mask.sum()), np.int64)
            draw_without_replacement(labels[mask], rng.random(len(labels))[mask], left, drawn)
            places[mask] = drawn
            yield places

    return chunks


# ---- times


def by_time(rows: OpenRows) -> Callable[[], Iterator[Choices]]:
    """Choose by each row's time: a split begins with the first row of a time, and ends with all rows of another."""
    starts = _first_times(rows)
    return lambda: (np.searchsorted(starts, times, side="right") for times in rows.arrays(SPLIT_KEYS))


class _Times:
    """Times of the open rows, read chunk by chunk at each question."""

    def __init__(self, rows: OpenRows) -> None:
        self._rows = rows
        sizes = [(len(part), int(part.min()), int(part.max())) for part in self.parts() if len(part)]
        self.count = sum(rows for rows, _, _ in sizes)
        self.first = min((first for _, first, _ in sizes), default=0)
        self.last = max((last for _, _, last in sizes), default=0)

    def parts(self) -> Iterator[NDArray[np.int64]]:
        """Yield the times of each chunk."""
        for times, mask in zip(self._rows.arrays(SPLIT_KEYS), self._rows.masks(), strict=True):
            yield times[mask]

    def at(self, place: int) -> int:
        """Return the time at a place among the sorted ones, by histograms of ever smaller ranges."""
        low, high = self.first, self.last
        while low < high:
            width = (high - low) // BINS + 1
            counts = np.zeros(BINS, np.int64)
            for part in self.parts():
                counts += np.bincount((part[(part >= low) & (part <= high)] - low) // width, minlength=BINS)
            before = np.concatenate([[0], np.cumsum(counts)])
            number = int(np.searchsorted(before, place, side="right")) - 1
            place -= int(before[number])
            low, high = low + number * width, min(high, low + (number + 1) * width - 1)
        return low

    def before(self, time: int) -> int:
        """Return the number of rows before a time."""
        return sum(int((part < time).sum()) for part in self.parts())

    def next(self, time: int) -> int:
        """Return the first time after another one; `last` + 1 if there is none."""
        return min((int(part[part > time].min(initial=self.last + 1)) for part in self.parts()), default=0)

    def previous(self, time: int) -> int:
        """Return the last time before another one; `first` - 1 if there is none."""
        return max((int(part[part < time].max(initial=self.first - 1)) for part in self.parts()), default=0)


def _first_times(rows: OpenRows) -> list[int]:
    """Return the first time of each held-out split: the change of time that is nearest to its share of the rows.

    Each split gets at least one time.
    """
    if not rows.job.rules.held_out:
        return []
    times = _Times(rows)
    sizes = rows.held_out(times.count)
    latest = [times.last]
    for _ in sizes[1:]:
        latest.insert(0, times.previous(latest[0]))
    starts: list[int] = []
    for part, limit in enumerate(latest):
        place = times.count - sum(sizes[part:])
        time = times.at(place)
        following = times.next(time)
        if place - times.before(time) > times.before(following) - place:
            time = following
        earliest = times.next(starts[-1] if starts else times.first)
        starts.append(min(max(time, earliest), limit))
        if starts[-1] < earliest:
            _refuse_few_times(rows)
    return starts


def _refuse_few_times(rows: OpenRows) -> None:
    rules = rows.job.rules
    assert rules.split is not None
    raise UserError(
        f"data.split.method={rules.split.value}: column {rules.split_column} has fewer than {rows.num_held_out + 1} "
        "different times, one for each split; name a column with more in data.split.column, or use another method"
    )
