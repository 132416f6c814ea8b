"""Raw files to chunks: columns on disk, with the texts of categories and counts of values for vocabularies.

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

import contextlib
import fcntl
import hashlib
import itertools
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from operator import or_
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from common.errors import UserError
from common.files import FileDigest, digest_file
from common.machine import share_allocator_with_arrow
from data_prep.codec.values import Bags, Form, RawRows, TableBlock, offsets_of, remainders, text_values, unpack
from data_prep.dataset.format import WEIGHTS
from data_prep.dataset.options import Table, VocabularyOrder
from data_prep.executor import Counters, Executor, Task
from data_prep.io import BLOCK_BYTES, ArrayWriter, FileRange, FileWriter, open_array, read_ranges
from data_prep.job import SPLIT_KEYS, VALUE_BYTES, ChunkRecord, Job, load_record, save_record
from data_prep.lookup import (
    DenseRange,
    column_range,
    column_transforms,
    dense_limits,
    encode_dense,
    encode_hash,
    join_ranges,
    text_buffers,
    texts_from_buffers,
    transform_dense,
)
from data_prep.parsing.criteo import Block, diagnose_row, empty_block, max_rows, parse_bytes, parse_lines
from data_prep.parsing.table import Chunk, FileLayout, LineFormat, format_named, row_bytes, table_layout
from data_prep.sources.files import (
    GIVEN,
    PUBLISHED,
    LineBlocks,
    Source,
    SourceStream,
    count_lines_before,
    given_md5s,
    refuse_same,
)
from data_prep.vocabulary import FEW_CODES, MAX_CODES, Coding, Entries, count_values, refuse_collisions

PARSED = "parsed"
MANY_ROWS = 50  # files with as many rows are not alike by chance
HELD_OUT_SPLITS = ("val", "test")  # splits of files given for each split


# Result of reading a source or a part of it: chunks, and the file's digest if all of it was read.
Reading: TypeAlias = tuple[list[ChunkRecord], FileDigest | None]


def digest_source(source: Source, counters: Counters, is_md5: bool = False) -> Reading:
    """Return the checksum of a raw file without chunks: SHA-256, for which only the manifest waits, or MD5.

    is_md5: whether the digest has an MD5 in its field `sha256`, as published sums of given splits are.
    """
    path = Path(source.path)
    digest = digest_file(path, partial(hashlib.md5, usedforsecurity=False)) if is_md5 else digest_file(path)
    # The stage of a SHA-256 counts the same bytes as they are parsed. Counting none still raises Stopped.
    counters.add(source.bytes if is_md5 else 0)
    return [], digest


@dataclass(frozen=True)
class ParseTask:
    """Parses one chunk of a source, or all chunks if `chunk` is None; source, chunk: numbers in the job, in the source.

    place: the chunk's place in the file; None for whole sources.
    forms: spellings of train's values in each sparse column, for files given for val and test.
    """

    job: Job
    source: int
    chunk: int | None
    place: Chunk | None = None
    forms: tuple[Form, ...] | None = None

    def __call__(self, counters: Counters) -> Reading:
        """Return the chunks' records, and a whole source's digest; chunks that are not done yet are parsed now."""
        if self.chunk is not None:
            return [_parse_chunk(self, self.chunk, counters)], None
        stream = SourceStream(self.job.sources[self.source])
        with LineBlocks(self.job.sources[self.source], reader=stream) as lines:
            return _parse_stream(self, lines, counters), stream.digest()


def parse_tasks(job: Job, whole: bool = False) -> list[ParseTask]:
    """Return tasks that cover all sources, in row order.

    whole: read each text source once, as one task, for both rows and checksum.
    """
    tasks = []
    has_lines = job.table is None or isinstance(format_named(job.table.format), LineFormat)
    for index, source in enumerate(job.sources):
        # A compressed file can only be read from its start, so it is one task.
        if source.compressed or (whole and has_lines):
            tasks.append(ParseTask(job, index, None))
            continue
        places: Sequence[Chunk]
        if job.table is not None:
            layout, form = table_layout(job.table)[1], format_named(job.table.format)
            places = form.chunks(source, layout, row_bytes(job.table), job.chunk_bytes)
        else:
            places = [Chunk(start, start + job.chunk_bytes) for start in range(0, source.bytes, job.chunk_bytes)]
        tasks.extend(ParseTask(job, index, chunk, place) for chunk, place in enumerate(places))
    return tasks


def _parse_chunk(task: ParseTask, chunk: int, counters: Counters) -> ChunkRecord:
    """Return the record of one chunk: the one on disk if its files match it, else that of parsing it now."""
    job, index, place = task.job, task.source, task.place
    source = job.sources[index]
    record = load_record(job.chunk_stem(index, chunk), PARSED, ChunkRecord)
    assert place is not None
    if record is not None:
        counters.add(place.bytes_of(source), record.rows)
        return record
    if job.table is not None:
        batches = format_named(job.table.format).batches(source, place, *_columns_and_layout(job, job.table, source))
        return _parse_batches(task, job.table, chunk, batches, counters).finish()
    with LineBlocks(source, place.start) as lines:
        return _parse_lines(task, chunk, lines, counters).finish()


def _parse_stream(task: ParseTask, lines: LineBlocks, counters: Counters) -> list[ChunkRecord]:
    """Parse all chunks of a source from its start; finish one chunk while the next is parsed."""
    job, source = task.job, task.source
    records: list[ChunkRecord] = []
    unfinished: list[Future[ChunkRecord]] = []  # at most one, since parsed rows stay in memory until finished
    with ThreadPoolExecutor(1) as finisher:
        while not lines.exhausted:
            chunk = len(records) + len(unfinished)
            record = load_record(job.chunk_stem(source, chunk), PARSED, ChunkRecord)
            parsed = _parse_lines(task, chunk, lines, counters) if record is None else None
            try:
                records += [future.result() for future in unfinished]
            except BaseException:
                if parsed is not None:
                    parsed.abandon()
                raise
            unfinished = [] if parsed is None else [finisher.submit(parsed.finish)]
            # The lines of a finished chunk are read again, as the next chunk begins where they end.
            if record is not None:
                for _ in lines.read_until((chunk + 1) * job.chunk_bytes):
                    counters.add(lines.advance())
                counters.add(0, record.rows)
                records.append(record)
        return records + [future.result() for future in unfinished]


def _parse_lines(task: ParseTask, chunk: int, lines: LineBlocks, counters: Counters) -> "ChunkWriter":
    """Parse the lines of one chunk, from where `lines` stands; the caller finishes its files."""
    job, source, stop = task.job, task.job.sources[task.source], (chunk + 1) * task.job.chunk_bytes
    if job.table is not None:
        form = format_named(job.table.format)
        assert isinstance(form, LineFormat)
        batches = form.batches_of(source, lines, stop, *_columns_and_layout(job, job.table, source))
        return _parse_batches(task, job.table, chunk, batches, counters)
    buffer = empty_block(max_rows(BLOCK_BYTES) + 1)
    with ChunkWriter(job, task.source, chunk) as files:
        for block in lines.read_until(stop):
            rows, position = parse_lines(block.buffer, block.start, block.end, *buffer)
            if position != block.end:
                line = bytes(block.buffer[position : block.end]).split(b"\n", 1)[0]
                is_last = block.is_last and position + len(line) + 1 >= block.end
                # Lines before the block are counted only for this error, as a task begins in the middle of a file.
                row = count_lines_before(source, block.offset + position - block.start) + 1
                raise UserError(diagnose_row(line, source.path, row, is_last))
            files.append(Block(buffer.labels[:rows], buffer.dense[:rows], buffer.sparse[:rows]))
            counters.add(lines.advance(), rows)
    return files


def _columns_and_layout(job: Job, table: Table, source: Source) -> tuple[list[str], FileLayout]:
    """Return the columns to read of a user's file, with the one that decides the split, and the file's layout."""
    columns, layout = table_layout(table)
    if job.split_column is not None and source.split not in HELD_OUT_SPLITS:
        columns = list(dict.fromkeys((*columns, job.split_column.column)))
    return columns, layout


def _parse_batches(
    task: ParseTask, table: Table, chunk: int, batches: Iterable[tuple[RawRows, int]], counters: Counters
) -> "ChunkWriter":
    """Convert the rows of one chunk of a user's table; the caller finishes its files."""
    from data_prep.parsing.readers import convert_rows  # imports pyarrow, which Criteo's rows do not need

    forms = None if task.forms is None else dict(zip(table.sparse, task.forms, strict=True))
    limits = dense_limits(task.job.rules.dense_transform, table)
    with ChunkWriter(task.job, task.source, chunk) as files:
        for batch, num_bytes in batches:
            files.append(convert_rows(batch, table, limits=limits, forms=forms), batch)
            counters.add(num_bytes, batch.rows)
    return files


