"""The split and position of each row: a permutation that is a pure function of the seed.

A method takes `OpenRows` and yields, chunk by chunk, the place of each row's split: 0 for train, 1 and 2 for the
held-out splits. It yields the same for any size of chunks. Memory holds one chunk's rows.

The positions are an array on disk, int32, or int64 for many rows. positions[i] is the place of row i in the dataset,
where train's rows come first, then val's, then test's; -1 marks a row that is left out.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from common.extensions import load
from common.jit import jit
from data_prep.dataset.format import SPLITS, splitmix64
from data_prep.io import npy_header, open_array
from data_prep.job import SPLIT_KEYS, ChunkRecord, Job

INVERTED_ROWS = 1 << 18  # at once


def inverse_permutation(rows: int, seed: int) -> NDArray[np.unsignedinteger]:
    """Return the inverse of np.random.RandomState(seed).permutation(rows): for v, the k with permutation[k] = v.

    The inverse gives the new place of row v, as the file of positions needs.
    np.random.shuffle moves the rows of a two-dimensional array to the same places, since both draw the same swaps.
    """
    permutation = np.arange(rows, dtype=np.uint32 if rows <= 1 << 32 else np.uint64)
    np.random.RandomState(seed).shuffle(permutation)
    places: NDArray[np.unsignedinteger] = np.empty_like(permutation)
    # An index of all rows would take as much memory as the permutation, so the inverse is made in parts.
    for start in range(0, rows, INVERTED_ROWS):
        part = permutation[start : start + INVERTED_ROWS]
        places[part] = np.arange(start, start + len(part), dtype=places.dtype)
    return places


LEFT_OUT = -1
Choices: TypeAlias = NDArray[np.signedinteger]


def kept_masks(job: Job, records: list[ChunkRecord]) -> Iterator[NDArray[np.bool_]]:
    """Yield each chunk's mask of rows that are not dropped; the masks are equal at each call."""
    rules = job.rules
    # The constant keeps these draws apart from the split's, whose seed may be the same.
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([rules.sampling_seed, 0xD809])))
    for record in records:
        if rules.negative_drop_rate:
            labels = open_array(job.chunk_path(record.source, record.chunk, "labels.npy"))[:, 0]
            yield (labels == 1) | (rng.random(record.rows) >= rules.negative_drop_rate)
        else:
            yield np.ones(record.rows, np.bool_)


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
        """Return the number of splits that the method fills besides train: 0, 1 or 2."""
        return len(held_out_splits(self.job))

    def masks(self) -> Iterator[NDArray[np.bool_]]:
        """Yield each chunk's mask [rows] of the rows that the method divides; others are dropped, or of val or test."""
        for record, is_kept in zip(self.records, kept_masks(self.job, self.records), strict=True):
            is_open = self.job.sources[record.source].split in (None, "train")
            yield is_kept if is_open else np.zeros(record.rows, np.bool_)

    def arrays(self, suffix: str) -> Iterator[NDArray[np.int64]]:
        """Yield each chunk's numbers [rows] from its file of that suffix; zeros for a chunk without the file."""
        for record in self.records:
            path = self.job.chunk_path(record.source, record.chunk, suffix)
            yield np.array(open_array(path)[:, 0]) if path.exists() else np.zeros(record.rows, np.int64)

    def bounds(self) -> list[float]:
        """Return the least draw in [0, 1) of each held-out split; a row with a draw below them all is in train."""
        share, parts = self.job.rules.held_out, self.num_held_out
        return [1 - share * (parts - part) / parts for part in range(parts)]

    def held_out(self, rows: int) -> list[int]:
        """Return how many of `rows` rows each held-out split gets, [num_held_out]; the first gets a row left over."""
        algorithm = self.job.rules.split and self.job.rules.split.algorithm
        assert algorithm is not None
        assert algorithm.held_out is not None
        total, parts = algorithm.held_out([rows], self.job.rules.held_out), self.num_held_out
        return [total // parts + (part < total % parts) for part in range(parts)]


def split_numbers(job: Job, records: list[ChunkRecord]) -> Iterator[Choices]:
    """Yield each chunk's split numbers, as in SPLITS, or LEFT_OUT."""
    assert job.rules.split is not None
    choices = load(job.rules.split.algorithm.chooses)(OpenRows(job, records))
    numbers = np.array([SPLITS.index(split) for split in (SPLITS[0], *held_out_splits(job))])
    # The method numbers the splits that it fills; files of val and test keep theirs.
    for record, is_kept, choice in zip(records, kept_masks(job, records), choices, strict=True):
        given = job.sources[record.source].split
        splits = numbers[choice] if given in (None, "train") else np.full(record.rows, SPLITS.index(given))
        yield np.where(is_kept, splits, LEFT_OUT)


def choose_by_chance(rows: OpenRows) -> Iterator[Choices]:
    """Choose splits by a draw for each row, so their sizes only come near the shares."""
    # One stream of draws in the order of the rows does not depend on the chunks.
    rng = _split_generator(rows)
    for record in rows.records:
        yield np.searchsorted(rows.bounds(), rng.random(record.rows), side="right")


def _split_generator(rows: OpenRows) -> np.random.Generator:
    """Return a new generator of the numbers that decide splits.

    The constant keeps them apart from those of `kept_masks`, whose seed may be the same.
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([rows.job.rules.split_seed, 0x5B117])))


def choose_by_group(rows: OpenRows) -> Iterator[Choices]:
    """Choose splits by a hash of each row's value and the seed: all rows of a value are in one split."""
    seed = splitmix64(np.array([rows.job.rules.split_seed], np.uint64))
    for keys in rows.arrays(SPLIT_KEYS):
        # A float64 in [0, 1) holds 53 bits exactly.
        draws = (splitmix64(keys.view(np.uint64) ^ seed) >> np.uint64(11)) * 2.0**-53
        yield np.searchsorted(rows.bounds(), draws, side="right")


@jit
def draw_without_replacement(
    labels: NDArray[Any], draws: NDArray[np.float64], left: NDArray[np.int64], places: NDArray[np.int64]
) -> None:
    """Draw each row's split from the rows that are left for its label, and count them down.

    A place is the number of a split: 0 is train, 1 and 2 are those that the method fills.

    Args:
        labels: 0 or 1, [rows]. draws: random numbers in [0, 1), [rows].
        left: number of rows still to draw of each label and place, [2, places]; changed here.
        places: output [rows].
    """
    # Drawing from what is left hits the planned sizes exactly; independent draws would only come near them.
    for row in range(len(labels)):
        rows_left = left[labels[row]]
        rest = draws[row] * rows_left.sum()
        place = 0
        while place < len(rows_left) - 1 and rest >= rows_left[place]:
            rest -= rows_left[place]
            place += 1
        rows_left[place] -= 1
        places[row] = place


def choose_by_label(rows: OpenRows) -> Iterator[Choices]:
    """Choose splits by chance, with the same share of the rows of each label in each split."""
    counts = np.zeros(2, np.int64)
    for labels, mask in zip(rows.arrays("labels.npy"), rows.masks(), strict=True):
        counts += np.bincount(labels[mask], minlength=2)
    sizes = [rows.held_out(count) for count in counts.tolist()]
    # By label, the rows that train and each held-out split still get.
    pairs = zip(counts.tolist(), sizes, strict=True)
    left = np.array([[count - sum(held_out), *held_out] for count, held_out in pairs])
    rng = _split_generator(rows)
    for labels, mask in zip(rows.arrays("labels.npy"), rows.masks(), strict=True):
        # Rows that the method does not divide take a draw, too, and keep choice 0, which nobody reads.
        choices = np.zeros(len(labels), np.int64)
        drawn = np.zeros(int(mask.sum()), np.int64)
        draw_without_replacement(labels[mask], rng.random(len(labels))[mask], left, drawn)
        choices[mask] = drawn
        yield choices


def choose_by_time(rows: OpenRows) -> Iterator[Choices]:
    """Choose splits by time: each begins with the first row of a time, and ends with all rows of another."""
    starts = _first_times(rows) if rows.job.rules.held_out else []
    for times in rows.arrays(SPLIT_KEYS):
        yield np.searchsorted(starts, times, side="right")


def _first_times(rows: OpenRows) -> list[int]:
    """Return the first time of each held-out split: the change of time that is nearest to its share of the rows.

    Each split gets at least one time.
    """
    path = rows.job.work / "times"
    with open(path, "wb") as file:
        for times, mask in zip(rows.arrays(SPLIT_KEYS), rows.masks(), strict=True):
            times[mask].tofile(file)
    ordered = np.fromfile(path, np.int64)
    ordered.sort()
    count = len(ordered)
    first, last = (int(ordered[0]), int(ordered[-1])) if count else (0, 0)
    sizes = rows.held_out(count)

    def count_before(time: int) -> int:
        return int(np.searchsorted(ordered, time))

    def next_time(time: int) -> int:
        """Return the earliest time after this one; last + 1 if there is none."""
        return int(ordered[count_before(time + 1)]) if time < last else last + 1

    # The last times stay free, so that each later split gets at least one.
    latest = [last]
    for _ in sizes[1:]:
        earlier = count_before(latest[0]) - 1
        latest.insert(0, int(ordered[earlier]) if earlier >= 0 else first - 1)
    starts: list[int] = []
    for number, limit in enumerate(latest):
        rows_before = count - sum(sizes[number:])  # that this split would begin after, whatever the times
        time = int(ordered[rows_before]) if rows_before < count else last
        following = next_time(time)
        # Of two equally near changes of time, the earlier one counts.
        if rows_before - count_before(time) > count_before(following) - rows_before:
            time = following
        earliest = next_time(starts[-1] if starts else first)
        starts.append(min(max(time, earliest), limit))
        if starts[-1] < earliest:
            rules = rows.job.rules
            assert rules.split is not None
            raise UserError(
                f"data.split.method={rules.split.value}: column {rules.split_column} has fewer than "
                f"{rows.num_held_out + 1} different times, one for each split; name a column with more in "
                "data.split.column, or use another method"
            )
    return starts


POSITIONS = "positions.npy"
Positions: TypeAlias = NDArray[np.signedinteger]


def rows_by_source(job: Job, records: list[ChunkRecord], counts: Iterable[int] | None = None) -> list[int]:
    """Return the number of rows of each source; `counts` holds the rows of each chunk, by default all."""
    rows = [0] * len(job.sources)
    counts = (record.rows for record in records) if counts is None else counts
    for record, count in zip(records, counts, strict=True):
        rows[record.source] += count
    return rows


def split_sizes(job: Job, by_source: Sequence[int]) -> dict[str, int]:
    """Return the number of rows of each split, for methods whose sizes follow from the number of rows alone.

    Methods that choose a split row by row are counted in `order_rows`. by_source: number of rows of each source.
    """
    rules, total = job.rules, sum(by_source)
    if rules.split is None:
        pairs = list(zip(job.sources, by_source, strict=True))
        return {split: sum(rows for source, rows in pairs if source.split == split) for split in SPLITS}
    algorithm = rules.split.algorithm
    assert algorithm.held_out is not None
    held_out = algorithm.held_out(by_source, rules.held_out)
    val = (held_out + (not rules.test_first)) // 2 if algorithm.has_val else 0
    return {"train": total - held_out, "val": val, "test": held_out - val}


def order_rows(job: Job, records: list[ChunkRecord]) -> dict[str, int]:
    """Write the positions of all rows to <work>/POSITIONS, and return the rows of each split.

    records: all chunks, in row order.
    """
    rules = job.rules
    algorithm = None if rules.split is None else rules.split.algorithm
    swaps_halves = False
    if algorithm is not None and algorithm.chooses:
        # Choices wait on disk: val and test begin at places that only the counts of the splits tell.
        rows, path = np.zeros(len(SPLITS), np.int64), job.work / "choices"
        with open(path, "wb") as file:
            for choice in split_numbers(job, records):
                rows += np.bincount(choice[choice >= 0], minlength=len(SPLITS))
                choice.astype(np.int8).tofile(file)
        sizes = dict(zip(SPLITS, rows.tolist(), strict=True))
        following = np.cumsum([0, *rows[:-1]])
        ends = list(accumulate(record.rows for record in records))
        choices = np.split(np.memmap(path, np.int8, "r"), ends[:-1])
        numbers: Iterator[Positions] = (_number_by_choice(choice, following) for choice in choices)
    else:
        swaps_halves = rules.test_first
        kept = (int(part.sum()) for part in kept_masks(job, records)) if rules.negative_drop_rate else None
        source_rows = rows_by_source(job, records, kept)
        sizes = split_sizes(job, source_rows)
        numbers = _number_kept_rows(job, records)
        if algorithm is not None and algorithm.is_random:
            # The test rows, which come last here, are taken from the front of the permutation.
            numbers = _permute(numbers, inverse_permutation(sum(source_rows), rules.split_seed), sizes["train"])
        elif rules.train_seed is not None:
            numbers = _permute(numbers, inverse_permutation(sizes["train"], rules.train_seed), shift=0)
    total, first = sum(record.rows for record in records), sizes["train"]
    held_out = max(1, sizes["val"] + sizes["test"])
    dtype = np.dtype(np.int32 if total <= np.iinfo(np.int32).max else np.int64)
    with open(job.work / POSITIONS, "wb") as file:
        file.write(npy_header(dtype, total, None))
        for part in numbers:
            if swaps_halves:  # val and test, which follow each other, exchange their places
                is_second = part >= first
                part[is_second] = first + (part[is_second] - first + sizes["val"]) % held_out
            part.astype(dtype).tofile(file)
    return sizes


def chunk_positions(job: Job, begin: int, rows: int) -> Positions:
    """Map the positions of a chunk's rows; the chunk begins with row `begin` of the dataset."""
    return open_array(job.work / POSITIONS)[begin : begin + rows]


def rows_below(job: Job, record: ChunkRecord, begin: int, limit: int) -> NDArray[np.int64]:
    """Return the rows of a chunk, from 0, at positions below the limit: those to fit on, as train comes first.

    The chunk begins with row `begin` of the dataset.
    """
    if not job.rules.is_arranged:
        return np.arange(min(record.rows, limit - begin))
    positions = chunk_positions(job, begin, record.rows)
    return np.flatnonzero((positions >= 0) & (positions < limit))


def kept_position(job: Job, begin: int, rows: int) -> int | None:
    """Return the position of a chunk's first row if the other rows follow it in order; else None."""
    if not rows:
        return None
    positions = chunk_positions(job, begin, rows)
    # In most reordered chunks the ends differ by too much, so the positions between them need not be read.
    first, last = int(positions[0]), int(positions[-1])
    return first if first >= 0 and last - first == rows - 1 and bool((np.diff(positions) == 1).all()) else None


def _number_kept_rows(job: Job, records: list[ChunkRecord]) -> Iterator[Positions]:
    """Yield consecutive numbers for the rows that are not dropped, and LEFT_OUT for the others."""
    following = np.zeros(1, np.int64)
    if job.rules.negative_drop_rate:
        for is_kept in kept_masks(job, records):
            yield _number_by_choice(np.where(is_kept, 0, LEFT_OUT), following)
    else:
        for record in records:
            yield np.arange(following[0], following[0] + record.rows)
            following += record.rows


def _number_by_choice(choice: NDArray[np.signedinteger], following: NDArray[np.int64]) -> Positions:
    """Give each row the next number of its choice, or LEFT_OUT if its choice is LEFT_OUT.

    following: the next number of each choice; advanced here.
    """
    numbers = np.full(len(choice), LEFT_OUT, np.int64)
    for number in range(len(following)):
        is_chosen = choice == number
        count = int(is_chosen.sum())
        numbers[is_chosen] = np.arange(following[number], following[number] + count)
        following[number] += count
    return numbers


def _permute(numbers: Iterator[Positions], places: NDArray[np.unsignedinteger], shift: int) -> Iterator[Positions]:
    """Replace the n-th number of `numbers` below len(places) by places[n], plus `shift` modulo len(places).

    Other numbers stay: of rows that are left out, and of val and test where train alone is permuted.
    """
    begin = 0
    for part in numbers:
        moves = (part >= 0) & (part < len(places))
        end = begin + int(np.count_nonzero(moves))
        part[moves] = (places[begin:end].astype(np.int64) + shift) % max(1, len(places))
        begin = end
        yield part
