"""Preparation of a dataset of rows from raw files, in one function per step.

`prepare_rows` finds the sources and settles the job. `run_stages` parses them to chunks, fits vocabularies, encodes,
and makes shards. `_describe_dataset` builds the manifest. Every task is logged in <dataset>/.work, so the same command
resumes a killed job. The result depends only on the sources and the parameters, not on the workers or any kills.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from common.command import load
from common.errors import UserError
from common.files import FileDigest
from common.jit import compile_notice
from common.keys import refuse, shown
from common.machine import keep_freed_memory, usable_cpus
from data_prep.config.keys import DataConfig, may_use_processes, parse_size
from data_prep.config.presets import (
    USED_BY_GENERATORS,
    largest_id,
    num_embeddings,
    report_differences,
    resolve_rules,
    unused_key_faults,
    validate,
)
from data_prep.dataset.format import SPLITS, UNSEEN, Manifest, build_manifest, unseen_sentence
from data_prep.dataset.kinds import SHARED_IDS, data_checks, misleading_sentences
from data_prep.dataset.multi_hot import TABLES_DIRECTORY, MultiHotTables
from data_prep.dataset.options import CRITEO, DenseTransform
from data_prep.dataset.spelling import Form, to_text
from data_prep.encoding.lookup import DenseRange, column_transforms, join_ranges, write_tables
from data_prep.engine.executor import Executor, open_executor, peak_memory, start_fork_server
from data_prep.engine.job import (
    ChunkRecord,
    Job,
    check_disk,
    claim_work,
    counts_bytes,
    find_finished,
    keep_or_discard_work,
    num_workers,
    publish,
    reads_whole,
    refuse_foreign_files,
    window_rows,
    workers_to_encode,
)
from data_prep.job_setup import (
    choose_bags,
    describe_table,
    divide_shard,
    encoding_parameters,
    find_sources,
    kind_to_make,
    refuse_early,
    require_droppable,
    split_column,
)
from data_prep.sources.discover import describe_sources, given_md5s, missing_days, refuse_other_md5
from data_prep.sources.download import SOURCE_MD5, note_read_sums, note_times, source_sums
from data_prep.stages.checks import (
    constant_columns,
    cut_columns,
    mean_weight,
    random_split_of_times,
    rare_columns,
    refuse_absent_labels,
    refuse_one_class,
    shared_ids,
    undivided_columns,
    unseen_shares,
    warnings,
)
from data_prep.stages.fit import VocabularyRecord, count_chunks, fit_dense, fit_vocabularies, plan_counting
from data_prep.stages.generate import write_generated
from data_prep.stages.parse import (
    DigestTask,
    Md5Task,
    ParseTask,
    compile_kernels,
    parse_tasks,
    reading_tasks,
    refuse_changed,
    refuse_empty,
    refuse_same,
    refuse_same_rows,
    refuse_wrong_sums,
)
from data_prep.stages.place import order_in_background, rows_by_source, split_sizes
from data_prep.stages.write import (
    BuiltShard,
    EncodeTask,
    ExpandTask,
    RowLayout,
    built_shard,
    fitted_records,
    gather_tasks,
    is_whole_chunk,
    moves_to_dataset,
    plan_cut,
    plan_scatter,
    refuse_empty_splits,
    rows_per_shard,
    shard_of_whole_chunk,
)


def preprocess(data: DataConfig) -> Manifest:
    """Make the dataset that `data` describes, resume an unfinished job, or return the finished dataset."""
    root = data.root
    validate(data)
    if data.scheduler is not None:
        root = root.absolute()  # the cluster's workers may have other working directories
    source = data.source_kind
    try:
        if source.generator:
            reason = f"with data.source={shown(data.source)}, which makes ids itself"
            refuse(unused_key_faults(data, USED_BY_GENERATORS, reason))
            threads = data.workers or usable_cpus()
            return write_generated(data, root, load(source.generator)(getattr(data, source.group), threads))
        parts = kind_to_make(data).parts
        return (prepare_rows if parts is None else parts().prepare)(data, root)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{error.filename or root}: {reason}; check data.path and the disk") from error


def prepare_rows(data: DataConfig, root: Path) -> Manifest:
    """Make a dataset of rows from raw files. Raise UserError as `preprocess` does."""
    refuse_early(data, root)
    with claim_work(root) as work:
        # The sources, their columns, and the parameters that with the rows decide the shards' bytes.
        sources = tuple(find_sources(data, root, work))
        table = describe_table(data, root, sources)
        rules = resolve_rules(data, len(sources), table)
        schema = CRITEO if table is None else table.schema
        require_droppable(data, schema)
        bags = choose_bags(data, rules, schema)
        parameters = encoding_parameters(data, rules, table, bags)

        # A finished dataset of the same files and parameters is returned as it is; any other is refused.
        md5s = given_md5s(data.checksums, sources)
        finished = find_finished(root, {"table": parameters["table"]}, schema.to_manifest(), sources, data)
        if finished is not None:
            if SOURCE_MD5 in finished.extra:
                refuse_other_md5(sources, md5s, finished.extra[SOURCE_MD5])
            return finished
        report_differences(rules)

        # Before a job starts or resumes: the directory must be free for it, and the disk large enough.
        refuse_foreign_files(root, work, [Path(source.path) for source in sources])
        expected_sums = source_sums(data, root, sources) if data.remote.name else ()
        chunk_bytes, per_shard = divide_shard(parameters["chunk_bytes"], table is not None)
        keeps_texts = data.keep_texts is not False
        column = split_column(rules, table, sources)
        job = Job(work, sources, schema, rules, chunk_bytes, table, bags, expected_sums, keeps_texts, per_shard, column)
        check_disk(root, job)
        keep_or_discard_work(work, parameters, sources)
        manifest = _make_dataset(data, root, job, parameters)
    print(f"{root}: {_summarize(manifest)}", file=sys.stderr)
    return manifest


def _make_dataset(data: DataConfig, root: Path, job: Job, parameters: dict[str, Any]) -> Manifest:
    """Run all stages, add figures and warnings, and publish the dataset. `parameters`: for the manifest's encoding."""
    if may_use_processes(data):
        start_fork_server(job.table is not None)  # in the background, beside this process's own start
    keep_freed_memory()
    with compile_notice("the parser"):
        compile_kernels()
    begin = time.monotonic()
    result = run_stages(data, job)
    if data.remote.name:
        note_read_sums(data, root, job.sources, result.digests)

    # Figures that the manifest keeps beside its shards: of the source, of extensions' checks, and of the job.
    figures = data.source_kind.figures
    extra: dict[str, Any] = load(figures)(data, job, result.records, result.rows) if figures else {}
    budget = parse_size(data.memory_budget, "data.memory_budget")
    checks = {check.name: check.figures(job, result.built, result.features, budget) for check in data_checks()}
    extra |= {
        "peak_memory_bytes": max(result.peak_bytes, peak_memory()),
        "workers": result.workers,
        "seconds": round(time.monotonic() - begin, 3),
        "stage_seconds": result.seconds,
        **note_times(job.sources),
        **({SOURCE_MD5: result.md5s} if result.md5s else {}),
        "out_of_vocabulary": _count_unknown(job, result),
        UNSEEN: unseen_shares(job, result.built, result.features),
        SHARED_IDS: shared_ids(job, result.built, result.records, result.features, result.num_values),
        **checks,
    }
    manifest = _describe_dataset(job, result, parameters, extra)

    # Warnings come last, so that they stand together below the progress of the stages.
    if len(job.sources) > 1:
        print(f"{root}: {describe_sources(job.sources)}", file=sys.stderr)
    missing = ", ".join(missing_days(job.sources)) if data.source_kind.makes is None else ""
    lines = [f"among the raw files there is no {missing}"] if missing else []
    unseen = unseen_sentence(manifest)
    lines += [*result.warnings, *([] if unseen is None else [unseen])]
    lines += [*random_split_of_times(job, data.split.method), *misleading_sentences(manifest.extra)]
    for line in (*lines, *warnings(manifest, result.constant)):
        print(f"{root}: warning: {line}", file=sys.stderr)

    # The dataset exists from here on: the files move to it, and its manifest last.
    return publish(job.work, root, manifest, moves_to_dataset(job, manifest, result.built))


