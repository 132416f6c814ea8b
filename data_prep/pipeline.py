"""Raw files to a finished dataset: parse units, fit the vocabulary, encode, lay out, write the manifest.

Every stage leaves records in <dataset>/.work, so the same command after a kill goes on where it stopped. What
is written depends on the sources and the parameters alone: not on the workers, nor on how often it was killed.
"""

import fcntl
import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.errors import UserError
from data_prep.budget import check_disk, num_encode_workers, num_workers
from data_prep.config import DataConfig, DataSource, Encoding, chunk_size, dataset_path, validate
from data_prep.encode import encode_dense, encode_hash
from data_prep.fit import VocabularyEntry, fit_vocabularies
from data_prep.format import (
    MANIFEST_NAME,
    FileDigest,
    Manifest,
    digest_file,
    load_manifest,
    write_atomically,
)
from data_prep.jit import compile_notice
from data_prep.layout import (
    PLAN_NAME,
    BuiltShard,
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
from data_prep.work import WORK_DIRECTORY, Job, UnitRecord

TOOL_VERSION = "clickwork 0.1.0"


def preprocess(data: DataConfig) -> Manifest:
    """Make the dataset that `data` describes, or go on making it, or find it made.

    Raises:
        UserError: bad configuration or input; there is then no manifest at data.path, unless an older
            dataset was there.
    """
    validate(data)
    root = dataset_path(data)
    extra: dict[str, Any] = {}
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root):
            if data.source is DataSource.synthetic:
                raw, extra["bayes"] = generate_days(data.synthetic, root, data.raw)
            else:
                raw = data.raw
            sources = resolve_sources(raw)
            found = _find_finished(data, root, sources)
            return found or _make(data, root, tuple(sources), extra)
    except OSError as error:
        raise UserError(f"{error.filename or root}: {error.strerror or error}; check data.path and the disk") from error
    finally:
        _remove_if_empty(root)


