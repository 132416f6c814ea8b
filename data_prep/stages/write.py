"""Columns to rows in shards: encoded, scattered and gathered where they move, cut where they do not.

Encodings that depend on no other rows run block by block during parsing: `encode_hash`. The others wait until the
vocabularies are fitted; then `EncodeTask` writes the chunks. If rows are reordered, scatter and gather take rows from
`encoded_blocks` instead, which saves writing and reading all of them once more. A position is a row's index in the new
order, in which train's rows come first, then val's, then test's (data_prep/stages/place.py).

Memory is bounded for any number of rows, and any number of processes can share the work. Rows travel packed: a
feature's ids take no more bytes than its largest id needs.

A shard is assembled in windows; the next window's rows are read in the background. Rows that a generator makes have
their ids already: `write_generated`.
"""

import operator
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from common.documents import Json
from common.files import FileDigest, Need, require_room
from common.jit import jit
from data_prep.codec.values import BAG_KINDS, Bags, ColumnTransform, join, pack
from data_prep.config import DataConfig, largest_id
from data_prep.dataset.format import (
    ROW_KINDS,
    SPLITS,
    WEIGHTS,
    Manifest,
    Shard,
    ShardArrays,
    build_manifest,
    shard_path,
    write_shard,
)
from data_prep.dataset.options import Schema
from data_prep.executor import Executor, Worker
from data_prep.io import ArrayWriter, open_array, read_ranges, read_rows, rows_range, write_array
from data_prep.job import (
    SHARD_SUFFIXES,
    SHUFFLED_ROW_BYTES,
    SHUFFLED_VALUE_BYTES,
    VALUE_BYTES,
    ChunkRecord,
    ChunkTask,
    Job,
    LoggedTask,
    claim_work,
    find_finished,
    path_of,
    publish,
    refuse_foreign_files,
)
from data_prep.lookup import (
    DenseRange,
    ValueTable,
    build_code_table,
    map_tables,
    text_path,
    torchrec_ids,
    transform_rows,
    vocabulary_path,
)
from data_prep.stages.columns import chunk_bags, column_blocks, read_dictionary, row_blocks
from data_prep.stages.place import LEFT_OUT, Positions, chunk_positions, kept_position
from data_prep.synthetic import PROBABILITY_STEPS, bayes_scores, row_settings, truth_path

VALUES_IN_MEMORY = 1 << 20  # values of bags in memory at once


@dataclass(frozen=True)
class EncodeTask(ChunkTask[ChunkRecord]):
    """Completes the encoding of a parsed chunk: ids, and integers that needed statistics.

    features: features to keep. digests: checksums of their vocabularies in `job.work`. dense_range: range of the
    integers, if their transform needs it. column_transforms: transforms of single dense columns.
    """

    stage: ClassVar[str] = "encoded"
    record_type: ClassVar[type[ChunkRecord]] = ChunkRecord

    features: tuple[str, ...]
    digests: tuple[str, ...]
    dense_range: DenseRange | None
    column_transforms: tuple[ColumnTransform, ...] = ()

    @property
    def single(self) -> tuple[str, ...]:
        """Return the kept features with one value per row; multi-hot features have files of their own."""
        return tuple(feature for feature in self.features if feature not in self.job.schema.ragged)

    @property
    def size(self) -> tuple[int, int]:
        """Return the bytes of the chunk that are still to be encoded, and its rows."""
        return self.record.encoded_bytes, self.record.rows

    def do(self, worker: Worker) -> ChunkRecord:
        """Write ids and transformed integers; return the record of the chunk's files in a shard's form."""
        job, parsed, unknown = self.job, self.record, np.zeros(len(self.features), np.int64)
        files = {suffix: digest for suffix, digest in parsed.files.items() if suffix in SHARD_SUFFIXES}
        encoded = ChunkRecord(parsed.source, parsed.chunk, parsed.rows, parsed.positives, files, unknown=parsed.unknown)
        has_vocabulary = job.rules.order is not None
        widths = {"sparse": len(self.single)} if has_vocabulary else {}
        widths |= {"dense": len(job.schema.dense)} if job.needs_statistics else {}
        for kind, width in widths.items():
            with self._open_writer(f"{kind}.npy", job.dtypes[kind], width, parsed.rows) as writer:
                for _, rows in _blocks_of_kind(self, worker, kind, 0, parsed.rows, unknown):
                    writer.append(rows)
                    worker.count(rows.size * (VALUE_BYTES if kind == "sparse" else job.raw_dense_dtype.itemsize))
                files[f"{kind}.npy"] = writer.close()
        if has_vocabulary and job.schema.ragged:
            columns = chunk_bags(job, parsed.source, parsed.chunk)
            with self._open_writer("values.npy", np.int32, None, sum(len(bags.ids) for bags in columns)) as writer:
                for feature, bags in zip(job.schema.ragged, columns, strict=True):
                    index = self.features.index(feature)
                    to_ids = build_code_table(self.tables(worker)[index], read_dictionary(job, parsed, feature))
                    for start in range(0, len(bags.ids), VALUES_IN_MEMORY):
                        values = np.array(bags.ids[start : start + VALUES_IN_MEMORY])
                        ids = np.empty(len(values), np.int32)
                        unknown[index] += to_ids.look_up(values, ids)
                        writer.append(ids)
                        worker.count(values.nbytes)
                files["values.npy"] = writer.close()
        if has_vocabulary:
            encoded.unknown = unknown.tolist()
        worker.count(0, parsed.rows)
        return encoded

    def tables(self, worker: Worker) -> list[ValueTable]:
        """Return the features' lookup tables, which each process maps once."""
        rules = self.job.rules
        # The digests belong to the key: a cluster's worker may outlive a job and meet another one at the same path.
        return worker.cache.get(
            (self.job.work, self.features, self.digests),
            lambda: map_tables(self.job.work, self.features, rules.first_id, rules.unknown_id),
        )

    def _open_writer(self, suffix: str, dtype: Any, width: int | None, rows: int) -> ArrayWriter:
        """Open a writer of one of the chunk's arrays: [rows, width], or [rows] if the width is None."""
        return ArrayWriter(path_of(self.stem, suffix), dtype, width, rows, self.job.checksum(suffix))


