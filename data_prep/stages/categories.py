"""Categories of a chunk of a user's own table: codes of at most 32 bits, and a dictionary of each feature.

A dictionary holds the feature's distinct values in ascending order, with each value's count, first row in the chunk,
and text. For encodings with vocabularies, a chunk's file `dictionaries` holds, feature by feature, values uint64,
counts uint32 and first rows uint32. The file `texts` holds, feature by feature, the offset of each text, int64
[values + 1], then the texts in UTF-8, padded to a multiple of 8 bytes. The codes of features with single values are in
`columns` (data_prep/stages/columns.py), those of multi-hot features in `bags.npy`.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.files import FileDigest
from common.memory import share_allocator_with_arrow
from data_prep.dataset.bags import offsets_of
from data_prep.dataset.spelling import Form
from data_prep.encoding.texts import text_buffers, texts_of
from data_prep.encoding.values import remainders, text_values
from data_prep.engine.job import VALUE_BYTES, ChunkRecord, Job
from data_prep.io.arrays import ArrayWriter
from data_prep.io.direct_io import FileWriter
from data_prep.parsing.table_block import TableBlock
from data_prep.stages.columns import (
    DICTIONARIES,
    ENTRY_BYTES,
    aligned,
    append_aligned,
    chunk_bags,
    code_dtype,
    read_codes,
    read_dictionary,
    row_blocks,
    write_blocks,
)
from data_prep.vocabulary.dictionaries import Entries, refuse_collisions

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


class CategoryBuffer:
    """A feature's values during parsing: the codes of each block, in as few bytes as possible, and its texts."""

    def __init__(self, feature: str) -> None:
        self._feature = feature
        self._texts: list[Any] = []
        self._blocks: list[tuple[NDArray[np.unsignedinteger], NDArray[np.uint32], NDArray[np.uint32]]] = []

    def append(self, values: Any, rows: NDArray[np.int64]) -> None:
        """Add values in the form of `TextColumn`; value i belongs to row rows[i]."""
        codes, texts = values.indices.to_numpy(), values.dictionary
        first = np.empty(len(texts), np.uint32)
        first[codes[::-1]] = rows[::-1]  # The first row of each code is written last, so it stays.
        counts = np.bincount(codes, minlength=len(texts)).astype(np.uint32)
        self._texts.append(texts)
        self._blocks.append((codes.astype(code_dtype(len(texts))), counts, first))

    def finish(self, are_keys: bool) -> Categories:
        """Return all values with their dictionary. Call this once.

        Args:
            are_keys: whether values identify texts, so that no two texts may share one.
        """
        import pyarrow as pa

        texts, places = self._unify()
        values = text_values(texts)
        order = np.argsort(values)
        values = values[order]
        is_new = np.concatenate(([True], values[1:] != values[:-1]))[: len(values)]
        if not is_new.all() and are_keys:
            refuse_collisions(self._feature, texts.take(pa.array(order)), is_new)
        rank = np.empty(len(order), np.uint32)
        rank[order] = np.cumsum(is_new, dtype=np.uint32) - np.uint32(1)
        values, texts = values[is_new], texts.take(pa.array(order[is_new]))
        del order
        counts, first = np.zeros(len(values), np.uint32), np.full(len(values), np.iinfo(np.uint32).max, np.uint32)
        codes = np.empty(sum(len(block) for block, _, _ in self._blocks), code_dtype(len(values)))
        begin = entry = 0
        for block, block_counts, block_first in self._blocks:
            numbers = rank[places[entry : entry + len(block_counts)]]
            np.add.at(counts, numbers, block_counts)
            np.minimum.at(first, numbers, block_first)
            codes[begin : begin + len(block)] = numbers.astype(codes.dtype)[block]
            begin, entry = begin + len(block), entry + len(numbers)
        return Categories(codes, values, texts, counts, first)

    def _unify(self) -> tuple[Any, NDArray[np.int32]]:
        """Return the distinct texts of all blocks, and the place among them of each block's entries."""
        import pyarrow as pa

        if len(self._texts) == 1:
            return (texts := self._texts.pop()), np.arange(len(texts), dtype=np.int32)
        encoded = pa.chunked_array(self._texts, pa.string()).dictionary_encode()
        self._texts.clear()
        texts = encoded.chunk(0).dictionary if encoded.num_chunks else pa.array([], pa.string())
        places = [chunk.indices.to_numpy() for chunk in encoded.chunks]
        return texts, np.concatenate([np.zeros(0, np.int32), *places])


