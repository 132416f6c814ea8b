"""A job, its chunks, and the log of what has been done of it.

A chunk is consecutive rows of one source. Its files lie in <dataset>/.work/chunks/:
    00000-00012.{labels,dense,sparse}.npy   as in a shard
    00000-00012.columns                     vocabulary: values (see data_prep/stages/columns.py)
    00000-00012.{values,offsets}.npy        as in a shard, where a user's table has multi-valued columns
    00000-00012.bags.npy                    vocabulary: the codes of those columns' values, [L] uint32 feature-major
    00000-00012.{dictionaries,texts}        vocabulary of a user's table: see data_prep/stages/categories.py
    00000-00012.integers.npy                integers as read, where their transform needs statistics first
    00000-00012.counts                      distinct values of each feature (see data_prep/stages/vocabulary.py)
    00000-00012.{positions,moved,moved-*}.npy  rows on their way to other shards (see data_prep/stages/scatter.py)
    00000-00012.parsed.json and others      the task log: one record a task

The task log is how a job is resumed: a task writes its record when its files are on the disk, and is not run again
while they are as the record says.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec
import numpy as np

from common.documents import decode
from common.files import Crc32, FileDigest, is_unchanged, temporary_path
from data_prep.config.presets import Rules
from data_prep.dataset.format import ARRAY_DTYPES, ROW_KINDS
from data_prep.dataset.multi_hot import MultiHot
from data_prep.dataset.schema import Schema
from data_prep.dataset.table_spec import Table
from data_prep.engine.executor import Worker
from data_prep.sources.checksums import KnownSum
from data_prep.sources.discover import Source

WORK_DIRECTORY = ".work"
CHUNKS_DIRECTORY = "chunks"
WORK_FORMAT = 8  # of the files and records in it: an unfinished job of another format is not resumed
SHARD_SUFFIXES = ("labels.npy", "dense.npy", "sparse.npy", "values.npy", "offsets.npy")
MIN_BLOCK_ROWS, MAX_BLOCK_ROWS, BLOCK_VALUES = 1 << 8, 1 << 15, 1 << 21
VALUE_BYTES = 4  # of a categorical value or an id
SHUFFLED_ROW_BYTES = 64  # a 64 MiB chunk and a shard of 1,048,576 rows need about the same memory
SHUFFLED_VALUE_BYTES = 7  # of a multi-valued column, likewise


@dataclass(frozen=True)
class Job:
    """Everything that decides what chunks contain; sent to every worker."""

    work: Path
    sources: tuple[Source, ...]
    schema: Schema
    rules: Rules
    chunk_bytes: int
    table: Table | None = None  # of a user's own; None: Criteo's rows
    bags: MultiHot | None = None  # what ids are expanded to, if anything
    known_sums: tuple[KnownSum | None, ...] = ()  # of the sources, where files are fetched
    keeps_texts: bool = False  # of a user's own table: whether the texts of a vocabulary's values are part of it
    chunks_per_shard: int = 1  # where rows keep their order

    @property
    def kinds(self) -> tuple[str, ...]:
        """The arrays of a shard as it leaves its chunk."""
        return (*ROW_KINDS, *(("values", "offsets") if self.schema.ragged else ()))

    @property
    def dtypes(self) -> dict[str, np.dtype[Any]]:
        """Dtypes of a shard's arrays with one entry a row."""
        usual = {kind: np.dtype(ARRAY_DTYPES[kind]) for kind in ROW_KINDS}
        return usual | {"labels": self.schema.label_kind.dtype, "dense": self.rules.dense.dtype}

    @property
    def raw_dense_dtype(self) -> np.dtype[Any]:
        """Dtype of integers before their transform."""
        return np.dtype(np.int32 if self.table is None else np.float64)

    @property
    def block_rows(self) -> int:
        """Rows of a chunk encoded at once, and so of a block of its values: fewer where there are many columns."""
        columns = len(self.schema.dense) + len(self.schema.single)
        return max(MIN_BLOCK_ROWS, min(MAX_BLOCK_ROWS, BLOCK_VALUES // max(1, columns)))

    @property
    def shard_rows(self) -> int:
        """Rows per shard where rows are reordered."""
        return max(1, self.shard_bytes // SHUFFLED_ROW_BYTES)

    @property
    def shard_bytes(self) -> int:
        """Uncompressed bytes of raw rows per shard."""
        return self.chunk_bytes * self.chunks_per_shard

    def chunk_path(self, source: int, chunk: int, suffix: str) -> Path:
        """Path of one of a chunk's files."""
        return _with_suffix(self.chunk_stem(source, chunk), suffix)

    def chunk_stem(self, source: int, chunk: int) -> Path:
        """Common prefix of the paths of a chunk's files."""
        return self.work / CHUNKS_DIRECTORY / f"{source:05d}-{chunk:05d}"

    def checksum(self, suffix: str) -> Callable[[], Any]:
        """Checksum for one of a chunk's files: SHA-256 for files that end in the dataset, else CRC-32."""
        return hashlib.sha256 if suffix in SHARD_SUFFIXES and not self.rules.is_arranged else Crc32


class Record(Protocol):
    """Result of a task; `files` are those it wrote, by their suffix after the stem and a dot."""

    files: dict[str, FileDigest]


@dataclass
class ChunkRecord:
    """A chunk after one stage.

    Attributes:
        source, chunk: its indices. rows: how many it has. positives: rows with label 1.
        files: size and checksum of what the stage wrote.
        dictionaries: values of each single-valued feature's dictionary in .columns, 0 without one.
        distinct: number of distinct values of each feature in .counts, or in .dictionaries.
        text_bytes: of a user's own table: bytes of each feature's texts in .texts.
        dense_low, dense_high: the range of each integer column, a missing one counting as 0, where it is needed.
        sparse_low, sparse_high: the range of each single-valued feature's values, of a user's own table.
        unknown: values of each feature without an id of their own.
        forms: how the values of each sparse column of a user's own table are spelled (`Form`).
        longest: of a user's own table: values of the longest bag of each multi-valued feature.
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
    sparse_low: list[int] = field(default_factory=list)
    sparse_high: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    forms: list[int] = field(default_factory=list)
    longest: list[int] = field(default_factory=list)

    @property
    def encoded_bytes(self) -> int:
        """Bytes of a parsed chunk that are still to be encoded."""
        other_bytes = (digest.bytes for suffix, digest in self.files.items() if suffix in ("bags.npy", "integers.npy"))
        return self.value_bytes + sum(other_bytes)

    @property
    def value_bytes(self) -> int:
        """Bytes of the values of its single-valued features, of which a vocabulary has or will have ids."""
        return VALUE_BYTES * self.rows * len(self.dictionaries)


RecordT = TypeVar("RecordT", bound=Record)


def save_record(stem: Path, stage: str, record: Record) -> None:
    """Log that a stage has written the files <stem>.*: the last thing a task does."""
    path = _with_suffix(stem, f"{stage}.json")
    temporary = temporary_path(path)
    # not synced: what a power cut makes of it, or of the files it names, load_record finds out
    temporary.write_bytes(msgspec.json.encode(record))
    temporary.replace(path)


def load_record(stem: Path, stage: str, record_type: type[RecordT]) -> RecordT | None:
    """The record of a stage if the files it names are as it says, else None."""
    try:
        record = decode(_with_suffix(stem, f"{stage}.json").read_bytes(), record_type)
    except (FileNotFoundError, ValueError):
        return None
    return record if all(is_unchanged(_with_suffix(stem, s), digest) for s, digest in record.files.items()) else None


def _with_suffix(stem: Path, suffix: str) -> Path:
    return stem.with_name(f"{stem.name}.{suffix}")


class LoggedTask(ABC, Generic[RecordT]):
    """A task that is run once, however often its job is stopped: see the task log above.

    Class attributes:
        stage: of the record's name. record_type: of the record, a dataclass.
    """

    stage: ClassVar[str]
    record_type: ClassVar[type[Any]]

    @property
    @abstractmethod
    def stem(self) -> Path:
        """Common prefix of the paths of its files."""

    @property
    @abstractmethod
    def size(self) -> tuple[int, int]:
        """Bytes and rows that count as done where the task need not be run."""

    @abstractmethod
    def do(self, worker: Worker) -> RecordT:
        """Write the files."""

    def run(self, worker: Worker) -> RecordT:
        """Do the task unless the log says that it is done."""
        record: RecordT | None = load_record(self.stem, self.stage, self.record_type)
        if record is not None:
            worker.count(*self.size)
            return record
        self.stem.parent.mkdir(parents=True, exist_ok=True)
        record = self.do(worker)
        save_record(self.stem, self.stage, record)
        return record
