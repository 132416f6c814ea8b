"""Second step of reordering rows: assemble each shard from all chunks (the first step is data_prep/stages/scatter.py).

A shard is assembled in windows; the next window's rows are read in the background.
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from common.files import FileDigest
from data_prep.dataset.bags import BAG_KINDS, Bags, join, pack
from data_prep.dataset.format import SPLITS
from data_prep.engine.executor import Worker
from data_prep.engine.job import (
    SHUFFLED_ROW_BYTES,
    SHUFFLED_VALUE_BYTES,
    VALUE_BYTES,
    ChunkRecord,
    Job,
    LoggedTask,
)
from data_prep.io.arrays import ArrayWriter, open_array, rows_range, write_array
from data_prep.io.direct_io import read_ranges
from data_prep.stages.columns import chunk_bags
from data_prep.stages.encode import count_unknown, encoded_blocks, finish_ids, unknown_of_all
from data_prep.stages.scatter import (
    ENCODED_BAGS,
    MOVED_BAGS,
    MOVED_SUFFIX,
    POSITIONS_SUFFIX,
    KeptChunk,
    RowLayout,
)
from data_prep.stages.shuffle_order import Positions

WINDOW_ROWS = 1 << 18  # rows of a shard assembled at once
PART_ROWS = 1 << 9  # least average number of rows of a chunk read at once

Window = dict[str, NDArray[Any]]  # an array of each of `Job.row_kinds`


@dataclass
class GatheredShard:
    """Files of a shard, its positive labels, and the number of unknown values of each feature."""

    files: dict[str, FileDigest]
    positives: int
    unknown: list[int]


@dataclass(frozen=True)
class GatherTask(LoggedTask[GatheredShard]):
    """Makes a shard of positions start..stop from scattered `chunks` (source, chunk) and from `kept_chunks`."""

    stage: ClassVar[str] = "gathered"
    record_type: ClassVar[type[GatheredShard]] = GatheredShard

    job: Job
    split: str
    name: str
    start: int
    stop: int
    chunks: tuple[tuple[int, int], ...]
    kept_chunks: tuple[KeptChunk, ...]
    layout: RowLayout

    @property
    def stem(self) -> Path:
        return self.job.work / "gathered" / f"{self.split}-{self.name}"

    @property
    def size(self) -> tuple[int, int]:
        rows = self.stop - self.start
        return 4 * rows * (1 + self.layout.num_dense + len(self.job.schema.sparse)), rows

    def path(self, kind: str) -> Path:
        """Return the path of an array before it moves to the dataset."""
        return self.stem.with_name(f"{self.stem.name}.{kind}.npy")

    def do(self, worker: Worker) -> GatheredShard:
        slices = [self._slice(*chunk) for chunk in self.chunks]
        shard = GatheredShard({}, 0, [])
        bags = self._gather_bags(slices) if self.job.schema.ragged else ()
        if bags:
            for kind, array in zip(BAG_KINDS, pack(bags), strict=True):
                shard.files[f"{kind}.npy"] = write_array(self.path(kind), array)
        self._gather_rows(slices, bags, shard, worker)
        worker.count(*self.size)
        return shard

    def _slice(self, source: int, chunk: int) -> slice:
        """Return the slice of a scattered chunk's rows that belong to this shard."""
        positions = open_array(self.job.chunk_path(source, chunk, POSITIONS_SUFFIX))
        return slice(*between(positions, (self.start, self.stop)).tolist())

    def _gather_rows(self, slices: list[slice], bags: tuple[Bags, ...], shard: GatheredShard, worker: Worker) -> None:
        """Write labels, dense values and ids in the order of positions, and count positives and unknown values."""
        job, rows = self.job, self.stop - self.start
        moved = []
        for chunk, part in zip(self.chunks, slices, strict=True):
            if part.start < part.stop:
                positions = open_array(job.chunk_path(*chunk, POSITIONS_SUFFIX))[part]
                moved.append(MovedChunk(job.chunk_path(*chunk, MOVED_SUFFIX), part.start, positions - self.start))
        bounds = [*range(0, rows, max(WINDOW_ROWS, PART_ROWS * len(moved))), rows]
        moved_rows = MovedRows(self.layout, moved, bounds)
        kept_rows = KeptRows(self.kept_chunks, self.start, self.stop, worker)
        unknown = np.zeros(self.layout.width("sparse"), np.int64)
        writers = {
            kind: ArrayWriter(self.path(kind), job.dtypes[kind], self.layout.width(kind), rows)
            for kind in job.row_kinds
        }
        max_rows = max(stop - start for start, stop in pairwise(bounds))
        buffers = {kind: np.empty((max_rows, self.layout.width(kind)), job.dtypes[kind]) for kind in job.row_kinds}
        try:
            for number, (start, stop) in enumerate(pairwise(bounds)):
                window = {kind: buffer[: stop - start] for kind, buffer in buffers.items()}
                moved_rows.fill(number, window)
                kept_rows.fill(start, stop, window)
                finish_ids(job.rules, self.split, window["sparse"])
                shard.positives += int(np.count_nonzero(window["labels"] == 1))
                unknown += count_unknown(job, window["sparse"])
                for kind, writer in writers.items():
                    writer.append(window[kind])
            shard.files |= {f"{kind}.npy": writer.close() for kind, writer in writers.items()}
        finally:
            for writer in writers.values():
                writer.abandon()
        shard.unknown = unknown_of_all(job, unknown, bags)

    def _gather_bags(self, slices: list[slice]) -> tuple[Bags, ...]:
        parts: list[tuple[Bags, ...]] = []
        positions = []
        for (source, chunk), part in zip(self.chunks, slices, strict=True):
            if part.start < part.stop:
                moved = chunk_bags(self.job, source, chunk, MOVED_BAGS)
                # Copies, since a mapping keeps its file open and chunks may be many.
                parts.append(tuple(bags.part(part.start, part.stop).copy() for bags in moved))
                positions.append(np.array(open_array(self.job.chunk_path(source, chunk, POSITIONS_SUFFIX))[part]))
        for kept_chunk in self.kept_chunks:
            start, stop = kept_chunk.rows_between(self.start, self.stop)
            encoded = chunk_bags(self.job, kept_chunk.chunk.record.source, kept_chunk.chunk.record.chunk, ENCODED_BAGS)
            parts.append(tuple(bags.part(start, stop) for bags in encoded))
            positions.append(kept_chunk.position + np.arange(start, stop))
        order = np.argsort(np.concatenate(positions))
        return tuple(join(feature).take(order) for feature in zip(*parts, strict=True))


