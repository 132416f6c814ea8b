"""What a worker does with raw files: parse chunks into units, sum a file."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.errors import UserError
from data_prep.dataset.format import FileDigest, digest_file
from data_prep.dataset.table_spec import Table
from data_prep.engine.job import Job, UnitRecord, load_record
from data_prep.engine.processes import counters
from data_prep.io.read_ahead import BLOCK_BYTES
from data_prep.parsing.criteo import Block, empty_block, max_rows, parse_lines
from data_prep.parsing.diagnose import diagnose_row
from data_prep.parsing.parquet_chunks import plan_units
from data_prep.parsing.table_csv import parse_table
from data_prep.parsing.table_parquet import num_rows, read_unit
from data_prep.sources.checksums import refuse_other
from data_prep.sources.discover import GENERATED_ROW_BYTES, TEXT_ROW_BYTES, RowGenerator, Source, SourceStream
from data_prep.sources.line_blocks import LineBlock, LineBlocks, count_lines_before
from data_prep.stages.chunk_files import UnitFiles

MISSING_AS_ZERO = np.int32(0)


@dataclass(frozen=True)
class ParseTask:
    """One chunk of a plain or generated source, or (chunk None) all of a source, in one go; of Parquet, one unit."""

    job: Job
    source: int
    chunk: int | None


def parse_tasks(job: Job, whole: bool = False) -> list[ParseTask]:
    """Tasks that cover all sources, in the order of the rows.

    Args:
        whole: whether a source of text is one task: it is then read only once, for its rows and its sum.
    """
    tasks = []
    for index, source in enumerate(job.sources):
        is_text = source.generator is None and (job.table is None or not job.table.is_parquet)
        if source.compressed or (whole and is_text):
            tasks.append(ParseTask(job, index, None))
        elif source.generator is not None:
            chunks = -(
                -source.generator.rows // (source.generator.block_rows * _blocks_per_chunk(job, source.generator))
            )
            tasks.extend(ParseTask(job, index, chunk) for chunk in range(chunks))
        elif job.table is not None and job.table.is_parquet:
            chunks = len(plan_units(source, job.table, job.chunk_bytes))
            tasks.extend(ParseTask(job, index, chunk) for chunk in range(chunks))
        else:
            chunks = -(-source.bytes // job.chunk_bytes)
            tasks.extend(ParseTask(job, index, chunk) for chunk in range(chunks))
    return tasks


def _blocks_per_chunk(job: Job, generator: RowGenerator) -> int:
    """Generated blocks whose text would be about as long as a chunk."""
    return max(1, job.chunk_bytes // (generator.block_rows * TEXT_ROW_BYTES))


@dataclass
class Reading:
    """What came of reading a source or a part of it: units, and the file's sum where all of it was read."""

    records: list[UnitRecord]
    digest: FileDigest | None = None


def _parse_source(job: Job, source: int) -> Reading:
    """Parse and write all units of a source, but those that are finished already."""
    stream = SourceStream(job.sources[source])
    with LineBlocks(job.sources[source], reader=stream) as lines:
        return Reading(_parse_stream(job, source, lines), stream.digest())


def _parse_chunk(job: Job, index: int, chunk: int) -> list[UnitRecord]:
    """Parse and write one unit, if that was not done already."""
    source = job.sources[index]
    record = load_record(job, "parsed", index, chunk)
    if source.generator is not None:
        if record is None:
            return [_generate_unit(job, index, chunk, source.generator)]
        counters().add(record.rows * GENERATED_ROW_BYTES, record.rows)
        return [record]
    if job.table is not None and job.table.is_parquet:
        return [record or _parse_parquet(job, job.table, index, chunk)]
    start = chunk * job.chunk_bytes
    if record is not None:
        counters().add(min(job.chunk_bytes, source.bytes - start), record.rows)
        return [record]
    with LineBlocks(source, start) as lines:
        return [_parse_unit(job, index, chunk, lines)]


def _parse_stream(job: Job, source: int, lines: LineBlocks) -> list[UnitRecord]:
    """All units of a source that is read from the start; one is finished while the next is parsed."""
    records: list[UnitRecord] = []
    unfinished: list[Future[UnitRecord]] = []  # one at most: what is parsed is held in memory until it is finished
    with ThreadPoolExecutor(1) as finisher:
        while not lines.exhausted:
            chunk = len(records) + len(unfinished)
            record = load_record(job, "parsed", source, chunk)
            parsed = _parse_lines(job, source, chunk, lines) if record is None else None
            try:
                records += [unit.result() for unit in unfinished]
            except BaseException:
                if parsed is not None:
                    parsed.abandon()
                raise
            unfinished = [] if parsed is None else [finisher.submit(_finish, parsed)]
            if record is not None:
                for _ in lines.until((chunk + 1) * job.chunk_bytes):
                    counters().add(lines.advance(), 0)
                counters().add(0, record.rows)
                records.append(record)
        return records + [unit.result() for unit in unfinished]


def _parse_unit(job: Job, source: int, chunk: int, lines: LineBlocks) -> UnitRecord:
    """Parse the lines of one chunk and write the unit's files."""
    return _finish(_parse_lines(job, source, chunk, lines))


