"""A unit's categorical values on disk, column by column, and the runs counted from them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.choices import VocabularyOrder
from data_prep.files import temporary_path
from data_prep.ragged import Bags, unpack
from data_prep.vocabulary import Run, count_in_order, count_values
from data_prep.work import Job, UnitRecord

VALUE_BYTES = 4
RUN_ENTRY_BYTES = 16  # value uint32, count uint32, first row int64


def raw_blocks(job: Job, record: UnitRecord) -> Iterator[NDArray[np.uint32]]:
    """The values of a unit, block by block, [F, rows]."""
    num_features = len(job.schema.single)
    with open(job.unit_path(record.source, record.chunk, "raw"), "rb") as file:
        for rows in record.block_rows:
            yield np.fromfile(file, np.uint32, num_features * rows).reshape(num_features, rows)


def unit_bags(job: Job, source: int, chunk: int) -> tuple[Bags, ...]:
    """The values, as read, of a unit's multi-valued columns, memory-mapped."""
    values, offsets = (np.load(job.unit_path(source, chunk, f"{kind}.npy"), "r") for kind in ("bags", "offsets"))
    return unpack(values, offsets, len(job.schema.ragged))


def write_runs(
    job: Job,
    source: int,
    chunk: int,
    block_rows: list[int],
    suffix: str,
    rows: NDArray[np.int64] | None = None,
    begin: int = 0,
) -> list[int]:
    """Count the values of a unit, feature by feature.

    Args:
        rows: which rows of the unit to count, rising; None: all.
        begin: number of the unit's first row in the dataset (only first appearances depend on it).

    Returns:
        the number of distinct values of each feature.
    """
    in_order = job.rules.order is VocabularyOrder.first_appearance
    single = job.schema.single
    bags = dict(zip(job.schema.ragged, unit_bags(job, source, chunk), strict=True)) if job.schema.ragged else {}
    lengths = []
    path, target = job.unit_path(source, chunk, "raw"), job.unit_path(source, chunk, suffix)
    temporary = temporary_path(target)
    with open(path, "rb", buffering=0) as raw, open(temporary, "wb") as runs:
        for feature in job.schema.sparse:
            numbers = rows
            if feature in bags:
                counted = bags[feature] if rows is None else bags[feature].take(rows)
                column = np.array(counted.ids)
                numbers = None if rows is None else np.repeat(rows, counted.lengths)
            else:
                column = _read_column(raw, single.index(feature), len(single), block_rows)
                column = column if rows is None else column[rows]
            run = count_in_order(column, numbers + begin) if in_order and numbers is not None else count_values(column)
            run.values.tofile(runs)
            run.counts.astype(np.uint32).tofile(runs)
            run.first.tofile(runs)
            lengths.append(len(run.values))
    temporary.replace(target)
    return lengths


def _read_column(raw: Any, feature: int, num_features: int, block_rows: list[int]) -> NDArray[np.uint32]:
    column = np.empty(sum(block_rows), np.uint32)
    row = position = 0
    for rows in block_rows:
        raw.seek(position + VALUE_BYTES * feature * rows)
        raw.readinto(column[row : row + rows])
        position += VALUE_BYTES * num_features * rows
        row += rows
    return column


def load_run(job: Job, record: UnitRecord, feature: int, suffix: str) -> Run:
    """The run of one feature of a unit, memory-mapped; counts are uint32."""
    length = record.run_lengths[feature]
    if length == 0:
        return Run(np.zeros(0, np.uint32), np.zeros(0, np.int64), np.zeros(0, np.int64))
    path = job.unit_path(record.source, record.chunk, suffix)
    offset = RUN_ENTRY_BYTES * sum(record.run_lengths[:feature])
    both = np.memmap(path, np.uint32, "r", offset, (2, length))
    first = np.memmap(path, np.int64, "r", offset + 2 * VALUE_BYTES * length, (length,))
    return Run(both[0], both[1], first)