class TableCategories:
    """Categories of all features of a chunk during parsing."""

    def __init__(self, job: Job, source: int, chunk: int) -> None:
        share_allocator_with_arrow()
        self._job, self._chunk = job, (source, chunk)
        self._rows = 0
        self._buffers = {feature: CategoryBuffer(feature) for feature in job.schema.sparse}
        self._lengths: dict[str, list[NDArray[np.int64]]] = {feature: [] for feature in job.schema.ragged}
        self._forms = dict.fromkeys(job.schema.sparse, Form(0))

    def append(self, block: TableBlock) -> None:
        """Add the rows of a block."""
        rows = np.arange(self._rows, self._rows + len(block.labels))
        self._rows += len(rows)
        for feature, column in zip(self._job.schema.sparse, block.categories, strict=True):
            of_rows = rows
            if column.offsets is not None:
                self._lengths[feature].append(np.diff(column.offsets))
                of_rows = np.repeat(rows, self._lengths[feature][-1])
            self._buffers[feature].append(column.values, of_rows)
            self._forms[feature] |= column.form

    def finish(self, record: ChunkRecord) -> None:
        """Write the files and describe them in the chunk's record."""
        record.forms = list(map(int, self._forms.values()))
        if self._job.rules.order is None:
            self._finish_hashed(record)
        else:
            self._finish_coded(record)
        if self._job.schema.ragged:
            record.longest = [
                max((int(part.max(initial=0)) for part in each), default=0) for each in self._lengths.values()
            ]
            lengths = itertools.chain.from_iterable(self._lengths.values())
            offsets = offsets_of(np.concatenate([np.zeros(0, np.int64), *lengths]))
            self._write_array(record, "offsets.npy", np.int64, [offsets])

    def _finished(self, record: ChunkRecord, are_keys: bool) -> Iterator[tuple[str, Categories]]:
        """Yield each feature's values; record the range of features with single values."""
        for feature in self._job.schema.sparse:
            categories = self._buffers.pop(feature).finish(are_keys)
            if self._rows and feature not in self._lengths:
                record.sparse_low.append(int(categories.values[0]))
                record.sparse_high.append(int(categories.values[-1]))
            yield feature, categories

    def _finish_coded(self, record: ChunkRecord) -> None:
        job, chunk = self._job, self._chunk
        columns: list[NDArray[np.unsignedinteger]] = []
        bags: list[NDArray[np.unsignedinteger]] = []
        with (
            FileWriter(job.chunk_path(*chunk, DICTIONARIES), job.checksum(DICTIONARIES)) as dictionaries,
            FileWriter(job.chunk_path(*chunk, TEXTS), job.checksum(TEXTS)) as texts,
        ):
            for feature, categories in self._finished(record, are_keys=True):
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
        record.files["columns"] = write_blocks(job, chunk, columns, np.zeros(0, np.uint32))

    def _finish_hashed(self, record: ChunkRecord) -> None:
        modulus = self._job.rules.max_ind_range
        assert modulus is not None
        columns: list[tuple[NDArray[Any], NDArray[np.int32]]] = []
        bags: list[NDArray[np.int32]] = []
        for feature, categories in self._finished(record, are_keys=False):
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
        """Write arrays one after another to one of the chunk's files."""
        path = self._job.chunk_path(*self._chunk, suffix)
        with ArrayWriter(path, dtype, None, sum(map(len, parts)), self._job.checksum(suffix)) as writer:
            for part in parts:
                writer.append(part)
            record.files[suffix] = writer.close()


def count_codes(
    codes: NDArray[np.unsignedinteger], rows: NDArray[np.int64], num_values: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return how often each code occurs, and the first row in which it does (0 if it does not).

    Args:
        codes: codes[i] belongs to row rows[i]; rows ascend.
    """
    counts, first = np.zeros(num_values, np.uint32), np.zeros(num_values, np.uint32)
    for stop in range(len(codes), 0, -COUNT_ROWS):
        part = slice(max(0, stop - COUNT_ROWS), stop)
        counts += np.bincount(codes[part], minlength=num_values).astype(np.uint32)
        first[codes[part][::-1]] = rows[part][::-1]
    return counts, first


def write_code_counts(job: Job, record: ChunkRecord, suffix: str, rows: NDArray[np.int64]) -> FileDigest:
    """Count the codes of some rows of a chunk, which ascend; write each feature's counts and first rows, uint32."""
    bags = iter(chunk_bags(job, record.source, record.chunk) if job.schema.ragged else ())
    with FileWriter(job.chunk_path(record.source, record.chunk, suffix), job.checksum(suffix)) as file:
        for feature, num_values in zip(job.schema.sparse, record.distinct, strict=True):
            if feature in job.schema.ragged:
                bags_of_rows = next(bags).take(rows)
                codes, of_rows = bags_of_rows.ids, np.repeat(rows, bags_of_rows.lengths)
            else:
                codes, of_rows = read_codes(job, record, job.schema.single.index(feature))[rows], rows
            for array in count_codes(codes, of_rows, num_values):
                file.append(array)
        return file.close()


@dataclass(frozen=True)
class StoredDictionary:
    """A feature's dictionary in a chunk, read in parts; implements `vocabulary.dictionaries.Dictionary`.

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
        """Read the entries start..stop."""
        count, before = stop - start, sum(self.record.distinct[: self.number])
        path = self._path(DICTIONARIES)
        values = np.fromfile(path, np.uint64, count, offset=ENTRY_BYTES * before + KEY_BYTES * start)
        if self.counts == DICTIONARIES:
            begin = ENTRY_BYTES * before + KEY_BYTES * self.entries
        else:
            path, begin = self._path(self.counts), 2 * VALUE_BYTES * before
        counts = np.fromfile(path, np.uint32, count, offset=begin + VALUE_BYTES * start)
        first = np.fromfile(path, np.uint32, count, offset=begin + VALUE_BYTES * (self.entries + start))
        return Entries(values, counts.astype(np.int64), first.astype(np.int64), self._texts(start, stop))

    def _path(self, suffix: str) -> Any:
        return self.job.chunk_path(self.record.source, self.record.chunk, suffix)

    def _texts(self, start: int, stop: int) -> Any:
        lengths, sizes = self.record.distinct[: self.number], self.record.text_bytes[: self.number]
        begin = sum(KEY_BYTES * (length + 1) + aligned(size) for length, size in zip(lengths, sizes, strict=True))
        with open(self._path(TEXTS), "rb", buffering=0) as file:
            file.seek(begin + KEY_BYTES * start)
            offsets = np.fromfile(file, np.int64, stop - start + 1)
            file.seek(begin + KEY_BYTES * (self.entries + 1) + int(offsets[0]))
            return texts_of(offsets - offsets[0], np.fromfile(file, np.uint8, int(offsets[-1] - offsets[0])))
