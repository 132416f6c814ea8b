"""A chunk's categorical values on disk: as codes of one or two bytes where a column's values repeat, as most do.

The file `columns` has the dictionaries, feature by feature, uint32 [values]; then, block by block of the job's
`block_rows`, the features' codes, uint8 or uint16 [rows], or, of a feature without a dictionary, its values, uint32
[rows]. Each block's part of a feature begins at a multiple of ALIGNMENT bytes, and so does the first block.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.jit import jit
from data_prep.dataset.bags import Bags, unpack
from data_prep.engine.job import VALUE_BYTES, ChunkRecord, Job
from data_prep.io.arrays import open_array
from data_prep.io.atomic import FileDigest
from data_prep.io.direct_io import FileRange, FileWriter, read_ranges
from data_prep.vocabulary.count import FEW_CODES, Coding

ALIGNMENT = 8


@jit
def transpose(rows: NDArray[np.uint32], columns: NDArray[np.uint32]) -> None:
    """columns[c, i] = rows[i, c]: row by row, as the caches hold the entries of one row, but not those of a column."""
    for i in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            columns[c, i] = rows[i, c]


class ValueBuffer:
    """A chunk's values while it is parsed: in memory, or in a temporary file where that is too much."""

    def __init__(self, path: Path, num_columns: int) -> None:
        self._file = FileWriter(path, held=True)
        self._num_columns = num_columns
        self._block_rows: list[int] = []

    def append(self, rows: NDArray[np.uint32]) -> None:
        """Add rows, [rows, F]."""
        rows = np.ascontiguousarray(rows, np.uint32)
        self._file.extend(rows.shape[::-1], np.uint32, lambda out: transpose(rows, out))
        self._block_rows.append(len(rows))

    def column(self, number: int) -> NDArray[np.uint32]:
        """A copy of a column's values [rows]."""
        column = np.empty(sum(self._block_rows), np.uint32)
        row = position = 0
        for rows in self._block_rows:
            self._file.read_into(position + VALUE_BYTES * number * rows, column[row : row + rows])
            position += VALUE_BYTES * self._num_columns * rows
            row += rows
        return column

    def abandon(self) -> None:
        """Let go of the values."""
        self._file.abandon()


@dataclass(frozen=True)
class ColumnLayout:
    """Layout of a `columns` file; dictionaries: number of values of each feature's, 0 without one."""

    rows: int
    dictionaries: Sequence[int]
    block_rows: int

    def dtype(self, feature: int) -> np.dtype[Any]:
        """Dtype of a feature's numbers."""
        values = self.dictionaries[feature]
        return np.dtype(np.uint32 if not values else np.uint8 if values <= FEW_CODES else np.uint16)

    @property
    def begin(self) -> int:
        """Offset of the first block."""
        return _aligned(VALUE_BYTES * sum(self.dictionaries))

    def feature_bytes(self, feature: int, rows: int) -> int:
        """Bytes of a feature in a block of that many rows."""
        return _aligned(self.dtype(feature).itemsize * rows)

    def block_bytes(self, rows: int) -> int:
        """Bytes of a block of that many rows."""
        return sum(self.feature_bytes(feature, rows) for feature in range(len(self.dictionaries)))

    def block_of(self, row: int) -> tuple[int, int, int]:
        """The block that a row is in: its first row, the row after its last, its offset in the file."""
        number = row // self.block_rows
        begin = number * self.block_rows
        return begin, min(begin + self.block_rows, self.rows), self.begin + number * self.block_bytes(self.block_rows)