class ChunkWriter(AbstractContextManager["ChunkWriter"]):
    """Writer of a chunk's files during parsing, which stay open after the context unless it fails, for `finish`."""

    def __init__(self, job: Job, source: int, chunk: int) -> None:
        self._job, self._source, self._chunk = job, source, chunk
        # Numbers whose transform needs statistics of the rows are written as they are, and transformed later.
        self._is_raw, schema = job.needs_statistics, job.schema
        self._column_transforms = column_transforms(job.table, {})
        dense_dtype = job.raw_dense_dtype if self._is_raw else job.dtypes["dense"]
        forms: dict[str, tuple[DTypeLike, int]] = {  # dtype and width of each file
            "labels.npy": (job.dtypes["labels"], 1),
            "integers.npy" if self._is_raw else "dense.npy": (dense_dtype, len(schema.dense)),
        }
        if schema.weight:
            forms[f"{WEIGHTS}.npy"] = np.float32, 1
        if job.split_column is not None and job.sources[source].split not in HELD_OUT_SPLITS:
            forms[SPLIT_KEYS] = np.int64, 1
        self._categories = None if job.table is None else TableCategories(job, source, chunk)
        self._values: ValueBuffer | None = None
        if job.table is None and job.rules.order is None:
            forms["sparse.npy"] = np.int32, len(schema.single)
        elif job.table is None:
            self._values = ValueBuffer(job.chunk_path(source, chunk, "values"), len(schema.single))
        self._files = {
            suffix: ArrayWriter(job.chunk_path(source, chunk, suffix), dtype, width, None, job.checksum(suffix))
            for suffix, (dtype, width) in forms.items()
        }
        self._ranges: list[DenseRange] = []
        self._negatives = np.zeros(len(schema.dense), np.int64)
        self._positives = 0
        self._positive_rows = np.zeros(0 if job.table is None else len(job.table.positive), np.int64)
        self._values_per_row: list[float] = []

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.abandon()

    def abandon(self) -> None:
        """Close open files and release the rows."""
        for file in self._files.values():
            file.abandon()
        if self._values is not None:
            self._values.abandon()

    def append(self, block: Block | TableBlock, batch: RawRows | None = None) -> None:
        """Write the rows of a block. batch: those of a user's table before conversion."""
        rules, rows, files = self._job.rules, len(block.labels), self._files
        self._positives += int(np.count_nonzero(block.labels == 1))
        files["labels.npy"].append(block.labels)
        if batch is not None and SPLIT_KEYS in files:
            assert self._job.split_column is not None
            assert self._job.table is not None
            files[SPLIT_KEYS].append(self._job.split_column.keys(batch, self._job.table)[:, None])
        if self._is_raw:
            files["integers.npy"].append(block.dense)
        else:
            # The transform writes to the memory of the file, which saves a copy of all rows.
            transform = partial(transform_dense, block.dense, rules.dense_transform)
            own = self._column_transforms
            files["dense.npy"].extend(rows, lambda dense: transform(column_transforms=own, result=dense))
        if rows and (self._is_raw or self._job.table is not None):
            self._ranges.append(column_range(block.dense))
            self._negatives += np.count_nonzero(block.dense < 0, axis=0)
        if isinstance(block, TableBlock):
            assert self._categories is not None
            self._categories.append(block)
            self._positive_rows += np.array(block.positive_rows, np.int64)
            if self._job.schema.weight and block.weights is not None:
                files[f"{WEIGHTS}.npy"].append(block.weights)
        elif self._values is not None:
            self._values.append(block.sparse)
        else:
            modulus = rules.max_ind_range
            assert modulus is not None
            files["sparse.npy"].extend(rows, lambda ids: encode_hash(block.sparse, modulus, ids))
            # Values that share an id are counted in the first block alone: for all rows it would take a vocabulary.
            if (self._source, self._chunk, self._values_per_row) == (0, 0, []):
                columns = [np.unique(column) for column in block.sparse.T]
                self._values_per_row = [len(values) / len(np.unique(values % modulus)) for values in columns if rows]

    def finish(self) -> ChunkRecord:
        """Close the files in any case, count the values for a vocabulary, and write the record."""
        try:
            return self._finish()
        finally:
            self.abandon()

    def _finish(self) -> ChunkRecord:
        job, chunk = self._job, (self._source, self._chunk)
        record = ChunkRecord(*chunk, self._files["labels.npy"].rows, self._positives, {})
        record.positive_rows = self._positive_rows.tolist()
        if self._categories is not None:
            self._categories.finish(record)
        elif self._values is not None:
            codings: Sequence[Coding | None] = [None] * len(job.schema.single)
            # Counting also finds the codes of columns that repeat, so it comes before columns are written.
            if job.rules.counts_while_parsing:
                rows = np.arange(record.rows)
                record.distinct, digest, codings = write_counts(job, chunk, PARSED_COUNTS, self._values.column, rows)
                record.files[PARSED_COUNTS] = digest
            columns = [self._values.column(i) if coding is None else coding.codes for i, coding in enumerate(codings)]
            self._values.abandon()
            record.dictionaries = [0 if coding is None else len(coding.dictionary) for coding in codings]
            dictionaries = [coding.dictionary for coding in codings if coding is not None]
            values = np.concatenate([np.zeros(0, np.uint32), *dictionaries])
            record.files["columns"] = write_columns(job, chunk, columns, values)
        if self._ranges:
            dense_range = join_ranges(self._ranges)
            record.dense_low, record.dense_high = dense_range.low.tolist(), dense_range.high.tolist()
            record.negatives = self._negatives.tolist()
        if job.rules.order is None:
            record.values_per_row = record.values_per_row or self._values_per_row
        # The record vouches for the files, so they are on disk before it.
        for suffix, file in self._files.items():
            record.files[suffix] = file.close()
        save_record(job.chunk_stem(*chunk), PARSED, record)
        return record