@dataclass
class Result:
    """Results of the stages, from which the manifest is made.

    Attributes:
        features: sparse features to keep.
        fits: fit of each dense column whose own transform needs one.
        ranges: ranges of the integers if the transform needs them, per source (torchrec) or overall (minmax).
        constant: columns with one value in all rows; warnings: sentences about other columns.
        built: shards, ready to move to the dataset.
        forms: spellings of each sparse column of a user's own table.
        md5s: MD5 of each source if splits are given.
        peak_bytes: memory of all processes; seconds: duration of each stage.
    """

    records: list[ChunkRecord]
    digests: list[FileDigest]
    features: tuple[str, ...]
    workers: int
    rows: dict[str, int] = field(default_factory=dict)
    vocabularies: dict[str, VocabularyRecord] = field(default_factory=dict)
    fits: dict[str, list[float]] = field(default_factory=dict)
    ranges: list[DenseRange] = field(default_factory=list)
    constant: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    built: list[BuiltShard] = field(default_factory=list)
    forms: list[Form] = field(default_factory=list)
    md5s: list[str] = field(default_factory=list)
    peak_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def num_values(self, feature: str) -> int | None:
        """Return the number of values in a feature's vocabulary, or None without one."""
        return self.vocabularies[feature].values if self.vocabularies else None


