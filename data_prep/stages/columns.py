"""Categorical values of a chunk on disk, as codes of one or two bytes if a column's values repeat, as most do.

The file `columns` begins with the dictionaries, feature by feature, uint32 [values]. Blocks of the job's `block_rows`
follow. A block holds each feature's codes, uint8 or uint16 [rows], or, without a dictionary, its values, uint32 [rows].
Each feature of a block begins at a multiple of ALIGNMENT bytes. For a user's own table the dictionaries are in other
files (data_prep/stages/categories.py); all features have one, and codes may be uint32.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.files import FileDigest
from common.jit import jit
from data_prep.dataset.bags import Bags, unpack
from data_prep.engine.job import VALUE_BYTES, ChunkRecord, Job
from data_prep.io.arrays import open_array
from data_prep.io.direct_io import FileRange, FileWriter, read_ranges
from data_prep.vocabulary.count import FEW_CODES, MAX_CODES, Coding

ALIGNMENT = 8
DICTIONARIES = "dictionaries"  # suffix of a chunk's file, for a user's own table
ENTRY_BYTES = 16  # an entry of that file: value, count, first row


@jit
def transpose(rows: NDArray[np.uint32], columns: NDArray[np.uint32]) -> None:
    """Write rows[i, c] to columns[c, i], row by row: caches hold a row's entries, but not a column's."""
    for i in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            columns[c, i] = rows[i, c]


class ValueBuffer:
    """Values of a chunk during parsing, in memory, or in a temporary file if they are too many."""

    def __init__(self, path: Path, num_columns: int) -> None:
        self._file = FileWriter(path, is_buffered=True)
        self._num_columns = num_columns
        self._block_rows: list[int] = []

    def append(self, rows: NDArray[np.uint32]) -> None:
        """Add rows, [rows, F]."""
        rows = np.ascontiguousarray(rows, np.uint32)
        self._file.extend(rows.shape[::-1], np.uint32, lambda out: transpose(rows, out))
        self._block_rows.append(len(rows))

    def column(self, number: int) -> NDArray[np.uint32]:
        """Return a copy of a column's values [rows]."""
        column = np.empty(sum(self._block_rows), np.uint32)
        row = position = 0
        for rows in self._block_rows:
            self._file.read_into(position + VALUE_BYTES * number * rows, column[row : row + rows])
            position += VALUE_BYTES * self._num_columns * rows
            row += rows
        return column

    def abandon(self) -> None:
        """Release the values."""
        self._file.abandon()


@dataclass(frozen=True)
class ColumnLayout:
    """Layout of a `columns` file; `dictionaries` holds the number of values of each feature's, 0 without one.

    entry_bytes: bytes per dictionary value in the file; 0 if the dictionaries are in another file.
    """

    rows: int
    dictionaries: Sequence[int]
    block_rows: int
    entry_bytes: int = VALUE_BYTES

    @classmethod
    def of(cls, job: Job, record: ChunkRecord) -> "ColumnLayout":
        """Return the layout of a chunk's file."""
        return cls(record.rows, record.dictionaries, job.block_rows, VALUE_BYTES if job.table is None else 0)

    def dtype(self, feature: int) -> np.dtype[Any]:
        """Return the dtype of a feature's codes or values."""
        return code_dtype(self.dictionaries[feature]) if self.dictionaries[feature] else np.dtype(np.uint32)

    @property
    def begin(self) -> int:
        """Return the offset of the first block."""
        return aligned(self.entry_bytes * sum(self.dictionaries))

    def feature_bytes(self, feature: int, rows: int) -> int:
        """Return the bytes of a feature in a block of that many rows."""
        return aligned(self.dtype(feature).itemsize * rows)

    def block_bytes(self, rows: int) -> int:
        """Return the bytes of a block of that many rows."""
        return sum(self.feature_bytes(feature, rows) for feature in range(len(self.dictionaries)))

    def block_of(self, row: int) -> tuple[int, int, int]:
        """Return the block of a row: its first row, the row after its last, and its offset in the file."""
        number = row // self.block_rows
        begin = number * self.block_rows
        return begin, min(begin + self.block_rows, self.rows), self.begin + number * self.block_bytes(self.block_rows)


def code_dtype(num_values: int) -> np.dtype[Any]:
    """Return the dtype of codes for that many values."""
    return np.dtype(np.uint8 if num_values <= FEW_CODES else np.uint16 if num_values <= MAX_CODES else np.uint32)


