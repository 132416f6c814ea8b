"""A job: its inputs, its directory of work with the results of tasks, and its budget of memory.

A chunk is consecutive rows of one source. Its files lie in <dataset>/.work/<digest>/chunks/:
    00000-00012.{labels,dense,sparse}.npy   as in a shard
    00000-00012.weights.npy                 as in a shard, if a user's table has sample weights
    00000-00012.columns                     vocabulary: values (see data_prep/stages/parse.py)
    00000-00012.{values,offsets}.npy        as in a shard, if a user's table has multi-hot columns
    00000-00012.bags.npy                    vocabulary: the codes of those columns' values, [L] uint32 feature-major
    00000-00012.{dictionaries,texts}        vocabulary of a user's table: see data_prep/stages/parse.py
    00000-00012.integers.npy                integers before their transform, if it needs statistics
    00000-00012.split.npy                   the split column's times or values, int64 [rows, 1], if a column decides
    00000-00012.counts                      distinct values of each feature (see data_prep/stages/fit.py)
    00000-00012.{positions,moved,moved-*}.npy  rows on their way to other shards (see data_prep/stages/write.py)
    00000-00012.parsed.json and others      the result of each task, with the checksums of its other files

A job resumes by these files alone. A task writes its result last, and does not run again while its files are there and
whole. The directory's name holds the digest of what makes them: parameters, and sources with their sizes and times.
"""

import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

import msgspec
import numpy as np
import yaml
from filelock import FileLock, Timeout

from common.documents import decode
from common.errors import UserError
from common.extensions import absence, load, rows_of_extensions
from common.files import (
    Crc32,
    FileDigest,
    Need,
    digest_file,
    is_unchanged,
    require_room,
    sync,
    temporary_path,
    write_atomically,
)
from common.machine import memory_limit, usable_cpus
from data_prep.codec.values import FITS
from data_prep.config import (
    AUTO_SCHEMA,
    DataConfig,
    chunk_size,
    first_difference,
    given_values,
    parse_size,
    resolve_rules,
)
from data_prep.dataset.format import (
    ARRAY_DTYPES,
    MANIFEST_NAME,
    ROW_KINDS,
    SPLITS,
    WEIGHTS,
    Manifest,
    Rules,
    load_manifest,
    save_manifest,
)
from data_prep.dataset.kinds import ROWS, DatasetKind, SchemaProposer, kind_of_schema, split_directories
from data_prep.dataset.multi_hot import TABLES_DIRECTORY
from data_prep.dataset.options import CRITEO, LabelKind, Schema, Table, to_json
from data_prep.executor import Counters
from data_prep.io import MAX_HELD_BYTES
from data_prep.lookup import VOCABULARY_DIRECTORY
from data_prep.parsing.table import drop_empty_files, format_named, load_table, schema_path
from data_prep.sources.download import find_or_download
from data_prep.sources.files import (
    GZIP_RATIO,
    RAW_DIRECTORY,
    LineBlocks,
    Source,
    finished_manifest,
    other_dataset_error,
    recorded_times,
    resolve_sources,
    resolve_splits,
)
from data_prep.vocabulary import PART_BYTES

if TYPE_CHECKING:
    from data_prep.encoding import SplitColumn

WORK_DIRECTORY = ".work"
CHUNKS_DIRECTORY = "chunks"
WORK_FORMAT = 10  # An unfinished job with another format is not resumed.
SPLIT_KEYS = "split.npy"
SHARD_SUFFIXES = ("labels.npy", "dense.npy", "sparse.npy", "weights.npy", "values.npy", "offsets.npy")
MIN_BLOCK_ROWS, MAX_BLOCK_ROWS, BLOCK_VALUES = 1 << 8, 1 << 15, 1 << 21  # see `Job.block_rows`
VALUE_BYTES = 4  # categorical value or id
SHUFFLED_ROW_BYTES = 64  # a 64 MiB chunk and a shard of 1,048,576 rows need about the same memory
SHUFFLED_VALUE_BYTES = 7  # the same, for a value of a multi-hot column


