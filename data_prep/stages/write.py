"""Columns to rows in shards: encoded, and at their positions, whether they move or not.

A position is a row's index in the dataset, in which train's rows come first, then val's, then test's
(data_prep/stages/place.py). A shard is a range of positions. It gathers the rows of chunks that keep their order from
the chunks' own files, and encodes them on the way. Chunks whose rows are reordered are encoded and scattered before:
their rows are written in the order of their positions, so a shard reads one range of each.

Memory is bounded for any number of rows, and any number of processes can share the work. Rows travel packed: a
feature's ids take no more bytes than its largest id needs.

A shard is assembled in windows; the next window's rows are read in the background. Rows that a generator makes have
their ids already: `write_generated`.
"""

import operator
import shutil
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

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
from data_prep.executor import Counters, Executor
from data_prep.io import ArrayWriter, open_array, read_ranges, read_rows, rows_range, write_array
from data_prep.job import (
    DISK_MARGIN,
    SHARD_SUFFIXES,
    SHUFFLED_ROW_BYTES,
    SHUFFLED_VALUE_BYTES,
    VALUE_BYTES,
    ChunkRecord,
    Job,
    ResumableTask,
    claim_work,
    find_finished,
    path_of,
    publish,
    refuse_foreign_files,
)
from data_prep.lookup import (
    DenseRange,
    look_up_codes,
    map_tables,
    text_path,
    torchrec_ids,
    transform_dense,
    vocabulary_path,
)
from data_prep.stages.parse import chunk_bags, column_blocks, read_dictionary, row_blocks
from data_prep.stages.place import LEFT_OUT, Positions, chunk_positions, kept_position
from data_prep.synthetic import PROBABILITY_STEPS, bayes_scores, row_settings, truth_path


