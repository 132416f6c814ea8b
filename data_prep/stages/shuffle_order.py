"""Positions of all rows in the dataset, for splits and shuffles that reorder rows.

The positions are an array on disk, int32, or int64 for many rows. position[i] is the place of row i in the dataset,
where train's rows come first, then val's, then test's; -1 marks a row that is left out.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from data_prep.dataset.format import SPLITS
from data_prep.engine.executor import Stopped
from data_prep.engine.job import ChunkRecord, Job
from data_prep.stages.permutation import inverse_permutation
from data_prep.stages.split_choices import LEFT_OUT, kept_rows, split_numbers

POSITION_DTYPES: dict[str, np.dtype[Any]] = {
    "positions.i32": np.dtype(np.int32),
    "positions.i64": np.dtype(np.int64),
}
PERMUTATION = "permutation"
Positions: TypeAlias = NDArray[np.signedinteger]


def rows_by_source(job: Job, records: list[ChunkRecord], counts: Iterable[int] | None = None) -> list[int]:
    """Return the number of rows of each source; `counts` holds the rows of each chunk, by default all."""
    rows = [0] * len(job.sources)
    counts = (record.rows for record in records) if counts is None else counts
    for record, count in zip(records, counts, strict=True):
        rows[record.source] += count
    return rows


def split_sizes(job: Job, by_source: Sequence[int]) -> dict[str, int]:
    """Return the rows of each split if rows keep their order or are shuffled within train.

    Args:
        by_source: rows of each source.
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


@contextmanager
def ordering(job: Job, records: list[ChunkRecord], window_rows: int) -> Iterator[Future[dict[str, int]] | None]:
    """Run `order_rows` in a background thread; cancel it if the `with` body raises. None if rows keep their order."""
    if not job.rules.is_arranged:
        yield None
        return
    failed = threading.Event()

    def check() -> None:
        if failed.is_set():
            raise Stopped

    with ThreadPoolExecutor(1) as background:
        try:
            yield background.submit(order_rows, job, records, window_rows, check)
        except BaseException:
            failed.set()
            raise


def order_rows(job: Job, records: list[ChunkRecord], window_rows: int, check: Callable[[], None]) -> dict[str, int]:
    """Write the positions of all rows to one of POSITION_DTYPES in <work>, and return the rows of each split.

    Args:
        records: all chunks, in row order.
        window_rows: rows of a shuffle held in memory at once.
        check: called now and then; an exception from it ends the work.
    """
    rules = job.rules
    algorithm = None if rules.split is None else rules.split.algorithm
    if algorithm is not None and algorithm.chooses:
        rows, choices = np.zeros(len(SPLITS), np.int64), split_numbers(job, records)
        for choice in choices():
            rows += np.bincount(choice[choice >= 0], minlength=len(SPLITS))
        sizes = dict(zip(SPLITS, rows.tolist(), strict=True))
        following = np.cumsum([0, *rows[:-1]])
        numbers: Iterator[Positions] = (_follow(choice, following) for choice in choices())
    else:
        kept = (int(part.sum()) for part in kept_rows(job, records)) if rules.negative_drop_rate else None
        source_rows = rows_by_source(job, records, kept)
        sizes = split_sizes(job, source_rows)
        numbers = _number(job, records)
        if algorithm is not None and algorithm.is_random:
            # The test rows, which come last here, are taken from the front of the permutation.
            places = inverse_permutation(sum(source_rows), rules.split_seed, job.work / PERMUTATION, window_rows, check)
            numbers = _permute(numbers, places, sum(source_rows), sizes["train"])
        elif rules.train_seed is not None:
            places = inverse_permutation(sizes["train"], rules.train_seed, job.work / PERMUTATION, window_rows, check)
            numbers = _permute(numbers, places, sizes["train"], shift=0)
        if rules.test_first:
            numbers = (_swap_halves(part, sizes) for part in numbers)
    _write_positions(job, sum(record.rows for record in records), numbers, check)
    return sizes


def chunk_positions(job: Job, begin: int, rows: int) -> Positions:
    """Return the positions of a chunk's rows; the chunk begins with row `begin` of the dataset."""
    path, dtype = _find_positions(job)
    return np.fromfile(path, dtype, rows, offset=dtype.itemsize * begin)