def run_stages(data: DataConfig, job: Job) -> Result:
    """Run everything except the moves of files to the dataset."""
    workers = num_workers(data, job, len(parse_tasks(job)))
    with open_executor(data.scheduler, workers) as executor:
        # Raw files to chunks of columns; equal files and labels of one class are refused as soon as they are known.
        md5s = _compare_md5s(data, job, executor) if data.train is not None else []
        result = _parse_sources(job, executor, reads_whole(data, job, workers))
        refuse_absent_labels(job, fitted_records(job, result.records))
        if not data.allow_degenerate:
            refuse_one_class(job, fitted_records(job, result.records))
        result.md5s = md5s

        # Before ids can be made: the split and place of each row, and vocabularies of the values that count.
        executor.release()
        _order_and_fit(data, job, result, executor)

        # Values to ids. Rows that travel to another shard get theirs on the way, unless a feature has bags.
        values = {name: result.vocabularies[name].values for name in result.features if result.vocabularies}
        executor.release(workers_to_encode(data, job, workers, values))
        write_tables(job.work, tuple(values))
        chunks = _chunks_to_encode(job, result)
        if _needs_encode_stage(job):
            with executor.stage("encode", sum(chunk.record.encoded_bytes for chunk in chunks)):
                records = list(executor.map(chunks))
            chunks = [replace_fields(chunk, record=record) for chunk, record in zip(chunks, records, strict=True)]
            result.records = [chunk.record for chunk in chunks]

        # Chunks to shards: rows that are reordered travel to theirs; otherwise chunks are cut where a split ends.
        if job.rules.is_arranged:
            _shuffle_to_shards(job, result, chunks, executor)
        else:
            # Make shards of consecutive rows: whole chunks as they are, others cut where a split or shard ends.
            tasks = plan_cut(chunks, result.rows, _row_layout(job, result))
            cut = [task for task in tasks if not is_whole_chunk(task)]
            with executor.stage("cut", sum(task.size[0] for task in cut)):
                gathered = iter(list(executor.map(cut)))
            for task in tasks:
                result.built.append(
                    shard_of_whole_chunk(task) if is_whole_chunk(task) else built_shard(task, next(gathered))
                )
        if job.bags is not None:
            executor.release()
            _expand_bags(job, result, executor)
        result.peak_bytes, result.seconds = executor.peak_bytes, executor.seconds
    return result


def _compare_md5s(data: DataConfig, job: Job, executor: Executor) -> list[str]:
    """Return the MD5 of each source; refuse sums other than the given ones, and equal files."""
    with executor.stage("checksum", sum(source.bytes for source in job.sources)):
        md5s = list(executor.map(Md5Task(source) for source in job.sources))
    refuse_other_md5(job.sources, given_md5s(data.checksums, job.sources), md5s)
    refuse_same(job.sources, md5s)
    return md5s


def _parse_sources(job: Job, executor: Executor, whole: bool) -> Result:
    """Parse all sources to chunks; refuse files that changed, are empty, are alike, or have other checksums than known.

    whole: read each text file once, as one task, for rows and checksum.
    """
    result = Result([], [], job.schema.sparse, executor.workers)
    with executor.stage("parse", sum(source.work_bytes for source in job.sources)):
        _read_sources(executor, reading_tasks(job, whole), result)
        forms = zip(*(record.forms for record in result.records), strict=True)
        result.forms = [Form(reduce(or_, column)) for column in forms]
        # The spellings of val's and test's files follow train's, so train is read first.
        _read_sources(executor, reading_tasks(job, whole, tuple(result.forms)), result)
        refuse_empty(job, result.records)
        refuse_changed(job.sources)
        refuse_wrong_sums(job, result.digests)
        refuse_same(job.sources, [digest.sha256 for digest in result.digests])
        refuse_same_rows(job.sources, ((record.source, record.rows, record.files) for record in result.records))
    return result


