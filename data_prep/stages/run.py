"""The stages of a job, one after the other, each over all units: what is written depends on nothing else."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from common.errors import UserError
from data_prep.config.keys import DataConfig
from data_prep.config.table_sizes import largest_id, num_embeddings
from data_prep.dataset.format import FileDigest
from data_prep.dataset.multi_hot import TABLES_DIRECTORY, MultiHot, MultiHotTables
from data_prep.dataset.options import DenseTransform
from data_prep.encoding.dense import DenseRange, join_ranges
from data_prep.encoding.passes import Slice
from data_prep.engine.cluster import open_pool
from data_prep.engine.job import Job, UnitRecord
from data_prep.engine.memory_budget import num_workers, part_bytes, plan_encoding, reads_whole, window_rows
from data_prep.engine.processes import Pool
from data_prep.io.buffered_file import release_pieces
from data_prep.io.buffers import release_scratch
from data_prep.io.progress import Progress
from data_prep.stages.encode import EncodeTask, release_tables, run_encode_task
from data_prep.stages.encode_in_passes import PassTask, run_pass_task
from data_prep.stages.expand_multi_hot import ExpandTask, expanded_bytes, run_expand_task
from data_prep.stages.fit_vocabulary import VocabularyEntry, count_units, fit_vocabularies, plan_counting
from data_prep.stages.gather import gather_tasks, rows_per_shard, run_gather_task
from data_prep.stages.parse import (
    parse_tasks,
    reading_tasks,
    refuse_changed,
    refuse_empty,
    refuse_wrong_sums,
    run_reading_task,
)
from data_prep.stages.row_layout import RecordLayout
from data_prep.stages.scatter import plan_scatter, run_scatter_tasks, scatter_groups
from data_prep.stages.shuffle_order import arranging
from data_prep.stages.split import (
    BuildTask,
    BuiltShard,
    copied_bytes,
    place_gathered,
    plan_pieces,
    refuse_no_train_rows,
    run_build_task,
    split_rows,
)


@dataclass
class Result:
    """What the stages found out, on the way to the manifest.

    Attributes:
        features: the sparse features that are kept.
        ranges: of the integers, per source (torchrec) or over all (minmax), where the transform needs it.
        built: the shards, ready to be moved to their places.
        peak_bytes: of memory of all processes; seconds: of every stage.
    """

    records: list[UnitRecord]
    digests: list[FileDigest]
    features: tuple[str, ...]
    workers: int
    rows: dict[str, int] = field(default_factory=dict)
    vocabularies: dict[str, VocabularyEntry] = field(default_factory=dict)
    ranges: list[DenseRange] = field(default_factory=list)
    built: list[BuiltShard] = field(default_factory=list)
    peak_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def num_values(self, feature: str) -> int | None:
        """Values of a feature's vocabulary, where there is one."""
        return self.vocabularies[feature].values if self.vocabularies else None


def run_stages(data: DataConfig, job: Job, root: Path) -> Result:
    """Do everything but put the files in their places."""
    tasks = parse_tasks(job)
    workers = num_workers(data, job, len(tasks))
    with open_pool(data.scheduler, workers) as pool:
        result = _parse(job, pool, reads_whole(data, job, workers))
        fits_all = job.rules.counts_while_parsing and not job.rules.fitted_on_train  # wherever rows go
        with arranging(job, result.records, window_rows(data)) as arranged:
            if fits_all:
                _fit(data, job, result, pool, sum(record.rows for record in result.records))
            if arranged is None:
                result.rows = split_rows(job, result.records)
            else:
                with _stage("arrange", 0, pool):
                    result.rows = arranged.result()
        refuse_no_train_rows(job, result.rows)
        if job.rules.order is not None and not fits_all:
            known = result.rows["train"] if job.rules.fitted_on_train else sum(result.rows.values())
            _fit(data, job, result, pool, known)
        result.peak_bytes = pool.peak_bytes
        result.seconds |= pool.seconds
    release_pieces()  # of this process, if it was the only worker
    release_scratch()
    values = {name: result.vocabularies[name].values for name in result.features if result.vocabularies}
    encode_workers, passes = plan_encoding(data, job, workers, values)
    with open_pool(data.scheduler, encode_workers) as pool:
        units = _encode_tasks(job, result, passes)
        if _is_encoded_apart(job, passes):
            units = _encode(job, units, passes, pool)
            result.records = [unit.record for unit in units]
        if job.rules.is_arranged:
            _shuffle(job, root, result, units, pool)
        else:
            release_tables()
            _cut(job, root, result, pool)
        if job.bags is not None:
            _expand(job, job.bags, root, result, pool)
        result.peak_bytes = max(result.peak_bytes, pool.peak_bytes)
        result.seconds |= pool.seconds
    return result


@contextmanager
def _stage(name: str, total_bytes: int, pool: Pool) -> Iterator[None]:
    """Show a stage's progress and take its time."""
    begin = time.monotonic()
    with Progress(name, total_bytes, pool.counters):
        yield
    pool.seconds[name] = round(time.monotonic() - begin, 3)


def _parse(job: Job, pool: Pool, whole: bool) -> Result:
    total = sum(source.work_bytes for source in job.sources)
    with _stage("parse", total, pool):
        records: list[UnitRecord] = []
        digests: list[FileDigest] = []
        for reading in pool.map(run_reading_task, reading_tasks(job, whole)):
            records.extend(reading.records)
            digests += [] if reading.digest is None else [reading.digest]
        refuse_empty(job, records)
        refuse_changed(job)
        refuse_wrong_sums(job, digests)
    return Result(records, digests, job.schema.sparse, pool.workers)