@dataclass(frozen=True)
class Job:
    """Everything that decides what chunks contain; sent to every worker."""

    work: Path
    sources: tuple[Source, ...]
    schema: Schema
    rules: Rules
    chunk_bytes: int  # uncompressed bytes of raw rows in a chunk
    table: Table | None = None  # description of a user's own table; None: Criteo's rows
    known_sums: tuple[str | None, ...] = ()  # SHA-256 of fetched sources
    keeps_texts: bool = False  # whether the dataset holds the texts of vocabulary values of a user's own table
    chunks_per_shard: int = 1  # more than one only if rows keep their order
    split_column: "SplitColumn | None" = None  # column of a user's own table that decides the split of each row

    @property
    def row_kinds(self) -> tuple[str, ...]:
        """Return the kinds of a shard's arrays with an entry per row: labels, dense, sparse, and weights if any."""
        return (*ROW_KINDS, WEIGHTS) if self.schema.weight else ROW_KINDS

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of a shard's arrays: `row_kinds`, with values and offsets of own multi-hot columns."""
        return (*self.row_kinds, *(("values", "offsets") if self.schema.ragged else ()))

    @property
    def dtypes(self) -> dict[str, np.dtype[Any]]:
        """Return the dtypes of a shard's arrays with one entry per row."""
        defaults = {kind: np.dtype(ARRAY_DTYPES[kind]) for kind in self.row_kinds}
        return defaults | {"labels": self.schema.label_kind.dtype, "dense": self.rules.dense_transform.dtype}

    @property
    def needs_statistics(self) -> bool:
        """Return whether a transform of dense columns needs statistics of the rows."""
        own = () if self.table is None else self.table.transforms
        return self.rules.needs_statistics or any(name in FITS for _, name in own)

    @property
    def raw_dense_dtype(self) -> np.dtype[Any]:
        """Return the dtype of dense values before their transform: int32 of Criteo's rows, else float64."""
        return np.dtype(np.int32 if self.table is None else np.float64)

    @property
    def block_rows(self) -> int:
        """Return the rows of a block, which are encoded at once; many columns make it smaller."""
        columns = len(self.schema.dense) + len(self.schema.single)
        return max(MIN_BLOCK_ROWS, min(MAX_BLOCK_ROWS, BLOCK_VALUES // max(1, columns)))

    @property
    def shard_bytes(self) -> int:
        """Return the uncompressed bytes of raw rows per shard."""
        return self.chunk_bytes * self.chunks_per_shard

    def chunk_path(self, source: int, chunk: int, suffix: str) -> Path:
        """Return the path of a chunk's file by its suffix; source, chunk: number of the file, of the chunk in it."""
        return path_of(self.chunk_stem(source, chunk), suffix)

    def chunk_stem(self, source: int, chunk: int) -> Path:
        """Return the common prefix of the paths of a chunk's files."""
        return self.work / CHUNKS_DIRECTORY / f"{source:05d}-{chunk:05d}"

    def checksum(self, suffix: str) -> Callable[[], Any]:
        """Return the constructor of a file's checksum: SHA-256 if the file ends in the dataset, else CRC-32."""
        # Other files need protection from damage alone, which CRC-32 gives several times faster.
        return hashlib.sha256 if suffix in SHARD_SUFFIXES and not self.rules.is_arranged else Crc32


class Record(Protocol):
    """Result of a task; `files` are keyed by the suffix after the stem and a dot."""

    files: dict[str, FileDigest]


@dataclass
class ChunkRecord:
    """A chunk after one stage.

    Attributes:
        source, chunk: indices of the chunk. rows: number of rows. positives: rows with label 1.
        files: size and checksum of each file that the stage wrote.
        dictionaries: number of values in each single-value feature's dictionary in .columns, 0 without one.
        distinct: number of distinct values of each feature in .counts or .dictionaries.
        text_bytes: bytes of each feature's texts in .texts, for a user's own table.
        dense_low, dense_high: range of each integer column if it is needed; a missing value counts as 0.
        negatives: numbers below 0 in each dense column of a user's own table.
        sparse_low, sparse_high: range of each single-value feature, for a user's own table.
        forms: spellings (`Form`) of each sparse column of a user's own table.
        longest: length of the longest bag of each multi-hot feature of a user's own table.
        positive_rows: rows with each positive label that a user's own table names.
        values_per_row: mean number of values that share a row of the table (an id), of each hashed feature; Criteo's in
            the first block of all rows alone.
    """

    source: int
    chunk: int
    rows: int
    positives: int
    files: dict[str, FileDigest]
    dictionaries: list[int] = field(default_factory=list)
    distinct: list[int] = field(default_factory=list)
    text_bytes: list[int] = field(default_factory=list)
    dense_low: list[int | float] = field(default_factory=list)
    dense_high: list[int | float] = field(default_factory=list)
    negatives: list[int] = field(default_factory=list)
    sparse_low: list[int] = field(default_factory=list)
    sparse_high: list[int] = field(default_factory=list)
    forms: list[int] = field(default_factory=list)
    longest: list[int] = field(default_factory=list)
    positive_rows: list[int] = field(default_factory=list)
    values_per_row: list[float] = field(default_factory=list)

    @property
    def value_bytes(self) -> int:
        """Return the bytes of the values that a vocabulary maps to ids, for features with single values."""
        return VALUE_BYTES * self.rows * len(self.dictionaries)


RecordT = TypeVar("RecordT", bound=Record)


def save_record(stem: Path, stage: str, record: Record) -> None:
    """Write the result of a stage, which vouches for the files <stem>.* that it names; a task does this last."""
    path = path_of(stem, f"{stage}.json")
    temporary = temporary_path(path)
    # No sync: load_record detects damage by a power cut to the record or to its files.
    temporary.write_bytes(msgspec.json.encode(record))
    temporary.replace(path)


def load_record(stem: Path, stage: str, record_type: type[RecordT]) -> RecordT | None:
    """Return the result of a stage if all its files have the recorded checksums, else None."""
    try:
        record = decode(path_of(stem, f"{stage}.json").read_bytes(), record_type)
    except (FileNotFoundError, ValueError):
        return None
    return record if all(is_unchanged(path_of(stem, s), digest) for s, digest in record.files.items()) else None


def path_of(stem: Path, suffix: str) -> Path:
    """Return the path of one of the files with a common stem."""
    return stem.with_name(f"{stem.name}.{suffix}")


@dataclass(frozen=True)
class ResumableTask(Generic[RecordT]):
    """A task that runs once, however often its job is stopped.

    Attributes:
        stage: part of the record's name.
        stem: common prefix of the paths of the record and of the files that the task writes.
        record_type: dataclass of the record.
        size: bytes and rows to count as done if the task need not run.
        do: writes the files, counts its work, and returns the record.
    """

    stage: str
    stem: Path
    record_type: type[RecordT]
    size: tuple[int, int]
    do: Callable[[Counters], RecordT]

    def __call__(self, counters: Counters) -> RecordT:
        """Return the task's record: the one on disk if its files match it, else that of running the task now."""
        record = load_record(self.stem, self.stage, self.record_type)
        if record is None:
            self.stem.parent.mkdir(parents=True, exist_ok=True)
            record = self.do(counters)
            save_record(self.stem, self.stage, record)
        else:
            counters.add(*self.size)
        return record


LOCK_NAME = "lock"
PLAN_NAME = "finish.json"
CLEARING_NAME = "clearing"  # marks that an older dataset is being removed, so that its remaining files are ours


@contextmanager
def claim_work(root: Path) -> Iterator[Path]:
    """Hold <root>/.work for this process, after completing the moves of a killed job.

    The directory is removed afterwards if nothing in it is worth keeping. A finished dataset in a read-only directory
    needs no lock: it is only read or refused.

    Raises UserError: another process holds the lock. Raises OSError: the directory is not writable, and there is no
    dataset.
    """
    existed = root.exists()
    work = root / WORK_DIRECTORY
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES) or not (root / MANIFEST_NAME).exists():
            raise
        yield work
        return
    lock = FileLock(work / LOCK_NAME, blocking=False)
    try:
        lock.acquire()
        if not (work / LOCK_NAME).exists():
            raise Timeout(lock.lock_file)  # its holder has just removed it with its directory
    except Timeout as error:
        raise UserError(f"{root}: another job is writing here; wait for it, or choose another data.path") from error
    try:
        for plan in work.rglob(PLAN_NAME):
            _complete_moves(plan.parent, root)
        yield work
    finally:
        # Finished chunks and a plan of moves are what a later job resumes from. The directory goes while the lock is
        # held, so that no other job begins in it meanwhile.
        if not any(work.rglob(f"{CHUNKS_DIRECTORY}/*.json")) and not any(work.rglob(PLAN_NAME)):
            shutil.rmtree(work, ignore_errors=True)
        lock.release()
        if not existed and root.exists() and not any(root.iterdir()):
            root.rmdir()


def job_directory(work: Path, parameters: dict[str, Any], sources: Sequence[Source]) -> Path:
    """Return the directory of the files of a job, whose name is the digest of what makes them."""
    # Sources count with their sizes and times, since a changed file makes other chunks.
    description = {"format": WORK_FORMAT, "parameters": parameters, "sources": [asdict(source) for source in sources]}
    return work / hashlib.sha256(json.dumps(description).encode()).hexdigest()[:16]


def begin_or_resume(work: Path) -> None:
    """Make the directory of a job or keep what a killed one has left in it; discard the work of other jobs."""
    others = [entry for entry in work.parent.iterdir() if entry.name not in (work.name, LOCK_NAME)]
    if work.exists():
        print(f"{work.parents[1]}: resuming where the last job stopped", file=sys.stderr)
    elif others:
        print(f"{work.parents[1]}: discarding the unfinished work of another job", file=sys.stderr)
    for entry in others:
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    (work / CHUNKS_DIRECTORY).mkdir(parents=True, exist_ok=True)


def refuse_foreign_files(root: Path, work: Path, raw_files: Sequence[Path]) -> None:
    """Refuse to write over files other than an older dataset's and raw files in their own directory.

    raw_files: the job's sources, which may lie in `root` but not where the dataset is written.
    """
    dataset_paths = [root / name for name in (*split_directories(), VOCABULARY_DIRECTORY)]
    for path in raw_files:
        if any(path.resolve().is_relative_to(directory.resolve()) for directory in dataset_paths):
            raise UserError(f"{path}: lies where data.path={root} will be written; choose another data.path")
    # A dataset that is being replaced has no manifest, but the mark tells that the files are its own.
    if (root / MANIFEST_NAME).exists() or any(work.rglob(CLEARING_NAME)) or not root.exists():
        return
    for directory in dataset_paths:
        if directory.exists() and any(directory.iterdir()):
            raise UserError(f"{directory}: holds files that are not a dataset's; choose another data.path")
    raw = [path.resolve() for path in raw_files]
    raw = [path.relative_to(root.resolve()) for path in raw if path.is_relative_to(root.resolve())]
    allowed = {*(path.name for path in dataset_paths), TABLES_DIRECTORY, RAW_DIRECTORY, "lost+found"}
    allowed |= {path.parts[0] for path in raw if len(path.parts) > 1}
    strangers = sorted(path.name for path in root.iterdir() if path.name not in allowed and path.name[0] != ".")
    if strangers:
        raise UserError(
            f"{root}: holds files that are not a dataset's ({strangers[0]}{', …' if len(strangers) > 1 else ''}); "
            "give a new directory in data.path"
        )


def find_finished(
    root: Path, parameters: dict[str, Any], schema: dict[str, Any] | None, sources: Sequence[Source], data: DataConfig
) -> Manifest | None:
    """Return the dataset at `root` if it is the requested one, and log this; None if there is none or it is replaced.

    Compares only those keys that the user gave.

    parameters: further entries that the manifest's `encoding` must have. schema: required `raw_schema`.
    """
    manifest = finished_manifest(data, root)
    if manifest is None:
        return None
    if manifest.encoding.get("raw_schema") != schema:
        raise other_dataset_error(root, "other columns")
    if (difference := first_difference(given_values(data), manifest)) is None:
        recorded = ((key, value, manifest.encoding.get(key)) for key, value in parameters.items())
        difference = next((each for each in recorded if each[1] != each[2]), None)
    if difference is not None:
        raise other_dataset_error(root, "{0} is {2} there, {1} here".format(*difference))
    recorded_files = [(entry["name"], entry["bytes"], entry.get("split")) for entry in manifest.sources]
    is_same = recorded_files == [(source.name, source.bytes, source.split) for source in sources]
    # A copied file has other times, so the checksum decides then. A time of change of 0 was not recorded.
    is_same = is_same and all(
        (source.mtime_ns == mtime and ctime in (0, source.ctime_ns))
        or digest_file(Path(source.path)).sha256 == entry["sha256"]
        for source, entry, (mtime, ctime) in zip(sources, manifest.sources, recorded_times(manifest), strict=True)
    )
    if not is_same:
        raise other_dataset_error(root, "made from other raw files, or for other splits")
    print(f"{root}: already done ({manifest.rows:,} {manifest.kind.name})", file=sys.stderr)
    return manifest


def publish(work: Path, root: Path, manifest: Manifest, moves: list[tuple[str, str]]) -> Manifest:
    """Replace the dataset at `root` by the files of `work`. After a kill, the next job there completes this.

    moves: each file's path below `work`, and its path below `root`.
    """
    (work / CLEARING_NAME).touch()
    (root / MANIFEST_NAME).unlink(missing_ok=True)  # first, since a dataset without a manifest is no dataset
    for name in (*split_directories(), VOCABULARY_DIRECTORY, TABLES_DIRECTORY):
        shutil.rmtree(root / name, ignore_errors=True)
    save_manifest(work / "final", manifest)
    # The plan names every move, so a later job can complete them after a kill from here on.
    write_atomically(work / PLAN_NAME, json.dumps(moves).encode())
    return _complete_moves(work, root)


def _complete_moves(work: Path, root: Path) -> Manifest:
    """Move all planned files into the dataset, sync them, and add the manifest; moves already made are skipped."""
    moves = decode((work / PLAN_NAME).read_bytes(), list[tuple[str, str]])
    directories = {root}
    for source, target in moves:
        path = root / target
        path.parent.mkdir(parents=True, exist_ok=True)
        directories.add(path.parent)
        # A move that a killed job made is not repeated.
        if (work / source).exists():
            os.replace(work / source, path)
        sync(path)
    # After a power cut the manifest must not stand without the files that it names, so it comes after them.
    for directory in directories:
        sync(directory)
    if (work / "final" / MANIFEST_NAME).exists():
        os.replace(work / "final" / MANIFEST_NAME, root / MANIFEST_NAME)
    sync(root)
    for entry in work.iterdir():  # The plan goes last, so that a later job clears what a killed one left.
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name not in (PLAN_NAME, LOCK_NAME):
            entry.unlink()
    (work / PLAN_NAME).unlink()
    return load_manifest(root)


MEBIBYTE = 1 << 20
PARENT_BYTES = 190 * MEBIBYTE  # interpreter, NumPy, Numba and its compiler
WORKER_BYTES = 190 * MEBIBYTE
SERVER_BYTES = 110 * MEBIBYTE  # memory of the fork server that workers do not share
ARROW_BYTES = 40 * MEBIBYTE  # libraries that parse a user's own table
COUNTS_PER_BUDGET = 16  # a feature's value counts take two, and so does merging them
SORTED_BYTES = 8  # of a row, where all are shuffled (a place, and its inverse) or sorted
SAMPLE_BYTES = MEBIBYTE
SORT_BYTES_PER_VALUE = 28  # while the sorted table of 64-bit values is built
DISK_MARGIN = 1.05  # required room over the bytes that are reckoned
MAX_UNEVEN = 1.1  # load of the busiest worker over an even share; beyond this, reading twice costs less


def worker_bytes(data: DataConfig, job: Job, stage: Literal["parse", "stream", "fit", "encode"]) -> int:
    """Return the memory of a worker in a stage; with "stream", it writes one chunk while it parses the next."""
    is_own, chunk_bytes = job.table is not None, job.chunk_bytes
    num_bytes = WORKER_BYTES + (ARROW_BYTES if is_own else 0)
    if stage == "fit":  # a feature's counts, and as much again to merge and rank them
        return num_bytes + 2 * counts_bytes(data)
    # Until they are written, a chunk's files hold two long ones and the labels, or all rows: 160 bytes each, of which
    # the text is 41 bytes at least.
    unwritten_bytes, block_bytes = min(2 * MAX_HELD_BYTES + 16 * MEBIBYTE, 4 * chunk_bytes), 40 * MEBIBYTE
    if stage == "encode":
        # Of a shuffled row: a shard, whole or as two windows, with its input or with chunks as packed rows.
        shard_rows = max(1, job.shard_bytes // SHUFFLED_ROW_BYTES)
        return num_bytes + block_bytes + unwritten_bytes + (232 * shard_rows if job.rules.is_arranged else 0)
    chunks = 2 if stage == "stream" else 1
    if is_own:  # a block's rows as lists of Python texts and in Arrow; and short rows, all different, being coded
        return num_bytes + 120 * MEBIBYTE + chunks * 8 * chunk_bytes
    # One column of the most rows, being sorted and counted, takes 0.65 bytes per byte of text; all columns as codes or
    # values before writing take 2, as a field of one byte does.
    to_count = int(2.65 * chunk_bytes) if job.rules.order is not None else 0
    return num_bytes + block_bytes + chunks * unwritten_bytes + to_count


def counts_bytes(data: DataConfig) -> int:
    """Return the memory for a feature's value counts; merging and ranking them takes as much again."""
    return min(PART_BYTES, parse_size(data.memory_budget, "data.memory_budget") // COUNTS_PER_BUDGET)


def _budget_here(data: DataConfig) -> int:
    """Return the bytes that all processes may take: the budget, or the container's lower limit.

    It decides how many processes run, never what they write.
    """
    return min(parse_size(data.memory_budget, "data.memory_budget"), memory_limit() or sys.maxsize)


def limit_workers(data: DataConfig, workers: int, need: int, parent_bytes: int = 0) -> int:
    """Return `workers`, or the smaller number that the budget allows; log a smaller one.

    need: bytes of a worker. parent_bytes: bytes of this process beyond PARENT_BYTES.
    """
    limit = _budget_here(data)
    allowed = max(1, (limit - PARENT_BYTES - SERVER_BYTES - parent_bytes) // need)
    if allowed < workers:
        budget = parse_size(data.memory_budget, "data.memory_budget")
        bound = f"memory limit of {limit >> 20} MiB" if limit < budget else f"data.memory_budget={data.memory_budget}"
        print(f"{bound}: {allowed} of {workers} workers, each may need {need / 2**20:.0f} MiB", file=sys.stderr)
    return min(allowed, workers)


def plan_parsing(data: DataConfig, job: Job, num_tasks: int) -> tuple[int, bool]:
    """Return the number of processes for parsing, and whether one reads each text source once, for rows and checksum.

    Otherwise sources are read in chunks, and again for their checksums. Processes: data.workers or one per CPU, limited
    by tasks and memory budget.
    """
    parent_bytes = ARROW_BYTES if job.table is not None else 0  # Arrow is in the fork server, too.
    workers = min(data.workers or usable_cpus(), num_tasks)
    if data.scheduler is not None:
        workers = 1  # each worker of a cluster has the whole budget
    streamed = worker_bytes(data, job, "stream")
    need = streamed if any(source.compressed for source in job.sources) else worker_bytes(data, job, "parse")
    # The same processes parse and fit, so the larger of both needs decides.
    need = max(need, worker_bytes(data, job, "fit") if job.rules.order else 0)
    workers = limit_workers(data, workers, need, parent_bytes)

    # A cluster cannot stop a task that has begun, so its tasks must be shorter than a file.
    all_bytes = PARENT_BYTES + SERVER_BYTES + parent_bytes + workers * streamed
    if data.scheduler is not None or all_bytes > _budget_here(data):
        return workers, False
    # Whole files must keep all workers busy about equally long. Giving the largest files first to the least busy worker
    # comes close to the best division.
    loads = [0] * workers
    for size in sorted((source.bytes for source in job.sources), reverse=True):
        loads[loads.index(min(loads))] += size
    return workers, max(loads) * workers <= MAX_UNEVEN * sum(loads)


def workers_to_encode(data: DataConfig, job: Job, workers: int, table_values: dict[str, int]) -> int:
    """Return the number of processes for encoding, which share the lookup tables.

    table_values: number of values of each feature's vocabulary. Raise UserError for more values of a user's own column
    than the budget has memory to sort, as `write_tables` does.
    """
    if job.table is not None and table_values:
        feature = max(table_values, key=table_values.__getitem__)
        if PARENT_BYTES + SORT_BYTES_PER_VALUE * table_values[feature] > _budget_here(data):
            raise UserError(
                f"data.memory_budget: too small for the {table_values[feature]:,} values of column {feature}; raise "
                "it, or set data.frequency_threshold or data.max_ind_range"
            )
    return limit_workers(data, workers, worker_bytes(data, job, "encode"))


def check_room(data: DataConfig, path: Path, job: Job) -> None:
    """Refuse to start if the disk has no room for the output and intermediate files, or the memory for all rows."""
    rows = sum(_estimate_rows(job, source) for source in job.sources)
    algorithm, num_bytes = job.rules.split and job.rules.split.algorithm, PARENT_BYTES + SERVER_BYTES
    num_bytes += int(SORTED_BYTES * rows)
    # This process holds a number of each row at once where all are permuted or sorted.
    purposes = {
        "shuffle": job.rules.train_seed is not None or (algorithm and algorithm.is_random and not algorithm.chooses),
        "order the times of": algorithm and algorithm.reads == "times",
        "find the quantiles of": job.table is not None and any(name == "quantile" for _, name in job.table.transforms),
    }
    for purpose, is_needed in purposes.items():
        if is_needed and num_bytes > _budget_here(data):
            raise UserError(
                f"data.memory_budget: {_budget_here(data) >> 20} MiB are too few to {purpose} about {rows:,.0f} rows; "
                f"give data.memory_budget={-(-num_bytes // MEBIBYTE)}MiB, and a machine or container with as much"
            )
    # Files written before the job was stopped.
    existing_bytes = sum(file.stat().st_size for file in job.work.rglob("*") if file.is_file())
    required_bytes = dataset_bytes(rows, job.schema, job.rules) - existing_bytes
    if job.table is not None and job.rules.order is not None:  # all texts once more, at most
        required_bytes += int(sum(source.bytes * (GZIP_RATIO if source.compressed else 1) for source in job.sources))
    if job.table is not None and job.needs_statistics:  # numbers before their transform
        required_bytes += int(rows * job.raw_dense_dtype.itemsize * len(job.schema.dense))
    require_room([Need(path, required_bytes, "for the dataset", about=True)], "free some, or choose another data.path")


def dataset_bytes(rows: float, schema: Schema, rules: Rules) -> int:
    """Return the maximum disk space needed to make a dataset with that many rows."""
    # Counted in columns of 4 bytes a row: a shard's; values before they are encoded; packed rows and positions.
    columns = len(schema.columns)
    if rules.order is not None:
        columns += 2 * len(schema.sparse)
    if rules.is_arranged:
        columns += 2 * len(schema.columns) + 6
    if rules.split_column:
        columns += 2
    return int(rows * VALUE_BYTES * columns * DISK_MARGIN)


def _estimate_rows(job: Job, source: Source) -> float:
    """Return the rows of a source, from its metadata or estimated from the length of its first lines."""
    if job.table is not None and (rows := format_named(job.table.format).num_rows(source)) is not None:
        return float(rows)
    with LineBlocks(source, block_bytes=SAMPLE_BYTES) as lines:
        # The first block is enough; a source without one has no rows.
        for block in lines.read_until(SAMPLE_BYTES):
            length = block.end - block.start
            rows = int((block.buffer[block.start : block.end] == ord("\n")).sum())
            size = source.bytes * (GZIP_RATIO if source.compressed else 1)
            return float(rows) if block.is_last else size * rows / length
    return 0.0


# Chunks of a user's own table are small, since all workers hold the distinct texts of a chunk in memory.
MIN_OWN_CHUNK_BYTES, MAX_OWN_CHUNK_BYTES = 1 << 20, 8 << 20


def kind_to_make(data: DataConfig) -> DatasetKind:
    """Return the kind of dataset to make, which the source or else the schema decides."""
    if data.source_kind.makes is not None or data.schema in (None, AUTO_SCHEMA):
        return data.source_kind.makes or ROWS
    try:
        return kind_of_schema(yaml.safe_load(schema_path(data.schema).read_text(encoding="utf-8")))
    except (OSError, ValueError, yaml.YAMLError):
        return ROWS  # the reader of rows reports the error


def describe_table(data: DataConfig, root: Path, sources: tuple[Source, ...]) -> Table | None:
    """Return the description of the user's own table by data.schema; None for Criteo's rows.

    With data.schema=auto it is the one that an existing dataset was made with, or else a proposal.
    """
    if data.schema is None:
        return None
    if data.schema != AUTO_SCHEMA:
        from data_prep.parsing.readers import add_known_pair  # imports pyarrow, which Criteo's rows do not need

        path = schema_path(data.schema)
        return add_known_pair(path, sources, load_table(path, sources))
    manifest = finished_manifest(data, root)
    entry = None if manifest is None else manifest.encoding.get("table")
    if entry is not None:
        table = msgspec.convert(entry, Table)
        recorded = f"{table.label} {table.rule or ''}".rstrip()
        if data.label not in (None, table.label, recorded):
            raise other_dataset_error(root, f"the label is {recorded} there, {data.label} here")
        return table
    proposers = rows_of_extensions(SchemaProposer)
    if not proposers:
        raise UserError(
            f"data.schema={AUTO_SCHEMA}: {absence('inspect')}; restore it, or write a schema (docs/inspect.md)"
        )
    text = proposers[0].propose([source for source in sources if source.split in (None, "train")], data.label)
    table = load_table(Path(f"data.schema={AUTO_SCHEMA}"), sources, text)
    label = f"{table.label} {table.rule or ''}".rstrip()
    lists = f"dense: {', '.join(table.dense) or 'none'}; sparse: {', '.join(table.sparse) or 'none'}"
    print(f"data.schema={AUTO_SCHEMA}: label: {label}; {lists}; python -m data_prep.inspect says why", file=sys.stderr)
    return table


def find_sources(data: DataConfig, root: Path, work: Path) -> list[Source]:
    """Return the sources to read; make or download them if needed, after checking that `root` is free for them."""
    source = data.source_kind
    if source.find:
        # Checked before anything is generated or downloaded, since a command that refuses changes no file.
        refuse_foreign_files(root, work, [load(source.directory)(data, root) / "raw"])
        sources: list[Source] = load(source.find)(data, root, work)
    elif data.train is not None:
        sources = resolve_splits({split: getattr(data, split) for split in SPLITS})
    else:
        sources = resolve_sources(data.raw)
    if data.schema is not None and not source.find:
        sources = drop_empty_files(sources)
    # A cluster's workers may have other working directories.
    if data.scheduler is not None:
        return [replace(source, path=str(Path(source.path).absolute())) for source in sources]
    return sources


def fetch_days(data: DataConfig, root: Path, work: Path) -> list[Source]:
    """Return Criteo's raw files where they are, or download them from mirrors."""
    rules = resolve_rules(data, len(data.days or [0]))
    return find_or_download(data, root, partial(dataset_bytes, schema=CRITEO, rules=rules))


def require_droppable(data: DataConfig, schema: Schema) -> None:
    """Raise UserError if rows of label 0 are to be dropped of a table whose figures cannot be corrected for it."""
    rate, is_number = data.sampling.negative_drop_rate, schema.label_kind is LabelKind.number
    if rate is not None and (is_number or schema.weight):
        cause = "labels that are numbers (kind: number)" if is_number else f"sample weights (weight: {schema.weight})"
        raise UserError(
            f"data.sampling.negative_drop_rate={rate}: drops rows of label 0 and corrects figures for them, which is "
            f"not defined for the {cause} of {data.schema}; leave one of them out"
        )


def divide_shard(shard_bytes: int, is_own: bool) -> tuple[int, int]:
    """Return the bytes of raw rows per chunk and the chunks per shard; a user's own table gets small chunks.

    shard_bytes: the manifest's `chunk_bytes`; is_own: whether rows come from a user's own table.
    """
    chunk = max(MIN_OWN_CHUNK_BYTES, min(shard_bytes // 4, MAX_OWN_CHUNK_BYTES)) if is_own else shard_bytes
    count = -(-shard_bytes // chunk)
    # Chunks of equal size leave no small rest at the end of a shard.
    return -(-shard_bytes // count), count


def encoding_parameters(data: DataConfig, rules: Rules, table: Table | None = None) -> dict[str, Any]:
    """Return the manifest's `encoding`: the parameters that, with the rows, decide the shards' bytes."""
    # A dataset that has no such setting has no key for it. Hashing keeps no values, so also no texts.
    return {
        **to_json(rules),
        "chunk_bytes": chunk_size(data, rules.is_arranged, table is not None and bool(table.schema.ragged)),
        "table": None if table is None else to_json(table),
        **({} if table is None or rules.order is None else {"keep_texts": data.keep_texts is not False}),
    }