def _read_sources(executor: Executor, tasks: Sequence[ParseTask | DigestTask], result: Result) -> None:
    """Read some sources, and add their chunks and digests to a result."""
    for reading in executor.map(tasks):
        result.records.extend(reading.records)
        result.digests += [] if reading.digest is None else [reading.digest]


def _order_and_fit(data: DataConfig, job: Job, result: Result, executor: Executor) -> None:
    """Decide the split and order of rows, and fit vocabularies; both at the same time if all rows count."""
    fits_all = job.rules.counts_while_parsing and not job.rules.fitted_on_train
    with order_in_background(job, result.records, window_rows(data)) as ordered:
        # Ordering takes one thread of this process, so the workers fit vocabularies meanwhile.
        if fits_all:
            _fit_features(data, job, result, executor, sum(record.rows for record in result.records))
        if ordered is None:
            result.rows = split_sizes(job, rows_by_source(job, result.records))
        else:
            with executor.stage("arrange", 0):
                result.rows = ordered.result()
    refuse_empty_splits(job, result.rows, data.allow_degenerate)
    if job.rules.order is not None and not fits_all:
        limit = result.rows["train"] if job.rules.fitted_on_train else sum(result.rows.values())
        _fit_features(data, job, result, executor, limit)
    if job.table is not None:
        result.fits = fit_dense(job, result.records, result.rows["train"], executor)
    result.constant = list(constant_columns(job, fitted_records(job, result.records), result.vocabularies))
    result.warnings += [*cut_columns(job, result.records), *undivided_columns(job, fitted_records(job, result.records))]


def _fit_features(data: DataConfig, job: Job, result: Result, executor: Executor, limit: int) -> None:
    """Fit vocabularies on the rows at positions below the limit, and decide which features to keep."""
    count_tasks = plan_counting(job, result.records, limit)
    with executor.stage("count", sum(task.record.value_bytes for task in count_tasks if not task.is_done)):
        counts = count_chunks(count_tasks, executor)
    num_bytes = sum(chunk.record.files[chunk.suffix].bytes for chunk in counts)
    with executor.stage("vocabulary", num_bytes):
        result.vocabularies = fit_vocabularies(job, counts, counts_bytes(data), executor)
    result.warnings += rare_columns(job, result.vocabularies, data.allow_degenerate)
    max_values = job.rules.max_categories
    if max_values is not None:
        features = [name for name, entry in result.vocabularies.items() if entry.values <= max_values]
        result.features = tuple(features)
        if not features:
            raise UserError(
                f"data.encoding={job.rules.encoding.value}: every column has more than {max_values} values; "
                "use another encoding"
            )


def _chunks_to_encode(job: Job, result: Result) -> list[EncodeTask]:
    """Return each chunk with what its encoding takes: features, vocabularies, range and transforms."""
    ranges, transforms = _ranges_by_source(job, result), tuple(column_transforms(job.table, result.fits))
    digests = tuple(result.vocabularies[name].digest.sha256 for name in result.features if result.vocabularies)
    return [
        EncodeTask(job, record, result.features, digests, ranges[record.source] if ranges else None, transforms)
        for record in result.records
    ]


def _ranges_by_source(job: Job, result: Result) -> list[DenseRange]:
    """Return the range that transforms each source's integers, and note it; empty if the transform needs none."""
    if not job.rules.needs_statistics:
        return []
    by_source: list[list[DenseRange]] = [[] for _ in job.sources]
    for record in result.records:
        if record.rows:
            low, high = np.array(record.dense_low), np.array(record.dense_high)
            by_source[record.source].append(DenseRange(low, high))
    ranges = [join_ranges(source_ranges) for source_ranges in by_source]
    if job.rules.dense is DenseTransform.minmax:
        sources = {record.source for record in fitted_records(job, result.records)}
        result.ranges = [join_ranges([ranges[source] for source in sorted(sources)])]
        return result.ranges * len(job.sources)
    result.ranges = ranges
    return ranges


def _needs_encode_stage(job: Job) -> bool:
    """Return whether a separate stage writes encoded chunks: see data_prep/stages/write.py."""
    if job.rules.order is None and not job.needs_statistics:
        return False
    return not job.rules.is_arranged or bool(job.schema.ragged)


def _row_layout(job: Job, result: Result) -> RowLayout:
    """Return the layout of rows that are packed on their way to another shard."""
    single = [feature for feature in result.features if feature not in job.schema.ragged]
    # The largest possible id decides how many bytes an id takes in a packed row.
    largest = tuple(largest_id(job.rules, result.num_values(feature)) for feature in single)
    dtypes = job.dtypes
    return RowLayout(len(job.schema.dense), largest, dtypes["dense"], dtypes["labels"], bool(job.schema.weight))


