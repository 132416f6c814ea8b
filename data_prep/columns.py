"""A unit's categorical values on disk, column by column, and the runs counted from them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.vocabulary import Run, count_values
from data_prep.work import Job, UnitRecord

VALUE_BYTES = 4


def raw_blocks(job: Job, record: UnitRecord) -> Iterator[NDArray[np.uint32]]:
    """The values of a unit, block by block, [F, rows]."""
    num_features = len(job.schema.sparse)
    with open(job.unit_path(record.source, record.chunk, "raw"), "rb") as file:
        for rows in record.block_rows:
            yield np.fromfile(file, np.uint32, num_features * rows).reshape(num_features, rows)


def write_runs(job: Job, source: int, chunk: int, block_rows: list[int], rows: int, suffix: str) -> list[int]:
    """Count the values of a unit's first `rows` rows, feature by feature.

    Returns:
        the number of distinct values of each feature.
    """
    num_features = len(job.schema.sparse)
    lengths = []
    path, target = job.unit_path(source, chunk, "raw"), job.unit_path(source, chunk, suffix)
    with open(path, "rb", buffering=0) as raw, open(target, "wb") as runs:
        for feature in range(num_features):
            run = count_values(_read_column(raw, feature, num_features, block_rows)[:rows])
            run.values.tofile(runs)
            run.counts.astype(np.uint32).tofile(runs)
            lengths.append(len(run.values))
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
        return Run(np.zeros(0, np.uint32), np.zeros(0, np.int64))
    path = job.unit_path(record.source, record.chunk, suffix)
    offset = 2 * VALUE_BYTES * sum(record.run_lengths[:feature])
    both = np.memmap(path, np.uint32, "r", offset, (2, length))
    return Run(both[0], both[1])