def encoding_parameters(data: DataConfig, num_sources: int) -> dict[str, Any]:
    """What decides the shards' bytes besides the rows, as the manifest's `encoding` holds it."""
    return {
        "name": data.encoding.value,
        "dense_transform": "log1p",
        "frequency_threshold": data.frequency_threshold if data.encoding is Encoding.vocabulary else None,
        "max_ind_range": data.max_ind_range,
        "split": {
            "method": resolve_method(data.split.method, num_sources).value,
            "held_out": data.split.held_out,
        },
        "chunk_bytes": chunk_size(data),
    }


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold <root>/.work for this process alone."""
    work = root / WORK_DIRECTORY
    work.mkdir(exist_ok=True)
    with open(work / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"{root}: another job is writing this dataset; wait for it, or choose another data.path") from error
        yield


def _remove_if_empty(root: Path) -> None:
    """Leave no trace of a job that finished nothing."""
    work = root / WORK_DIRECTORY
    try:
        if work.is_dir() and not any(path.is_file() and path.suffix == ".json" for path in work.rglob("*.json")):
            shutil.rmtree(work)
        root.rmdir()
    except OSError:
        pass


def _find_finished(data: DataConfig, root: Path, sources: list[Source]) -> Manifest | None:
    """The dataset at `root` if it is the one asked for; None if there is none, or it is to be replaced.

    Raises:
        UserError: there is another one.
    """
    if not (root / MANIFEST_NAME).exists() or (root / WORK_DIRECTORY / PLAN_NAME).exists():
        return None
    remedy = "choose another data.path, or set data.overwrite=true"
    try:
        manifest = load_manifest(root)
    except UserError:
        if data.overwrite:
            return None
        raise
    parameters = encoding_parameters(data, len(sources))
    differing = [key for key, value in parameters.items() if manifest.encoding.get(key) != value]
    if differing:
        key = differing[0]
        difference = f"{key} {manifest.encoding.get(key)}, now {parameters[key]}"
    elif not _same_sources(manifest, sources):
        difference = "other raw files"
    else:
        print(f"{root}: already done ({manifest.rows:,} rows)", file=sys.stderr)
        return manifest
    if data.overwrite:
        return None
    raise UserError(f"{root}: holds a dataset made from or with {difference}; {remedy}")


def _same_sources(manifest: Manifest, sources: list[Source]) -> bool:
    """Whether the raw files are those of the manifest: by name, size and time, or if need be by their sum."""
    if [(s["name"], s["bytes"]) for s in manifest.sources] != [(s.name, s.bytes) for s in sources]:
        return False
    times = manifest.extra.get("source_mtime_ns", [])
    if times == [source.mtime_ns for source in sources]:
        return True
    sums = [digest_file(Path(source.path)).sha256 for source in sources]
    return sums == [source["sha256"] for source in manifest.sources]


def _make(data: DataConfig, root: Path, sources: tuple[Source, ...], extra: dict[str, Any]) -> Manifest:
    """Run all stages and finish."""
    work = root / WORK_DIRECTORY
    parameters = encoding_parameters(data, len(sources))
    _keep_or_discard_work(work, parameters, sources)
    if not (work / PLAN_NAME).exists():
        job = Job(
            work, sources, CRITEO, data.encoding, data.frequency_threshold, data.max_ind_range, chunk_size(data)
        )
        check_disk(root, sources, job.schema, job.encoding)
        _compile()
        manifest, built = _run_stages(data, job, root, parameters, extra)
        clear_dataset(root)
        plan_finish(job, manifest, built)
    manifest = finish(work, root)
    print(f"{root}: {_summary(manifest)}", file=sys.stderr)
    return manifest


def _keep_or_discard_work(work: Path, parameters: dict[str, Any], sources: tuple[Source, ...]) -> None:
    """Keep what a killed job with the same parameters and sources left; discard all else."""
    plan = json.dumps({"parameters": parameters, "sources": [asdict(source) for source in sources]}).encode()
    path = work / "job.json"
    if path.exists() and path.read_bytes() == plan:
        print(f"{work.parent}: going on where the last job stopped", file=sys.stderr)
    else:
        if path.exists():
            print(f"{work.parent}: discarding the unfinished work of another job", file=sys.stderr)
        for entry in work.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != "lock":
                entry.unlink()
        write_atomically(path, plan)
    (work / "units").mkdir(exist_ok=True)


def _compile() -> None:
    """Have the kernels compiled and cached before the workers start."""
    with compile_notice("the parser"):
        block = parse_bytes(b"0" + b"\t" * 39 + b"\n", "warm-up")
        encode_dense(block.dense)
        encode_hash(block.sparse, 2)


def _run_stages(
    data: DataConfig, job: Job, root: Path, parameters: dict[str, Any], extra: dict[str, Any]
) -> tuple[Manifest, list[BuiltShard]]:
    """Everything but the last moves."""
    begin = time.monotonic()
    tasks = parse_tasks(job)
    workers = num_workers(data, job.chunk_bytes, len(tasks))
    with Pool(workers) as pool:
        total = sum(source.bytes for source in job.sources)
        with Progress("parse", total, pool.counters):
            records = [record for result in pool.map(run_parse_task, tasks) for record in result]
        with Progress("sum", total, pool.counters):
            digests = list(pool.map(run_digest_task, job.sources))
        rows = split_rows(records, len(job.sources), data.split)
        vocabularies: dict[str, VocabularyEntry] = {}
        if job.encoding is Encoding.vocabulary:
            with Progress("vocabulary", 0, pool.counters):
                vocabularies = fit_vocabularies(job, records, rows["train"], pool)
        peak = pool.peak_bytes
    if job.encoding is Encoding.vocabulary:
        values = [entry.values for entry in vocabularies.values()]
        with Pool(num_encode_workers(data, workers, values)) as pool:
            with Progress("encode", sum(r.files["raw"].bytes for r in records), pool.counters):
                records = list(pool.map(run_encode_task, [EncodeTask(job, record) for record in records]))
            peak = max(peak, pool.peak_bytes)
    pieces = plan_pieces(records, rows)
    built = [build_shard(job, root, piece) for piece in pieces]
    extra |= {"peak_memory_bytes": peak, "workers": workers, "seconds": time.monotonic() - begin}
    extra["source_mtime_ns"] = [source.mtime_ns for source in job.sources]
    unknown = {
        split: [sum(counts) for counts in zip(*(b.unknown for p, b in zip(pieces, built, strict=True) if p.split == split), strict=True)]
        for split in rows
    }
    extra["out_of_vocabulary"] = unknown
    num_embeddings = {
        name: vocabularies[name].values + 1 if vocabularies else int(job.max_ind_range or 0)
        for name in job.schema.sparse
    }
    splits = collect_splits(pieces, built)
    total_rows = sum(rows.values())
    positives = sum(record.positives for record in records)
    if vocabularies:
        parameters = parameters | {"vocabulary": {name: asdict(entry) for name, entry in vocabularies.items()}}
    manifest = Manifest(
        schema=job.schema.to_manifest(),
        encoding=parameters,
        num_embeddings=num_embeddings,
        splits=splits,
        sources=_source_entries(job, records, digests),
        rows=total_rows,
        label_rate=positives / total_rows,
        tool_version=TOOL_VERSION,
        extra=extra,
    )
    return manifest, built


def _source_entries(job: Job, records: list[UnitRecord], digests: list[FileDigest]) -> list[dict[str, Any]]:
    rows = [0] * len(job.sources)
    for record in records:
        rows[record.source] += record.rows
    return [
        {"name": source.name, "bytes": digest.bytes, "sha256": digest.sha256, "rows": count}
        for source, digest, count in zip(job.sources, digests, rows, strict=True)
    ]


def _summary(manifest: Manifest) -> str:
    splits = ", ".join(f"{name} {split.rows:,}" for name, split in manifest.splits.items())
    return (
        f"{manifest.rows:,} rows ({splits}), label rate {manifest.label_rate:.4f}, "
        f"{sum(manifest.num_embeddings.values()):,} embedding rows, "
        f"peak memory {manifest.extra['peak_memory_bytes'] / 2**20:.0f} MiB"
    )