@dataclass(frozen=True)
class ParsedChunk:
    """A parsed chunk, with what makes a shard's rows of its columns.

    Attributes:
        begin: its first row in the dataset.
        features: features to keep. digests: checksums of their vocabularies in `job.work`.
        dense_range: range of the integers, if their transform needs it. transforms: those of single dense columns.
        position: row i has the position `position` + i; None: its rows are scattered.
    """

    job: Job
    record: ChunkRecord
    begin: int
    features: tuple[str, ...]
    digests: tuple[str, ...]
    dense_range: DenseRange | None
    transforms: tuple[ColumnTransform, ...]
    position: int | None = None

    @property
    def stem(self) -> Path:
        """Return the common prefix of the paths of the chunk's files."""
        return self.job.chunk_stem(self.record.source, self.record.chunk)

    @property
    def single(self) -> tuple[str, ...]:
        """Return the kept features with one value per row; multi-hot features have files of their own."""
        return tuple(feature for feature in self.features if feature not in self.job.schema.ragged)

    def rows_between(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range (first, end) of its rows at positions start..stop; first >= end if there are none."""
        assert self.position is not None
        return max(0, start - self.position), min(self.record.rows, stop - self.position)

    def blocks(self, kinds: Sequence[str], start: int, stop: int) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
        """Yield rows start..stop in blocks: the number of the first row, and an array [rows, width] of each kind.

        Rows are read from disk if they are encoded there, and otherwise encoded now.
        """
        for blocks in zip(*(self._blocks_of_kind(kind, start, stop) for kind in kinds), strict=True):
            yield blocks[0][0], {kind: rows for kind, (_, rows) in zip(kinds, blocks, strict=True)}

    def _blocks_of_kind(self, kind: str, start: int, stop: int) -> Iterator[tuple[int, NDArray[Any]]]:
        job, record, schema = self.job, self.record, self.job.schema
        is_stored = f"{kind}.npy" in record.files
        if is_stored or kind == "dense":
            path = path_of(self.stem, f"{kind}.npy" if is_stored else "integers.npy")
            width = {"labels": 1, "dense": len(schema.dense), "sparse": len(self.single), WEIGHTS: 1}[kind]
            dtype = job.dtypes[kind] if is_stored else job.raw_dense_dtype
            blocks = row_blocks(start, stop, job.block_rows)
            contents = read_rows([(path, *each) for each in blocks], width, dtype)
            for (begin, _), rows in zip(blocks, contents, strict=True):
                # The one encoding that rounds ids is also the one whose integers wrap around.
                transforms = job.rules.dense_transform, self.dense_range, job.rules.rounds_ids, self.transforms
                yield begin, rows if is_stored else transform_dense(rows, *transforms)
            return
        # Each distinct value of the chunk is looked up once; rows then take ids by their codes.
        columns = [schema.single.index(feature) for feature in self.single]
        look_ups, begin = [self._look_up(feature) for feature in self.single], start
        for num_rows, values in column_blocks(job, record, start, stop):
            # One feature is looked up at a time, so its ids are contiguous; the view that is yielded has rows first.
            ids = np.empty((len(columns), num_rows), np.int32)
            for row, (column, look_up) in enumerate(zip(columns, look_ups, strict=True)):
                look_up(values[column], ids[row])
            yield begin, ids.T
            begin += num_rows

    def bags(self) -> tuple[Bags, ...]:
        """Return the ids of each multi-hot feature, which are made of codes if the encoding has vocabularies."""
        job, chunk = self.job, (self.record.source, self.record.chunk)
        if job.rules.order is None:
            return chunk_bags(job, *chunk, ("values.npy", "offsets.npy"))
        encoded = []
        for feature, bags in zip(job.schema.ragged, chunk_bags(job, *chunk), strict=True):
            ids = np.empty(len(bags.ids), np.int32)
            self._look_up(feature)(bags.ids, ids)
            encoded.append(Bags(ids, bags.offsets - bags.offsets[0]))
        return tuple(encoded)

    def _look_up(self, feature: str) -> Callable[[NDArray[Any], NDArray[np.int32]], None]:
        """Return the function that writes the ids of a feature's codes in this chunk, or of its values."""
        rules = self.job.rules
        tables = map_tables(self.job.work, self.features, self.digests, rules.first_id, rules.unknown_id)
        return look_up_codes(tables[self.features.index(feature)], read_dictionary(self.job, self.record, feature))


MOVED_SUFFIX = "moved.npy"  # packed rows [n, row_bytes] of a scattered chunk, in the order of their positions
MOVED_BAGS = "moved-values.npy", "moved-offsets.npy"  # files of multi-hot columns
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
        # Types go from large to small, so the number of those that an id fits gives the smallest.
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


def scatter_chunk(chunk: ParsedChunk, layout: RowLayout, counters: Counters) -> ChunkRecord:
    """Write a chunk's positions in ascending order, and bags and packed rows in the same order.

    Return a record that counts the rows that are not left out.
    """
    job, record = chunk.job, chunk.record
    # Rows in the order of their positions lie together for each shard, which then reads one range of the file.
    positions = chunk_positions(job, chunk.begin, record.rows)
    order = np.argsort(positions)
    order = order[np.count_nonzero(positions == LEFT_OUT) :]  # Rows that are left out come first.
    arrays: dict[str, NDArray[Any]] = {POSITIONS_SUFFIX: positions[order]}
    if job.schema.ragged:
        arrays |= dict(zip(MOVED_BAGS, pack([feature.take(order) for feature in chunk.bags()]), strict=True))
    if len(order):
        indices = np.full(record.rows, -1)
        indices[order] = np.arange(len(order))
        arrays[MOVED_SUFFIX] = packed = np.empty((len(order), layout.row_bytes), np.uint8)
        for begin, rows in chunk.blocks(job.row_kinds, 0, record.rows):
            layout.pack(rows, indices[begin : begin + len(rows["labels"])], packed)
    files = {
        suffix: write_array(path_of(chunk.stem, suffix), array, job.checksum(suffix))
        for suffix, array in arrays.items()
    }
    counters.add(record.rows * layout.row_bytes, record.rows)
    return ChunkRecord(record.source, record.chunk, len(order), 0, files)


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
class ShardPlan:
    """A shard of positions start..stop, to gather from `scattered` chunks (source, chunk) and `kept` ones, in order."""

    job: Job
    split: str
    name: str
    start: int
    stop: int
    scattered: tuple[tuple[int, int], ...]
    kept: tuple[ParsedChunk, ...]
    features: tuple[str, ...]
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
    def ready(self) -> dict[str, FileDigest]:
        """Return the arrays that need no gathering, by suffix: those that parsing left of the shard's only chunk."""
        if self.job.rules.is_arranged or [self.stop - self.start] != [chunk.record.rows for chunk in self.kept]:
            return {}
        return {suffix: each for suffix, each in self.kept[0].record.files.items() if suffix in SHARD_SUFFIXES}

    @property
    def missing(self) -> list[str]:
        """Return the kinds of arrays to gather."""
        return [kind for kind in self.job.kinds if f"{kind}.npy" not in self.ready]

    def gather(self, counters: Counters) -> ShardRecord:
        """Write the missing arrays with rows in the order of their positions; count positives and unknown ids."""
        job, rules, missing = self.job, self.job.rules, self.missing
        moved = []
        for chunk in self.scattered:
            positions = open_array(job.chunk_path(*chunk, POSITIONS_SUFFIX))
            first, after = count_below(positions, (self.start, self.stop)).tolist()
            if first < after:
                moved.append(MovedChunk(chunk, first, positions[first:after] - self.start))
        # The id of unknown values tells their number only if no value of a vocabulary has it, as ids that wrap may.
        is_reserved = rules.order is not None and rules.first_id > rules.unknown_id
        is_reserved &= not (rules.wraps and rules.max_ind_range is not None)
        shard, unknown = ShardRecord({}), np.zeros(self.layout.width("sparse"), np.int64)
        bags = self._gather_bags(moved) if "values" in missing else ()
        for kind, array in zip(BAG_KINDS, pack(bags) if bags else (), strict=bool(bags)):
            shard.files[f"{kind}.npy"] = write_array(path_of(self.stem, f"{kind}.npy"), array)
        with ExitStack() as stack:
            writers = {}
            for kind in job.row_kinds:
                if kind in missing:
                    path, form = path_of(self.stem, f"{kind}.npy"), (job.dtypes[kind], self.layout.width(kind))
                    writers[kind] = stack.enter_context(ArrayWriter(path, *form, self.stop - self.start))
            for rows in self._rows(list(writers), moved):
                if "labels" in rows:
                    shard.positives += int(np.count_nonzero(rows["labels"] == 1))
                if "sparse" in rows:
                    # TorchRec rounds ids only while it shuffles train, and wraps them only when it reads them.
                    modulus = rules.max_ind_range if rules.wraps and rules.order is not None else None
                    torchrec_ids(rows["sparse"], rounds=rules.rounds_ids and self.split == "train", modulus=modulus)
                if is_reserved and "sparse" in rows:
                    # Few ids are unknown, and NumPy counts along the rows of an array slowly.
                    places = np.flatnonzero(rows["sparse"] == rules.unknown_id)
                    unknown += np.bincount(places % len(unknown), minlength=len(unknown))
                for kind, writer in writers.items():
                    writer.append(rows[kind])
            shard.files |= {f"{kind}.npy": writer.close() for kind, writer in writers.items()}
        one_hot, ragged = iter(unknown.tolist()), job.schema.ragged
        of_bags = [int((each.ids == rules.unknown_id).sum()) if is_reserved else 0 for each in bags]
        multi_hot = dict(zip(ragged, of_bags or [0] * len(ragged), strict=True))
        shard.unknown = [multi_hot[name] if name in ragged else next(one_hot) for name in self.features]
        counters.add(*self.size)
        return shard

    def _rows(self, kinds: Sequence[str], moved: Sequence[MovedChunk]) -> Iterator[Window]:
        """Yield the shard's rows in order: blocks of kept chunks or, of moved rows, windows that share their memory."""
        rows, layout = self.stop - self.start, self.layout
        if not moved:
            yield from (piece for _, piece in self._kept_pieces(kinds, ()))
            return
        # With many chunks a window grows, so that what it reads of each chunk stays long enough.
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
        kept = self._kept_pieces(kinds, bounds)
        piece = next(kept, None)
        # Fresh pages for each window would first have to be cleared.
        max_rows = max(stop - start for start, stop in pairwise(bounds))
        buffers = {kind: np.empty((max_rows, layout.width(kind)), self.job.dtypes[kind]) for kind in kinds}
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

    def _kept_pieces(self, kinds: Sequence[str], bounds: Sequence[int]) -> Iterator[tuple[int, Window]]:
        """Yield the rows of kept chunks in order, cut at `bounds`: the first row's index in the shard, and arrays."""
        for chunk in self.kept:
            assert chunk.position is not None
            for begin, rows in chunk.blocks(kinds, *chunk.rows_between(self.start, self.stop)):
                first = chunk.position + begin - self.start
                last = first + len(rows[kinds[0]])
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
        for kept in self.kept:
            assert kept.position is not None
            start, stop = kept.rows_between(self.start, self.stop)
            parts.append(tuple(feature.part(start, stop) for feature in kept.bags()))
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


def built_shard(plan: ShardPlan, record: ShardRecord) -> BuiltShard:
    """Return a shard that is ready to move to the dataset. record: of the arrays that were gathered."""
    kinds, digests, moves = plan.job.kinds, plan.ready | record.files, []
    for kind in kinds:
        stem = plan.stem if f"{kind}.npy" in record.files else plan.kept[0].stem
        path = path_of(stem, f"{kind}.npy").relative_to(plan.job.work)
        moves.append((str(path), str(shard_path(Path(), plan.split, plan.name, kind))))
    shard = Shard(plan.name, plan.stop - plan.start, {kind: digests[f"{kind}.npy"] for kind in kinds})
    positives = plan.kept[0].record.positives if plan.ready else record.positives
    return BuiltShard(plan.split, shard, moves, positives, record.unknown)


def make_shards(
    job: Job, chunks: Sequence[ParsedChunk], rows: dict[str, int], layout: RowLayout, executor: Executor
) -> list[BuiltShard]:
    """Make the shards of all chunks, in row order: scatter those that are reordered, then gather each shard's rows.

    rows: each split's number of rows.
    """
    kept, scatter = list[ParsedChunk](), list[ResumableTask[ChunkRecord]]()
    for chunk in chunks:
        # A chunk that keeps its order needs no packed copy on disk, since the gather encodes it into the shard.
        position: int | None = chunk.begin
        if job.rules.is_arranged:
            position = None if job.schema.ragged else kept_position(job, chunk.begin, chunk.record.rows)
        if position is None:
            size = chunk.record.rows * layout.row_bytes, chunk.record.rows  # including rows that are left out
            scatter.append(ResumableTask("moved", chunk.stem, ChunkRecord, size, partial(scatter_chunk, chunk, layout)))
        elif chunk.record.rows:
            kept.append(replace(chunk, position=position))
    moved: tuple[tuple[int, int], ...] = ()
    if scatter:
        with executor.stage("scatter", sum(task.size[0] for task in scatter)):
            # A chunk whose rows are all left out has no file of moved rows.
            moved = tuple((record.source, record.chunk) for record in executor.map(scatter) if record.rows)
    kept.sort(key=lambda chunk: chunk.position or 0)
    positions = [chunk.position or 0 for chunk in kept]

    # Shards of reordered rows have equal sizes; those with many values have fewer rows. Others end where a chunk does:
    # chunks of a user's own table are small, so several make a shard.
    suffix = "values.npy" if job.rules.order is None else "bags.npy"
    num_values = sum(chunk.record.files[suffix].bytes for chunk in chunks if job.schema.ragged) // VALUE_BYTES
    value_bytes = SHUFFLED_VALUE_BYTES * num_values / sum(chunk.record.rows for chunk in chunks)
    shard_rows = max(1, int(job.shard_bytes / (SHUFFLED_ROW_BYTES + value_bytes)))
    groups = groupby(chunks, lambda chunk: (chunk.record.source, chunk.record.chunk // job.chunks_per_shard))
    begins = sorted({next(group).begin for _, group in groups})
    plans, low = list[ShardPlan](), 0
    for split in SPLITS:
        high = low + rows[split]
        cuts = range(low + shard_rows, high, shard_rows) if job.rules.is_arranged else begins
        bounds = [low, *(cut for cut in cuts if low < cut < high), high] if low < high else []
        for number, (start, stop) in enumerate(pairwise(bounds)):
            near = kept[max(0, bisect_right(positions, start) - 1) : bisect_left(positions, stop)]
            parts = tuple(chunk for chunk in near if operator.lt(*chunk.rows_between(start, stop)))
            name = f"{number:05d}"
            plans.append(ShardPlan(job, split, name, start, stop, moved, parts, chunks[0].features, layout))
        low = high
    tasks = [
        ResumableTask("gathered", plan.stem, ShardRecord, plan.size, plan.gather) for plan in plans if plan.missing
    ]
    with executor.stage("gather", sum(task.size[0] for task in tasks)):
        records = iter(list(executor.map(tasks)))
    whole = ShardRecord({}, unknown=[0] * len(chunks[0].features))  # hashed values, which are all known
    return [built_shard(plan, next(records) if plan.missing else whole) for plan in plans]


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

    `bayes` has the fields of `bayes_scores` over all rows, and under `splits` those of each split.

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
    splits = {split: bayes_scores(counts.sum(axis=0), counts[1]) for split, counts in histograms.items()}
    bayes = {**bayes_scores(total.sum(axis=0), total[1]), "splits": splits}
    return {"bayes": bayes, data.source_kind.group: row_settings(data.synthetic)}
