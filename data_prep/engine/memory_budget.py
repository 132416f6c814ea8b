"""What a job may use: workers within the memory budget, space on the disk."""

import sys
from pathlib import Path

import numpy as np

from common.disk_space import Need, require_room
from common.limits import memory_limit, usable_cpus
from common.sizes import in_words
from data_prep.config.keys import DataConfig, parse_size
from data_prep.config.presets import Rules, num_embeddings
from data_prep.dataset.multi_hot import MultiHot
from data_prep.dataset.schema import Schema
from data_prep.encoding.lookup import LookupTable, SortedTable
from data_prep.encoding.passes import BUILD_OVERHEAD, SORTED_OVERHEAD, Slice, plan_passes
from data_prep.engine.job import Job
from data_prep.io.direct_io import MAX_HELD_BYTES
from data_prep.parsing.formats import format_named
from data_prep.sources.discover import GZIP_RATIO, Source
from data_prep.sources.line_blocks import LineBlocks
from data_prep.vocabulary.merge import PART_BYTES

MEBIBYTE = 1 << 20
PARENT_BYTES = 190 * MEBIBYTE  # interpreter, NumPy, Numba and its compiler
WORKER_BYTES = 190 * MEBIBYTE
SERVER_BYTES = 110 * MEBIBYTE  # of the process that workers are forked from, what they do not share with it
BLOCK_BYTES_IN_WORK = 40 * MEBIBYTE
CHUNK_BYTES = 2 * MAX_HELD_BYTES + 16 * MEBIBYTE  # of a chunk's files until written: two long ones, and the labels
CHUNK_BYTES_PER_CHUNK_BYTE = 4  # the shortest rows are 41 bytes of text and 160 in memory
COUNT_BYTES_PER_CHUNK_BYTE = 0.65  # one column of the most rows a chunk can hold, being sorted and counted
CODE_BYTES_PER_CHUNK_BYTE = 2  # all columns as codes or values before they are written: a field of one byte has two
ARROW_BYTES = 40 * MEBIBYTE  # its libraries, where a user's own table is parsed
ROWS_BYTES = 120 * MEBIBYTE  # a block's rows as Python's lists of text, and as Arrow has them
TEXT_BYTES_PER_CHUNK_BYTE = 8  # rows that are short and all different, being coded
COUNTS_PER_BUDGET = 16  # a feature's value counts, and merging them, take two each
WINDOWS_PER_BUDGET = 32  # two of them are in memory while the order of rows is found
SHUFFLE_BYTES_PER_ROW = 232  # of a shard: all of it or two windows, what is read for it, or chunks as packed rows
SAMPLE_BYTES = MEBIBYTE
MIN_PASS_BYTES = 128 * MEBIBYTE
DISK_MARGIN = 1.05
MAX_UNEVEN = 1.1  # of the worker with most to read, to an even share: reading twice costs about as much


