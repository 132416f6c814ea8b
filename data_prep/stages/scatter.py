"""Rows from the units to shards in another order, first step: each unit's rows sorted by destination.

In bounded memory, on any number of processes, and can be repeated after a kill; as the second, data_prep/gather.py.
"""

from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.dataset.bags import BAG_KINDS, pack, unpack
from data_prep.dataset.format import FileDigest
from data_prep.engine.job import Job, UnitRecord, digest_unit_files, load_record, save_record, sum_of
from data_prep.engine.processes import counters
from data_prep.io.array_writer import ArrayWriter
from data_prep.io.atomic import save_array
from data_prep.stages.encode import EncodeTask, unit_blocks
from data_prep.stages.row_layout import RecordLayout
from data_prep.stages.shuffle_order import LEFT_OUT, kept_position, unit_positions

MOVED_SUFFIX = "moved.npy"
POSITION_SUFFIX = "position.npy"


@dataclass(frozen=True)
class ScatterTask:
    """A unit, whose first row is row `begin` of the dataset; what is not encoded yet is encoded on the way."""

    unit: EncodeTask
    begin: int
    layout: RecordLayout


@dataclass(frozen=True)
class KeptUnit:
    """A unit whose rows keep their order, the first going to `position`: they are encoded when they are gathered."""

    unit: EncodeTask
    position: int

    def rows_between(self, start: int, stop: int) -> tuple[int, int]:
        """Which of its rows go to the positions start..stop; the second number is no larger if none do."""
        return max(0, start - self.position), min(self.unit.record.rows, stop - self.position)


def plan_scatter(job: Job, units: list[EncodeTask], layout: RecordLayout) -> tuple[list[ScatterTask], list[KeptUnit]]:
    """Which units are to be scattered, and which go to shards as they are; where there are bags, all are scattered."""
    scatter, kept = [], []
    begin = 0
    for unit in units:
        position = None if job.schema.ragged else kept_position(job, begin, unit.record.rows)
        if position is None:
            scatter.append(ScatterTask(unit, begin, layout))
        else:
            kept.append(KeptUnit(unit, position))
        begin += unit.record.rows
    return scatter, kept


def scatter_groups(tasks: list[ScatterTask], most_rows: int, workers: int) -> list[tuple[ScatterTask, ...]]:
    """The units, in their order, in groups that a worker scatters without a pause; small ones at the end, for balance.

    most_rows: of a group of several, for their memory.
    """
    groups: list[list[ScatterTask]] = []
    rows = size = 0
    for number, task in enumerate(tasks):
        rows += task.unit.record.rows
        if not groups or len(groups[-1]) == size or rows > most_rows:
            groups.append([])
            rows, size = task.unit.record.rows, -(-(len(tasks) - number) // (2 * workers))
        groups[-1].append(task)
    return [tuple(group) for group in groups]


def run_scatter_tasks(tasks: tuple[ScatterTask, ...]) -> list[UnitRecord]:
    """Write the rows of units in the order of their positions, each unit while the next one is sorted."""
    records: list[UnitRecord] = []
    with ArrayWriter() as writer:
        unfinished: list[_Scattered] = []  # one at most
        for task in tasks:
            record = load_record(task.unit.job, "moved", task.unit.record.source, task.unit.record.chunk)
            begun = _scatter(task, writer) if record is None else _Scattered(task, record, {})
            records += [unit.finish() for unit in unfinished]
            unfinished = [begun]
        return records + [unit.finish() for unit in unfinished]


@dataclass(frozen=True)
class _Scattered:
    """A unit, what is known of it when it is scattered, and its files that are still being written."""

    task: ScatterTask
    record: UnitRecord
    being_written: dict[str, "Future[FileDigest]"]

    def finish(self) -> UnitRecord:
        """Record that the unit is scattered, once it is."""
        self.record.files |= {suffix: written.result() for suffix, written in self.being_written.items()}
        save_record(self.task.unit.job, "moved", self.record)
        rows = self.task.unit.record.rows  # those left out, too
        counters().add(rows * self.task.layout.row_bytes, rows)
        return self.record


def _scatter(task: ScatterTask, writer: ArrayWriter) -> _Scattered:
    """Sort a unit's rows by position, and have them written."""
    job, record = task.unit.job, task.unit.record
    unit = (record.source, record.chunk)
    positions = unit_positions(job, task.begin, record.rows)
    order = np.argsort(positions)
    order = order[np.count_nonzero(positions == LEFT_OUT) :]  # which come first
    done = UnitRecord(*unit, len(order), 0, {})
    save_array(job.unit_path(*unit, POSITION_SUFFIX), positions[order])
    done.files |= digest_unit_files(job, *unit, [POSITION_SUFFIX])
    if job.schema.ragged:
        done.files |= _scatter_bags(job, unit, order)
    return _Scattered(task, done, {MOVED_SUFFIX: _write_records(task, order, writer)} if len(order) else {})


def _write_records(task: ScatterTask, order: NDArray[np.int64], writer: ArrayWriter) -> "Future[FileDigest]":
    """Write the records of a unit's rows, in that order of theirs; the file's size and sum, once it is there."""
    job, record, layout = task.unit.job, task.unit.record, task.layout
    places = np.full(record.rows, -1)
    places[order] = np.arange(len(order))
    path = job.unit_path(record.source, record.chunk, MOVED_SUFFIX)
    shape = (len(order), layout.row_bytes)
    # in the room that gathering fills with ids, which then need not be fresh memory
    file = writer.create(path, "sparse", np.uint8, shape, sum_of(job, MOVED_SUFFIX))
    records = file.window(len(order))
    for begin, rows in unit_blocks(task.unit, 0, record.rows):
        layout.pack(rows, places[begin : begin + len(rows["labels"])], records)
    return file.close()


def _scatter_bags(job: Job, unit: tuple[int, int], order: NDArray[np.int64]) -> dict[str, FileDigest]:
    """Write a unit's bags in an order of its rows."""
    values, offsets = (np.load(job.unit_path(*unit, f"{kind}.npy")) for kind in BAG_KINDS)
    bags = unpack(values, offsets, len(job.schema.ragged))
    moved = pack([feature.take(order) for feature in bags])
    for kind, array in zip(BAG_KINDS, moved, strict=True):
        save_array(job.unit_path(*unit, f"moved-{kind}.npy"), array)
    return digest_unit_files(job, *unit, [f"moved-{kind}.npy" for kind in BAG_KINDS])
