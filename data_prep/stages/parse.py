"""Parsing of raw files into chunks, with counts of their values for vocabularies."""

import contextlib
import fcntl
import hashlib
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from common.errors import UserError
from common.files import FileDigest, digest_file
from data_prep.codec.values import Form, RawRows, TableBlock
from data_prep.dataset.format import WEIGHTS
from data_prep.dataset.options import Table
from data_prep.executor import Counters, Executor, Task
from data_prep.io import BLOCK_BYTES, ArrayWriter
from data_prep.job import SPLIT_KEYS, ChunkRecord, Job, load_record, save_record
from data_prep.lookup import (
    DenseRange,
    column_range,
    column_transforms,
    dense_limits,
    encode_dense,
    encode_hash,
    join_ranges,
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
from data_prep.stages.columns import PARSED_COUNTS, TableCategories, ValueBuffer, write_columns, write_counts
from data_prep.vocabulary import Coding

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
