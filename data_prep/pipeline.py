"""Raw files to a finished dataset: parse units, fit the vocabulary, encode, lay out, write the manifest.

Every stage leaves records in <dataset>/.work, so the same command after a kill goes on where it stopped.
What is written depends on the sources and the parameters alone: not on the workers, nor on any kills.
"""

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from common.errors import UserError
from common.jit import compile_notice
from common.memory import keep_freed_memory
from data_prep.config.checks import GENERATED, refuse_idle_keys, validate
from data_prep.config.differences import tell_departures
from data_prep.config.keys import DataConfig, chunk_size, dataset_path, may_use_processes, usable_cpus
from data_prep.config.presets import Rules, resolve_rules
from data_prep.config.table_sizes import num_embeddings
from data_prep.dataset.format import SPLITS, Manifest, build_manifest
from data_prep.dataset.multi_hot import MultiHot
from data_prep.dataset.options import DataSource
from data_prep.dataset.schema import CRITEO
from data_prep.dataset.table_spec import Table
from data_prep.engine.job import Job
from data_prep.engine.memory_budget import check_disk
from data_prep.engine.processes import start_fork_server
from data_prep.engine.workspace import claimed, find_finished, keep_or_discard_work, publish, refuse_foreign_files
from data_prep.job_setup import chosen_bags, find_sources, refuse_early, user_table
from data_prep.sources.remote import known_sums, note_read
from data_prep.stages.bayes_scores import dataset_scores
from data_prep.stages.compile_kernels import compile_kernels
from data_prep.stages.run import Result, run_stages
from data_prep.stages.split import moves_to_dataset
from data_prep.synthetic.random_ids import RandomRows
from data_prep.synthetic.write import Generator, write_generated
from data_prep.traces.rows import TraceRows


def preprocess(data: DataConfig) -> Manifest:
    """Make the dataset that `data` describes, or go on making it, or find it made.

    Raises:
        UserError: bad configuration or input; there is then no manifest at data.path, unless an older
            dataset was there.
    """
    validate(data)
    root = dataset_path(data)
    if data.scheduler is not None:
        root = root.absolute()  # its workers may be in other directories
    if data.source in GENERATED:
        refuse_idle_keys(data)
        return write_generated(data, root, _generator(data))
    refuse_early(data, root)
    try:
        with claimed(root) as work:
            sources = tuple(find_sources(data, root))
            rules = resolve_rules(data, len(sources))
            table = user_table(data, sources)
            schema = CRITEO if table is None else table.schema
            bags = chosen_bags(data, rules, schema)
            parameters = encoding_parameters(data, rules, table, bags)
            found = find_finished(root, parameters, schema.to_manifest(), sources, data.overwrite)
            if found is not None:
                print(f"{root}: already done ({found.rows:,} rows)", file=sys.stderr)
                return found
            tell_departures(rules)
            refuse_foreign_files(root, work, sources)
            keep_or_discard_work(work, parameters, sources)
            known = known_sums(data, root, sources) if data.source is DataSource.remote else ()
            job = Job(work, sources, schema, rules, parameters["chunk_bytes"], table, bags, known)
            manifest = _make(data, root, job, parameters)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{error.filename or root}: {reason}; check data.path and the disk") from error
    print(f"{root}: {_summary(manifest)}", file=sys.stderr)
    return manifest


def _generator(data: DataConfig) -> Generator:
    """What makes the rows of data=random or data=trace."""
    threads = data.workers or usable_cpus()
    return RandomRows(data.random, threads) if data.source is DataSource.random else TraceRows(data.trace, threads)


def encoding_parameters(
    data: DataConfig, rules: Rules, table: Table | None = None, bags: MultiHot | None = None
) -> dict[str, Any]:
    """What decides the shards' bytes besides the rows, as the manifest's `encoding` holds it."""
    return {
        **rules.to_manifest(),
        "chunk_bytes": chunk_size(data, rules.is_arranged, table is not None and bool(table.schema.ragged)),
        "table": None if table is None else table.to_manifest(),
        **({} if bags is None else {"multi_hot": bags.to_plain()}),
    }


def _make(data: DataConfig, root: Path, job: Job, parameters: dict[str, Any]) -> Manifest:
    """Run all stages and finish."""
    check_disk(root, job)
    if may_use_processes(data):
        start_fork_server()  # it loads the kernels while this process does
    keep_freed_memory()
    with compile_notice("the parser"):
        compile_kernels()
    begin = time.monotonic()
    result = run_stages(data, job, root)
    if data.source is DataSource.remote:
        note_read(data, root, job.sources, result.digests)
    extra: dict[str, Any] = {}
    if data.source is DataSource.synthetic:
        extra["bayes"] = dataset_scores(job, result.records, result.rows)
    extra |= {
        "peak_memory_bytes": result.peak_bytes,
        "workers": result.workers,
        "seconds": round(time.monotonic() - begin, 3),
        "stage_seconds": result.seconds,
        "source_mtime_ns": [source.mtime_ns for source in job.sources],
        "out_of_vocabulary": _count_unknown(result),
    }
    manifest = _describe(job, result, parameters, extra)
    return publish(job.work, root, manifest, moves_to_dataset(job, manifest, result.built))


def _count_unknown(result: Result) -> dict[str, dict[str, int]]:
    """Values without an id of their own, per split and feature."""
    totals = {split: dict.fromkeys(result.features, 0) for split in SPLITS}
    for shard in result.built:
        for feature, count in zip(result.features, shard.unknown, strict=True):
            totals[shard.split][feature] += count
    return totals


def _describe(job: Job, result: Result, parameters: dict[str, Any], extra: dict[str, Any]) -> Manifest:
    """The manifest."""
    schema = replace(job.schema, sparse=result.features)
    if job.bags is not None:
        several = (name for name, size in zip(result.features, job.bags.sizes, strict=True) if size > 1)
        schema = replace(schema, ragged=tuple(several))
    ranges = [{"low": known.low.tolist(), "high": known.high.tolist()} for known in result.ranges]
    encoding = parameters | {"raw_schema": job.schema.to_manifest(), "dense_range": ranges}
    if result.vocabularies:
        entries = {name: asdict(result.vocabularies[name]) for name in result.features}
        encoding["vocabulary"] = entries
    source_rows = [0] * len(job.sources)
    for record in result.records:
        source_rows[record.source] += record.rows
    return build_manifest(
        schema,
        encoding,
        num_embeddings={name: num_embeddings(job.rules, result.num_values(name)) for name in result.features},
        shards=[(shard.split, shard.shard, shard.positives) for shard in result.built],
        sources=zip([source.name for source in job.sources], result.digests, source_rows, strict=True),
        extra=extra,
    )


def _summary(manifest: Manifest) -> str:
    splits = ", ".join(f"{name} {split.rows:,}" for name, split in manifest.splits.items())
    return (
        f"{manifest.rows:,} rows ({splits}), label rate {manifest.label_rate:.4f}, "
        f"{sum(manifest.num_embeddings.values()):,} embedding rows, "
        f"peak memory {manifest.extra['peak_memory_bytes'] / 2**20:.0f} MiB"
    )
