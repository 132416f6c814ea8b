"""Columns of a chunk on disk, with the texts of categories.

The file `columns` begins with the dictionaries, feature by feature, uint32 [values]. Blocks of the job's `block_rows`
follow. A block holds each feature's codes, uint8 or uint16 [rows], or, without a dictionary, its values, uint32 [rows].
Each feature of a block begins at a multiple of ALIGNMENT bytes. For a user's own table the dictionaries are in the file
`dictionaries`; all features have one, and codes may be uint32.

A dictionary holds the feature's distinct values in ascending order, with each value's count, first row in the chunk,
and text. For encodings with vocabularies, a chunk's file `dictionaries` holds, feature by feature, values uint64,
counts uint32 and first rows uint32. The file `texts` holds, feature by feature, the offset of each text, int64
[values + 1], then the texts in UTF-8, padded to a multiple of 8 bytes. The codes of features with single values are in
`columns`, those of multi-hot features in `bags.npy`.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.files import FileDigest
from common.machine import share_allocator_with_arrow
from data_prep.codec.values import Bags, Form, TableBlock, offsets_of, remainders, text_values, unpack
from data_prep.dataset.options import VocabularyOrder
from data_prep.io import ArrayWriter, FileRange, FileWriter, open_array, read_ranges
from data_prep.job import VALUE_BYTES, ChunkRecord, Job
from data_prep.lookup import text_buffers, texts_from_buffers
from data_prep.vocabulary import FEW_CODES, MAX_CODES, Coding, Entries, count_values, refuse_collisions

# Aligned columns can be viewed as codes of any width without a copy.
ALIGNMENT = 8
PARSED_COUNTS = "counts"  # suffix of the file with the counts of all of a chunk's rows
DICTIONARIES = "dictionaries"  # suffix of a chunk's file, for a user's own table
ENTRY_BYTES = 16  # an entry of that file: value, count, first row


class ValueBuffer:
    """Values of a chunk during parsing, in memory, or in a temporary file if they are too many.

    The file is never closed, so it gets no name: a buffered `FileWriter` serves as memory that may go to disk.
    """

    def __init__(self, path: Path, num_columns: int) -> None:
        """path: temporary file for values that are too many for memory. num_columns: columns of each row."""
        self._file = FileWriter(path, is_buffered=True)
        self._num_columns = num_columns
        self._block_rows: list[int] = []

    def append(self, rows: NDArray[np.uint32]) -> None:
        """Add a block of rows [rows, F]; the file holds each block column by column."""
        self._file.extend(rows.shape[::-1], np.uint32, lambda out: np.copyto(out, rows.T))
        self._block_rows.append(len(rows))

    def column(self, number: int) -> NDArray[np.uint32]:
        """Return a copy of a column's values [rows], from all blocks: counting may overwrite it."""
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


def code_dtype(num_values: int) -> np.dtype[Any]:
    """Return the smallest of uint8, uint16 and uint32 for the codes of that many distinct values."""
    return np.dtype(np.uint8 if num_values <= FEW_CODES else np.uint16 if num_values <= MAX_CODES else np.uint32)