def counts_bytes(data: DataConfig) -> int:
    """Memory for the value counts of a feature, and as much again to merge and rank them."""
    return min(PART_BYTES, parse_size(data.memory_budget, "data.memory_budget") // COUNTS_PER_BUDGET)


def window_rows(data: DataConfig) -> int:
    """Rows whose positions are held in memory at once while all are shuffled."""
    return parse_size(data.memory_budget, "data.memory_budget") // WINDOWS_PER_BUDGET // np.dtype(np.uint32).itemsize


def num_workers(data: DataConfig, job: Job, num_tasks: int) -> int:
    """Processes for parsing: as asked for or one per CPU, never more than tasks, within the memory budget."""
    workers = min(data.workers or usable_cpus(), num_tasks)
    if data.scheduler is not None:
        workers = 1  # a cluster's workers each have the budget to themselves
    is_streamed = any(source.compressed for source in job.sources)
    to_fit = WORKER_BYTES + 2 * counts_bytes(data) + (ARROW_BYTES if job.table is not None else 0)
    need = max(_bytes_to_parse(job, is_streamed), to_fit if job.rules.order else 0)
    return within_budget(data, workers, need, parent_bytes=_bytes_beside(data, job))


def reads_whole(data: DataConfig, job: Job, workers: int) -> bool:
    """Whether each source of text is to be read by one worker, once, instead of in chunks and again to be summed.

    It is where that keeps all workers busy about as long, within the memory budget. A cluster cannot stop what one of
    its workers has begun, so nothing it is given takes as long as a file.
    """
    need, parent_bytes = _bytes_to_parse(job, is_streamed=True), _bytes_beside(data, job)
    if data.scheduler is not None or _fitting(data, need, parent_bytes) < workers:
        return False
    loads = [0] * workers
    for size in sorted((source.bytes for source in job.sources), reverse=True):
        loads[loads.index(min(loads))] += size
    return max(loads) * workers <= MAX_UNEVEN * sum(loads)


def _bytes_to_parse(job: Job, is_streamed: bool) -> int:
    """Memory of a worker that parses; of a stream one chunk is written while the next is parsed."""
    chunks = 2 if is_streamed else 1
    if job.table is not None:
        return WORKER_BYTES + ARROW_BYTES + ROWS_BYTES + chunks * TEXT_BYTES_PER_CHUNK_BYTE * job.chunk_bytes
    need = WORKER_BYTES + BLOCK_BYTES_IN_WORK + chunks * _chunk_bytes(job)
    if job.rules.order is not None:
        need += int(job.chunk_bytes * (COUNT_BYTES_PER_CHUNK_BYTE + CODE_BYTES_PER_CHUNK_BYTE))
    return need


def _bytes_beside(data: DataConfig, job: Job) -> int:
    """Memory of the parent to find the order of rows, while workers fit vocabularies, and of Arrow in their server."""
    to_order = 2 * np.dtype(np.uint32).itemsize * window_rows(data) if job.rules.is_arranged else 0
    return to_order + (ARROW_BYTES if job.table is not None else 0)


def _chunk_bytes(job: Job) -> int:
    """Memory of a chunk's files until they are written."""
    return min(CHUNK_BYTES, job.chunk_bytes * CHUNK_BYTES_PER_CHUNK_BYTE)


def plan_encoding(
    data: DataConfig, job: Job, workers: int, table_values: dict[str, int]
) -> tuple[int, tuple[tuple[Slice, ...], ...]]:
    """Processes for encoding, each of which holds its lookup tables, and the passes it takes.

    No passes means that all tables fit at once.

    Raises:
        UserError: the budget is too small for any number of passes.
    """
    is_own = job.table is not None
    bytes_for = SortedTable.bytes_for if is_own else LookupTable.bytes_for
    tables = sum(bytes_for(values) for values in table_values.values())
    if is_own and table_values:  # while one is built its values and their order are there as well
        tables += bytes_for(max(table_values.values()))
    budget = _budget_here(data)
    in_work = BLOCK_BYTES_IN_WORK + _chunk_bytes(job) + (ARROW_BYTES if is_own else 0)
    in_work += job.shard_rows * SHUFFLE_BYTES_PER_ROW if job.rules.is_arranged else 0
    base = WORKER_BYTES + in_work
    if PARENT_BYTES + in_work + tables <= budget:
        return within_budget(data, workers, base + tables), ()
    workers = within_budget(data, workers, base + MIN_PASS_BYTES)
    # a single worker is this process itself
    shared = PARENT_BYTES + (SERVER_BYTES if workers > 1 else 0)
    allowance = (budget - shared) // workers - (base if workers > 1 else in_work)
    passes = plan_passes(
        table_values, max(allowance, MIN_PASS_BYTES), bytes_for, SORTED_OVERHEAD if is_own else BUILD_OVERHEAD
    )
    print(
        f"data.memory_budget={data.memory_budget}: the vocabulary's lookup tables need {tables / 2**30:.2f} GiB; "
        f"encoding in {len(passes)} passes",
        file=sys.stderr,
    )
    return workers, tuple(passes)


def _budget_here(data: DataConfig) -> int:
    """The budget, or the container's limit if that is less; it decides on processes and passes, never on bytes."""
    return min(parse_size(data.memory_budget, "data.memory_budget"), memory_limit() or sys.maxsize)


def _fitting(data: DataConfig, need: int, parent_bytes: int = 0) -> int:
    """Number of processes that fit the budget besides the parent; 0 where not even one does."""
    return max(0, (_budget_here(data) - PARENT_BYTES - SERVER_BYTES - parent_bytes) // need)


def within_budget(data: DataConfig, workers: int, need: int, parent_bytes: int = 0) -> int:
    """Return the wanted number of processes, or as many as the budget allows, which is logged."""
    allowed = max(1, _fitting(data, need, parent_bytes))
    if allowed < workers:
        budget = parse_size(data.memory_budget, "data.memory_budget")
        limit = _budget_here(data)
        bound = f"memory limit of {limit >> 20} MiB" if limit < budget else f"data.memory_budget={data.memory_budget}"
        print(f"{bound}: {allowed} of {workers} workers, each may need {need / 2**20:.0f} MiB", file=sys.stderr)
    return min(allowed, workers)


def check_disk(path: Path, job: Job) -> None:
    """Refuse to start where the output and the intermediate files will not fit.

    Raises:
        UserError: naming what is needed and what is free.
    """
    rows = sum(_estimate_rows(job, source) for source in job.sources)
    tables = _multi_hot_bytes(job.schema, job.rules, job.bags)
    # of files written before the job was stopped
    existing_bytes = sum(file.stat().st_size for file in job.work.rglob("*") if file.is_file())
    required_bytes = dataset_bytes(rows, job.schema, job.rules, job.bags) - existing_bytes
    if job.table is not None and job.rules.order is not None:  # all texts once more, at most
        required_bytes += int(sum(source.bytes * (GZIP_RATIO if source.compressed else 1) for source in job.sources))
    share = f", {in_words(tables)} of it for multi-hot tables" if tables else ""
    require_room(
        [Need(path, required_bytes, f"for the dataset{share}", about=True)], "free some, or choose another data.path"
    )


def dataset_bytes(rows: float, schema: Schema, rules: Rules, bags: MultiHot | None) -> int:
    """Maximum disk space that a number of rows takes until the dataset is made."""
    columns = len(schema.columns)
    if rules.order is not None:
        columns += 2 * len(schema.sparse)
    if rules.is_arranged:
        columns += 2 * len(schema.columns) + 6
    if bags is not None:
        columns += sum(bags.sizes) + 2 * len(bags.sizes)
    return int(rows * 4 * columns * DISK_MARGIN) + _multi_hot_bytes(schema, rules, bags)


def _multi_hot_bytes(schema: Schema, rules: Rules, bags: MultiHot | None) -> int:
    """Bytes of the bags of all ids, where the tables' sizes are known before the rows: else asked once they are."""
    if bags is None or rules.order is not None:
        return 0
    return bags.table_bytes([num_embeddings(rules, None)] * len(schema.sparse))


def _estimate_rows(job: Job, source: Source) -> float:
    """Rows of a source: as it says itself, else from the length of its first lines."""
    if source.generator is not None:
        return float(source.generator.rows)
    if job.table is not None and (rows := format_named(job.table.format).num_rows(source)) is not None:
        return float(rows)
    with LineBlocks(source, block_bytes=SAMPLE_BYTES) as lines:
        for block in lines.until(SAMPLE_BYTES):
            length = block.end - block.start
            rows = int((block.buffer[block.start : block.end] == ord("\n")).sum())
            size = source.bytes * (GZIP_RATIO if source.compressed else 1)
            return float(rows) if block.is_last else size * rows / length
    return 0.0
