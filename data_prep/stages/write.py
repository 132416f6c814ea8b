"""Columns to rows in shards: encoded, scattered and gathered where they move, cut where they do not.

Encodings that depend on no other rows run block by block during parsing: `encode_hash`. The others wait until the
vocabularies are fitted; then `EncodeTask` writes the chunks that `encoded_blocks` yields. If rows are reordered,
scatter and gather take rows from `encoded_blocks` instead, which saves writing and reading all of them once more.
`finish_ids` repeats what TorchRec does to ids after its shuffle.

Memory is bounded for any number of rows, and any number of processes can share the work. Rows travel packed: a
feature's ids take no more bytes than its largest id needs.

A shard is assembled in windows; the next window's rows are read in the background.
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from common.files import FileDigest
from common.jit import jit
from data_prep.config.presets import Rules
from data_prep.dataset.format import ROW_KINDS, SPLITS, WEIGHTS, Manifest, Shard, shard_path
from data_prep.dataset.multi_hot import BLOCK_VALUES, ID_BYTES, TABLES_DIRECTORY, MultiHotTables, table_files
from data_prep.dataset.spelling import BAG_KINDS, Bags, join, pack
from data_prep.dataset.transforms import ColumnTransform
from data_prep.encoding.lookup import (
    DenseRange,
    ValueTable,
    build_code_table,
    map_tables,
    text_path,
    torchrec_ids,
    transform_rows,
    vocabulary_path,
)
from data_prep.engine.executor import Worker
from data_prep.engine.job import (
    SHARD_SUFFIXES,
    SHUFFLED_ROW_BYTES,
    SHUFFLED_VALUE_BYTES,
    VALUE_BYTES,
    ChunkRecord,
    Job,
    LoggedTask,
)
from data_prep.io.arrays import (
    ArrayWriter,
    open_array,
    read_ranges,
    read_rows,
    rows_range,
    take_mapped,
    unload_array,
    write_array,
)
from data_prep.stages.columns import chunk_bags, column_blocks, read_dictionary, row_blocks
from data_prep.stages.place import LEFT_OUT, Positions, chunk_positions, held_out_splits, kept_position

VALUES_IN_MEMORY = 1 << 20  # values of bags in memory at once


@dataclass(frozen=True)
class EncodeTask(LoggedTask[ChunkRecord]):
    """Completes the encoding of a parsed chunk: ids, and integers that needed statistics.

    features: features to keep. digests: checksums of their vocabularies in `job.work`. dense_range: range of the
    integers, if their transform needs it. column_transforms: transforms of single dense columns.
    """

    stage: ClassVar[str] = "encoded"
    record_type: ClassVar[type[ChunkRecord]] = ChunkRecord

    job: Job
    record: ChunkRecord
    features: tuple[str, ...]
    digests: tuple[str, ...]
    dense_range: DenseRange | None
    column_transforms: tuple[ColumnTransform, ...] = ()

    @property
    def single(self) -> tuple[str, ...]:
        """Return the features with single values."""
        return tuple(feature for feature in self.features if feature not in self.job.schema.ragged)

    @property
    def stem(self) -> Path:
        """Return the common prefix of the paths of the chunk's files."""
        return self.job.chunk_stem(self.record.source, self.record.chunk)

    @property
    def size(self) -> tuple[int, int]:
        return self.record.encoded_bytes, self.record.rows

    def do(self, worker: Worker) -> ChunkRecord:
        """Write ids and transformed integers; return the record of the chunk's files in a shard's form."""
        parsed = self.record
        shard_files = {suffix: digest for suffix, digest in parsed.files.items() if suffix in SHARD_SUFFIXES}
        encoded = ChunkRecord(parsed.source, parsed.chunk, parsed.rows, parsed.positives, shard_files)
        encoded.unknown = parsed.unknown
        if self.job.rules.order is not None:
            unknown = np.zeros(len(self.features), np.int64)
            encoded.files["sparse.npy"] = self._encode_sparse(worker, unknown)
            if self.job.schema.ragged:
                encoded.files["values.npy"] = self._encode_bags(worker, unknown)
            encoded.unknown = unknown.tolist()
        if self.job.needs_statistics:
            dense = self._open_writer("dense.npy", len(self.job.schema.dense), parsed.rows, np.float32)
            for _, rows in _dense_rows(self, 0, parsed.rows):
                dense.append(rows)
                worker.count(rows.size * self.job.raw_dense_dtype.itemsize)
            encoded.files["dense.npy"] = dense.close()
        return encoded

    def tables(self, worker: Worker) -> list[ValueTable]:
        """Return the features' lookup tables, which each process maps once."""
        rules = self.job.rules
        # The digests belong to the key: a cluster's worker may outlive a job and meet another one at the same path.
        return worker.cache.get(
            (self.job.work, self.features, self.digests),
            lambda: map_tables(self.job.work, self.features, rules.first_id, rules.unknown_id),
        )

    def _open_writer(self, suffix: str, width: int | None, rows: int, dtype: Any = np.int32) -> ArrayWriter:
        """Open one of the encoded chunk's files; `width`: columns, or None for one dimension."""
        path = self.job.chunk_path(self.record.source, self.record.chunk, suffix)
        return ArrayWriter(path, dtype, width, rows, self.job.checksum(suffix))

    def _encode_sparse(self, worker: Worker, unknown: NDArray[np.int64]) -> FileDigest:
        """Write the ids of the features with single values; add each feature's count of unknown values to `unknown`."""
        writer = self._open_writer("sparse.npy", len(self.single), self.record.rows)
        for _, ids in _sparse_rows(self, worker, unknown, 0, self.record.rows):
            writer.append(ids)
            worker.count(ids.nbytes, len(ids))
        return writer.close()

    def _encode_bags(self, worker: Worker, unknown: NDArray[np.int64]) -> FileDigest:
        """Write the ids of the multi-hot features' bags; add each feature's count of unknown values to `unknown`."""
        columns = chunk_bags(self.job, self.record.source, self.record.chunk)
        writer = self._open_writer("values.npy", None, sum(len(bags.ids) for bags in columns))
        tables = self.tables(worker)
        for feature, bags in zip(self.job.schema.ragged, columns, strict=True):
            index = self.features.index(feature)
            to_ids = build_code_table(tables[index], read_dictionary(self.job, self.record, feature))
            for start in range(0, len(bags.ids), VALUES_IN_MEMORY):
                values = np.array(bags.ids[start : start + VALUES_IN_MEMORY])
                ids = np.empty(len(values), np.int32)
                unknown[index] += to_ids.look_up(values, ids)
                writer.append(ids)
                worker.count(values.nbytes)
        return writer.close()


