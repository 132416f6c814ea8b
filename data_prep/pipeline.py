"""Preparation of a dataset of rows from raw files, in one function per step.

`prepare_rows` finds the sources and settles the job. `run_stages` parses them to chunks, fits vocabularies, encodes,
and makes shards. `finish.describe_dataset` builds the manifest. Files of tasks stay in <dataset>/.work, so the same
command resumes a killed job. The result depends only on the sources and the parameters, not on workers or kills.
"""

import sys
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.extensions import load
from common.jit import compile_notice
from common.keys import refuse, shown
from common.machine import keep_freed_memory, require_memory, usable_cpus
from data_prep import job as jobs
from data_prep.config import (
    USED_BY_GENERATORS,
    DataConfig,
    may_use_processes,
    parse_size,
    raw_row_faults,
    report_differences,
    resolve_rules,
    unused_key_faults,
    validate,
)
from data_prep.dataset.format import Manifest, unseen_sentence
from data_prep.dataset.kinds import data_checks, misleading_sentences
from data_prep.dataset.options import CRITEO, to_json
from data_prep.executor import Executor, open_executor, peak_memory, start_fork_server
from data_prep.job import Job, begin_or_resume
from data_prep.lookup import column_transforms, map_tables, write_tables
from data_prep.sources.download import source_sums
from data_prep.sources.files import GIVEN, SOURCE_MD5, given_md5s, missing_days, note_times
from data_prep.stages import finish
from data_prep.stages.fit import dense_ranges, fit_dense, fit_vocabularies, fitted_records, kept_values
from data_prep.stages.parse import compare_md5s, compile_kernels, parse_sources, parse_tasks
from data_prep.stages.place import order_rows, rows_by_source, split_sizes
from data_prep.stages.write import ParsedChunk, make_shards, moves_to_dataset, row_layout, write_generated


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
        return (jobs.kind_to_make(data).prepare or prepare_rows)(data, root)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{error.filename or root}: {reason}; check data.path and the disk") from error


def prepare_rows(data: DataConfig, root: Path) -> Manifest:
    """Make a dataset of rows from raw files. Raise UserError as `preprocess` does."""
    # Incompatible settings are refused before anything is downloaded or generated.
    require_memory("preprocessing")
    refuse(raw_row_faults(data))
    # Called for its errors alone. Rows of another source may have a schema, which has to be read first.
    if data.source_kind.makes is not None:
        resolve_rules(data, max(data.synthetic.days, len(data.days or [])))
    with jobs.claim_work(root) as work:
        # The sources, their columns, and the parameters that with the rows decide the shards' bytes.
        sources = tuple(jobs.find_sources(data, root, work))
        table = jobs.describe_table(data, root, sources)
        rules = resolve_rules(data, len(sources), table)
        schema = CRITEO if table is None else table.schema
        jobs.require_droppable(data, schema)
        parameters = jobs.encoding_parameters(data, rules, table)

        # A finished dataset of the same files and parameters is returned as it is; any other is refused.
        md5s = given_md5s(data.checksums, sources)
        finished = jobs.find_finished(root, {"table": parameters["table"]}, to_json(schema), sources, data)
        if finished is not None:
            if SOURCE_MD5 in finished.extra:
                GIVEN.refuse_other((source.path for source in sources), md5s, finished.extra[SOURCE_MD5])
            return finished
        report_differences(rules)

        # Before a job starts or resumes: the directory must be free for it, and the disk large enough.
        jobs.refuse_foreign_files(root, work, [Path(source.path) for source in sources])
        expected_sums = source_sums(data, sources) if data.remote.name else ()
        chunk_bytes, per_shard = jobs.divide_shard(parameters["chunk_bytes"], table is not None)
        keeps_texts = data.keep_texts is not False
        column = None
        if rules.split_column and rules.split is not None and table is not None:
            from data_prep.encoding import find_split_column  # imports pyarrow, which Criteo's rows do not need

            column = find_split_column(rules.split_column, rules.split.algorithm.reads == "times", table, sources)
        directory = jobs.job_directory(work, parameters, sources)
        job = Job(directory, sources, schema, rules, chunk_bytes, table, expected_sums, keeps_texts, per_shard, column)
        jobs.check_room(data, root, job)
        begin_or_resume(directory)
        manifest = _make_dataset(data, root, job, parameters)
    splits = ", ".join(f"{name} {split.rows:,}" for name, split in manifest.splits.items())
    rate = "" if manifest.label_rate is None else f"label rate {manifest.label_rate:.4f}, "
    num_rows, peak = sum(manifest.num_embeddings.values()), manifest.extra["peak_memory_bytes"] / 2**20
    figures = f"{rate}{num_rows:,} embedding rows, peak memory {peak:.0f} MiB"
    print(f"{root}: {manifest.rows:,} rows ({splits}), {figures}", file=sys.stderr)
    return manifest


