"""A unit's categorical values on disk, column by column, and the runs counted from them."""

import mmap
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.choices import VocabularyOrder
from data_prep.files import FileDigest
from data_prep.held import HeldFile
from data_prep.parts import Part, read_parts
from data_prep.ragged import Bags, unpack
from data_prep.vocabulary import Run, count_in_order, count_values
from data_prep.work import Job, UnitRecord, sum_of

VALUE_BYTES = 4
RUN_ENTRY_BYTES = 16  # value uint32, count uint32, first row int64


def raw_blocks(job: Job, record: UnitRecord, start: int = 0, stop: int | None = None) -> Iterator[NDArray[np.uint32]]:
    """The values of a unit's rows start..stop (by default all), block by block, [F, rows].

    A block is only valid until the next one is asked for.
    """
    stop = record.rows if stop is None else stop
    num_features = len(job.schema.single)
    path = job.unit_path(record.source, record.chunk, "raw")
    row_bytes = VALUE_BYTES * num_features
    begins = np.cumsum([0, *record.block_rows]).tolist()
    blocks = [(begin, end) for begin, end in pairwise(begins) if begin < stop and end > start]
    parts = [Part(path, begin * row_bytes, (end - begin) * row_bytes) for begin, end in blocks]
    for (begin, end), content in zip(blocks, read_parts(parts, "raw"), strict=True):
        values = content.view(np.uint32).reshape(num_features, end - begin)
        yield values[:, max(start, begin) - begin : min(stop, end) - begin]


def unit_bags(job: Job, source: int, chunk: int) -> tuple[Bags, ...]:
    """The values, as read, of a unit's multi-valued columns, memory-mapped."""
    values, offsets = (np.load(job.unit_path(source, chunk, f"{kind}.npy"), "r") for kind in ("bags", "offsets"))
    return unpack(values, offsets, len(job.schema.ragged))


def write_runs(
    job: Job,
    unit: tuple[int, int],
    block_rows: list[int],
    suffix: str,
    read: Callable[[int, NDArray[np.uint32]], None],
    rows: NDArray[np.int64] | None = None,
) -> tuple[list[int], FileDigest]:
    """Count the values of a unit, feature by feature; first appearances are rows of the unit, from 0.

    Args:
        unit: its source and chunk.
        read: fills an array with the bytes of `raw` from an offset on.
        rows: which rows of the unit to count, rising; None: all.

    Returns:
        the number of distinct values of each feature, and the size and sum of the file.
    """
    in_order = job.rules.order is VocabularyOrder.first_appearance
    single = job.schema.single
    bags = dict(zip(job.schema.ragged, unit_bags(job, *unit), strict=True)) if job.schema.ragged else {}
    numbers = np.arange(sum(block_rows)) if rows is None else rows
    lengths = []
    runs = HeldFile(job.unit_path(*unit, suffix))
    for feature in job.schema.sparse:
        mine = numbers
        if feature in bags:
            counted = bags[feature] if rows is None else bags[feature].take(rows)
            column = np.array(counted.ids)
            mine = np.repeat(numbers, counted.lengths)
        else:
            column = _read_column(read, single.index(feature), len(single), block_rows)
            column = column if rows is None else column[rows]
        run = count_in_order(column, mine) if in_order else count_values(column)
        for array in (run.values, run.counts.astype(np.uint32), run.first):
            runs.append(array)
        lengths.append(len(run.values))
    return lengths, runs.close(sum_of(job, suffix))


def _read_column(
    read: Callable[[int, NDArray[np.uint32]], None], feature: int, num_features: int, block_rows: list[int]
) -> NDArray[np.uint32]:
    column = np.empty(sum(block_rows), np.uint32)
    row = position = 0
    for rows in block_rows:
        read(position + VALUE_BYTES * feature * rows, column[row : row + rows])
        position += VALUE_BYTES * num_features * rows
        row += rows
    return column


def load_run(job: Job, record: UnitRecord, feature: int, suffix: str) -> Run:
    """The run of one feature of a unit, memory-mapped; counts are uint32, rows those of the unit."""
    length = record.run_lengths[feature]
    if length == 0:
        return Run(np.zeros(0, np.uint32), np.zeros(0, np.int64), np.zeros(0, np.int64))
    offset = RUN_ENTRY_BYTES * sum(record.run_lengths[:feature])
    before = offset % mmap.ALLOCATIONGRANULARITY
    with open(job.unit_path(record.source, record.chunk, suffix), "rb") as file:
        mapped = mmap.mmap(
            file.fileno(), before + RUN_ENTRY_BYTES * length, access=mmap.ACCESS_READ, offset=offset - before
        )
    values = np.frombuffer(mapped, np.uint32, length, before)
    counts: NDArray[Any] = np.frombuffer(mapped, np.uint32, length, before + VALUE_BYTES * length)
    first = np.frombuffer(mapped, np.int64, length, before + 2 * VALUE_BYTES * length)
    return Run(values, counts, first)