def encoded_blocks(
    chunk: EncodeTask, worker: Worker, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
    """Yield rows start..stop (by default all) of a chunk in blocks: the first row, and an array of each of `row_kinds`.

    Rows are read from disk if they are encoded there, and otherwise encoded now.
    """
    stop, kinds = chunk.record.rows if stop is None else stop, chunk.job.row_kinds
    for blocks in zip(*(_blocks_of_kind(chunk, worker, kind, start, stop) for kind in kinds), strict=True):
        yield blocks[0][0], {kind: rows for kind, (_, rows) in zip(kinds, blocks, strict=True)}


def _blocks_of_kind(
    chunk: EncodeTask, worker: Worker, kind: str, start: int, stop: int
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield a chunk's rows start..stop of one kind in blocks: the number of the first row, and [rows, width]."""
    if f"{kind}.npy" in chunk.record.files:
        widths = {"labels": 1, "dense": len(chunk.job.schema.dense), "sparse": len(chunk.single), WEIGHTS: 1}
        yield from _stored_rows(chunk, f"{kind}.npy", widths[kind], chunk.job.dtypes[kind], start, stop)
    elif kind == "dense":
        yield from _dense_rows(chunk, start, stop)
    else:
        yield from _sparse_rows(chunk, worker, np.zeros(len(chunk.features), np.int64), start, stop)


def _stored_rows(
    chunk: EncodeTask, suffix: str, width: int, dtype: np.dtype[Any], start: int, stop: int
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield rows start..stop of one of a chunk's files in blocks: the number of the first row, and [rows, width]."""
    path = chunk.job.chunk_path(chunk.record.source, chunk.record.chunk, suffix)
    blocks = row_blocks(start, stop, chunk.job.block_rows)
    for (begin, _), rows in zip(blocks, read_rows([(path, *block) for block in blocks], width, dtype), strict=True):
        yield begin, rows


def _dense_rows(chunk: EncodeTask, start: int, stop: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield a chunk's transformed integers start..stop in blocks: the number of the first row, and [rows, N]."""
    job, rules = chunk.job, chunk.job.rules
    stored = _stored_rows(chunk, "integers.npy", len(job.schema.dense), job.raw_dense_dtype, start, stop)
    for begin, block in stored:
        yield begin, transform_rows(block, rules.dense, chunk.column_transforms, chunk.dense_range, rules.rounds_ids)


def _sparse_rows(
    chunk: EncodeTask, worker: Worker, unknown: NDArray[np.int64], start: int, stop: int
) -> Iterator[tuple[int, NDArray[np.int32]]]:
    """Yield a chunk's ids of rows start..stop in blocks: the number of the first row, and [rows, features].

    The features are those with single values; each feature's number of unknown values is added to `unknown`.
    """
    tables = chunk.tables(worker)
    numbers = [chunk.features.index(feature) for feature in chunk.single]
    columns = [chunk.job.schema.single.index(feature) for feature in chunk.single]
    dictionaries = [read_dictionary(chunk.job, chunk.record, feature) for feature in chunk.single]
    # Each distinct value of the chunk is looked up once; rows then take ids by their codes.
    to_ids = [build_code_table(tables[i], dictionary) for i, dictionary in zip(numbers, dictionaries, strict=True)]
    begin = start
    for rows, values in column_blocks(chunk.job, chunk.record, start, stop):
        # One feature is looked up at a time, so its ids are contiguous; the view that is yielded has rows first.
        ids = np.empty((len(numbers), rows), np.int32)
        for row, (i, column) in enumerate(zip(numbers, columns, strict=True)):
            unknown[i] += to_ids[row].look_up(values[column], ids[row])
        yield begin, ids.T
        begin += rows


def finish_ids(rules: Rules, split: str, ids: NDArray[np.int32]) -> None:
    """Apply, in place, the changes that TorchRec makes to a split's ids after ordering its rows."""
    # TorchRec rounds ids only while it shuffles train, and wraps them only when it reads them.
    modulus = rules.max_ind_range if rules.wraps and rules.order is not None else None
    torchrec_ids(ids, rounds=rules.rounds_ids and split == "train", modulus=modulus)


@jit
def count_equal(rows: NDArray[np.int32], value: int, counts: NDArray[np.int64]) -> None:
    """Add to counts[c] how often the value occurs in column c."""
    for row in range(len(rows)):
        for column in range(rows.shape[1]):
            counts[column] += rows[row, column] == value


def count_unknown(job: Job, ids: NDArray[np.int32]) -> NDArray[np.int64]:
    """Count unknown values in ids [rows, F] of features with single values: [F]; all 0 if none can be told."""
    counts = np.zeros(ids.shape[1], np.int64)
    if _reserves_unknown_id(job.rules):
        count_equal(np.asarray(ids), job.rules.unknown_id, counts)
    return counts


def _reserves_unknown_id(rules: Rules) -> bool:
    """Return whether only unknown values have the id for unknown ones, so that it counts them."""
    is_reserved = rules.order is not None and rules.first_id > rules.unknown_id
    return is_reserved and not (rules.wraps and rules.max_ind_range is not None)


def join_unknown_counts(job: Job, single: NDArray[np.int64], bags: Sequence[Bags]) -> list[int]:
    """Return each feature's number of unknown values, in the schema's order.

    Args:
        single: counts of the features with single values.
        bags: ids of the multi-hot features.
    """
    if not bags:
        return single.tolist()
    is_reserved = _reserves_unknown_id(job.rules)
    multi_hot = iter([int((feature.ids == job.rules.unknown_id).sum()) if is_reserved else 0 for feature in bags])
    one_hot = iter(single.tolist())
    return [next(multi_hot if name in job.schema.ragged else one_hot) for name in job.schema.sparse]


MOVED_SUFFIX = "moved.npy"
ENCODED_BAGS = "values.npy", "offsets.npy"  # files of multi-hot columns
MOVED_BAGS = "moved-values.npy", "moved-offsets.npy"
POSITIONS_SUFFIX = "positions.npy"
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
        """Return the number of columns of an array: "labels", "dense", "sparse" or "weights"."""
        return {"labels": 1, "dense": self.num_dense, "sparse": len(self.largest_ids), WEIGHTS: 1}[kind]

    def pack(self, rows: dict[str, NDArray[Any]], indices: NDArray[np.int64], packed: NDArray[np.uint8]) -> None:
        """Pack row i of the arrays into packed[indices[i]], [n, row_bytes]; skip rows with a negative index."""
        labels, dense, ids = (rows[kind] for kind in ROW_KINDS)
        pack_rows(labels, dense, ids, indices, self._view_fields(packed), self.id_columns)
        if self.weighted:
            is_kept = indices >= 0
            self._view_weights(packed)[indices[is_kept]] = rows[WEIGHTS][is_kept]

    def unpack(self, packed: NDArray[np.uint8], indices: NDArray[np.int64], rows: dict[str, NDArray[Any]]) -> None:
        """Write packed row i to row indices[i] of the arrays."""
        labels, dense, ids = (rows[kind] for kind in ROW_KINDS)
        unpack_rows(self._view_fields(packed), self.id_columns, indices, labels, dense, ids)
        if self.weighted:
            rows[WEIGHTS][indices] = self._view_weights(packed)

    @staticmethod
    def _view_weights(packed: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return a view of packed rows' weights [n, 1], which come last."""
        return packed[:, -FIELD_BYTES:].view(np.float32)

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
        """Write the chunk's positions in ascending order, and bags and packed rows in the same order."""
        job, record = self.chunk.job, self.chunk.record
        # Rows in the order of their positions lie together for each shard, which then reads one range of the file.
        positions = chunk_positions(job, self.begin, record.rows)
        order = np.argsort(positions)
        order = order[np.count_nonzero(positions == LEFT_OUT) :]  # Rows that are left out come first.
        files = {POSITIONS_SUFFIX: self._write_array(POSITIONS_SUFFIX, positions[order])}
        if job.schema.ragged:
            bags = [feature.take(order) for feature in chunk_bags(job, record.source, record.chunk, ENCODED_BAGS)]
            files |= {name: self._write_array(name, array) for name, array in zip(MOVED_BAGS, pack(bags), strict=True)}
        if len(order):
            # Write the chunk's rows numbered in `order`, packed, in that order.
            indices = np.full(self.chunk.record.rows, -1)
            indices[order] = np.arange(len(order))
            packed = np.empty((len(order), self.layout.row_bytes), np.uint8)
            for begin, rows in encoded_blocks(self.chunk, worker):
                self.layout.pack(rows, indices[begin : begin + len(rows["labels"])], packed)
            files[MOVED_SUFFIX] = self._write_array(MOVED_SUFFIX, packed)
        worker.count(*self.size)
        return ChunkRecord(record.source, record.chunk, len(order), 0, files)

    def _write_array(self, suffix: str, array: NDArray[Any]) -> FileDigest:
        """Write one of the chunk's files."""
        job, record = self.chunk.job, self.chunk.record
        return write_array(job.chunk_path(record.source, record.chunk, suffix), array, job.checksum(suffix))


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
        # A chunk that keeps its order needs no packed copy on disk, since the gather encodes it into the shard.
        position = None if job.schema.ragged else kept_position(job, begin, chunk.record.rows)
        if position is None:
            scatter.append(ScatterTask(chunk, begin, layout))
        else:
            kept_chunks.append(KeptChunk(chunk, position))
        begin += chunk.record.rows
    return scatter, kept_chunks


# Windows of 65,536 and of 32,768 rows were slower.
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
        return FIELD_BYTES * rows * (1 + self.layout.num_dense + len(self.job.schema.sparse)), rows

    def path(self, kind: str) -> Path:
        """Return the path of an array of the shard before it moves to the dataset; kind: such as "labels"."""
        return self.stem.with_name(f"{self.stem.name}.{kind}.npy")

    def do(self, worker: Worker) -> GatheredShard:
        """Write the shard's arrays with its rows in the order of their positions."""
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
        return slice(*count_below(positions, (self.start, self.stop)).tolist())

    def _gather_rows(self, slices: list[slice], bags: tuple[Bags, ...], shard: GatheredShard, worker: Worker) -> None:
        """Write labels, dense values and ids in the order of positions, and count positives and unknown values."""
        job, rows = self.job, self.stop - self.start
        moved = []
        for chunk, part in zip(self.chunks, slices, strict=True):
            if part.start < part.stop:
                positions = open_array(job.chunk_path(*chunk, POSITIONS_SUFFIX))[part]
                moved.append(MovedChunk(job.chunk_path(*chunk, MOVED_SUFFIX), part.start, positions - self.start))
        # With many chunks a window grows, so that what it reads of each chunk stays long enough.
        bounds = [*range(0, rows, max(WINDOW_ROWS, PART_ROWS * len(moved))), rows]
        moved_rows = MovedRows(self.layout, moved, bounds)
        kept_rows = KeptRows(self.kept_chunks, self.start, self.stop, worker)
        unknown = np.zeros(self.layout.width("sparse"), np.int64)
        writers = {
            kind: ArrayWriter(self.path(kind), job.dtypes[kind], self.layout.width(kind), rows)
            for kind in job.row_kinds
        }
        max_rows = max(stop - start for start, stop in pairwise(bounds))
        # All windows share these arrays, as fresh ones would consist of fresh pages, which the system first clears.
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
        shard.unknown = join_unknown_counts(job, unknown, bags)

    def _gather_bags(self, slices: list[slice]) -> tuple[Bags, ...]:
        """Return each multi-hot feature's bags of the shard, in the order of positions."""
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
    values_per_row = values / max(1, sum(record.rows for record in records))
    return max(1, int(job.shard_bytes / (SHUFFLED_ROW_BYTES + SHUFFLED_VALUE_BYTES * values_per_row)))


def gather_tasks(
    job: Job,
    records: list[ChunkRecord],
    kept_chunks: list[KeptChunk],
    rows: dict[str, int],
    layout: RowLayout,
    shard_rows: int,
) -> list[GatherTask]:
    """Plan the shards of all splits from scattered and kept chunks.

    Args:
        records: the scattered chunks. rows: each split's number of rows. shard_rows: most rows of a shard.
    """
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
    """Rows of scattered chunks for the windows of a shard; window i has its rows bounds[i]..bounds[i + 1]."""

    def __init__(self, layout: RowLayout, chunks: Sequence[MovedChunk], bounds: Sequence[int]) -> None:
        self._layout = layout
        cuts = [count_below(chunk.indices, bounds).tolist() for chunk in chunks]
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


def count_below(ascending: Positions, bounds: Sequence[int]) -> NDArray[np.int64]:
    """Count the ascending numbers below each bound, [bounds]."""
    # Bounds of another dtype would convert all numbers.
    return np.searchsorted(ascending, np.array(bounds, ascending.dtype))


class KeptRows:
    """Encoded rows of chunks that keep their order, for a shard that begins at position `start`."""

    def __init__(self, chunks: Sequence[KeptChunk], start: int, stop: int, worker: Worker) -> None:
        self._blocks = self._read_all(chunks, start, stop, worker)
        self._block = next(self._blocks, None)  # first block that is not placed completely

    def fill(self, start: int, stop: int, window: Window) -> None:
        """Write these chunks' part of the shard's rows start..stop to a window; calls come in ascending order."""
        while self._block is not None and self._block[0] < stop:
            index, block = self._block
            rows = len(block["labels"])
            # A block may end beyond the window, and its rest belongs to the next one.
            count = min(stop - index, rows)
            for kind in block:
                window[kind][index - start : index - start + count] = block[kind][:count]
            if count < rows:
                self._block = index + count, {kind: rest[count:] for kind, rest in block.items()}
            else:
                self._block = next(self._blocks, None)

    @staticmethod
    def _read_all(chunks: Sequence[KeptChunk], start: int, stop: int, worker: Worker) -> Iterator[tuple[int, Window]]:
        """Yield all blocks, each with the shard's index of its first row."""
        for kept_chunk in sorted(chunks, key=lambda kept_chunk: kept_chunk.position):
            for begin, rows in encoded_blocks(kept_chunk.chunk, worker, *kept_chunk.rows_between(start, stop)):
                yield kept_chunk.position + begin - start, rows


def refuse_empty_splits(job: Job, rows: dict[str, int], is_allowed: bool) -> None:
    """Refuse a dataset without a row to train on, or without rows of a split that a column or the labels decide.

    Args:
        rows: each split's number of rows.
        is_allowed: whether val and test may be empty (data.allow_degenerate).
    """
    if not sum(rows.values()):
        raise UserError("data.sampling.negative_drop_rate: no row is left; give a lower rate")
    method = job.rules.split
    if rows["train"]:
        empty = [split for split in held_out_splits(job) if not rows[split]]
        if empty and method is not None and method.algorithm.reads and job.rules.held_out and not is_allowed:
            column = "" if job.rules.split_column is None else f" data.split.column={job.rules.split_column}"
            raise UserError(
                f"data.split.method={method.value}{column}: {' and '.join(empty)} would have no rows, since these "
                f"{sum(rows.values())} have too few values; give a larger data.split.held_out, another data.split.seed "
                "or method, or data.allow_degenerate=true"
            )
        return
    if method is None:
        raise UserError("data.sampling.negative_drop_rate: no row of data.train is left; give a lower rate")
    raise UserError(
        f"data.split: all {sum(rows.values())} rows are held out (method {method.value}), none is left to "
        "train on; give more rows, or a smaller data.split.held_out"
    )


def plan_cut(chunks: list[EncodeTask], rows: dict[str, int], layout: RowLayout) -> list[GatherTask]:
    """Plan the shards of all splits; a shard is made of consecutive encoded chunks' rows that belong to its split."""
    tasks: list[GatherTask] = []
    bounds = np.cumsum([0, *(rows[split] for split in SPLITS)]).tolist()
    counts = dict.fromkeys(SPLITS, 0)
    begin = 0
    # Chunks of a user's own table are small, so several make a shard.
    for _, group in groupby(chunks, lambda task: (task.record.source, task.record.chunk // task.job.chunks_per_shard)):
        kept_chunks = []
        end = begin
        for chunk in group:
            kept_chunks.append(KeptChunk(chunk, end))
            end += chunk.record.rows
        for split, low, high in zip(SPLITS, bounds[:-1], bounds[1:], strict=True):
            start, stop = max(begin, low), min(end, high)
            if start < stop:
                parts = tuple(kept for kept in kept_chunks if operator.lt(*kept.rows_between(start, stop)))
                job, name = parts[0].chunk.job, f"{counts[split]:05d}"
                tasks.append(GatherTask(job, split, name, start, stop, (), parts, layout))
                counts[split] += 1
        begin = end
    return tasks


def fitted_records(job: Job, records: list[ChunkRecord]) -> list[ChunkRecord]:
    """Return the chunks used to fit statistics: train's if splits are given, else all."""
    return [record for record in records if job.sources[record.source].split in (None, "train")]


@dataclass
class BuiltShard:
    """A shard, the moves that bring its files to the dataset, and statistics of its rows."""

    split: str
    shard: Shard
    moves: list[tuple[str, str]]
    positives: int
    unknown: list[int]


def is_whole_chunk(task: GatherTask) -> bool:
    """Return whether a shard of `plan_cut` has all rows of its chunk, so that the chunk's files can be moved."""
    return len(task.kept_chunks) == 1 and task.stop - task.start == task.kept_chunks[0].chunk.record.rows


def shard_of_whole_chunk(task: GatherTask) -> BuiltShard:
    """Return the shard made of a whole chunk, ready to move to the dataset."""
    job, record = task.job, task.kept_chunks[0].chunk.record
    paths = {kind: job.chunk_path(record.source, record.chunk, f"{kind}.npy") for kind in job.kinds}
    moves = [plan_move(job.work, path, task.split, task.name, kind) for kind, path in paths.items()]
    shard = Shard(task.name, record.rows, {kind: record.files[f"{kind}.npy"] for kind in job.kinds})
    return BuiltShard(task.split, shard, moves, record.positives, record.unknown)


def plan_move(work: Path, path: Path, split: str, name: str, kind: str) -> tuple[str, str]:
    """Return the move of a shard's array: its path relative to `work`, and its target relative to the dataset."""
    return str(path.relative_to(work)), str(shard_path(Path(), split, name, kind))


def built_shard(task: GatherTask, gathered: GatheredShard) -> BuiltShard:
    """Return a gathered shard, ready to move to the dataset."""
    kinds = task.job.kinds
    moves = [plan_move(task.job.work, task.path(kind), task.split, task.name, kind) for kind in kinds]
    shard = Shard(task.name, task.stop - task.start, {kind: gathered.files[f"{kind}.npy"] for kind in kinds})
    return BuiltShard(task.split, shard, moves, gathered.positives, gathered.unknown)


def moves_to_dataset(job: Job, manifest: Manifest, built: list[BuiltShard]) -> list[tuple[str, str]]:
    """Return the moves of all files: the path in the work's directory, and the path in the dataset."""
    moves = [move for shard in built for move in shard.moves]
    for feature, entry in manifest.encoding.get("vocabulary", {}).items():
        paths = [
            vocabulary_path(job.work, feature),
            *(text_path(job.work, feature, kind) for kind in entry.get("texts", ())),
        ]
        moves += [(name, name) for name in (str(path.relative_to(job.work)) for path in paths)]
    return moves + [(name, name) for name in table_files(job.work)]


EXPANDED_KINDS = ("sparse", "values", "offsets")


@dataclass
class ExpandedShard:
    """The new files of a shard."""

    files: dict[str, FileDigest]


@dataclass(frozen=True)
class ExpandTask(LoggedTask[ExpandedShard]):
    """Writes the bags of a shard in the directory of the job's work; num_embeddings: table rows of its features.

    Tables and ids may exceed the memory budget; only a small part of them is resident at any time.
    """

    stage: ClassVar[str] = "expanded"
    record_type: ClassVar[type[ExpandedShard]] = ExpandedShard

    job: Job
    built: BuiltShard
    num_embeddings: tuple[int, ...]

    @property
    def stem(self) -> Path:
        return self.job.work / "expanded" / f"{self.built.split}-{self.built.shard.name}"

    @property
    def size(self) -> tuple[int, int]:
        assert self.job.bags is not None
        return ID_BYTES * self.built.shard.rows * sum(self.job.bags.sizes), self.built.shard.rows

    def do(self, worker: Worker) -> ExpandedShard:
        """Write the shard's bags and single ids in place of its ids."""
        assert self.job.bags is not None
        tables = MultiHotTables.open(self.job.work / TABLES_DIRECTORY, self.num_embeddings, self.job.bags)
        source = next(source for source, target in self.built.moves if target.endswith(".sparse.npy"))
        digests = _write_expanded(
            open_array(self.job.work / source), tables, {kind: self._path(kind) for kind in EXPANDED_KINDS}
        )
        worker.count(*self.size)
        return ExpandedShard({f"{kind}.npy": digest for kind, digest in digests.items()})

    def result(self, expanded: ExpandedShard) -> BuiltShard:
        """Return the shard with its new files."""
        built = self.built
        moves = [move for move in built.moves if not move[1].endswith(".sparse.npy")]
        moves += [
            plan_move(self.job.work, self._path(kind), built.split, built.shard.name, kind) for kind in EXPANDED_KINDS
        ]
        files = {kind: expanded.files[f"{kind}.npy"] for kind in EXPANDED_KINDS}
        return replace(built, shard=Shard(built.shard.name, built.shard.rows, built.shard.files | files), moves=moves)

    def _path(self, kind: str) -> Path:
        """Return the path of one of the arrays EXPANDED_KINDS before it moves to the dataset."""
        return self.stem.with_name(f"{self.stem.name}.{kind}.npy")


def _write_expanded(ids: NDArray[np.int32], tables: MultiHotTables, paths: dict[str, Path]) -> dict[str, FileDigest]:
    """Write each id's bag, taken from its feature's table, and the ids of features with bags of one.

    Args:
        ids: [rows, F] int32, memory-mapped.
        paths: files to write, by their kinds EXPANDED_KINDS.
    """
    rows = len(ids)
    single = [feature for feature, size in enumerate(tables.sizes) if size == 1]
    sparse = ArrayWriter(paths["sparse"], np.int32, len(single), rows)
    # Mapped ids and tables count as resident memory until they are released, so this is done block by block.
    step = BLOCK_VALUES // ids.shape[1]
    for start in range(0, rows, step):
        sparse.append(ids[start : start + step][:, single])
        unload_array(ids)
    multi_hot = [(feature, table) for feature, table in enumerate(tables.tables) if table is not None]
    values = ArrayWriter(paths["values"], np.int32, None, rows * sum(table.shape[1] for _, table in multi_hot))
    offsets = ArrayWriter(paths["offsets"], np.int64, None, rows * len(multi_hot) + 1)
    offsets.append(np.zeros(1, np.int64))
    last = 0
    # Bags are stored feature by feature, since a batch needs them so; rows first would be transposed in every batch.
    for feature, table in multi_hot:
        size = table.shape[1]
        step = max(1, BLOCK_VALUES // size)
        for start in range(0, rows, step):
            bags = take_mapped(table, np.array(ids[start : start + step, feature]))
            unload_array(ids)
            values.append(bags.reshape(-1))
            offsets.append(last + size * np.arange(1, len(bags) + 1, dtype=np.int64))
            last += bags.size
    return {"sparse": sparse.close(), "values": values.close(), "offsets": offsets.close()}
