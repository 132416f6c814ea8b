"""A job, its chunks, and its task log.

A chunk is consecutive rows of one source. Its files lie in <dataset>/.work/chunks/:
    00000-00012.{labels,dense,sparse}.npy   as in a shard
    00000-00012.weights.npy                 as in a shard, if a user's table has sample weights
    00000-00012.columns                     vocabulary: values (see data_prep/stages/columns.py)
    00000-00012.{values,offsets}.npy        as in a shard, if a user's table has multi-hot columns
    00000-00012.bags.npy                    vocabulary: the codes of those columns' values, [L] uint32 feature-major
    00000-00012.{dictionaries,texts}        vocabulary of a user's table: see data_prep/stages/categories.py
    00000-00012.integers.npy                integers before their transform, if it needs statistics
    00000-00012.split.npy                   the split column's times or values, int64 [rows, 1], if a column decides
    00000-00012.counts                      distinct values of each feature (see data_prep/stages/vocabulary.py)
    00000-00012.{positions,moved,moved-*}.npy  rows on their way to other shards (see data_prep/stages/scatter.py)
    00000-00012.parsed.json and others      the task log: one record per task

The task log makes jobs resumable. A task writes its record after its files are on disk. It does not run again while the
files match the record.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import msgspec
import numpy as np

from common.documents import decode
from common.files import Crc32, FileDigest, is_unchanged, temporary_path
from data_prep.config.presets import Rules
from data_prep.dataset.format import ARRAY_DTYPES, ROW_KINDS, WEIGHTS
from data_prep.dataset.multi_hot import MultiHot
from data_prep.dataset.schema import Schema
from data_prep.dataset.table_spec import Table
from data_prep.dataset.transforms import FITS
from data_prep.engine.executor import Worker
from data_prep.sources.checksums import KnownSum
from data_prep.sources.discover import Source

if TYPE_CHECKING:  # imports pyarrow, which Criteo's rows do not need
    from data_prep.encoding.split_column import SplitColumn

WORK_DIRECTORY = ".work"
CHUNKS_DIRECTORY = "chunks"
WORK_FORMAT = 8  # An unfinished job with another format is not resumed.
SPLIT_KEYS = "split.npy"
SHARD_SUFFIXES = ("labels.npy", "dense.npy", "sparse.npy", "weights.npy", "values.npy", "offsets.npy")
MIN_BLOCK_ROWS, MAX_BLOCK_ROWS, BLOCK_VALUES = 1 << 8, 1 << 15, 1 << 21
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
    chunk_bytes: int
    table: Table | None = None  # description of a user's own table; None: Criteo's rows
    bags: MultiHot | None = None  # tables that expand ids to bags
    known_sums: tuple[KnownSum | None, ...] = ()  # checksums of fetched sources
    keeps_texts: bool = False  # whether the dataset holds the texts of vocabulary values of a user's own table
    chunks_per_shard: int = 1  # more than one only if rows keep their order
    split_column: "SplitColumn | None" = None  # column of a user's own table that decides the split of each row

    @property
    def row_kinds(self) -> tuple[str, ...]:
        """Return the kinds of arrays in a shard with one entry per row."""
        return (*ROW_KINDS, WEIGHTS) if self.schema.weight else ROW_KINDS

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of arrays in a shard before any expansion to bags."""
        return (*self.row_kinds, *(("values", "offsets") if self.schema.ragged else ()))

    @property
    def dtypes(self) -> dict[str, np.dtype[Any]]:
        """Return the dtypes of a shard's arrays with one entry per row."""
        usual = {kind: np.dtype(ARRAY_DTYPES[kind]) for kind in self.row_kinds}
        return usual | {"labels": self.schema.label_kind.dtype, "dense": self.rules.dense.dtype}

    @property
    def needs_statistics(self) -> bool:
        """Return whether a transform of dense columns needs statistics of the rows."""
        own = () if self.table is None else self.table.transforms
        return self.rules.needs_statistics or any(name in FITS for _, name in own)

    @property
    def raw_dense_dtype(self) -> np.dtype[Any]:
        """Return the dtype of integers before their transform."""
        return np.dtype(np.int32 if self.table is None else np.float64)

    @property
    def block_rows(self) -> int:
        """Return the rows of a block, which are encoded at once; many columns make it smaller."""
        columns = len(self.schema.dense) + len(self.schema.single)
        return max(MIN_BLOCK_ROWS, min(MAX_BLOCK_ROWS, BLOCK_VALUES // max(1, columns)))

    @property
    def shard_rows(self) -> int:
        """Return the rows per shard if rows are reordered."""
        return max(1, self.shard_bytes // SHUFFLED_ROW_BYTES)

    @property
    def shard_bytes(self) -> int:
        """Return the uncompressed bytes of raw rows per shard."""
        return self.chunk_bytes * self.chunks_per_shard

    def chunk_path(self, source: int, chunk: int, suffix: str) -> Path:
        """Return the path of one of a chunk's files."""
        return _with_suffix(self.chunk_stem(source, chunk), suffix)

    def chunk_stem(self, source: int, chunk: int) -> Path:
        """Return the common prefix of the paths of a chunk's files."""
        return self.work / CHUNKS_DIRECTORY / f"{source:05d}-{chunk:05d}"

    def checksum(self, suffix: str) -> Callable[[], Any]:
        """Return the checksum for one of a chunk's files: SHA-256 for files that end in the dataset, else CRC-32."""
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
        unknown: number of each feature's values without an id of their own.
        forms: spellings (`Form`) of each sparse column of a user's own table.
        longest: length of the longest bag of each multi-hot feature of a user's own table.
        positive_rows: rows with each positive label that a user's own table names.
        values_per_row: mean number of values that share an id, of each hashed feature (Criteo's: in the first rows).
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
    unknown: list[int] = field(default_factory=list)
    forms: list[int] = field(default_factory=list)
    longest: list[int] = field(default_factory=list)
    positive_rows: list[int] = field(default_factory=list)
    values_per_row: list[float] = field(default_factory=list)

    @property
    def encoded_bytes(self) -> int:
        """Return the bytes of a parsed chunk that are still to be encoded."""
        other_bytes = (digest.bytes for suffix, digest in self.files.items() if suffix in ("bags.npy", "integers.npy"))
        return self.value_bytes + sum(other_bytes)

    @property
    def value_bytes(self) -> int:
        """Return the bytes of the values that a vocabulary maps to ids, for features with single values."""
        return VALUE_BYTES * self.rows * len(self.dictionaries)


RecordT = TypeVar("RecordT", bound=Record)


def save_record(stem: Path, stage: str, record: Record) -> None:
    """Log that a stage has written the files <stem>.*; a task does this last."""
    path = _with_suffix(stem, f"{stage}.json")
    temporary = temporary_path(path)
    # No sync: load_record detects damage by a power cut to the record or to its files.
    temporary.write_bytes(msgspec.json.encode(record))
    temporary.replace(path)


def load_record(stem: Path, stage: str, record_type: type[RecordT]) -> RecordT | None:
    """Return the record of a stage if its files match it, else None."""
    try:
        record = decode(_with_suffix(stem, f"{stage}.json").read_bytes(), record_type)
    except (FileNotFoundError, ValueError):
        return None
    return record if all(is_unchanged(_with_suffix(stem, s), digest) for s, digest in record.files.items()) else None


def _with_suffix(stem: Path, suffix: str) -> Path:
    return stem.with_name(f"{stem.name}.{suffix}")


class LoggedTask(ABC, Generic[RecordT]):
    """A task that runs once, however often its job is stopped; see the task log above.

    Class attributes:
        stage: part of the record's name. record_type: dataclass of the record.
    """

    stage: ClassVar[str]
    record_type: ClassVar[type[Any]]

    @property
    @abstractmethod
    def stem(self) -> Path:
        """Return the common prefix of the paths of its files."""

    @property
    @abstractmethod
    def size(self) -> tuple[int, int]:
        """Return the bytes and rows to count as done if the task need not run."""

    @abstractmethod
    def do(self, worker: Worker) -> RecordT:
        """Write the files."""

    def run(self, worker: Worker) -> RecordT:
        """Run the task unless the log says that it is done."""
        record: RecordT | None = load_record(self.stem, self.stage, self.record_type)
        if record is not None:
            worker.count(*self.size)
            return record
        self.stem.parent.mkdir(parents=True, exist_ok=True)
        record = self.do(worker)
        save_record(self.stem, self.stage, record)
        return record