def row_blocks(start: int, stop: int, block_rows: int) -> list[tuple[int, int]]:
    """Rows start..stop of a chunk, cut at its blocks: first row of each, row after its last."""
    inner = range((start // block_rows + 1) * block_rows, stop, block_rows)
    return list(pairwise([start, *inner, stop])) if start < stop else []


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def write_columns(
    job: Job, chunk: tuple[int, int], values: ValueBuffer, codings: Sequence[Coding | None]
) -> tuple[list[int], FileDigest]:
    """Write a chunk's `columns` and let go of the values.

    Args:
        chunk: its source and its number.
        codings: one per feature; None: its values are written.

    Returns:
        the number of values of each dictionary, 0 without one, and the size and checksum of the file.
    """
    columns = [values.column(i) if coding is None else coding.codes for i, coding in enumerate(codings)]
    values.abandon()
    dictionaries = [0 if coding is None else len(coding.dictionary) for coding in codings]
    file = FileWriter(job.chunk_path(*chunk, "columns"), job.checksum("columns"))
    try:
        file.append(np.concatenate([np.zeros(0, np.uint32), *(c.dictionary for c in codings if c is not None)]))
        _pad(file, VALUE_BYTES * sum(dictionaries))
        for start in range(0, len(columns[0]) if columns else 0, job.block_rows):
            for column in columns:
                part = column[start : start + job.block_rows]
                file.append(part)
                _pad(file, part.nbytes)
    except BaseException:
        file.abandon()
        raise
    return dictionaries, file.close()


def _pad(file: FileWriter, num_bytes: int) -> None:
    missing = _aligned(num_bytes) - num_bytes
    if missing:
        file.append(np.zeros(missing, np.uint8))


def column_blocks(
    job: Job, record: ChunkRecord, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, list[NDArray[np.unsignedinteger]]]]:
    """Rows start..stop (by default all) of a chunk, block by block: their number, each feature's codes or values."""
    stop = record.rows if stop is None else stop
    layout = ColumnLayout(record.rows, record.dictionaries, job.block_rows)
    path = job.chunk_path(record.source, record.chunk, "columns")
    chosen = row_blocks(start, stop, job.block_rows)
    blocks = [layout.block_of(first) for first, _ in chosen]
    ranges = [FileRange(path, offset, layout.block_bytes(end - begin)) for begin, end, offset in blocks]
    for (first, after), (begin, end, _), content in zip(chosen, blocks, read_ranges(ranges), strict=True):
        mine = slice(first - begin, after - begin)
        columns, offset = [], 0
        for feature in range(len(layout.dictionaries)):
            dtype = layout.dtype(feature)
            columns.append(content[offset : offset + dtype.itemsize * (end - begin)].view(dtype)[mine])
            offset += layout.feature_bytes(feature, end - begin)
        yield after - first, columns


def read_dictionaries(job: Job, record: ChunkRecord) -> list[NDArray[np.uint32] | None]:
    """The dictionaries of a chunk's features, each with the value of every code; None where there are none."""
    path = job.chunk_path(record.source, record.chunk, "columns")
    everything = np.fromfile(path, np.uint32, sum(record.dictionaries))
    ends = np.cumsum(record.dictionaries).tolist()
    lengths = zip(ends, record.dictionaries, strict=True)
    return [everything[end - length : end] if length else None for end, length in lengths]


def read_codes(job: Job, record: ChunkRecord, feature: int) -> tuple[NDArray[Any], NDArray[np.uint32] | None]:
    """The codes [rows] of a feature and its dictionary, or its values [rows] and None."""
    layout = ColumnLayout(record.rows, record.dictionaries, job.block_rows)
    column: NDArray[np.unsignedinteger] = np.empty(record.rows, layout.dtype(feature))
    with open(job.chunk_path(record.source, record.chunk, "columns"), "rb", buffering=0) as file:
        for first, _ in row_blocks(0, record.rows, job.block_rows):
            begin, end, offset = layout.block_of(first)
            before = sum(layout.feature_bytes(i, end - begin) for i in range(feature))
            os.preadv(file.fileno(), [column[begin:end].data], offset + before)
        if not record.dictionaries[feature]:
            return column, None
        dictionary = np.empty(record.dictionaries[feature], np.uint32)
        os.preadv(file.fileno(), [dictionary.data], VALUE_BYTES * sum(record.dictionaries[:feature]))
    return column, dictionary


def read_column(job: Job, record: ChunkRecord, feature: int) -> NDArray[np.uint32]:
    """A copy of the values [rows] of a feature."""
    column, dictionary = read_codes(job, record, feature)
    return column if dictionary is None else dictionary[column]


def chunk_bags(
    job: Job, source: int, chunk: int, names: tuple[str, str] = ("bags.npy", "offsets.npy")
) -> tuple[Bags, ...]:
    """A chunk's multi-valued columns, memory-mapped; `names`: files of values and offsets, by default those as read."""
    values, offsets = (open_array(job.chunk_path(source, chunk, name)) for name in names)
    return unpack(values, offsets, len(job.schema.ragged))