def refuse_changed(sources: Sequence[Source]) -> None:
    """Refuse files with another size or other times than when they were found: they changed while they were read."""
    for source in sources:
        now = Path(source.path).stat()
        # A program may set a file's time of writing, but not the time of its last change.
        if (now.st_size, now.st_mtime_ns, now.st_ctime_ns) != (source.bytes, source.mtime_ns, source.ctime_ns):
            raise UserError(f"{source.path}: changed while it was read; run the same command again")


def refuse_same_rows(sources: Sequence[Source], chunks: Iterable[tuple[int, int, dict[str, FileDigest]]]) -> None:
    """Refuse files with the same rows in other bytes, such as a compressed copy, by checksums of parsed chunks.

    A few rows may be alike by chance, so files with few rows are compared only if a file is compressed.

    chunks: each chunk's source index, number of rows, and files.
    """
    contents: list[list[Hashable]] = [[] for _ in sources]
    rows = [0] * len(sources)
    for source, chunk_rows, files in chunks:
        contents[source] += sorted((suffix, digest.bytes, digest.sha256) for suffix, digest in files.items())
        rows[source] += chunk_rows
    is_packed = any(source.compressed for source in sources)
    compared = [number for number in range(len(sources)) if is_packed or rows[number] >= MANY_ROWS]
    refuse_same([sources[number] for number in compared], [tuple(contents[number]) for number in compared], "rows")