def rows_per_shard(job: Job, records: list[ChunkRecord]) -> int:
    """Return the rows of a shard, fewer if they hold many values; `records` are all chunks, encoded."""
    values = sum(record.files["values.npy"].bytes for record in records if job.schema.ragged) // VALUE_BYTES
    a_row = values / max(1, sum(record.rows for record in records))
    return max(1, int(job.shard_bytes / (SHUFFLED_ROW_BYTES + SHUFFLED_VALUE_BYTES * a_row)))


def gather_tasks(
    job: Job,
    records: list[ChunkRecord],
    kept_chunks: list[KeptChunk],
    rows: dict[str, int],
    layout: RowLayout,
    shard_rows: int,
) -> list[GatherTask]:
    """Plan the shards of all splits from scattered and kept chunks."""
    chunks = tuple((record.source, record.chunk) for record in records)
    tasks = []
    first = 0
    for split in SPLITS:
        for i, begin in enumerate(range(first, first + rows[split], shard_rows)):
            end = min(begin + shard_rows, first + rows[split])
            shard_chunks = tuple(chunk for chunk in kept_chunks if operator.lt(*chunk.rows_between(begin, end)))
            tasks.append(GatherTask(job, split, f"{i:05d}", begin, end, chunks, shard_chunks, layout))
        first += rows[split]
    return tasks


@dataclass(frozen=True)
class MovedChunk:
    """Rows of a scattered chunk for a shard, from row `begin` on; `indices` [n] in the shard ascend."""

    path: Path
    begin: int
    indices: Positions


class MovedRows:
    """Rows of scattered chunks for the windows of a shard between `bounds`."""

    def __init__(self, layout: RowLayout, chunks: Sequence[MovedChunk], bounds: Sequence[int]) -> None:
        self._layout = layout
        cuts = [between(chunk.indices, bounds).tolist() for chunk in chunks]
        self._windows = [
            [(chunk, *cut[i : i + 2]) for chunk, cut in zip(chunks, cuts, strict=True) if cut[i] < cut[i + 1]]
            for i in range(len(bounds) - 1)
        ]
        self._contents = read_ranges(
            (
                rows_range(chunk.path, chunk.begin + first, chunk.begin + after, layout.row_bytes, np.uint8)
                for window in self._windows
                for chunk, first, after in window
            )
        )
        self._starts = list(bounds)

    def fill(self, number: int, window: Window) -> None:
        """Write the rows of a window to its arrays; windows are filled in order."""
        for chunk, first, after in self._windows[number]:
            packed = next(self._contents).reshape(after - first, self._layout.row_bytes)
            self._layout.unpack(packed, chunk.indices[first:after] - self._starts[number], window)


def between(rising: Positions, bounds: Sequence[int]) -> NDArray[np.int64]:
    """Count the ascending numbers below each bound."""
    return np.searchsorted(rising, np.array(bounds, rising.dtype))  # bounds of another dtype would convert all numbers


class KeptRows:
    """Encoded rows of chunks that keep their order, for a shard that begins at position `start`."""

    def __init__(self, chunks: Sequence[KeptChunk], start: int, stop: int, worker: Worker) -> None:
        self._blocks = self._read(chunks, start, stop, worker)
        self._block = next(self._blocks, None)  # first block that is not placed completely

    def fill(self, start: int, stop: int, window: Window) -> None:
        """Write these chunks' part of the shard's rows start..stop to a window; calls come in ascending order."""
        while self._block is not None and self._block[0] < stop:
            index, block = self._block
            rows = len(block["labels"])
            count = min(stop - index, rows)
            for kind in block:
                window[kind][index - start : index - start + count] = block[kind][:count]
            if count < rows:
                self._block = index + count, {kind: rest[count:] for kind, rest in block.items()}
            else:
                self._block = next(self._blocks, None)

    @staticmethod
    def _read(chunks: Sequence[KeptChunk], start: int, stop: int, worker: Worker) -> Iterator[tuple[int, Window]]:
        """Yield all blocks, each with the shard's index of its first row."""
        for kept_chunk in sorted(chunks, key=lambda kept_chunk: kept_chunk.position):
            for begin, rows in encoded_blocks(kept_chunk.chunk, worker, *kept_chunk.rows_between(start, stop)):
                yield kept_chunk.position + begin - start, rows
