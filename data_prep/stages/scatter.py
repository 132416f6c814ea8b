"""First step of reordering rows: sort each chunk's rows by position (the second step is data_prep/stages/gather.py).

Memory is bounded for any number of rows, and any number of processes can share the work. Rows travel packed: a
feature's ids take no more bytes than its largest id needs.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from common.files import FileDigest
from common.jit import jit
from data_prep.dataset.bags import pack
from data_prep.dataset.format import ROW_KINDS, WEIGHTS
from data_prep.engine.executor import Worker
from data_prep.engine.job import ChunkRecord, Job, LoggedTask
from data_prep.io.arrays import write_array
from data_prep.stages.columns import chunk_bags
from data_prep.stages.encode import EncodeTask, encoded_blocks
from data_prep.stages.shuffle_order import chunk_positions, kept_position
from data_prep.stages.split_choices import LEFT_OUT

MOVED_SUFFIX = "moved.npy"
ENCODED_BAGS = "values.npy", "offsets.npy"  # files of multi-hot columns
MOVED_BAGS = "moved-values.npy", "moved-offsets.npy"
POSITIONS_SUFFIX = "positions.npy"
ID_TYPES: tuple[np.dtype[Any], ...] = (np.dtype(np.int32), np.dtype(np.uint16), np.dtype(np.uint8))
ALIGNMENT = 4
FLOAT32, INT32 = np.dtype(np.float32), np.dtype(np.int32)
FIELD_BYTES = 4  # size of a label, of a dense value and of a weight


@jit
def pack_rows(
    labels: NDArray[Any],
    dense: NDArray[np.float32],
    ids: NDArray[np.int32],
    indices: NDArray[np.int64],
    fields: tuple[NDArray[Any], ...],
    columns: tuple[NDArray[np.int64], ...],
) -> None:
    """Write row i to index indices[i] of the packed rows; skip rows with a negative index.

    Args:
        labels, dense, ids: [rows, 1], [rows, N] and [rows, F].
        fields: views of the packed rows: labels, dense values, and ids of each of ID_TYPES.
        columns: columns of `ids` with each type.
    """
    out_labels, out_dense, out_large, out_medium, out_small = fields
    large, medium, small = columns
    for i in range(len(indices)):
        index = indices[i]
        if index < 0:
            continue
        out_labels[index, 0] = labels[i, 0]
        for column in range(dense.shape[1]):
            out_dense[index, column] = dense[i, column]
        for number in range(len(large)):
            out_large[index, number] = ids[i, large[number]]
        for number in range(len(medium)):
            out_medium[index, number] = ids[i, medium[number]]
        for number in range(len(small)):
            out_small[index, number] = ids[i, small[number]]


@jit
def unpack_rows(
    fields: tuple[NDArray[Any], ...],
    columns: tuple[NDArray[np.int64], ...],
    indices: NDArray[np.int64],
    labels: NDArray[Any],
    dense: NDArray[np.float32],
    ids: NDArray[np.int32],
) -> None:
    """Write packed row i to row indices[i] of the arrays: the inverse of `pack_rows`."""
    in_labels, in_dense, in_large, in_medium, in_small = fields
    large, medium, small = columns
    for i in range(len(indices)):
        index = indices[i]
        labels[index, 0] = in_labels[i, 0]
        for column in range(dense.shape[1]):
            dense[index, column] = in_dense[i, column]
        for number in range(len(large)):
            ids[index, large[number]] = in_large[i, number]
        for number in range(len(medium)):
            ids[index, medium[number]] = in_medium[i, number]
        for number in range(len(small)):
            ids[index, small[number]] = in_small[i, number]


@dataclass(frozen=True)
class RowLayout:
    """Layout of a packed row: a label, N dense values, an id of each feature in as few bytes as possible, and a weight.

    largest_ids: largest possible id of each feature. dense, label: dtypes. weighted: whether rows have a weight.
    """

    num_dense: int
    largest_ids: tuple[int, ...]
    dense: np.dtype[Any] = FLOAT32
    label: np.dtype[Any] = INT32
    weighted: bool = False

    @cached_property
    def id_columns(self) -> tuple[NDArray[np.int64], ...]:
        """Return the sparse columns whose ids have each of ID_TYPES."""
        fits = [np.array([np.iinfo(kind).max >= largest for largest in self.largest_ids], bool) for kind in ID_TYPES]
        smallest = np.sum(fits, axis=0) - 1
        return tuple(np.flatnonzero(smallest == number) for number in range(len(ID_TYPES)))

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a packed row."""
        ids = sum(kind.itemsize * len(columns) for kind, columns in zip(ID_TYPES, self.id_columns, strict=True))
        return -(-(FIELD_BYTES * (1 + self.num_dense) + ids) // ALIGNMENT) * ALIGNMENT + FIELD_BYTES * self.weighted

    def width(self, kind: str) -> int:
        """Return the number of columns of an array of that kind."""
        return {"labels": 1, "dense": self.num_dense, "sparse": len(self.largest_ids), WEIGHTS: 1}[kind]

    def pack(self, rows: dict[str, NDArray[Any]], indices: NDArray[np.int64], packed: NDArray[np.uint8]) -> None:
        """Pack row i of the arrays into packed[indices[i]], [n, row_bytes]; skip rows with a negative index."""
        labels, dense, ids = (rows[kind] for kind in ROW_KINDS)
        pack_rows(labels, dense, ids, indices, self._fields(packed), self.id_columns)
        if self.weighted:
            is_kept = indices >= 0
            self._weights(packed)[indices[is_kept]] = rows[WEIGHTS][is_kept]

    def unpack(self, packed: NDArray[np.uint8], indices: NDArray[np.int64], rows: dict[str, NDArray[Any]]) -> None:
        """Write packed row i to row indices[i] of the arrays."""
        labels, dense, ids = (rows[kind] for kind in ROW_KINDS)
        unpack_rows(self._fields(packed), self.id_columns, indices, labels, dense, ids)
        if self.weighted:
            rows[WEIGHTS][indices] = self._weights(packed)

    @staticmethod
    def _weights(packed: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return a view of packed rows' weights [n, 1], which come last."""
        return packed[:, -FIELD_BYTES:].view(np.float32)

    def _fields(self, packed: NDArray[np.uint8]) -> tuple[NDArray[Any], ...]:
        """Return views of packed rows: labels, dense values, and ids of each of ID_TYPES."""
        widths = [1, self.num_dense, *(len(columns) for columns in self.id_columns)]
        dtypes = [self.label, self.dense, *ID_TYPES]
        fields, start = [], 0
        for dtype, width in zip(dtypes, widths, strict=True):
            stop = start + dtype.itemsize * width
            fields.append(packed[:, start:stop].view(dtype))
            start = stop
        return tuple(fields)


@dataclass(frozen=True)
class ScatterTask(LoggedTask[ChunkRecord]):
    """Sorts the rows of a chunk by position, and encodes them first if needed. `begin` is its first row in the dataset.

    The record counts the rows that are not left out.
    """

    stage: ClassVar[str] = "moved"
    record_type: ClassVar[type[ChunkRecord]] = ChunkRecord

    chunk: EncodeTask
    begin: int
    layout: RowLayout

    @property
    def stem(self) -> Path:
        return self.chunk.stem

    @property
    def size(self) -> tuple[int, int]:
        rows = self.chunk.record.rows  # including rows that are left out
        return rows * self.layout.row_bytes, rows

    def do(self, worker: Worker) -> ChunkRecord:
        job, record = self.chunk.job, self.chunk.record
        positions = chunk_positions(job, self.begin, record.rows)
        order = np.argsort(positions)
        order = order[np.count_nonzero(positions == LEFT_OUT) :]  # Rows that are left out come first.
        files = {POSITIONS_SUFFIX: self._write(POSITIONS_SUFFIX, positions[order])}
        if job.schema.ragged:
            bags = [feature.take(order) for feature in chunk_bags(job, record.source, record.chunk, ENCODED_BAGS)]
            files |= {name: self._write(name, array) for name, array in zip(MOVED_BAGS, pack(bags), strict=True)}
        if len(order):
            files[MOVED_SUFFIX] = self._write_rows(order, worker)
        worker.count(*self.size)
        return ChunkRecord(record.source, record.chunk, len(order), 0, files)

    def _write(self, suffix: str, array: NDArray[Any]) -> FileDigest:
        job, record = self.chunk.job, self.chunk.record
        return write_array(job.chunk_path(record.source, record.chunk, suffix), array, job.checksum(suffix))

    def _write_rows(self, order: NDArray[np.int64], worker: Worker) -> FileDigest:
        """Write the chunk's rows, packed, in the given order."""
        indices = np.full(self.chunk.record.rows, -1)
        indices[order] = np.arange(len(order))
        packed = np.empty((len(order), self.layout.row_bytes), np.uint8)
        for begin, rows in encoded_blocks(self.chunk, worker):
            self.layout.pack(rows, indices[begin : begin + len(rows["labels"])], packed)
        return self._write(MOVED_SUFFIX, packed)


@dataclass(frozen=True)
class KeptChunk:
    """A chunk whose rows keep their order and begin at `position`. Gathering encodes them."""

    chunk: EncodeTask
    position: int

    def rows_between(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range of its rows at positions start..stop; empty if there are none."""
        return max(0, start - self.position), min(self.chunk.record.rows, stop - self.position)


def plan_scatter(job: Job, chunks: list[EncodeTask], layout: RowLayout) -> tuple[list[ScatterTask], list[KeptChunk]]:
    """Divide chunks into those to scatter and those whose rows keep their order; with bags, scatter all."""
    scatter, kept_chunks = [], []
    begin = 0
    for chunk in chunks:
        position = None if job.schema.ragged else kept_position(job, begin, chunk.record.rows)
        if position is None:
            scatter.append(ScatterTask(chunk, begin, layout))
        else:
            kept_chunks.append(KeptChunk(chunk, position))
        begin += chunk.record.rows
    return scatter, kept_chunks
