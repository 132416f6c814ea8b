"""The runs of a unit's features on disk, counted from its values."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.dataset.options import VocabularyOrder
from data_prep.engine.job import VALUE_BYTES, Job, UnitRecord, sum_of
from data_prep.io.atomic import FileDigest
from data_prep.io.buffered_file import HeldFile
from data_prep.io.direct_io import Part, read_at_once, room_bytes
from data_prep.stages.column_store import unit_bags
from data_prep.vocabulary.count import Coding, Run, count_in_order, count_values

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


class StoredRun:
    """A run on disk, of which parts are read: memory and open files do not grow with the runs there are."""

    def __init__(self, part: Part) -> None:
        self._place = part
        self.entries = part.num_bytes // RUN_ENTRY_BYTES

    @property
    def values(self) -> NDArray[np.uint32]:
        """Its values, read now."""
        return np.fromfile(self._place.path, np.uint32, self.entries, offset=self._place.offset)

    def part(self, start: int, stop: int) -> Run:
        """Some of its entries, read now."""
        columns: list[NDArray[Any]] = []
        with open(self._place.path, "rb", buffering=0) as file:
            for column in range(len(Run._fields)):
                file.seek(self._place.offset + VALUE_BYTES * (column * self.entries + start))
                columns.append(np.fromfile(file, np.uint32, stop - start))
        return Run(*columns)


def load_runs(
    job: Job, units: Sequence[tuple[UnitRecord, str]], feature: int, most_bytes: int
) -> Sequence[Run | StoredRun]:
    """The runs of one feature of units, each with the suffix of its file; counts and rows are uint32, rows the unit's.

    They are read, to memory of this thread that the next call writes to, if `most_bytes` are enough; else part by part.
    """
    parts = [_run_part(job, record, feature, suffix) for record, suffix in units]
    if sum(map(room_bytes, parts)) > most_bytes:
        return [StoredRun(part) for part in parts]
    contents = read_at_once(parts, "runs")
    return [Run(*content.view(np.uint32).reshape(len(Run._fields), -1)) for content in contents]


def _run_part(job: Job, record: UnitRecord, feature: int, suffix: str) -> Part:
    lengths = record.run_lengths
    path = job.unit_path(record.source, record.chunk, suffix)
    return Part(path, RUN_ENTRY_BYTES * sum(lengths[:feature]), RUN_ENTRY_BYTES * lengths[feature])