def _make_dataset(data: DataConfig, root: Path, job: Job, parameters: dict[str, Any]) -> Manifest:
    """Run all stages, add figures and warnings, and publish the dataset. `parameters`: for the manifest's encoding."""
    if may_use_processes(data):
        start_fork_server(job.table is not None)  # in the background, beside this process's own start
    keep_freed_memory()
    if job.table is None:  # pyarrow reads other rows
        with compile_notice("the parser"):
            compile_kernels()
    begin = time.monotonic()
    result = run_stages(data, job)

    # Figures that the manifest keeps beside its shards: of the source, of extensions' checks, and of the job.
    figures = data.source_kind.figures
    extra: dict[str, Any] = load(figures)(data, job, result.records, result.rows) if figures else {}
    features, budget = tuple(result.num_values), parse_size(data.memory_budget, "data.memory_budget")
    own_checks = {check.name: check.figures(job, result.built, features, budget) for check in data_checks()}
    extra |= {
        "peak_memory_bytes": max(result.peak_bytes, peak_memory()),
        "workers": result.workers,
        "seconds": round(time.monotonic() - begin, 3),
        "stage_seconds": result.seconds,
        **note_times(job.sources),
        **({SOURCE_MD5: result.md5s} if result.md5s else {}),
        **finish.id_figures(job, result.built, result.records, result.num_values),
        **own_checks,
    }
    manifest = finish.describe_dataset(job, result, parameters, extra)

    # Warnings come last, so that they stand together below the progress of the stages.
    if len(job.sources) > 1:
        first, last = job.sources[0].name, job.sources[-1].name
        print(f"{root}: {len(job.sources)} raw files, from {first} to {last}", file=sys.stderr)
    missing = ", ".join(missing_days(job.sources)) if data.source_kind.makes is None else ""
    lines = [f"among the raw files there is no {missing}" if missing else None]
    lines += [*result.warnings, unseen_sentence(manifest), *finish.random_split_of_times(job, data.split.method)]
    lines += [*misleading_sentences(manifest.extra), *finish.warnings(manifest, result.constant)]
    for line in filter(None, lines):
        print(f"{root}: warning: {line}", file=sys.stderr)

    # The dataset exists from here on: the files move to it, and its manifest last.
    return jobs.publish(job.work, root, manifest, moves_to_dataset(job, manifest, result.built))


def run_stages(data: DataConfig, job: Job) -> finish.Result:
    """Run all stages, which leave their files in `job.work`; return what they found, for figures and manifest."""
    workers, is_whole = jobs.plan_parsing(data, job, len(parse_tasks(job)))
    with open_executor(data.scheduler, workers) as executor:
        # Raw files to chunks of columns; equal files and labels of one class are refused as soon as they are known.
        md5s = compare_md5s(job, data.checksums, executor) if data.train is not None else []
        records, digests, forms = parse_sources(job, executor, is_whole)
        finish.refuse_labels(job, fitted_records(job, records), data.allow_degenerate)
        result = finish.Result(records, digests, forms, md5s, executor.workers, dict.fromkeys(job.schema.sparse))

        # Before ids can be made: the split and place of each row, and vocabularies of the values that count.
        executor.release()
        _order_and_fit(data, job, result, executor)

        # Values to ids, on the way to the rows' places in shards.
        values = {name: count for name, count in result.num_values.items() if count is not None}
        executor.release(jobs.workers_to_encode(data, job, workers, values))
        write_tables(job.work, tuple(values))
        sums = tuple(result.vocabularies[name].files["npy"].sha256 for name in values)
        result.ranges, features = dense_ranges(job, records), tuple(result.num_values)
        ranges = result.ranges * len(job.sources) if len(result.ranges) == 1 else result.ranges  # of all, or of each
        transforms, ends = tuple(column_transforms(job.table, result.fits)), accumulate(each.rows for each in records)
        chunks = [
            ParsedChunk(
                job, record, end - record.rows, features, sums, ranges[record.source] if ranges else None, transforms
            )
            for record, end in zip(records, ends, strict=True)
        ]
        result.built = make_shards(job, chunks, result.rows, row_layout(job, result.num_values), executor)
        map_tables.cache_clear()  # or this process would keep the file of the tables, and its room on the disk
        result.peak_bytes, result.seconds = executor.peak_bytes, executor.seconds
    return result


def _order_and_fit(data: DataConfig, job: Job, result: finish.Result, executor: Executor) -> None:
    """Decide the split and order of rows, and fit vocabularies."""
    if job.rules.is_arranged:
        with executor.stage("arrange", 0):
            result.rows = order_rows(job, result.records)
    else:
        result.rows = split_sizes(job, rows_by_source(job, result.records))
    finish.refuse_empty_splits(job, result.rows, data.allow_degenerate)
    if job.rules.order is not None:
        limit = result.rows["train"] if job.rules.fitted_on_train else sum(result.rows.values())
        result.vocabularies = fit_vocabularies(job, result.records, limit, jobs.counts_bytes(data), executor)
        result.warnings += finish.rare_columns(job, result.vocabularies, data.allow_degenerate)
        result.num_values = kept_values(job, result.vocabularies)
    if job.table is not None:
        result.fits = fit_dense(job, result.records, result.rows["train"], executor)
    fitted = fitted_records(job, result.records)
    result.constant = list(finish.constant_columns(job, fitted, result.vocabularies))
    result.warnings += [*finish.cut_columns(job, result.records), *finish.undivided_columns(job, fitted)]
