"""Work units: which there are, where their files lie, and which are finished.

A unit is the rows of one chunk of one source. Its files lie in <dataset>/.work/units/:
    00000-00012.{labels,dense,sparse}.npy   as in a shard
    00000-00012.columns                     vocabulary: values (see data_prep/stages/column_store.py)
    00000-00012.{values,offsets}.npy        as in a shard, where a user's table has multi-valued columns
    00000-00012.bags.npy                    vocabulary: the values of those columns as read, [L] uint32 feature-major
    00000-00012.integers.npy                integers as read, where their transform needs statistics first
    00000-00012.runs                        per feature its distinct values (see data_prep/stages/value_counts.py)
    00000-00012.{position,moved,moved-*}.npy  rows on their way to other shards (see data_prep/stages/scatter.py)
    00000-00012.parsed.json and others      records, one per stage, written when what they name is on disk
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.config.presets import Rules
from data_prep.dataset.format import ARRAY_DTYPES, ROW_KINDS, FileDigest, digest_file
from data_prep.dataset.multi_hot import MultiHot
from data_prep.dataset.schema import Schema
from data_prep.dataset.table_spec import Table
from data_prep.io.atomic import Crc32, temporary_path
from data_prep.sources.checksums import KnownSum
from data_prep.sources.discover import Source

WORK_DIRECTORY = ".work"
WORK_FORMAT = 4  # of the units' files and records: that of another release is not gone on with
SHARD_SUFFIXES = ("labels.npy", "dense.npy", "sparse.npy", "values.npy", "offsets.npy")
LEAST_BLOCK_ROWS, MOST_BLOCK_ROWS, BLOCK_VALUES = 1 << 8, 1 << 15, 1 << 21
VALUE_BYTES = 4  # of a categorical value or an id
ARRANGED_ROW_BYTES = 64  # a 64 MiB chunk and a shard of 1,048,576 rows need about the same memory
ARRANGED_VALUE_BYTES = 7  # of a multi-valued column, likewise


@dataclass(frozen=True)
class Job:
    """All that decides what units contain; handed to every worker."""

    work: Path
    sources: tuple[Source, ...]
    schema: Schema
    rules: Rules
    chunk_bytes: int
    table: Table | None = None  # of a user's own; None: Criteo's rows
    bags: MultiHot | None = None  # what ids are expanded to, if anything
    known_sums: tuple[KnownSum | None, ...] = ()  # of the sources, where files are fetched

    @property
    def kinds(self) -> tuple[str, ...]:
        """The arrays of a shard as it leaves its unit."""
        return ("labels", "dense", "sparse", *(("values", "offsets") if self.schema.ragged else ()))

    @property
    def dtypes(self) -> dict[str, np.dtype[Any]]:
        """Of the arrays of a shard that have one entry a row."""
        return {kind: np.dtype(ARRAY_DTYPES[kind]) for kind in ROW_KINDS} | {"dense": self.rules.dense.dtype}

    @property
    def block_rows(self) -> int:
        """Rows of a unit encoded at once, and so of a block of its values: fewer where there are many columns."""
        columns = len(self.schema.dense) + len(self.schema.single)
        return max(LEAST_BLOCK_ROWS, min(MOST_BLOCK_ROWS, BLOCK_VALUES // max(1, columns)))

    @property
    def shard_rows(self) -> int:
        """Rows per shard where rows leave their order."""
        return max(1, self.chunk_bytes // ARRANGED_ROW_BYTES)

    def unit_path(self, source: int, chunk: int, suffix: str) -> Path:
        """Path of one of a unit's files."""
        return self.work / "units" / f"{source:05d}-{chunk:05d}.{suffix}"


@dataclass
class UnitRecord:
    """A unit after one stage.

    Attributes:
        source, chunk: its place. rows: how many it has. positives: rows with label 1.
        files: suffix -> size and sum of what the stage wrote.
        dictionaries: values of each single-valued feature's dictionary in .columns, 0 without one.
        run_lengths: distinct values of each feature in .runs.
        dense_low, dense_high: the range of each integer column, a missing one counting as 0.
        unknown: values of each feature without an id of their own.
    """

    source: int
    chunk: int
    rows: int
    positives: int
    files: dict[str, FileDigest]
    dictionaries: list[int] = field(default_factory=list)
    run_lengths: list[int] = field(default_factory=list)
    dense_low: list[int] = field(default_factory=list)
    dense_high: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)

    @property
    def encoded_bytes(self) -> int:
        """Bytes of a parsed unit that are still to be encoded."""
        others = (digest.bytes for suffix, digest in self.files.items() if suffix in ("bags.npy", "integers.npy"))
        return self.value_bytes + sum(others)

    @property
    def value_bytes(self) -> int:
        """Bytes of the values of its single-valued features, of which a vocabulary has or will have ids."""
        return VALUE_BYTES * self.rows * len(self.dictionaries)


def save_record(job: Job, stage: str, record: UnitRecord) -> None:
    """Record that a unit has passed a stage: the last thing the stage does."""
    path = job.unit_path(record.source, record.chunk, f"{stage}.json")
    temporary = temporary_path(path)
    # not synced: what a power cut makes of it, or of the files it names, load_record finds out
    temporary.write_text(json.dumps(asdict(record)))
    temporary.replace(path)


def load_record(job: Job, stage: str, source: int, chunk: int) -> UnitRecord | None:
    """The record of a unit that has passed a stage and whose files are still as it says, else None."""
    path = job.unit_path(source, chunk, f"{stage}.json")
    try:
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    document["files"] = {suffix: FileDigest(**digest) for suffix, digest in document["files"].items()}
    record = UnitRecord(**document)
    try:
        found = digest_unit_files(job, source, chunk, list(record.files))
    except FileNotFoundError:
        return None
    return record if found == record.files else None


def digest_unit_files(job: Job, source: int, chunk: int, suffixes: list[str]) -> dict[str, FileDigest]:
    """Sizes and sums of some of a unit's files."""
    return {suffix: digest_file(job.unit_path(source, chunk, suffix), sum_of(job, suffix)) for suffix in suffixes}


def sum_of(job: Job, suffix: str) -> Callable[[], Any]:
    """How one of a unit's files is summed: those that end in the dataset by SHA-256."""
    return hashlib.sha256 if suffix in SHARD_SUFFIXES and not job.rules.is_arranged else Crc32