def compare_md5s(job: Job, checksums: object, executor: Executor) -> list[str]:
    """Return the MD5 of each source; refuse sums other than the given ones (data.checksums), and equal files."""
    with executor.stage("checksum", sum(source.bytes for source in job.sources)):
        readings = executor.map(partial(digest_source, source, is_md5=True) for source in job.sources)
        md5s = [digest.sha256 for _, digest in readings if digest is not None]
    GIVEN.refuse_other((source.path for source in job.sources), given_md5s(checksums, job.sources), md5s)
    refuse_same(job.sources, md5s)
    return md5s


def parse_sources(job: Job, executor: Executor, whole: bool) -> tuple[list[ChunkRecord], list[FileDigest], list[Form]]:
    """Parse all sources to chunks; refuse files that changed, are empty, are alike, or have other checksums than known.

    whole: read each text file once, as one task, for rows and checksum. Returns all chunks in row order, the sources'
    digests, and the spellings of a user's own sparse columns.
    """
    records: list[ChunkRecord] = []
    digests: list[FileDigest] = []
    forms: list[Form] = []
    with executor.stage("parse", sum(source.bytes for source in job.sources)):
        # The spellings of val's and test's files follow train's, so train is read first.
        for is_held_out in (False, True):
            tasks: list[Task[Reading]] = []
            for task in parse_tasks(job, whole):
                source = job.sources[task.source]
                if (source.split in HELD_OUT_SPLITS) is is_held_out:
                    # A source in chunks is never read whole by one task, so its checksum is a task of its own.
                    tasks += [partial(digest_source, source)] if task.chunk == 0 else []
                    tasks.append(replace(task, forms=tuple(forms)) if is_held_out else task)
            for part, digest in executor.map(tasks):
                records += part
                digests += [] if digest is None else [digest]
            if not is_held_out:
                forms_by_column = zip(*(record.forms for record in records), strict=True)
                forms = [Form(reduce(or_, column)) for column in forms_by_column]
        # The size of a compressed file does not show that it has no rows.
        filled = {record.source for record in records if record.rows}
        for index, source in enumerate(job.sources):
            if index not in filled:
                raise UserError(f"{source.path}: no rows in it; get it again, or leave it out of {source.key}")
        refuse_changed(job.sources)
        # Fetched files may differ from the known checksums, by mistake or by damage. Other files have none to compare.
        sums = [digest.sha256 for digest in digests]
        if job.known_sums:
            PUBLISHED.refuse_other((source.path for source in job.sources), job.known_sums, sums)
        refuse_same(job.sources, sums)
        refuse_same_rows(job.sources, ((record.source, record.rows, record.files) for record in records))
    return records, digests, forms


def compile_kernels() -> None:
    """Compile the kernels of parsing and encoding, or load them from the cache, by running each on one row."""
    # The fork server and this process start together: one compiles, and the other loads what it cached.
    with open(__file__, "rb") as lock:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        block = parse_bytes(b"0" + b"\t" * 39 + b"\n", "warm-up")
        encode_dense(block.dense)
        encode_hash(block.sparse, 2)


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