def _shuffle_to_shards(job: Job, result: Result, chunks: list[EncodeTask], executor: Executor) -> None:
    """Make shards of rows that are reordered: scatter chunks by position, then gather each shard's rows."""
    layout = _row_layout(job, result)
    scatter, kept_chunks = plan_scatter(job, chunks, layout)
    with executor.stage("scatter", sum(task.size[0] for task in scatter)):
        moved = [record for record in executor.map(scatter) if record.rows]
    tasks = gather_tasks(job, moved, kept_chunks, result.rows, layout, rows_per_shard(job, result.records))
    with executor.stage("gather", sum(task.size[0] for task in tasks)):
        gathered = executor.map(tasks)
        result.built = [built_shard(task, shard) for task, shard in zip(tasks, gathered, strict=True)]


def _expand_bags(job: Job, result: Result, executor: Executor) -> None:
    """Replace the ids of the built shards by bags, taken from tables that are drawn first."""
    assert job.bags is not None
    sizes = tuple(num_embeddings(job.rules, result.num_values(feature)) for feature in result.features)
    tasks = [ExpandTask(job, built, sizes) for built in result.built]
    with executor.stage("multi-hot tables", job.bags.table_bytes(sizes)):
        # The draws of all tables are one stream, so this process makes them, and the workers map the files.
        count = executor.counters.add
        MultiHotTables.open(job.work / TABLES_DIRECTORY, sizes, job.bags, count=lambda num_bytes: count(num_bytes, 0))
    with executor.stage("multi-hot", sum(task.size[0] for task in tasks)):
        expanded = executor.map(tasks)
        result.built = [task.result(shard) for task, shard in zip(tasks, expanded, strict=True)]


def _count_unknown(job: Job, result: Result) -> dict[str, dict[str, int]] | None:
    """Count values without their own id, per split and feature; None if other values share their id."""
    if job.rules.shares_unknown_id:
        return None
    totals = {split: dict.fromkeys(result.features, 0) for split in SPLITS}
    for shard in result.built:
        for feature, count in zip(result.features, shard.unknown, strict=True):
            totals[shard.split][feature] += count
    return totals


def _describe_dataset(job: Job, result: Result, parameters: dict[str, Any], extra: dict[str, Any]) -> Manifest:
    """Build the manifest.

    Args:
        parameters: entries of `encoding` that were settled before the rows were read. extra: see `Manifest`.
    """
    schema = replace(job.schema, sparse=result.features)
    if job.bags is not None:
        multi_hot = (name for name, size in zip(result.features, job.bags.sizes, strict=True) if size > 1)
        schema = replace(schema, ragged=tuple(multi_hot))
    ranges = [{"low": bounds.low.tolist(), "high": bounds.high.tolist()} for bounds in result.ranges]
    encoding = parameters | {"raw_schema": job.schema.to_manifest(), "dense_range": ranges}
    if result.vocabularies:
        vocabularies = {name: result.vocabularies[name] for name in result.features}
        encoding["vocabulary"] = {name: entry.to_manifest() for name, entry in vocabularies.items()}
    if job.table is not None:
        encoding |= {"dense_fits": result.fits} if result.fits else {}
        encoding |= {"mean_weight": mean_weight(job, result.built)} if job.schema.weight else {}
        encoding["spellings"] = dict(zip(job.schema.sparse, map(to_text, result.forms), strict=True))
    manifest = build_manifest(
        schema,
        encoding,
        num_embeddings={name: num_embeddings(job.rules, result.num_values(name)) for name in result.features},
        shards=[(shard.split, shard.shard, shard.positives) for shard in result.built],
        sources=zip(
            [source.name for source in job.sources], result.digests, rows_by_source(job, result.records), strict=True
        ),
        extra=extra,
    )
    for entry, source in zip(manifest.sources, job.sources, strict=True):
        if source.split is not None:
            entry["split"] = source.split
    return manifest


def _summarize(manifest: Manifest) -> str:
    """Return a line on a finished dataset for the log."""
    splits = ", ".join(f"{name} {split.rows:,}" for name, split in manifest.splits.items())
    rate = "" if manifest.label_rate is None else f"label rate {manifest.label_rate:.4f}, "
    return (
        f"{manifest.rows:,} rows ({splits}), {rate}"
        f"{sum(manifest.num_embeddings.values()):,} embedding rows, "
        f"peak memory {manifest.extra['peak_memory_bytes'] / 2**20:.0f} MiB"
    )