def _finish(files: UnitFiles) -> UnitRecord:
    """Write a parsed unit's files."""
    with files:
        return files.finish()


def _parse_lines(job: Job, source: int, chunk: int, lines: LineBlocks) -> UnitFiles:
    """Parse the lines of one chunk; the unit's files, not finished."""
    room = empty_block(max_rows(BLOCK_BYTES, job.schema) + 1 if job.table is None else 0, job.schema)
    files = UnitFiles(job, source, chunk)
    try:
        for block in lines.until((chunk + 1) * job.chunk_bytes):
            if job.table is None:
                parsed = _parse_block(job, job.sources[source], block, room)
            else:
                parsed = _parse_table_block(job.table, job.sources[source], block)
            files.append(parsed)
            counters().add(lines.advance(), len(parsed.labels))
    except BaseException:
        files.abandon()
        raise
    return files


def _generate_unit(job: Job, source: int, chunk: int, generator: RowGenerator) -> UnitRecord:
    """As `_parse_unit`, of a day that is generated: the same rows as parsing its text would give."""
    blocks = _blocks_per_chunk(job, generator)
    with UnitFiles(job, source, chunk) as files:
        for block, truth in generator.blocks(chunk * blocks, (chunk + 1) * blocks):
            files.append(block, truth)
            counters().add(len(block.labels) * GENERATED_ROW_BYTES, len(block.labels))
        return files.finish()


def _parse_parquet(job: Job, table: Table, source: int, chunk: int) -> UnitRecord:
    """Read one unit of a Parquet file and write its files."""
    file = job.sources[source]
    bytes_per_row = file.bytes / max(1, num_rows(file))
    with UnitFiles(job, source, chunk) as files:
        for block in read_unit(file, table, plan_units(file, table, job.chunk_bytes)[chunk]):
            files.append(block)
            counters().add(int(len(block.labels) * bytes_per_row), len(block.labels))
        return files.finish()


def _parse_block(job: Job, source: Source, lines: LineBlock, room: Block) -> Block:
    """Parse a block into `room`; the result are views of it."""
    rows, position = parse_lines(lines.buffer, lines.start, lines.end, True, MISSING_AS_ZERO, *room[:3])
    if position != lines.end:
        line = bytes(lines.buffer[position : lines.end]).split(b"\n", 1)[0]
        is_last = lines.is_last and position + len(line) + 1 >= lines.end
        row = count_lines_before(source, lines.offset + position - lines.start) + 1
        raise UserError(diagnose_row(line, source.path, row, job.schema, True, is_last))
    return Block(room.labels[:rows], room.dense[:rows], room.sparse[:rows])


def _parse_table_block(table: Table, source: Source, lines: LineBlock) -> Block:
    """Parse a block of a user's table, whose first line may be a header."""
    text = bytes(lines.buffer[lines.start : lines.end])
    is_first = lines.offset == 0
    if is_first and table.header:
        text = text.partition(b"\n")[2]
    try:
        return parse_table(text, table, source.path, 1)
    except UserError:  # only now is the row's number worth counting
        row = count_lines_before(source, lines.offset) + 1
        parse_table(text, table, source.path, row + (is_first and table.header))
        raise


@dataclass(frozen=True)
class DigestTask:
    """A raw file to be summed, which nothing waits for but the manifest."""

    source: Source


def reading_tasks(job: Job, whole: bool) -> list[ParseTask | DigestTask]:
    """All that is to be read of the sources: each `whole`, or in chunks, being summed by another at the same time."""
    tasks: list[ParseTask | DigestTask] = []
    for task in parse_tasks(job, whole):
        if task.chunk == 0:
            tasks.append(DigestTask(job.sources[task.source]))
        tasks.append(task)
    return tasks


def run_reading_task(task: ParseTask | DigestTask) -> Reading:
    """Parse a task's units, or sum a raw file.

    Raises:
        UserError: a row that does not fit the schema, or a damaged file.
    """
    if isinstance(task, ParseTask):
        if task.chunk is None:
            return _parse_source(task.job, task.source)
        return Reading(_parse_chunk(task.job, task.source, task.chunk))
    digest = digest_file(Path(task.source.path))
    counters().add(0, 0)  # stops if the job is to stop
    return Reading([], digest)


def refuse_changed(job: Job) -> None:
    """A file that was written to while it was read is neither what it was nor what it is."""
    for source in job.sources:
        now = Path(source.path).stat()
        if (now.st_size, now.st_mtime_ns) != (source.bytes, source.mtime_ns):
            raise UserError(f"{source.path}: changed while it was read; run the same command again")


def refuse_empty(job: Job, records: list[UnitRecord]) -> None:
    """A compressed file can be empty without looking so."""
    filled = {record.source for record in records if record.rows}
    for index, source in enumerate(job.sources):
        if index not in filled:
            raise UserError(f"{source.path}: no rows in it; get it again, or leave it out of data.raw")


def refuse_wrong_sums(job: Job, digests: list[FileDigest]) -> None:
    """A file may be put where fetched ones are kept, or rot there; it was summed as it was read."""
    if job.known_sums:
        for source, known, digest in zip(job.sources, job.known_sums, digests, strict=True):
            refuse_other(Path(source.path), known, digest)
