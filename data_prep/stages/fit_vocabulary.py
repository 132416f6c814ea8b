"""The vocabulary of every feature: values counted per unit, merged, ranked."""

import json
import shutil
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.dataset.format import digest_file, write_atomically
from data_prep.encoding.lookup import vocabulary_path
from data_prep.engine.job import Job, UnitRecord, load_record, save_record
from data_prep.engine.processes import Pool, counters
from data_prep.io.buffered_file import release_pieces
from data_prep.io.buffers import release_scratch
from data_prep.stages.column_store import read_column
from data_prep.stages.shuffle_order import unit_positions
from data_prep.stages.value_counts import RUN_ENTRY_BYTES, load_runs, write_runs
from data_prep.vocabulary.merge import merge_in_parts
from data_prep.vocabulary.rank import most_frequent, rank_values
from data_prep.vocabulary.spill import held_parts

PARSED_RUNS, FITTED_RUNS = "runs", "fitted-runs"


@dataclass
class VocabularyEntry:
    """A feature's vocabulary as the manifest names it: `values` have an id of their own."""

    values: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class CountTask:
    """A unit whose first row is row `begin`; the rows at positions below `limit` are to be counted."""

    job: Job
    record: UnitRecord
    begin: int
    limit: int

    @property
    def is_done(self) -> bool:
        """Whether all its rows count and were counted when it was parsed."""
        return self.job.rules.counts_while_parsing and self.begin + self.record.rows <= self.limit


@dataclass(frozen=True)
class FitTask:
    """One feature; (record, suffix of its runs file, number of its first row) of every unit with rows that count.

    part_bytes: of memory for its runs, and as much again to merge and rank them.
    """

    job: Job
    feature: int
    runs: tuple[tuple[UnitRecord, str, int], ...]
    part_bytes: int


def plan_counting(job: Job, records: list[UnitRecord], limit: int) -> list[CountTask]:
    """The units with rows that may count.

    Args:
        records: all units, in the order of the rows.
        limit: rows at positions below it count.
    """
    begins = [0, *accumulate(record.rows for record in records)]
    tasks = (CountTask(job, record, begin, limit) for record, begin in zip(records, begins, strict=False))
    return [task for task in tasks if task.is_done or job.rules.is_arranged or task.begin < limit]


def count_units(tasks: list[CountTask], pool: Pool) -> tuple[tuple[UnitRecord, str, int], ...]:
    """The runs of all units with rows that count, each with the suffix of its file and the unit's first row."""
    runs = [(task.record, PARSED_RUNS, task.begin) for task in tasks if task.is_done]
    to_do = [task for task in tasks if not task.is_done]
    counted = pool.map(run_count_task, to_do)
    runs += [(record, FITTED_RUNS, task.begin) for task, record in zip(to_do, counted, strict=True)]
    return tuple(run for run in runs if run[0].rows)


def run_count_task(task: CountTask) -> UnitRecord:
    """Count the values of a unit's rows that count; the record has their number and the runs' lengths."""
    job, record = task.job, task.record
    counted = load_record(job, "counted", record.source, record.chunk)
    if counted is None:
        rows = _rows_that_count(task)
        unit = (record.source, record.chunk)
        lengths, digest, _ = write_runs(job, unit, FITTED_RUNS, partial(read_column, job, record), rows)
        counted = UnitRecord(*unit, len(rows), 0, {FITTED_RUNS: digest}, run_lengths=lengths)
        save_record(job, "counted", counted)
    counters().add(record.value_bytes, record.rows)
    return counted


def _rows_that_count(task: CountTask) -> NDArray[np.int64]:
    """Rows of the unit, from 0, at positions below the limit."""
    if not task.job.rules.is_arranged:
        return np.arange(min(task.record.rows, task.limit - task.begin))
    positions = unit_positions(task.job, task.begin, task.record.rows)
    return np.flatnonzero((positions >= 0) & (positions < task.limit))


def fit_vocabularies(
    job: Job, runs: tuple[tuple[UnitRecord, str, int], ...], part_bytes: int, pool: Pool
) -> dict[str, VocabularyEntry]:
    """Write `job.work`/vocab/<feature>.npy of all features from the units' runs."""
    tasks = [FitTask(job, feature, runs, part_bytes) for feature in range(len(job.schema.sparse))]
    return dict(zip(job.schema.sparse, pool.map(run_fit_task, tasks), strict=True))


def run_fit_task(task: FitTask) -> VocabularyEntry:
    """Merge and rank one feature's values, if that was not done already."""
    job, rules = task.job, task.job.rules
    feature = job.schema.sparse[task.feature]
    done = job.work / "fit" / f"{feature}.json"
    path = vocabulary_path(job.work, feature)
    if done.is_file():
        entry = VocabularyEntry(**json.loads(done.read_bytes()))
        if path.is_file() and digest_file(path).sha256 == entry.sha256:
            return entry
    _make_room(job.work)
    scratch = job.work / "fit" / feature
    run_bytes = RUN_ENTRY_BYTES * sum(record.run_lengths[task.feature] for record, _, _ in task.runs)
    runs = load_runs(job, [(record, suffix) for record, suffix, _ in task.runs], task.feature, task.part_bytes)
    begins = [begin for _, _, begin in task.runs]
    merged = merge_in_parts(runs, task.part_bytes, begins, rules.frequency_threshold)
    parts = held_parts(merged, scratch / "all")
    # where ids wrap, all values have one; else the cap leaves room for those before the first
    cap = None if rules.wraps or rules.max_ind_range is None else max(0, rules.max_ind_range - rules.first_id)
    if cap is not None and sum(len(part.values) for part in parts) > cap:
        parts = held_parts(most_frequent(parts, cap), scratch / "kept")
    assert rules.order is not None
    values = rank_values(parts, path, rules.order)
    shutil.rmtree(scratch, ignore_errors=True)  # which is there where there were several parts
    digest = digest_file(path)
    entry = VocabularyEntry(values, digest.bytes, digest.sha256)
    write_atomically(done, json.dumps(asdict(entry)).encode())
    counters().add(run_bytes, 0)
    return entry


@lru_cache(maxsize=1)
def _make_room(work: Path) -> None:
    """Once a job, give back what this process took to parse."""
    release_pieces()
    release_scratch()