def row_blocks(start: int, stop: int, block_rows: int) -> list[tuple[int, int]]:
    """Divide rows start..stop of a chunk at its blocks: first row of each part, row after its last."""
    inner = range((start // block_rows + 1) * block_rows, stop, block_rows)
    return list(pairwise([start, *inner, stop])) if start < stop else []


def aligned(num_bytes: int) -> int:
    """Return the next multiple of ALIGNMENT."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def write_columns(
    job: Job, chunk: tuple[int, int], values: ValueBuffer, codings: Sequence[Coding | None]
) -> tuple[list[int], FileDigest]:
    """Write a chunk's `columns` and release the values.

    Args:
        chunk: source index and chunk number.
        codings: one per feature; None: write the feature's values.

    Returns:
        The number of values of each dictionary (0 without one), and the file's size and checksum.
    """
    columns = [values.column(i) if coding is None else coding.codes for i, coding in enumerate(codings)]
    values.abandon()
    dictionaries = [0 if coding is None else len(coding.dictionary) for coding in codings]
    values_of = np.concatenate([np.zeros(0, np.uint32), *(c.dictionary for c in codings if c is not None)])
    return dictionaries, write_blocks(job, chunk, columns, values_of)


def write_blocks(
    job: Job, chunk: tuple[int, int], columns: Sequence[NDArray[np.unsignedinteger]], values: NDArray[np.uint32]
) -> FileDigest:
    """Write a chunk's `columns`: the dictionaries' values, then the columns block by block."""
    with FileWriter(job.chunk_path(*chunk, "columns"), job.checksum("columns")) as file:
        append_aligned(file, values)
        for start in range(0, len(columns[0]) if columns else 0, job.block_rows):
            for column in columns:
                append_aligned(file, column[start : start + job.block_rows])
        return file.close()


def append_aligned(file: FileWriter, array: NDArray[Any]) -> None:
    """Append an array, and zeros up to a multiple of ALIGNMENT."""
    file.append(array)
    file.append(np.zeros(aligned(array.nbytes) - array.nbytes, np.uint8))


def column_blocks(
    job: Job, record: ChunkRecord, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, list[NDArray[np.unsignedinteger]]]]:
    """Yield rows start..stop (by default all) of a chunk in blocks: number of rows, codes or values of each feature."""
    stop = record.rows if stop is None else stop
    layout = ColumnLayout.of(job, record)
    path = job.chunk_path(record.source, record.chunk, "columns")
    row_ranges = row_blocks(start, stop, job.block_rows)
    blocks = [layout.block_of(first) for first, _ in row_ranges]
    ranges = [FileRange(path, offset, layout.block_bytes(end - begin)) for begin, end, offset in blocks]
    for (first, after), (begin, end, _), content in zip(row_ranges, blocks, read_ranges(ranges), strict=True):
        rows = slice(first - begin, after - begin)
        columns, offset = [], 0
        for feature in range(len(layout.dictionaries)):
            dtype = layout.dtype(feature)
            columns.append(content[offset : offset + dtype.itemsize * (end - begin)].view(dtype)[rows])
            offset += layout.feature_bytes(feature, end - begin)
        yield after - first, columns


def read_dictionary(job: Job, record: ChunkRecord, feature: str) -> NDArray[Any] | None:
    """Return the value of each code of a feature, uint64 for a user's own table, else uint32; None without codes."""
    if job.table is not None:
        number = job.schema.sparse.index(feature)
        offset = ENTRY_BYTES * sum(record.distinct[:number])
        path = job.chunk_path(record.source, record.chunk, DICTIONARIES)
        return np.fromfile(path, np.uint64, record.distinct[number], offset=offset)
    number = job.schema.single.index(feature)
    if not record.dictionaries[number]:
        return None
    path = job.chunk_path(record.source, record.chunk, "columns")
    offset = VALUE_BYTES * sum(record.dictionaries[:number])
    return np.fromfile(path, np.uint32, record.dictionaries[number], offset=offset)


def read_codes(job: Job, record: ChunkRecord, feature: int) -> NDArray[Any]:
    """Return the codes [rows] of a feature, or its values [rows] if it has no dictionary."""
    layout = ColumnLayout.of(job, record)
    column: NDArray[np.unsignedinteger] = np.empty(record.rows, layout.dtype(feature))
    with open(job.chunk_path(record.source, record.chunk, "columns"), "rb", buffering=0) as file:
        for first, _ in row_blocks(0, record.rows, job.block_rows):
            begin, end, offset = layout.block_of(first)
            before = sum(layout.feature_bytes(i, end - begin) for i in range(feature))
            os.preadv(file.fileno(), [column[begin:end].data], offset + before)
    return column


def read_column(job: Job, record: ChunkRecord, feature: int) -> NDArray[np.uint32]:
    """Return a copy of a feature's values [rows]."""
    column, dictionary = read_codes(job, record, feature), read_dictionary(job, record, job.schema.single[feature])
    return column if dictionary is None else dictionary[column]


def chunk_bags(
    job: Job, source: int, chunk: int, names: tuple[str, str] = ("bags.npy", "offsets.npy")
) -> tuple[Bags, ...]:
    """Map a chunk's multi-hot columns; `names` are the files of values and offsets, by default the parsed ones."""
    values, offsets = (open_array(job.chunk_path(source, chunk, name)) for name in names)
    return unpack(values, offsets, len(job.schema.ragged))
