"""The vocabulary of every feature, fitted on the rows of the train split."""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from data_prep.columns import load_run, write_runs
from data_prep.encode import vocabulary_path
from data_prep.format import digest_file, write_atomically
from data_prep.pool import Pool, counters
from data_prep.vocabulary import Run, merge_in_parts, rank_values
from data_prep.work import Job, UnitRecord

TRAIN_RUNS = "train-runs"
RUN_ENTRY_BYTES = 8


@dataclass
class VocabularyEntry:
    """A feature's vocabulary as the manifest names it: `values` have an id of their own."""

    values: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class FitTask:
    """One feature; (record, suffix of its runs file) of every unit with rows in the train split."""

    job: Job
    feature: int
    runs: tuple[tuple[UnitRecord, str], ...]


def fit_vocabularies(job: Job, records: list[UnitRecord], train_rows: int, pool: Pool) -> dict[str, VocabularyEntry]:
    """Write `job.work`/vocab/<feature>.npy of all features from the first `train_rows` rows.

    Args:
        records: all units, in the order of the rows.
    """
    runs = tuple(_train_runs(job, records, train_rows))
    tasks = [FitTask(job, feature, runs) for feature in range(len(job.schema.sparse))]
    return dict(zip(job.schema.sparse, pool.map(run_fit_task, tasks), strict=True))


def _train_runs(job: Job, records: list[UnitRecord], train_rows: int) -> list[tuple[UnitRecord, str]]:
    """Units of the train split; the one that the split's end cuts is counted anew."""
    runs = []
    left = train_rows
    for record in records:
        if left <= 0:
            break
        if record.rows > left:
            lengths = write_runs(job, record.source, record.chunk, record.block_rows, left, TRAIN_RUNS)
            counted = UnitRecord(record.source, record.chunk, left, 0, {}, run_lengths=lengths)
            runs.append((counted, TRAIN_RUNS))
        elif record.rows:
            runs.append((record, "runs"))
        left -= record.rows
    return runs


def run_fit_task(task: FitTask) -> VocabularyEntry:
    """Merge and rank one feature's values, if that was not done already."""
    job = task.job
    feature = job.schema.sparse[task.feature]
    done = job.work / "fit" / f"{feature}.json"
    path = vocabulary_path(job.work, feature)
    if done.is_file():
        entry = VocabularyEntry(**json.loads(done.read_bytes()))
        if path.is_file() and digest_file(path).sha256 == entry.sha256:
            return entry
    scratch = job.work / "fit" / feature
    scratch.mkdir(parents=True, exist_ok=True)
    runs = [load_run(job, record, task.feature, suffix) for record, suffix in task.runs]
    parts = [_spill(part, scratch / str(i)) for i, part in enumerate(merge_in_parts(runs))]
    values = rank_values(parts, path, job.frequency_threshold, job.max_ind_range)
    shutil.rmtree(scratch)
    digest = digest_file(path)
    entry = VocabularyEntry(values, digest.bytes, digest.sha256)
    write_atomically(done, json.dumps(asdict(entry)).encode())
    counters().add(RUN_ENTRY_BYTES * sum(len(run.values) for run in runs), 0)
    return entry


def _spill(part: Run, stem: Path) -> Run:
    """A part on disk instead of in memory."""
    arrays = []
    for suffix, array in (("values.npy", part.values), ("counts.npy", part.counts)):
        path = stem.with_name(f"{stem.name}.{suffix}")
        np.save(path, array)
        arrays.append(np.load(path, mmap_mode="r"))
    return Run(*arrays)
