"""The runs of a unit's features on disk, counted from its values."""

import mmap
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from data_prep.choices import VocabularyOrder
from data_prep.columns import unit_bags
from data_prep.files import FileDigest
from data_prep.held import HeldFile
from data_prep.vocabulary import Coding, Run, count_in_order, count_values
from data_prep.work import Job, UnitRecord, sum_of

RUN_ENTRY_BYTES = 12  # value, count, first row: uint32, as no unit has more rows


def write_runs(
    job: Job,
    unit: tuple[int, int],
    suffix: str,
    read_column: Callable[[int], NDArray[np.uint32]],
    rows: NDArray[np.int64],
) -> tuple[list[int], FileDigest, list[Coding | None]]:
    """Count the values of a unit, feature by feature; first appearances are rows of the unit, from 0.

    Args:
        unit: its source and chunk.
        read_column: the values of a single-valued feature, by its number; they are overwritten.
        rows: which rows of the unit to count, rising.

    Returns:
        the number of distinct values of each feature, the size and sum of the file, and of each single-valued
        feature its coding, where it has one.
    """
    in_order = job.rules.order is VocabularyOrder.first_appearance
    bags = dict(zip(job.schema.ragged, unit_bags(job, *unit), strict=True)) if job.schema.ragged else {}
    lengths: list[int] = []
    codings: list[Coding | None] = []
    runs = HeldFile(job.unit_path(*unit, suffix))
    for feature in job.schema.sparse:
        if feature in bags:
            chosen = bags[feature].take(rows)
            column, mine = np.array(chosen.ids), np.repeat(rows, chosen.lengths)
        else:
            column, mine = read_column(len(codings)), rows
            column = column if len(rows) == len(column) else column[rows]
        counted = count_in_order(column, mine) if in_order else count_values(column)
        if feature not in bags:
            codings.append(counted.coding)
        for array in counted.run:
            runs.append(array.astype(np.uint32, copy=False))
        lengths.append(len(counted.run.values))
    return lengths, runs.close(sum_of(job, suffix)), codings


def load_run(job: Job, record: UnitRecord, feature: int, suffix: str, ahead: bool = False) -> Run:
    """The run of one feature of a unit, memory-mapped; counts and rows are uint32, rows those of the unit.

    ahead: have it read at once, while others are still being mapped.
    """
    length = record.run_lengths[feature]
    if length == 0:
        return Run(np.zeros(0, np.uint32), np.zeros(0, np.int64), np.zeros(0, np.int64))
    offset = RUN_ENTRY_BYTES * sum(record.run_lengths[:feature])
    before = offset % mmap.ALLOCATIONGRANULARITY
    with open(job.unit_path(record.source, record.chunk, suffix), "rb") as file:
        mapped = mmap.mmap(
            file.fileno(), before + RUN_ENTRY_BYTES * length, access=mmap.ACCESS_READ, offset=offset - before
        )
    if ahead and hasattr(mmap, "MADV_WILLNEED"):
        mapped.madvise(mmap.MADV_WILLNEED)
    return Run(*np.frombuffer(mapped, np.uint32, len(Run._fields) * length, before).reshape(-1, length))
