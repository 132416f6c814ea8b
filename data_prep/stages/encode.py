"""Encoding of all of a dataset's values to ids, and of its integers, with data_prep/encoding.

Encodings that depend on no other rows run block by block during parsing: `encode_hash`. The others wait until the
vocabularies are fitted; then `EncodeTask` writes the chunks that `encoded_blocks` yields. If rows are reordered,
scatter and gather take rows from `encoded_blocks` instead, which saves writing and reading all of them once more.
`finish_ids` repeats what TorchRec does to ids after its shuffle.

Vocabularies larger than the memory budget are looked up in several passes (encoding/passes.py): `PassTask` writes the
ids that a pass finds, and `EncodeTask` merges them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from common.files import FileDigest
from common.jit import jit
from data_prep.config.presets import Rules
from data_prep.dataset.bags import Bags
from data_prep.dataset.format import WEIGHTS
from data_prep.dataset.transforms import ColumnTransform
from data_prep.encoding.dense import DenseRange, transform_rows
from data_prep.encoding.ids import torchrec_ids
from data_prep.encoding.lookup import ValueTable, load_tables, table_of_codes
from data_prep.encoding.passes import NOT_FOUND, Slice, load_slice, pass_name
from data_prep.engine.executor import Worker
from data_prep.engine.job import SHARD_SUFFIXES, VALUE_BYTES, ChunkRecord, Job, LoggedTask
from data_prep.io.arrays import HEADER_BYTES, ArrayWriter, read_rows, write_array
from data_prep.stages.columns import chunk_bags, column_blocks, read_codes, read_dictionary, row_blocks

BLOCK_VALUES = 1 << 20  # values of bags or passes in memory at once


@dataclass(frozen=True)
class PassTask(LoggedTask[ChunkRecord]):
    """One pass over one parsed chunk: writes each slice's ids, with NOT_FOUND for values of other slices.

    digests: checksums of the vocabularies' files.
    """

    stage: ClassVar[str] = "done"
    record_type: ClassVar[type[ChunkRecord]] = ChunkRecord

    job: Job
    record: ChunkRecord
    number: int
    slices: tuple[Slice, ...]
    digests: tuple[str, ...]

    @property
    def stem(self) -> Path:
        return self.job.chunk_path(self.record.source, self.record.chunk, pass_name(self.number, self.slices))

    @property
    def size(self) -> tuple[int, int]:
        return self.record.value_bytes, self.record.rows

    def do(self, worker: Worker) -> ChunkRecord:
        job, record = self.job, self.record
        tables = worker.cache.get(
            (job.work, self.slices, self.digests),
            lambda: [load_slice(job.work, part, job.rules.first_id) for part in self.slices],
        )
        files = {}
        for number, (part, table) in enumerate(zip(self.slices, tables, strict=True)):
            if part.feature in job.schema.ragged:
                bags = chunk_bags(job, record.source, record.chunk)[job.schema.ragged.index(part.feature)]
                values = np.array(bags.ids)
            else:
                values = read_codes(job, record, job.schema.single.index(part.feature))
            ids = np.empty(len(values), np.int32)
            table_of_codes(table, read_dictionary(job, record, part.feature)).look_up(values, ids)
            path = self.stem.with_name(f"{self.stem.name}.{number}.npy")
            files[f"{number}.npy"] = write_array(path, ids, job.checksum("pass"))
        worker.count(*self.size)
        return ChunkRecord(record.source, record.chunk, record.rows, 0, files)


@dataclass(frozen=True)
class EncodeTask(LoggedTask[ChunkRecord]):
    """Completes the encoding of a parsed chunk: ids, and integers that needed statistics.

    features: features to keep. digests: checksums of their vocabularies in `job.work`. dense_range: range of the
    integers, if their transform needs it. of_columns: transforms of single dense columns. passes: passes whose ids are
    on disk, if one pass was not enough.
    """

    stage: ClassVar[str] = "encoded"
    record_type: ClassVar[type[ChunkRecord]] = ChunkRecord

    job: Job
    record: ChunkRecord
    features: tuple[str, ...]
    digests: tuple[str, ...]
    dense_range: DenseRange | None
    passes: tuple[tuple[Slice, ...], ...] = ()
    of_columns: tuple[ColumnTransform, ...] = ()

    @property
    def single(self) -> tuple[str, ...]:
        """Return the features with single values."""
        return tuple(feature for feature in self.features if feature not in self.job.schema.ragged)

    @property
    def stem(self) -> Path:
        return self.job.chunk_stem(self.record.source, self.record.chunk)

    @property
    def size(self) -> tuple[int, int]:
        return self.record.encoded_bytes, self.record.rows

    def do(self, worker: Worker) -> ChunkRecord:
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
            dense = self._writer("dense.npy", len(self.job.schema.dense), parsed.rows, np.float32)
            for _, rows in _dense_rows(self, 0, parsed.rows):
                dense.append(rows)
                worker.count(rows.size * self.job.raw_dense_dtype.itemsize)
            encoded.files["dense.npy"] = dense.close()
        return encoded

    def tables(self, worker: Worker) -> list[ValueTable]:
        """Return the features' lookup tables, which each process loads once."""
        rules = self.job.rules
        return worker.cache.get(
            (self.job.work, self.features, self.digests),
            lambda: load_tables(self.job.work, self.features, rules.first_id, rules.unknown_id),
        )

    def _writer(self, suffix: str, width: int | None, rows: int, dtype: Any = np.int32) -> ArrayWriter:
        path = self.job.chunk_path(self.record.source, self.record.chunk, suffix)
        return ArrayWriter(path, dtype, width, rows, self.job.checksum(suffix))

    def _encode_sparse(self, worker: Worker, unknown: NDArray[np.int64]) -> FileDigest:
        writer = self._writer("sparse.npy", len(self.single), self.record.rows)
        blocks = self._merged_rows(unknown) if self.passes else _sparse_rows(self, worker, unknown, 0, self.record.rows)
        for _, ids in blocks:
            writer.append(ids)
            worker.count(ids.nbytes, len(ids))
        return writer.close()

    def _encode_bags(self, worker: Worker, unknown: NDArray[np.int64]) -> FileDigest:
        columns = chunk_bags(self.job, self.record.source, self.record.chunk)
        writer = self._writer("values.npy", None, sum(len(bags.ids) for bags in columns))
        tables = [] if self.passes else self.tables(worker)
        for feature, bags in zip(self.job.schema.ragged, columns, strict=True):
            index = self.features.index(feature)
            if not self.passes:
                to_ids = table_of_codes(tables[index], read_dictionary(self.job, self.record, feature))
            for start in range(0, len(bags.ids), BLOCK_VALUES):
                values = np.array(bags.ids[start : start + BLOCK_VALUES])
                if self.passes:
                    ids, missing = self._merge(feature, start, len(values))
                else:
                    ids = np.empty(len(values), np.int32)
                    missing = to_ids.look_up(values, ids)
                unknown[index] += missing
                writer.append(ids)
                worker.count(values.nbytes)
        return writer.close()

    def _merged_rows(self, unknown: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Yield ids as `_sparse_rows` does, merged from the passes."""
        for start, stop in row_blocks(0, self.record.rows, self.job.block_rows):
            ids = np.empty((len(self.single), stop - start), np.int32)
            for column, feature in enumerate(self.single):
                ids[column], missing = self._merge(feature, start, stop - start)
                unknown[self.features.index(feature)] += missing
            yield start, ids.T

    def _merge(self, feature: str, start: int, count: int) -> tuple[NDArray[np.int32], int]:
        """Merge a feature's ids of `count` values from its slices; also return the number of unknown values."""
        ids = np.full(count, NOT_FOUND, np.int32)
        for number, slices in enumerate(self.passes):
            for i, slice_part in enumerate(slices):
                if slice_part.feature == feature:
                    suffix = f"{pass_name(number, slices)}.{i}.npy"
                    path = self.job.chunk_path(self.record.source, self.record.chunk, suffix)
                    part = np.fromfile(path, np.int32, count, offset=HEADER_BYTES + VALUE_BYTES * start)
                    np.maximum(ids, part, out=ids)
        missing = ids == NOT_FOUND
        ids[missing] = self.job.rules.unknown_id
        return ids, int(np.count_nonzero(missing))


def encoded_blocks(
    chunk: EncodeTask, worker: Worker, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
    """Yield rows start..stop (by default all) of a chunk in blocks: the first row, and an array of each of `row_kinds`.

    Rows are read from disk if they are encoded there, and otherwise encoded now.
    """
    stop, kinds = chunk.record.rows if stop is None else stop, chunk.job.row_kinds
    for blocks in zip(*(_rows_of_kind(chunk, worker, kind, start, stop) for kind in kinds), strict=True):
        yield blocks[0][0], {kind: rows for kind, (_, rows) in zip(kinds, blocks, strict=True)}


def _rows_of_kind(
    chunk: EncodeTask, worker: Worker, kind: str, start: int, stop: int
) -> Iterator[tuple[int, NDArray[Any]]]:
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
    """Yield a chunk's transformed integers as `_stored_rows` does."""
    job, rules = chunk.job, chunk.job.rules
    stored = _stored_rows(chunk, "integers.npy", len(job.schema.dense), job.raw_dense_dtype, start, stop)
    for begin, block in stored:
        yield begin, transform_rows(block, rules.dense, chunk.of_columns, chunk.dense_range, rules.rounds_ids)


def _sparse_rows(
    chunk: EncodeTask, worker: Worker, unknown: NDArray[np.int64], start: int, stop: int
) -> Iterator[tuple[int, NDArray[np.int32]]]:
    """Yield a chunk's ids as `_stored_rows` does; add each feature's number of unknown values to `unknown`."""
    tables = chunk.tables(worker)
    numbers = [chunk.features.index(feature) for feature in chunk.single]
    columns = [chunk.job.schema.single.index(feature) for feature in chunk.single]
    dictionaries = [read_dictionary(chunk.job, chunk.record, feature) for feature in chunk.single]
    to_ids = [table_of_codes(tables[i], dictionary) for i, dictionary in zip(numbers, dictionaries, strict=True)]
    begin = start
    for rows, values in column_blocks(chunk.job, chunk.record, start, stop):
        ids = np.empty((len(numbers), rows), np.int32)
        for row, (i, column) in enumerate(zip(numbers, columns, strict=True)):
            unknown[i] += to_ids[row].look_up(values[column], ids[row])
        yield begin, ids.T
        begin += rows


def finish_ids(rules: Rules, split: str, ids: NDArray[np.int32]) -> None:
    """Apply, in place, the changes that TorchRec makes to a split's ids after ordering its rows."""
    modulus = rules.max_ind_range if rules.wraps and rules.order is not None else None
    torchrec_ids(ids, rounds=rules.rounds_ids and split == "train", modulus=modulus)


@jit
def count_equal(rows: NDArray[np.int32], value: int, counts: NDArray[np.int64]) -> None:
    """Add to counts[c] how often the value occurs in column c."""
    for row in range(len(rows)):
        for column in range(rows.shape[1]):
            counts[column] += rows[row, column] == value


def count_unknown(job: Job, ids: NDArray[np.int32]) -> NDArray[np.int64]:
    """Count unknown values in ids [rows, F] of features with single values."""
    counts = np.zeros(ids.shape[1], np.int64)
    if _reserves_id(job.rules):
        count_equal(np.asarray(ids), job.rules.unknown_id, counts)
    return counts


def _reserves_id(rules: Rules) -> bool:
    is_reserved = rules.order is not None and rules.first_id > rules.unknown_id
    return is_reserved and not (rules.wraps and rules.max_ind_range is not None)


def unknown_of_all(job: Job, single: NDArray[np.int64], bags: Sequence[Bags]) -> list[int]:
    """Return all features' numbers of unknown values, from the counts for single values and from the bags."""
    if not bags:
        return single.tolist()
    is_reserved = _reserves_id(job.rules)
    multi_hot = iter([int((feature.ids == job.rules.unknown_id).sum()) if is_reserved else 0 for feature in bags])
    one_hot = iter(single.tolist())
    return [next(multi_hot if name in job.schema.ragged else one_hot) for name in job.schema.sparse]