def _fit(data: DataConfig, job: Job, result: Result, pool: Pool, limit: int) -> None:
    """Vocabularies of the rows at positions below the limit, and which features they leave."""
    counting = plan_counting(job, result.records, limit)
    with _stage("count", sum(task.record.value_bytes for task in counting if not task.is_done), pool):
        runs = count_units(counting, pool)
    run_bytes = sum(record.files[suffix].bytes for record, suffix, _ in runs)
    with _stage("vocabulary", run_bytes, pool):
        result.vocabularies = fit_vocabularies(job, runs, part_bytes(data), pool)
    most = job.rules.max_categories
    if most is not None:
        kept = [name for name, entry in result.vocabularies.items() if entry.values <= most]
        result.features = tuple(kept)
        if not kept:
            raise UserError(
                f"data.encoding={job.rules.encoding.value}: every column has more than {most} values; "
                "use another encoding"
            )


def _encode_tasks(job: Job, result: Result, passes: tuple[tuple[Slice, ...], ...]) -> list[EncodeTask]:
    """What is to be known of each unit to encode it."""
    known = _ranges_by_source(job, result)
    sums = tuple(result.vocabularies[name].sha256 for name in result.features if result.vocabularies)
    return [
        EncodeTask(job, record, result.features, sums, known[record.source] if known else None, passes)
        for record in result.records
    ]


def _is_encoded_apart(job: Job, passes: tuple[tuple[Slice, ...], ...]) -> bool:
    """Whether units are encoded before anything else is done with them: else parsing or scattering does it."""
    if job.rules.order is None and not job.rules.needs_statistics:
        return False
    return not job.rules.is_arranged or bool(passes) or bool(job.schema.ragged)


def _encode(job: Job, units: list[EncodeTask], passes: tuple[tuple[Slice, ...], ...], pool: Pool) -> list[EncodeTask]:
    """Ids by the vocabularies, integers by their statistics; the units as they are then."""
    for number, slices in enumerate(passes):
        value_bytes = sum(unit.record.value_bytes for unit in units)
        with _stage(f"pass {number + 1} of {len(passes)}", value_bytes, pool):
            pass_tasks = [PassTask(job, unit.record, number, slices, unit.vocabulary) for unit in units]
            list(pool.map(run_pass_task, pass_tasks))
    with _stage("encode", sum(unit.record.encoded_bytes for unit in units), pool):
        records = list(pool.map(run_encode_task, units))
    return [replace(unit, record=record) for unit, record in zip(units, records, strict=True)]


def _ranges_by_source(job: Job, result: Result) -> list[DenseRange]:
    """The range that each source's integers are transformed by; empty where none is needed."""
    if not job.rules.needs_statistics:
        return []
    by_source: list[list[DenseRange]] = [[] for _ in job.sources]
    for record in result.records:
        if record.rows:
            low, high = np.array(record.dense_low), np.array(record.dense_high)
            by_source[record.source].append(DenseRange(low, high))
    ranges = [join_ranges(parts) for parts in by_source]
    if job.rules.dense is DenseTransform.minmax:
        result.ranges = [join_ranges(ranges)]
        return result.ranges * len(job.sources)
    result.ranges = ranges
    return ranges


def _cut(job: Job, root: Path, result: Result, pool: Pool) -> None:
    """Units to shards, in their order."""
    tasks = [BuildTask(job, root, piece) for piece in plan_pieces(result.records, result.rows)]
    with _stage("cut", sum(copied_bytes(job, task.piece) for task in tasks), pool):
        result.built = list(pool.map(run_build_task, tasks))


def _shuffle(job: Job, root: Path, result: Result, units: list[EncodeTask], pool: Pool) -> None:
    """Rows to the shards that `arrange` chose."""
    single = [feature for feature in result.features if feature not in job.schema.ragged]
    largest = tuple(largest_id(job.rules, result.num_values(feature)) for feature in single)
    layout = RecordLayout(len(job.schema.dense), largest, job.dtypes["dense"])
    scatter, kept = plan_scatter(job, units, layout)
    with _stage("scatter", sum(task.unit.record.rows for task in scatter) * layout.row_bytes, pool):
        groups = scatter_groups(scatter, job.shard_rows, pool.workers)
        moved = [record for records in pool.map(run_scatter_tasks, groups) for record in records if record.rows]
    tasks = gather_tasks(job, moved, kept, result.rows, layout, rows_per_shard(job, result.records))
    row_bytes = 4 * (1 + len(job.schema.dense) + len(result.features))
    with _stage("gather", sum(result.rows.values()) * row_bytes, pool):
        gathered = list(pool.map(run_gather_task, tasks))
    result.built = [place_gathered(job, root, task, shard) for task, shard in zip(tasks, gathered, strict=True)]


def _expand(job: Job, bags: MultiHot, root: Path, result: Result, pool: Pool) -> None:
    """Ids to bags, in the finished shards."""
    sizes = tuple(num_embeddings(job.rules, result.num_values(feature)) for feature in result.features)
    tasks = [ExpandTask(job, root, built, sizes) for built in result.built]
    with _stage("multi-hot tables", bags.table_bytes(sizes), pool):
        MultiHotTables.open(job.work / TABLES_DIRECTORY, sizes, bags, count=lambda drawn: pool.counters.add(drawn, 0))
    with _stage("multi-hot", sum(expanded_bytes(built, bags) for built in result.built), pool):
        result.built = list(pool.map(run_expand_task, tasks))
