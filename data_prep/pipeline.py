"""Raw files to a finished dataset: parse units, fit the vocabulary, encode, lay out, write the manifest.

Every stage leaves records in <dataset>/.work, so the same command after a kill goes on where it stopped.
What is written depends on the sources and the parameters alone: not on the workers, nor on any kills.
"""

import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.errors import UserError
from data_prep.budget import check_disk, num_encode_workers, num_workers
from data_prep.config import DataConfig, DataSource, Encoding, chunk_size, dataset_path, validate
from data_prep.encode import encode_dense, encode_hash
from data_prep.existing import find_finished, finish_pending, keep_or_discard_work, locked
from data_prep.fit import VocabularyEntry, fit_vocabularies
from data_prep.format import FileDigest, Manifest
from data_prep.jit import compile_notice
from data_prep.layout import (
    BuiltShard,
    Piece,
    build_shard,
    clear_dataset,
    collect_splits,
    finish,
    plan_finish,
    plan_pieces,
    resolve_method,
    split_rows,
)
from data_prep.parse import parse_bytes
from data_prep.pool import Pool
from data_prep.progress import Progress
from data_prep.schema import CRITEO
from data_prep.sources import Source, resolve_sources
from data_prep.synthetic import generate_days
from data_prep.units import EncodeTask, parse_tasks, run_digest_task, run_encode_task, run_parse_task
from data_prep.work import Job, UnitRecord

TOOL_VERSION = "clickwork 0.1.0"


@dataclass
class Result:
    """What the stages found out, on the way to the manifest."""

    records: list[UnitRecord]
    digests: list[FileDigest]
    rows: dict[str, int]
    peak_bytes: int
    workers: int
    vocabularies: dict[str, VocabularyEntry] = field(default_factory=dict)


def preprocess(data: DataConfig) -> Manifest:
    """Make the dataset that `data` describes, or go on making it, or find it made.

    Raises:
        UserError: bad configuration or input; there is then no manifest at data.path, unless an older
            dataset was there.
    """
    validate(data)
    root = dataset_path(data)
    try:
        with locked(root) as work:
            finish_pending(root, work)
            raw, extra = data.raw, {}
            if data.source is DataSource.synthetic:
                raw, extra["bayes"] = generate_days(data.synthetic, root, data.raw)
            sources = tuple(resolve_sources(raw))
            parameters = encoding_parameters(data, len(sources))
            found = find_finished(root, parameters, CRITEO.to_manifest(), sources, data.overwrite)
            if found is not None:
                print(f"{root}: already done ({found.rows:,} rows)", file=sys.stderr)
                return found
            keep_or_discard_work(work, parameters, sources)
            manifest = _make(data, root, work, sources, parameters, extra)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{error.filename or root}: {reason}; check data.path and the disk") from error
    print(f"{root}: {_summary(manifest)}", file=sys.stderr)
    return manifest


def encoding_parameters(data: DataConfig, num_sources: int) -> dict[str, Any]:
    """What decides the shards' bytes besides the rows, as the manifest's `encoding` holds it."""
    method = resolve_method(data.split.method, num_sources)
    return {
        "name": data.encoding.value,
        "dense_transform": "log1p",
        "frequency_threshold": data.frequency_threshold if data.encoding is Encoding.vocabulary else None,
        "max_ind_range": data.max_ind_range,
        "split": {"method": method.value, "held_out": data.split.held_out},
        "chunk_bytes": chunk_size(data),
    }


def _make(
    data: DataConfig,
    root: Path,
    work: Path,
    sources: tuple[Source, ...],
    parameters: dict[str, Any],
    extra: dict[str, Any],
) -> Manifest:
    """Run all stages and finish."""
    begin = time.monotonic()
    threshold, cap = data.frequency_threshold, data.max_ind_range
    job = Job(work, sources, CRITEO, data.encoding, threshold, cap, chunk_size(data))
    check_disk(root, sources, job.schema, job.encoding)
    _compile()
    result = _run_stages(data, job)
    pieces = plan_pieces(result.records, result.rows)
    built = [build_shard(job, root, piece) for piece in pieces]
    extra |= {
        "peak_memory_bytes": result.peak_bytes,
        "workers": result.workers,
        "seconds": round(time.monotonic() - begin, 3),
        "source_mtime_ns": [source.mtime_ns for source in sources],
        "out_of_vocabulary": _count_unknown(job, pieces, built),
    }
    manifest = _describe(job, result, parameters, pieces, built, extra)
    clear_dataset(root)
    plan_finish(job, manifest, built)
    return finish(work, root)