def rows_below(job: Job, record: ChunkRecord, begin: int, limit: int) -> NDArray[np.int64]:
    """Return the rows of a chunk, from 0, at positions below the limit; the chunk begins with row `begin`."""
    if not job.rules.is_arranged:
        return np.arange(min(record.rows, limit - begin))
    positions = chunk_positions(job, begin, record.rows)
    return np.flatnonzero((positions >= 0) & (positions < limit))


def _find_positions(job: Job) -> tuple[Path, np.dtype[Any]]:
    """Return the file of the positions, and its dtype."""
    return next((job.work / name, dtype) for name, dtype in POSITION_DTYPES.items() if (job.work / name).exists())


def kept_position(job: Job, begin: int, rows: int) -> int | None:
    """Return the position of a chunk's first row if the other rows follow it in order; else None."""
    if not rows:
        return None
    path, dtype = _find_positions(job)
    positions = np.memmap(path, dtype, "r", dtype.itemsize * begin, (rows,))
    first, last = int(positions[0]), int(positions[-1])  # differ by too much in most reordered chunks
    return first if first >= 0 and last - first == rows - 1 and bool((np.diff(positions) == 1).all()) else None


def _number(job: Job, records: list[ChunkRecord]) -> Iterator[Positions]:
    """Yield consecutive numbers for the rows that are not dropped, and LEFT_OUT for the others."""
    following = np.zeros(1, np.int64)
    if job.rules.negative_drop_rate:
        for is_kept in kept_rows(job, records):
            yield _follow(np.where(is_kept, 0, LEFT_OUT), following)
    else:
        for record in records:
            yield np.arange(following[0], following[0] + record.rows)
            following += record.rows


def _follow(choice: NDArray[np.signedinteger], following: NDArray[np.int64]) -> Positions:
    """Give each row the next number of its choice, counted in `following`, or LEFT_OUT if it has none."""
    numbers = np.full(len(choice), LEFT_OUT, np.int64)
    for number in range(len(following)):
        in_window = choice == number
        count = int(in_window.sum())
        numbers[in_window] = np.arange(following[number], following[number] + count)
        following[number] += count
    return numbers


def _permute(
    numbers: Iterator[Positions], places: Iterator[NDArray[Any]], rows: int, shift: int
) -> Iterator[Positions]:
    """Replace ascending numbers below `rows` by their permuted ones, shifted by `shift` modulo `rows`."""
    stream = _Stream(places)
    for part in numbers:
        in_part = (part >= 0) & (part < rows)
        moved = stream.take(int(np.count_nonzero(in_part)))
        moved = (moved + shift) % rows if shift else moved
        if len(moved) < len(part):
            part[in_part] = moved
            yield part
        else:
            yield moved


class _Stream:
    """Consecutive parts of an array, taken in pieces of any size."""

    def __init__(self, parts: Iterator[NDArray[Any]]) -> None:
        self._parts, self._part = parts, np.zeros(0, np.int64)

    def take(self, count: int) -> NDArray[np.int64]:
        """Return the next values."""
        next_values = np.empty(count, np.int64)
        position = 0
        while position < count:
            if not len(self._part):
                self._part = next(self._parts)
            size = min(len(self._part), count - position)
            next_values[position : position + size] = self._part[:size]
            self._part = self._part[size:]
            position += size
        return next_values


def _swap_halves(part: Positions, sizes: dict[str, int]) -> Positions:
    first, held_out = sizes["train"], sizes["val"] + sizes["test"]
    is_second = part >= first
    part[is_second] = first + (part[is_second] - first + sizes["val"]) % max(1, held_out)
    return part


def _write_positions(job: Job, rows: int, parts: Iterator[Positions], check: Callable[[], None]) -> None:
    for name in POSITION_DTYPES:
        (job.work / name).unlink(missing_ok=True)
    name, dtype = next((name, dtype) for name, dtype in POSITION_DTYPES.items() if rows <= np.iinfo(dtype).max)
    with open(job.work / name, "wb") as file:
        for part in parts:
            check()
            part.astype(dtype).tofile(file)