def encoded_blocks(
    chunk: EncodeTask, worker: Worker, start: int, stop: int
) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
    """Yield rows start..stop of a chunk in blocks: the first row, and an array of each of `row_kinds`.

    Rows are read from disk if they are encoded there, and otherwise encoded now. The counts of unknown values that this
    gives are dropped, as they are of a chunk: `GatherTask` counts the unknown ids of its shard.
    """
    kinds, unknown = chunk.job.row_kinds, np.zeros(len(chunk.features), np.int64)
    for blocks in zip(*(_blocks_of_kind(chunk, worker, kind, start, stop, unknown) for kind in kinds), strict=True):
        yield blocks[0][0], {kind: rows for kind, (_, rows) in zip(kinds, blocks, strict=True)}


def _blocks_of_kind(
    chunk: EncodeTask, worker: Worker, kind: str, start: int, stop: int, unknown: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield a chunk's rows start..stop of one kind in blocks: the number of the first row, and [rows, width].

    unknown: number of unknown values of each feature, to which those of single values are added if ids are made here.
    """
    job, record, schema = chunk.job, chunk.record, chunk.job.schema
    is_stored = f"{kind}.npy" in record.files
    if is_stored or kind == "dense":
        path = path_of(chunk.stem, f"{kind}.npy" if is_stored else "integers.npy")
        width = {"labels": 1, "dense": len(schema.dense), "sparse": len(chunk.single), WEIGHTS: 1}[kind]
        dtype = job.dtypes[kind] if is_stored else job.raw_dense_dtype
        blocks = row_blocks(start, stop, job.block_rows)
        for (begin, _), rows in zip(blocks, read_rows([(path, *each) for each in blocks], width, dtype), strict=True):
            # The one encoding that rounds ids is also the one whose integers wrap around.
            transforms = job.rules.dense, chunk.column_transforms, chunk.dense_range, job.rules.rounds_ids
            yield begin, rows if is_stored else transform_rows(rows, *transforms)
        return
    # Each distinct value of the chunk is looked up once; rows then take ids by their codes.
    numbers = [chunk.features.index(feature) for feature in chunk.single]
    columns = [schema.single.index(feature) for feature in chunk.single]
    dictionaries = [read_dictionary(job, record, feature) for feature in chunk.single]
    tables = chunk.tables(worker)
    to_ids = [build_code_table(tables[i], dictionary) for i, dictionary in zip(numbers, dictionaries, strict=True)]
    begin = start
    for num_rows, values in column_blocks(job, record, start, stop):
        # One feature is looked up at a time, so its ids are contiguous; the view that is yielded has rows first.
        ids = np.empty((len(numbers), num_rows), np.int32)
        for row, (i, column) in enumerate(zip(numbers, columns, strict=True)):
            unknown[i] += to_ids[row].look_up(values[column], ids[row])
        yield begin, ids.T
        begin += num_rows


def encode_chunks(job: Job, chunks: list[EncodeTask], executor: Executor) -> list[EncodeTask]:
    """Return the chunks with their ids and transformed integers written, unless parsing or a later stage does that."""
    is_encoded = job.rules.order is None and not job.needs_statistics
    # Rows that travel to another shard get their ids on the way, unless a feature has bags.
    if is_encoded or (job.rules.is_arranged and not job.schema.ragged):
        return chunks
    with executor.stage("encode", sum(chunk.record.encoded_bytes for chunk in chunks)):
        records = list(executor.map(chunks))
    return [replace(chunk, record=record) for chunk, record in zip(chunks, records, strict=True)]


MOVED_SUFFIX = "moved.npy"  # packed rows [n, row_bytes] of a scattered chunk, in the order of their positions
ENCODED_BAGS = "values.npy", "offsets.npy"  # files of multi-hot columns
MOVED_BAGS = "moved-values.npy", "moved-offsets.npy"
POSITIONS_SUFFIX = "positions.npy"  # the position [n] of each of them
# The order from large to small types aligns each field without padding between them.
ID_TYPES: tuple[np.dtype[Any], ...] = (np.dtype(np.int32), np.dtype(np.uint16), np.dtype(np.uint8))
ALIGNMENT = 4
FLOAT32, INT32 = np.dtype(np.float32), np.dtype(np.int32)
FIELD_BYTES = 4  # size of a label, of a dense value, of an id in a shard, and of a weight


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
    # A row's place is random, so its fields are written at once: column by column, each would miss the caches again.
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
        """Return, for each of ID_TYPES, the indices of the sparse columns whose ids have that type when packed."""
        fits = [np.array([np.iinfo(kind).max >= largest for largest in self.largest_ids], bool) for kind in ID_TYPES]
        # Types go from large to small, so the number of those that an id fits tells the smallest.
        smallest = np.sum(fits, axis=0) - 1
        return tuple(np.flatnonzero(smallest == number) for number in range(len(ID_TYPES)))

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a packed row: label, numbers and ids, padded to ALIGNMENT, and then the weight if any."""
        ids = sum(kind.itemsize * len(columns) for kind, columns in zip(ID_TYPES, self.id_columns, strict=True))
        return -(-(FIELD_BYTES * (1 + self.num_dense) + ids) // ALIGNMENT) * ALIGNMENT + FIELD_BYTES * self.weighted

    def width(self, kind: str) -> int:
        """Return the number of columns of an array: "labels", "dense", "sparse" or "weights"."""
        return {"labels": 1, "dense": self.num_dense, "sparse": len(self.largest_ids), WEIGHTS: 1}[kind]

    def pack(self, rows: dict[str, NDArray[Any]], indices: NDArray[np.int64], packed: NDArray[np.uint8]) -> None:
        """Pack row i of the arrays into packed[indices[i]], [n, row_bytes]; skip rows with a negative index."""
        labels, dense, ids = (rows[kind] for kind in ROW_KINDS)
        pack_rows(labels, dense, ids, indices, self._view_fields(packed), self.id_columns)
        if self.weighted:
            is_kept = indices >= 0
            packed[:, -FIELD_BYTES:].view(np.float32)[indices[is_kept]] = rows[WEIGHTS][is_kept]

    def unpack(self, packed: NDArray[np.uint8], indices: NDArray[np.int64], rows: dict[str, NDArray[Any]]) -> None:
        """Write packed row i to row indices[i] of the arrays."""
        labels, dense, ids = (rows[kind] for kind in ROW_KINDS)
        unpack_rows(self._view_fields(packed), self.id_columns, indices, labels, dense, ids)
        if self.weighted:
            rows[WEIGHTS][indices] = packed[:, -FIELD_BYTES:].view(np.float32)

    def _view_fields(self, packed: NDArray[np.uint8]) -> tuple[NDArray[Any], ...]:
        """Return views of packed rows: labels, dense values, and ids of each of ID_TYPES."""
        widths = [1, self.num_dense, *(len(columns) for columns in self.id_columns)]
        dtypes = [self.label, self.dense, *ID_TYPES]
        fields, start = [], 0
        for dtype, width in zip(dtypes, widths, strict=True):
            stop = start + dtype.itemsize * width
            fields.append(packed[:, start:stop].view(dtype))
            start = stop
        return tuple(fields)


def row_layout(job: Job, num_values: Mapping[str, int | None]) -> RowLayout:
    """Return the layout of a job's packed rows. num_values: size of each feature's vocabulary, None without one."""
    # The largest possible id decides how many bytes an id takes in a packed row.
    largest = [largest_id(job.rules, count) for name, count in num_values.items() if name not in job.schema.ragged]
    dtypes = job.dtypes
    return RowLayout(len(job.schema.dense), tuple(largest), dtypes["dense"], dtypes["labels"], bool(job.schema.weight))


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
        """Return the stem of the chunk's files, beside which its packed rows lie."""
        return self.chunk.stem

    @property
    def size(self) -> tuple[int, int]:
        """Return the bytes of the chunk's packed rows, and its rows."""
        rows = self.chunk.record.rows  # including rows that are left out
        return rows * self.layout.row_bytes, rows

    def do(self, worker: Worker) -> ChunkRecord:
        """Write the chunk's positions in ascending order, and bags and packed rows in the same order."""
        job, record = self.chunk.job, self.chunk.record
        # Rows in the order of their positions lie together for each shard, which then reads one range of the file.
        positions = chunk_positions(job, self.begin, record.rows)
        order = np.argsort(positions)
        order = order[np.count_nonzero(positions == LEFT_OUT) :]  # Rows that are left out come first.

        def write(suffix: str, array: NDArray[Any]) -> FileDigest:
            return write_array(path_of(self.stem, suffix), array, job.checksum(suffix))

        files = {POSITIONS_SUFFIX: write(POSITIONS_SUFFIX, positions[order])}
        if job.schema.ragged:
            bags = [feature.take(order) for feature in chunk_bags(job, record.source, record.chunk, ENCODED_BAGS)]
            files |= {name: write(name, array) for name, array in zip(MOVED_BAGS, pack(bags), strict=True)}
        if len(order):
            indices = np.full(record.rows, -1)
            indices[order] = np.arange(len(order))
            packed = np.empty((len(order), self.layout.row_bytes), np.uint8)
            for begin, rows in encoded_blocks(self.chunk, worker, 0, record.rows):
                self.layout.pack(rows, indices[begin : begin + len(rows["labels"])], packed)
            files[MOVED_SUFFIX] = write(MOVED_SUFFIX, packed)
        worker.count(*self.size)
        return ChunkRecord(record.source, record.chunk, len(order), 0, files)


@dataclass(frozen=True)
class KeptChunk:
    """A chunk whose row i has the position `position` + i. Gathering encodes its rows, so it needs no `ScatterTask`."""

    chunk: EncodeTask
    position: int

    def rows_between(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range (first, end) of its rows at positions start..stop; first >= end if there are none."""
        return max(0, start - self.position), min(self.chunk.record.rows, stop - self.position)


# Windows of 65,536 and of 32,768 rows were slower.
WINDOW_ROWS = 1 << 18  # rows of a shard assembled at once
PART_ROWS = 1 << 9  # least average number of rows of a chunk read at once

Window = dict[str, NDArray[Any]]  # an array of each of `Job.row_kinds`


@dataclass
class ShardRecord:
    """Files of a shard by suffix, its positive labels, and the number of unknown values of each feature."""

    files: dict[str, FileDigest]
    positives: int = 0
    unknown: list[int] = field(default_factory=list)


class MovedChunk(NamedTuple):
    """The n rows that a shard takes of a scattered chunk (source, chunk), from packed row `begin` on.

    indices: [n], ascending: each one's row in the shard.
    """

    chunk: tuple[int, int]
    begin: int
    indices: Positions


@dataclass(frozen=True)
class GatherTask(LoggedTask[ShardRecord]):
    """Makes a shard of positions start..stop from scattered `chunks` (source, chunk) and from `kept_chunks`."""

    stage: ClassVar[str] = "gathered"
    record_type: ClassVar[type[ShardRecord]] = ShardRecord

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
        """Return the stem of the shard's files in the work, unique by split and name."""
        return self.job.work / "gathered" / f"{self.split}-{self.name}"

    @property
    def size(self) -> tuple[int, int]:
        """Return the bytes of the shard's labels, numbers and ids, and its rows."""
        rows = self.stop - self.start
        return FIELD_BYTES * rows * (1 + self.layout.num_dense + len(self.job.schema.sparse)), rows

    @property
    def is_whole_chunk(self) -> bool:
        """Return whether the shard has all rows of one chunk that keeps its order, so that its files can be moved."""
        return len(self.kept_chunks) == 1 and self.stop - self.start == self.kept_chunks[0].chunk.record.rows

    def do(self, worker: Worker) -> ShardRecord:
        """Write the shard's arrays with its rows in the order of their positions; count positives and unknown ids."""
        job, rules, rows = self.job, self.job.rules, self.stop - self.start
        moved = []
        for chunk in self.chunks:
            positions = open_array(job.chunk_path(*chunk, POSITIONS_SUFFIX))
            first, after = count_below(positions, (self.start, self.stop)).tolist()
            if first < after:
                moved.append(MovedChunk(chunk, first, positions[first:after] - self.start))
        # The id of unknown values tells their number only if no value of a vocabulary has it, as ids that wrap may.
        is_reserved = rules.order is not None and rules.first_id > rules.unknown_id
        is_reserved &= not (rules.wraps and rules.max_ind_range is not None)
        shard, unknown = ShardRecord({}), np.zeros(self.layout.width("sparse"), np.int64)
        bags = self._gather_bags(moved) if job.schema.ragged else ()
        for kind, array in zip(BAG_KINDS, pack(bags) if bags else (), strict=bool(bags)):
            shard.files[f"{kind}.npy"] = write_array(path_of(self.stem, f"{kind}.npy"), array)
        with ExitStack() as stack:
            writers = {}
            for kind in job.row_kinds:
                path, width = path_of(self.stem, f"{kind}.npy"), self.layout.width(kind)
                writers[kind] = stack.enter_context(ArrayWriter(path, job.dtypes[kind], width, rows))
            for window in self._windows(moved, worker):
                # TorchRec rounds ids only while it shuffles train, and wraps them only when it reads them.
                modulus = rules.max_ind_range if rules.wraps and rules.order is not None else None
                torchrec_ids(window["sparse"], rounds=rules.rounds_ids and self.split == "train", modulus=modulus)
                shard.positives += int(np.count_nonzero(window["labels"] == 1))
                if is_reserved:
                    # Few ids are unknown, and NumPy counts along the rows of an array slowly.
                    places = np.flatnonzero(window["sparse"] == rules.unknown_id)
                    unknown += np.bincount(places % len(unknown), minlength=len(unknown))
                for kind, writer in writers.items():
                    writer.append(window[kind])
            shard.files |= {f"{kind}.npy": writer.close() for kind, writer in writers.items()}
        one_hot = iter(unknown.tolist())
        multi_hot = iter([int((each.ids == rules.unknown_id).sum()) if is_reserved else 0 for each in bags])
        ragged = job.schema.ragged
        shard.unknown = (
            [next(multi_hot if name in ragged else one_hot) for name in job.schema.sparse] if bags else [*one_hot]
        )
        worker.count(*self.size)
        return shard

    def _windows(self, moved: Sequence[MovedChunk], worker: Worker) -> Iterator[Window]:
        """Yield the shard's rows in windows; all windows share their memory, as fresh pages would first be cleared."""
        # With many chunks a window grows, so that what it reads of each chunk stays long enough.
        rows, layout = self.stop - self.start, self.layout
        bounds = [*range(0, rows, max(WINDOW_ROWS, PART_ROWS * len(moved))), rows]
        cuts = [count_below(chunk.indices, bounds).tolist() for chunk in moved]
        parts = [
            [(chunk, cut[i], cut[i + 1]) for chunk, cut in zip(moved, cuts, strict=True) if cut[i] < cut[i + 1]]
            for i in range(len(bounds) - 1)
        ]
        chunk_parts = [
            (self.job.chunk_path(*chunk, MOVED_SUFFIX), begin + first, begin + after)
            for window_parts in parts
            for (chunk, begin, _), first, after in window_parts
        ]
        contents = read_ranges(rows_range(*each, layout.row_bytes, np.uint8) for each in chunk_parts)
        kept = self._kept_pieces(bounds, worker)
        piece = next(kept, None)
        max_rows = max(stop - start for start, stop in pairwise(bounds))
        kinds = {kind: (layout.width(kind), self.job.dtypes[kind]) for kind in self.job.row_kinds}
        buffers = {kind: np.empty((max_rows, width), dtype) for kind, (width, dtype) in kinds.items()}
        for window_parts, (start, stop) in zip(parts, pairwise(bounds), strict=True):
            window = {kind: buffer[: stop - start] for kind, buffer in buffers.items()}
            for chunk, first, after in window_parts:
                packed = next(contents).reshape(after - first, layout.row_bytes)
                layout.unpack(packed, chunk.indices[first:after] - start, window)
            while piece is not None and piece[0] < stop:
                for kind, array in piece[1].items():
                    window[kind][piece[0] - start :][: len(array)] = array
                piece = next(kept, None)
            yield window

    def _kept_pieces(self, bounds: Sequence[int], worker: Worker) -> Iterator[tuple[int, Window]]:
        """Yield the rows of kept chunks in order, cut at `bounds`: the first row's index in the shard, and arrays."""
        for kept in sorted(self.kept_chunks, key=lambda kept: kept.position):
            for begin, rows in encoded_blocks(kept.chunk, worker, *kept.rows_between(self.start, self.stop)):
                first = kept.position + begin - self.start
                last = first + len(rows["labels"])
                for start, stop in pairwise([first, *(bound for bound in bounds if first < bound < last), last]):
                    yield start, {kind: array[start - first : stop - first] for kind, array in rows.items()}

    def _gather_bags(self, moved: Sequence[MovedChunk]) -> tuple[Bags, ...]:
        """Return each multi-hot feature's bags of the shard, in the order of positions."""
        parts: list[tuple[Bags, ...]] = []
        indices = []
        for chunk, begin, moved_indices in moved:
            # Copies, since a mapping keeps its file open and chunks may be many.
            bags = chunk_bags(self.job, *chunk, MOVED_BAGS)
            parts.append(tuple(feature.part(begin, begin + len(moved_indices)).copy() for feature in bags))
            indices.append(moved_indices)
        for kept in self.kept_chunks:
            start, stop = kept.rows_between(self.start, self.stop)
            encoded = chunk_bags(self.job, kept.chunk.record.source, kept.chunk.record.chunk, ENCODED_BAGS)
            parts.append(tuple(feature.part(start, stop) for feature in encoded))
            indices.append(kept.position - self.start + np.arange(start, stop))
        order = np.argsort(np.concatenate(indices))
        return tuple(join(feature).take(order) for feature in zip(*parts, strict=True))


def count_below(ascending: Positions, bounds: Sequence[int]) -> NDArray[np.int64]:
    """Count the ascending numbers below each bound, [bounds]."""
    # Bounds of another dtype would convert all numbers.
    return np.searchsorted(ascending, np.array(bounds, ascending.dtype))


@dataclass
class BuiltShard:
    """A shard of a split, the moves of its files (path in the work, path in the dataset), and counts of its rows.

    positives: rows with label 1. unknown: number of values without an id of their own, by feature.
    """

    split: str
    shard: Shard
    moves: list[tuple[str, str]]
    positives: int
    unknown: list[int]


def built_shard(task: GatherTask, stem: Path, record: ShardRecord | ChunkRecord) -> BuiltShard:
    """Return a shard whose files have that stem, ready to move to the dataset."""
    job, kinds = task.job, task.job.kinds
    shard = Shard(task.name, task.stop - task.start, {kind: record.files[f"{kind}.npy"] for kind in kinds})
    paths = [path_of(stem, f"{kind}.npy").relative_to(job.work) for kind in kinds]
    targets = [shard_path(Path(), task.split, task.name, kind) for kind in kinds]
    moves = [(str(path), str(target)) for path, target in zip(paths, targets, strict=True)]
    return BuiltShard(task.split, shard, moves, record.positives, record.unknown)


def shuffle_to_shards(
    job: Job, chunks: list[EncodeTask], rows: dict[str, int], layout: RowLayout, executor: Executor
) -> list[BuiltShard]:
    """Make shards of rows that are reordered: scatter chunks by position, then gather each shard's rows.

    rows: each split's number of rows.
    """
    scatter, kept_chunks, begin = [], [], 0
    for chunk in chunks:
        # A chunk that keeps its order needs no packed copy on disk, since the gather encodes it into the shard.
        position = None if job.schema.ragged else kept_position(job, begin, chunk.record.rows)
        if position is None:
            scatter.append(ScatterTask(chunk, begin, layout))
        else:
            kept_chunks.append(KeptChunk(chunk, position))
        begin += chunk.record.rows
    with executor.stage("scatter", sum(task.size[0] for task in scatter)):
        # A chunk whose rows are all left out has no file of moved rows.
        moved = tuple((record.source, record.chunk) for record in executor.map(scatter) if record.rows)

    # Rows that hold many values make shards of fewer rows.
    num_values = sum(chunk.record.files["values.npy"].bytes for chunk in chunks if job.schema.ragged) // VALUE_BYTES
    row_bytes = SHUFFLED_ROW_BYTES + SHUFFLED_VALUE_BYTES * num_values / max(1, begin)
    shard_rows = max(1, int(job.shard_bytes / row_bytes))
    tasks, first = [], 0
    for split in SPLITS:
        for i, start in enumerate(range(first, first + rows[split], shard_rows)):
            stop = min(start + shard_rows, first + rows[split])
            kept = tuple(chunk for chunk in kept_chunks if operator.lt(*chunk.rows_between(start, stop)))
            tasks.append(GatherTask(job, split, f"{i:05d}", start, stop, moved, kept, layout))
        first += rows[split]
    with executor.stage("gather", sum(task.size[0] for task in tasks)):
        return [built_shard(task, task.stem, record) for task, record in zip(tasks, executor.map(tasks), strict=True)]


def cut_to_shards(
    job: Job, chunks: list[EncodeTask], rows: dict[str, int], layout: RowLayout, executor: Executor
) -> list[BuiltShard]:
    """Make shards of consecutive rows: whole chunks as they are, others cut where a split or shard ends."""
    tasks: list[GatherTask] = []
    bounds = np.cumsum([0, *(rows[split] for split in SPLITS)]).tolist()
    counts = dict.fromkeys(SPLITS, 0)
    begin = 0
    # Chunks of a user's own table are small, so several make a shard.
    for _, group in groupby(chunks, lambda chunk: (chunk.record.source, chunk.record.chunk // job.chunks_per_shard)):
        kept_chunks = []
        end = begin
        for chunk in group:
            kept_chunks.append(KeptChunk(chunk, end))
            end += chunk.record.rows
        for split, low, high in zip(SPLITS, bounds[:-1], bounds[1:], strict=True):
            start, stop = max(begin, low), min(end, high)
            if start < stop:
                parts = tuple(kept for kept in kept_chunks if operator.lt(*kept.rows_between(start, stop)))
                tasks.append(GatherTask(job, split, f"{counts[split]:05d}", start, stop, (), parts, layout))
                counts[split] += 1
        begin = end
    cut = [task for task in tasks if not task.is_whole_chunk]
    with executor.stage("cut", sum(task.size[0] for task in cut)):
        gathered = iter(list(executor.map(cut)))
    built = []
    for task in tasks:
        chunk = task.kept_chunks[0].chunk
        stem, record = (chunk.stem, chunk.record) if task.is_whole_chunk else (task.stem, next(gathered))
        built.append(built_shard(task, stem, record))
    return built


def moves_to_dataset(job: Job, manifest: Manifest, built: list[BuiltShard]) -> list[tuple[str, str]]:
    """Return the moves of all files: the path in the work's directory, and the path in the dataset."""
    moves = [move for shard in built for move in shard.moves]
    paths = []
    for feature, entry in manifest.encoding.get("vocabulary", {}).items():
        paths += [vocabulary_path(job.work, feature)]
        paths += [text_path(job.work, feature, kind) for kind in entry.get("texts", ())]
    names = [str(path.relative_to(job.work)) for path in paths]
    return moves + [(name, name) for name in names]


SHARD_ROWS = 1 << 18  # rows of a shard that a generator makes
DISK_MARGIN = 1.05  # required room over the bytes of the rows


class Generator(Protocol):
    """Generator of rows.

    num_embeddings: table rows by feature. encoding: the manifest's, with everything that decides the rows. row_bytes:
    disk space to require for a row. rows: number of rows by split.
    """

    schema: Schema
    num_embeddings: dict[str, int]
    encoding: Json
    row_bytes: float
    rows: dict[str, int]

    def shard(self, split: str, start: int, rows: int) -> ShardArrays:
        """Return rows start to start + rows of a split. Calls come in order: train, val, then test."""
        ...


def write_generated(data: DataConfig, root: Path, generator: Generator) -> Manifest:
    """Write the dataset of generated rows to `root`, or return it if it is already done."""
    with claim_work(root) as work:
        finished = find_finished(root, generator.encoding, None, (), data)
        if finished is not None:
            return finished
        refuse_foreign_files(root, work, ())
        required_bytes = int(sum(generator.rows.values()) * generator.row_bytes * DISK_MARGIN)
        require_room(
            [Need(root, required_bytes, "for the dataset", about=True)], "free some, or choose another data.path"
        )
        begin = time.monotonic()
        scratch, shards, moves = work / "shards", [], []
        shutil.rmtree(scratch, ignore_errors=True)  # leftovers of a killed job
        for split in SPLITS:
            for number, start in enumerate(range(0, generator.rows[split], SHARD_ROWS)):
                arrays = generator.shard(split, start, min(SHARD_ROWS, generator.rows[split] - start))
                shard = write_shard(scratch, split, f"{number:05d}", arrays)
                shards.append((split, shard, int(arrays.labels.sum())))
                targets = (str(shard_path(Path(), split, shard.name, kind)) for kind in shard.files)
                moves += [(f"{scratch.name}/{target}", target) for target in targets]
        encoding = {**generator.encoding, "raw_schema": None, "dense_transform": None}
        manifest = build_manifest(generator.schema, encoding, generator.num_embeddings, shards)
        manifest.extra["seconds"] = round(time.monotonic() - begin, 3)
        manifest = publish(work, root, manifest, moves)
    rate = manifest.rows / max(manifest.extra["seconds"], 1e-9)
    print(f"{root}: {manifest.rows:,} rows generated, {rate:,.0f} rows/s", file=sys.stderr)
    return manifest


def figures(data: DataConfig, job: Job, records: list[ChunkRecord], rows: dict[str, int]) -> Json:
    """Return two keys of the manifest's `extra`: the generator's group with its settings, and `bayes`.

    `bayes` has the fields of `BayesScores` over all rows, and under `splits` those of each split.

    records: all chunks in row order; their labels and truth must still be on disk. rows: number of rows of each split.
    """
    histograms = {split: np.zeros((2, PROBABILITY_STEPS), np.int64) for split in SPLITS if rows[split]}
    bounds = np.cumsum([rows[split] for split in SPLITS])
    begin = begin_in_source = 0
    source = -1
    for record in records:
        if record.source != source:
            source, begin_in_source = record.source, 0
        labels = open_array(job.chunk_path(record.source, record.chunk, "labels.npy"))[:, 0]
        day = open_array(truth_path(Path(job.sources[record.source].path)))
        probability = day[begin_in_source : begin_in_source + record.rows, 0]
        positions: NDArray[np.signedinteger] = np.arange(begin, begin + record.rows)
        if job.rules.is_arranged:
            positions = chunk_positions(job, begin, record.rows)  # -1: left out
        begin += record.rows
        begin_in_source += record.rows
        # Dropping a share of the negatives multiplies the odds of a click by 1 / (1 - share).
        drawn = probability.astype(np.float64)
        kept = drawn / (drawn + (1 - drawn) * (1 - job.rules.negative_drop_rate))
        # A step is 1 / PROBABILITY_STEPS. A probability of 0 or 1 would make the logloss infinite.
        steps = np.clip(np.rint(kept * PROBABILITY_STEPS), 1, PROBABILITY_STEPS - 1).astype(np.int64)
        split_of = np.searchsorted(bounds, positions, side="right")
        for number, split in enumerate(SPLITS):
            in_split = (split_of == number) & (positions >= 0)
            if in_split.any():
                for label in (0, 1):
                    label_steps = steps[in_split & (labels == label)]
                    histograms[split][label] += np.bincount(label_steps, minlength=PROBABILITY_STEPS)
    total = np.sum(list(histograms.values()), axis=0)
    splits = {split: asdict(bayes_scores(counts.sum(axis=0), counts[1])) for split, counts in histograms.items()}
    bayes = {**asdict(bayes_scores(total.sum(axis=0), total[1])), "splits": splits}
    return {"bayes": bayes, data.source_kind.group: row_settings(data.synthetic)}