def row_blocks(start: int, stop: int, block_rows: int) -> list[tuple[int, int]]:
    """Divide rows start..stop of a chunk at its blocks: first row of each part, row after its last."""
    inner = range((start // block_rows + 1) * block_rows, stop, block_rows)
    return list(pairwise([start, *inner, stop])) if start < stop else []


def align(num_bytes: int) -> int:
    """Return the least multiple of ALIGNMENT that is not below `num_bytes`."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def write_columns(
    job: Job, chunk: tuple[int, int], columns: Sequence[NDArray[np.unsignedinteger]], values: NDArray[np.uint32]
) -> FileDigest:
    """Write a chunk's `columns`: the values of all dictionaries, then codes (or values) of each feature by blocks."""
    with FileWriter(job.chunk_path(*chunk, "columns"), job.checksum("columns")) as file:
        append_aligned(file, values)
        for start in range(0, len(columns[0]) if columns else 0, job.block_rows):
            for column in columns:
                append_aligned(file, column[start : start + job.block_rows])
        return file.close()


def append_aligned(file: FileWriter, array: NDArray[Any]) -> None:
    """Append an array, and zeros up to a multiple of ALIGNMENT."""
    file.append(array)
    file.append(np.zeros(align(array.nbytes) - array.nbytes, np.uint8))


def _column_dtypes(record: ChunkRecord) -> list[np.dtype[Any]]:
    """Return the dtype of each feature's codes, or of its values if it has no dictionary."""
    return [code_dtype(num_values) if num_values else np.dtype(np.uint32) for num_values in record.dictionaries]


def _block_of(job: Job, record: ChunkRecord, row: int) -> tuple[int, int, list[int]]:
    """Return the block of a row: its first row, the row after its last, and the offset in the file of each feature.

    The last of these offsets, [features + 1], is where the block ends.
    """
    dtypes, number = _column_dtypes(record), row // job.block_rows
    begin, end = number * job.block_rows, min((number + 1) * job.block_rows, record.rows)
    dictionary_bytes = align(VALUE_BYTES * sum(record.dictionaries)) if job.table is None else 0
    offset = dictionary_bytes + number * sum(align(dtype.itemsize * job.block_rows) for dtype in dtypes)
    sizes = (align(dtype.itemsize * (end - begin)) for dtype in dtypes)
    return begin, end, list(itertools.accumulate(sizes, initial=offset))


def column_blocks(
    job: Job, record: ChunkRecord, start: int, stop: int
) -> Iterator[tuple[int, list[NDArray[np.unsignedinteger]]]]:
    """Yield rows start..stop of a chunk in blocks: number of rows, codes or values of each feature."""
    path = job.chunk_path(record.source, record.chunk, "columns")
    row_ranges, dtypes = row_blocks(start, stop, job.block_rows), _column_dtypes(record)
    blocks = [_block_of(job, record, first) for first, _ in row_ranges]
    ranges = [FileRange(path, offsets[0], offsets[-1] - offsets[0]) for _, _, offsets in blocks]
    for (first, after), (begin, _, offsets), content in zip(row_ranges, blocks, read_ranges(ranges), strict=True):
        rows = slice(first - begin, after - begin)
        bounds = [offset - offsets[0] for offset in offsets]
        columns = zip(dtypes, pairwise(bounds), strict=True)
        yield after - first, [content[low:high].view(dtype)[rows] for dtype, (low, high) in columns]


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
    """Return the codes [rows] of a feature, by its place in `schema.single`; its values if it has no dictionary."""
    # One feature is a small piece of each block, so only its bytes are read, not the whole blocks.
    column: NDArray[np.unsignedinteger] = np.empty(record.rows, _column_dtypes(record)[feature])
    with open(job.chunk_path(record.source, record.chunk, "columns"), "rb", buffering=0) as file:
        for first, _ in row_blocks(0, record.rows, job.block_rows):
            begin, end, offsets = _block_of(job, record, first)
            os.preadv(file.fileno(), [column[begin:end].data], offsets[feature])
    return column


def read_column(job: Job, record: ChunkRecord, feature: int) -> NDArray[np.uint32]:
    """Return a copy of a feature's values [rows], by its place in `schema.single`."""
    column, dictionary = read_codes(job, record, feature), read_dictionary(job, record, job.schema.single[feature])
    return column if dictionary is None else dictionary[column]


def chunk_bags(
    job: Job, source: int, chunk: int, names: tuple[str, str] = ("bags.npy", "offsets.npy")
) -> tuple[Bags, ...]:
    """Map a chunk's multi-hot columns; `names` are the files of values and offsets, by default the parsed ones."""
    values, offsets = (open_array(job.chunk_path(source, chunk, name)) for name in names)
    return unpack(values, offsets, len(job.schema.ragged))


TEXTS = "texts"  # suffix of a chunk's file
KEY_BYTES = 8  # size of a value and of an offset
COUNT_ROWS = 1 << 18  # rows counted at once


class Categories(NamedTuple):
    """A feature's values in a chunk: row i has values[codes[i]]; each value has a text, count and first row."""

    codes: NDArray[np.unsignedinteger]
    values: NDArray[np.uint64]
    texts: Any
    counts: NDArray[np.uint32]
    first: NDArray[np.uint32]


def merge_categories(feature: str, parts: list[Any], rows: NDArray[np.int64], are_keys: bool) -> Categories:
    """Return a feature's values with their dictionary, and release its blocks.

    parts: the values of each block, an array as `TextColumn.values`. rows: row of each value, ascending, counted from 0
    in the chunk. are_keys: whether values identify texts, so that no two texts may share one.
    """
    import pyarrow as pa

    # Each block has codes of its own dictionary.
    column = pa.chunked_array(parts, pa.dictionary(pa.int32(), pa.string())).unify_dictionaries().combine_chunks()
    parts.clear()
    texts = column.dictionary
    values = text_values(texts)
    order = np.argsort(values)
    values = values[order]
    is_new = np.concatenate(([True], values[1:] != values[:-1]))[: len(values)]
    if not is_new.all() and are_keys:
        refuse_collisions(feature, texts.take(pa.array(order)), is_new)
    # Without keys, texts may share a value; they then share a rank, too.
    rank = np.empty(len(order), np.uint32)
    rank[order] = np.cumsum(is_new, dtype=np.uint32) - np.uint32(1)
    values, texts = values[is_new], texts.take(pa.array(order[is_new]))
    codes = rank.astype(code_dtype(len(values)))[column.indices.to_numpy()]
    return Categories(codes, values, texts, *count_codes(codes, rows, len(values)))


def count_codes(
    codes: NDArray[np.unsignedinteger], rows: NDArray[np.int64], num_values: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return the count of each code and its first row, uint32 [num_values]; 0 for one that does not occur.

    rows: row of each code, ascending.
    """
    counts, first = np.zeros(num_values, np.uint32), np.zeros(num_values, np.uint32)
    # From the last part to the first, and backwards within each: a code's first row is written last, so it stays. Parts
    # bound the int64 copies that bincount makes.
    for stop in range(len(codes), 0, -COUNT_ROWS):
        part = slice(max(0, stop - COUNT_ROWS), stop)
        counts += np.bincount(codes[part], minlength=num_values).astype(np.uint32)
        first[codes[part][::-1]] = rows[part][::-1]
    return counts, first


class TableCategories:
    """Categories of all features of a chunk during parsing."""

    def __init__(self, job: Job, source: int, chunk: int) -> None:
        share_allocator_with_arrow()
        self._job, self._chunk = job, (source, chunk)
        self._rows = 0
        self._values: dict[str, list[Any]] = {feature: [] for feature in job.schema.sparse}
        self._lengths: dict[str, list[NDArray[np.int64]]] = {feature: [] for feature in job.schema.ragged}
        self._forms = dict.fromkeys(job.schema.sparse, Form(0))

    def append(self, block: TableBlock) -> None:
        """Add the categories of a block, whose rows follow those of the block before in the chunk."""
        self._rows += len(block.labels)
        for feature, column in zip(self._job.schema.sparse, block.categories, strict=True):
            if column.offsets is not None:
                self._lengths[feature].append(np.diff(column.offsets))
            self._values[feature].append(column.values)
            self._forms[feature] |= column.form

    def finish(self, record: ChunkRecord) -> None:
        """Write the chunk's categories to files, hashed ones as ids, others as codes; describe these in `record`."""
        record.forms = list(map(int, self._forms.values()))
        if self._job.rules.order is None:
            self._write_hashed(record)
        else:
            self._write_coded(record)
        if self._job.schema.ragged:
            record.longest = [
                max((int(part.max(initial=0)) for part in parts), default=0) for parts in self._lengths.values()
            ]
            lengths = itertools.chain.from_iterable(self._lengths.values())
            offsets = offsets_of(np.concatenate([np.zeros(0, np.int64), *lengths]))
            self._write_array(record, "offsets.npy", np.int64, [offsets])

    def _finish_features(self, record: ChunkRecord, are_keys: bool) -> Iterator[tuple[str, Categories]]:
        """Yield each feature's values; note the range of those with single values. are_keys: see `merge_categories`."""
        for feature, parts in self._values.items():
            rows = np.arange(self._rows)
            if feature in self._lengths:
                rows = np.repeat(rows, np.concatenate([np.zeros(0, np.int64), *self._lengths[feature]]))
            categories = merge_categories(feature, parts, rows, are_keys)
            if self._rows and feature not in self._lengths:
                record.sparse_low.append(int(categories.values[0]))
                record.sparse_high.append(int(categories.values[-1]))
            yield feature, categories

    def _write_coded(self, record: ChunkRecord) -> None:
        """Write `dictionaries`, `texts`, and the codes of all features; ids follow when vocabularies are fitted."""
        job, chunk = self._job, self._chunk
        columns: list[NDArray[np.unsignedinteger]] = []
        bags: list[NDArray[np.unsignedinteger]] = []
        with (
            FileWriter(job.chunk_path(*chunk, DICTIONARIES), job.checksum(DICTIONARIES)) as dictionaries,
            FileWriter(job.chunk_path(*chunk, TEXTS), job.checksum(TEXTS)) as texts,
        ):
            for feature, categories in self._finish_features(record, are_keys=True):
                record.distinct.append(len(categories.values))
                for array in (categories.values, categories.counts, categories.first):
                    dictionaries.append(array)
                offsets, content = text_buffers(categories.texts)
                texts.append(offsets)
                append_aligned(texts, content)
                record.text_bytes.append(len(content))
                if feature in self._lengths:
                    bags.append(categories.codes)
                else:
                    columns.append(categories.codes)
                    record.dictionaries.append(len(categories.values))
            record.files[DICTIONARIES], record.files[TEXTS] = dictionaries.close(), texts.close()
        if bags:
            self._write_array(record, "bags.npy", np.uint32, bags)
        record.files["columns"] = write_columns(job, chunk, columns, np.zeros(0, np.uint32))

    def _write_hashed(self, record: ChunkRecord) -> None:
        """Write the ids of all features: their values modulo the rows of a table, as the encoding `hash` has them."""
        modulus = self._job.rules.max_ind_range
        assert modulus is not None
        columns: list[tuple[NDArray[Any], NDArray[np.int32]]] = []
        bags: list[NDArray[np.int32]] = []
        # Ids come from values alone, so two texts with one value need not be refused.
        for feature, categories in self._finish_features(record, are_keys=False):
            ids = remainders(categories.values, modulus)
            record.values_per_row.append(len(ids) / max(1, len(np.unique(ids))))
            if feature in self._lengths:
                bags.append(ids[categories.codes])
            else:
                columns.append((categories.codes, ids))
        if bags:
            self._write_array(record, "values.npy", np.int32, bags)
        path = self._job.chunk_path(*self._chunk, "sparse.npy")
        with ArrayWriter(path, np.int32, len(columns), self._rows, self._job.checksum("sparse.npy")) as writer:
            for start, stop in row_blocks(0, self._rows, self._job.block_rows):
                block = np.empty((stop - start, len(columns)), np.int32)
                for column, (codes, ids) in enumerate(columns):
                    block[:, column] = ids[codes[start:stop]]
                writer.append(block)
            record.files["sparse.npy"] = writer.close()

    def _write_array(self, record: ChunkRecord, suffix: str, dtype: Any, parts: Sequence[NDArray[Any]]) -> None:
        """Write arrays [n] one after another to the chunk's file of this suffix, and add its digest to the record."""
        path = self._job.chunk_path(*self._chunk, suffix)
        with ArrayWriter(path, dtype, None, sum(map(len, parts)), self._job.checksum(suffix)) as writer:
            for part in parts:
                writer.append(part)
            record.files[suffix] = writer.close()


def write_code_counts(job: Job, record: ChunkRecord, suffix: str, rows: NDArray[np.int64]) -> FileDigest:
    """Count the codes of some rows of a chunk; write each feature's counts and first rows, uint32 [values].

    The first row of a code without rows is 0.

    suffix: of the file to write. rows: numbers of these rows in the chunk, ascending.
    """
    bags = iter(chunk_bags(job, record.source, record.chunk) if job.schema.ragged else ())
    with FileWriter(job.chunk_path(record.source, record.chunk, suffix), job.checksum(suffix)) as file:
        for feature, num_values in zip(job.schema.sparse, record.distinct, strict=True):
            if feature in job.schema.ragged:
                bags_of_rows = next(bags).take(rows)
                codes, value_rows = bags_of_rows.ids, np.repeat(rows, bags_of_rows.lengths)
            else:
                codes, value_rows = read_codes(job, record, job.schema.single.index(feature))[rows], rows
            for array in count_codes(codes, value_rows, num_values):
                file.append(array)
        return file.close()


@dataclass(frozen=True)
class StoredDictionary:
    """A feature's dictionary in a chunk, read in parts, as `merge_dictionaries` takes it.

    counts: suffix of the file with counts and first rows. It is `dictionaries` if all rows of the chunk count.
    """

    job: Job
    record: ChunkRecord
    number: int  # index of the feature
    counts: str = DICTIONARIES

    @property
    def entries(self) -> int:
        """Return the number of distinct values."""
        return self.record.distinct[self.number]

    @property
    def text_bytes(self) -> int:
        """Return the bytes of all texts."""
        return self.record.text_bytes[self.number]

    @property
    def values(self) -> NDArray[np.uint64]:
        """Read all values."""
        values = read_dictionary(self.job, self.record, self.job.schema.sparse[self.number])
        assert values is not None
        return values

    def part(self, start: int, stop: int) -> Entries:
        """Read the entries start..stop of the feature, with their texts; first rows count from 0 in the chunk."""
        source, chunk = self.record.source, self.record.chunk
        lengths, sizes = self.record.distinct[: self.number], self.record.text_bytes[: self.number]
        path, before, number = self.job.chunk_path(source, chunk, DICTIONARIES), sum(lengths), stop - start
        values = np.fromfile(path, np.uint64, number, offset=ENTRY_BYTES * before + KEY_BYTES * start)
        # In `dictionaries` a feature's counts and first rows follow its values; a file of counts has these two alone.
        if self.counts == DICTIONARIES:
            begin = ENTRY_BYTES * before + KEY_BYTES * self.entries
        else:
            path, begin = self.job.chunk_path(source, chunk, self.counts), 2 * VALUE_BYTES * before
        counts = np.fromfile(path, np.uint32, number, offset=begin + VALUE_BYTES * start)
        first = np.fromfile(path, np.uint32, number, offset=begin + VALUE_BYTES * (self.entries + start))
        begin = sum(KEY_BYTES * (length + 1) + align(size) for length, size in zip(lengths, sizes, strict=True))
        with open(self.job.chunk_path(source, chunk, TEXTS), "rb", buffering=0) as file:
            file.seek(begin + KEY_BYTES * start)
            offsets = np.fromfile(file, np.int64, number + 1)
            file.seek(begin + KEY_BYTES * (self.entries + 1) + int(offsets[0]))
            content = np.fromfile(file, np.uint8, int(offsets[-1] - offsets[0]))
        texts = texts_from_buffers(offsets - offsets[0], content)
        return Entries(values, counts.astype(np.int64), first.astype(np.int64), texts)


def write_counts(
    job: Job,
    chunk: tuple[int, int],
    suffix: str,
    read_column: Callable[[int], NDArray[np.uint32]],
    rows: NDArray[np.int64],
) -> tuple[list[int], FileDigest, list[Coding | None]]:
    """Count the values of a Criteo chunk, feature by feature; first rows count from 0 in the chunk.

    Returns each feature's number of distinct values, the file's size and checksum, and each feature's coding or None,
    whose codes are of the counted rows alone.

    Args:
        chunk: source index and chunk number.
        read_column: returns a feature's values by its number; they are overwritten.
        rows: rows of the chunk to count, ascending.
    """
    in_order = job.rules.order is VocabularyOrder.first_appearance
    distinct: list[int] = []
    codings: list[Coding | None] = []
    file = FileWriter(job.chunk_path(*chunk, suffix), job.checksum(suffix))
    for feature in range(len(job.schema.sparse)):
        column = read_column(feature)
        column = column if len(rows) == len(column) else column[rows]
        run, coding = count_values(column, rows if in_order else None)
        codings.append(coding)
        for array in run:
            file.append(array.astype(np.uint32, copy=False))
        distinct.append(len(run.values))
    return distinct, file.close(), codings