def _compile() -> None:
    """Have the kernels compiled and cached before the workers start."""
    with compile_notice("the parser"):
        block = parse_bytes(b"0" + b"\t" * 39 + b"\n", "warm-up")
        encode_dense(block.dense)
        encode_hash(block.sparse, 2)


def _run_stages(data: DataConfig, job: Job) -> Result:
    """Parse and encode everything; what remains is to put the files in their places."""
    tasks = parse_tasks(job)
    workers = num_workers(data, job.chunk_bytes, len(tasks))
    total = sum(source.bytes for source in job.sources)
    with Pool(workers) as pool:
        with Progress("parse", total, pool.counters):
            records = [record for result in pool.map(run_parse_task, tasks) for record in result]
            _refuse_empty(job, records)
        with Progress("checksum", total, pool.counters):
            digests = list(pool.map(run_digest_task, job.sources))
        result = Result(records, digests, split_rows(records, len(job.sources), data.split), 0, workers)
        if job.encoding is Encoding.vocabulary:
            run_bytes = sum(record.files["runs"].bytes for record in records)
            with Progress("vocabulary", run_bytes, pool.counters):
                result.vocabularies = fit_vocabularies(job, records, result.rows["train"], pool)
        result.peak_bytes = pool.peak_bytes
    if job.encoding is Encoding.vocabulary:
        values = [entry.values for entry in result.vocabularies.values()]
        with Pool(num_encode_workers(data, workers, values)) as pool:
            raw_bytes = sum(record.files["raw"].bytes for record in records)
            with Progress("encode", raw_bytes, pool.counters):
                sums = tuple(entry.sha256 for entry in result.vocabularies.values())
                encode_tasks = [EncodeTask(job, record, sums) for record in records]
                result.records = list(pool.map(run_encode_task, encode_tasks))
            result.peak_bytes = max(result.peak_bytes, pool.peak_bytes)
    return result


def _refuse_empty(job: Job, records: list[UnitRecord]) -> None:
    """A compressed file can be empty without looking so."""
    filled = {record.source for record in records if record.rows}
    for index, source in enumerate(job.sources):
        if index not in filled:
            raise UserError(f"{source.path}: no rows in it; get it again, or leave it out of data.raw")


def _count_unknown(job: Job, pieces: list[Piece], built: list[BuiltShard]) -> dict[str, dict[str, int]]:
    """Values without an id of their own, per split and feature."""
    totals = {split: dict.fromkeys(job.schema.sparse, 0) for split in ("train", "val", "test")}
    for piece, shard in zip(pieces, built, strict=True):
        for feature, count in zip(job.schema.sparse, shard.unknown, strict=True):
            totals[piece.split][feature] += count
    return totals


def _describe(
    job: Job,
    result: Result,
    parameters: dict[str, Any],
    pieces: list[Piece],
    built: list[BuiltShard],
    extra: dict[str, Any],
) -> Manifest:
    """The manifest."""
    if result.vocabularies:
        entries = {name: asdict(entry) for name, entry in result.vocabularies.items()}
        parameters = parameters | {"vocabulary": entries}
        num_embeddings = {name: entry.values + 1 for name, entry in result.vocabularies.items()}
    else:
        num_embeddings = dict.fromkeys(job.schema.sparse, int(job.max_ind_range or 0))
    total = sum(result.rows.values())
    source_rows = [0] * len(job.sources)
    for record in result.records:
        source_rows[record.source] += record.rows
    return Manifest(
        schema=job.schema.to_manifest(),
        encoding=parameters,
        num_embeddings=num_embeddings,
        splits=collect_splits(pieces, built),
        sources=[
            {"name": source.name, "bytes": digest.bytes, "sha256": digest.sha256, "rows": rows}
            for source, digest, rows in zip(job.sources, result.digests, source_rows, strict=True)
        ],
        rows=total,
        label_rate=sum(record.positives for record in result.records) / total,
        tool_version=TOOL_VERSION,
        extra=extra,
    )


def _summary(manifest: Manifest) -> str:
    splits = ", ".join(f"{name} {split.rows:,}" for name, split in manifest.splits.items())
    return (
        f"{manifest.rows:,} rows ({splits}), label rate {manifest.label_rate:.4f}, "
        f"{sum(manifest.num_embeddings.values()):,} embedding rows, "
        f"peak memory {manifest.extra['peak_memory_bytes'] / 2**20:.0f} MiB"
    )
