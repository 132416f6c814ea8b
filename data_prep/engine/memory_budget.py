"""Limits of a job: workers within the memory budget, and space on the disk."""

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
SERVER_BYTES = 110 * MEBIBYTE  # memory of the fork server that workers do not share
BLOCK_BYTES_IN_WORK = 40 * MEBIBYTE
CHUNK_BYTES = 2 * MAX_HELD_BYTES + 16 * MEBIBYTE  # unwritten files of a chunk: two long ones, and the labels
CHUNK_BYTES_PER_CHUNK_BYTE = 4  # the shortest rows are 41 bytes of text and 160 in memory
COUNT_BYTES_PER_CHUNK_BYTE = 0.65  # one column of the most rows in a chunk, being sorted and counted
CODE_BYTES_PER_CHUNK_BYTE = 2  # all columns as codes or values before writing: a field of one byte takes two
ARROW_BYTES = 40 * MEBIBYTE  # libraries that parse a user's own table
ROWS_BYTES = 120 * MEBIBYTE  # a block's rows as lists of Python texts, and in Arrow
TEXT_BYTES_PER_CHUNK_BYTE = 8  # short rows that are all different, being coded
COUNTS_PER_BUDGET = 16  # a feature's value counts take two, and so does merging them
WINDOWS_PER_BUDGET = 32  # two windows are in memory while rows are ordered
SHUFFLE_BYTES_PER_ROW = 232  # a shard, whole or as two windows, with its input or with chunks as packed rows
SAMPLE_BYTES = MEBIBYTE
MIN_PASS_BYTES = 128 * MEBIBYTE
DISK_MARGIN = 1.05
MAX_UNEVEN = 1.1  # load of the busiest worker over an even share; beyond this, reading twice costs less


def counts_bytes(data: DataConfig) -> int:
    """Return the memory for a feature's value counts; merging and ranking them takes as much again."""
    return min(PART_BYTES, parse_size(data.memory_budget, "data.memory_budget") // COUNTS_PER_BUDGET)


def window_rows(data: DataConfig) -> int:
    """Return the number of positions held in memory at once while rows are shuffled."""
    return parse_size(data.memory_budget, "data.memory_budget") // WINDOWS_PER_BUDGET // np.dtype(np.uint32).itemsize


def num_workers(data: DataConfig, job: Job, num_tasks: int) -> int:
    """Return the number of processes for parsing: data.workers or one per CPU, limited by tasks and memory budget."""
    workers = min(data.workers or usable_cpus(), num_tasks)
    if data.scheduler is not None:
        workers = 1  # each worker of a cluster has the whole budget
    is_streamed = any(source.compressed for source in job.sources)
    to_fit = WORKER_BYTES + 2 * counts_bytes(data) + (ARROW_BYTES if job.table is not None else 0)
    need = max(_bytes_to_parse(job, is_streamed), to_fit if job.rules.order else 0)
    return within_budget(data, workers, need, parent_bytes=_bytes_beside(data, job))


def reads_whole(data: DataConfig, job: Job, workers: int) -> bool:
    """Return whether one worker reads each text source once, instead of in chunks and again for its checksum.

    True if this keeps all workers busy about equally long within the memory budget. A cluster cannot stop a task that
    has begun, so its tasks must be shorter than a file.
    """
    need, parent_bytes = _bytes_to_parse(job, is_streamed=True), _bytes_beside(data, job)
    if data.scheduler is not None or _fitting(data, need, parent_bytes) < workers:
        return False
    loads = [0] * workers
    for size in sorted((source.bytes for source in job.sources), reverse=True):
        loads[loads.index(min(loads))] += size
    return max(loads) * workers <= MAX_UNEVEN * sum(loads)


def _bytes_to_parse(job: Job, is_streamed: bool) -> int:
    """Return the memory of a worker that parses. In a stream it writes one chunk while it parses the next."""
    chunks = 2 if is_streamed else 1
    if job.table is not None:
        return WORKER_BYTES + ARROW_BYTES + ROWS_BYTES + chunks * TEXT_BYTES_PER_CHUNK_BYTE * job.chunk_bytes
    need = WORKER_BYTES + BLOCK_BYTES_IN_WORK + chunks * _chunk_bytes(job)
    if job.rules.order is not None:
        need += int(job.chunk_bytes * (COUNT_BYTES_PER_CHUNK_BYTE + CODE_BYTES_PER_CHUNK_BYTE))
    return need


def _bytes_beside(data: DataConfig, job: Job) -> int:
    """Return the parent's memory to order rows while workers fit vocabularies, and Arrow's in the fork server."""
    to_order = 2 * np.dtype(np.uint32).itemsize * window_rows(data) if job.rules.is_arranged else 0
    return to_order + (ARROW_BYTES if job.table is not None else 0)


def _chunk_bytes(job: Job) -> int:
    """Return the memory of a chunk's files until they are written."""
    return min(CHUNK_BYTES, job.chunk_bytes * CHUNK_BYTES_PER_CHUNK_BYTE)


def plan_encoding(
    data: DataConfig, job: Job, workers: int, table_values: dict[str, int]
) -> tuple[int, tuple[tuple[Slice, ...], ...]]:
    """Return the processes for encoding, each with its own lookup tables, and the passes it takes.

    Without passes all tables fit at once.
    """
    is_own = job.table is not None
    bytes_for = SortedTable.bytes_for if is_own else LookupTable.bytes_for
    tables = sum(bytes_for(values) for values in table_values.values())
    if is_own and table_values:  # values and their order lie beside a table that is built
        tables += bytes_for(max(table_values.values()))
    budget = _budget_here(data)
    in_work = BLOCK_BYTES_IN_WORK + _chunk_bytes(job) + (ARROW_BYTES if is_own else 0)
    in_work += job.shard_rows * SHUFFLE_BYTES_PER_ROW if job.rules.is_arranged else 0
    base = WORKER_BYTES + in_work
    if PARENT_BYTES + in_work + tables <= budget:
        return within_budget(data, workers, base + tables), ()
    workers = within_budget(data, workers, base + MIN_PASS_BYTES)
    # A single worker is this process itself.
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
    """Return the budget or the container's lower limit. It decides the processes and passes, never the bytes."""
    return min(parse_size(data.memory_budget, "data.memory_budget"), memory_limit() or sys.maxsize)


def _fitting(data: DataConfig, need: int, parent_bytes: int = 0) -> int:
    """Return the number of processes that fit into the budget beside the parent; 0 if none does."""
    return max(0, (_budget_here(data) - PARENT_BYTES - SERVER_BYTES - parent_bytes) // need)


def within_budget(data: DataConfig, workers: int, need: int, parent_bytes: int = 0) -> int:
    """Return `workers`, or the smaller number that the budget allows; log a smaller one."""
    allowed = max(1, _fitting(data, need, parent_bytes))
    if allowed < workers:
        budget = parse_size(data.memory_budget, "data.memory_budget")
        limit = _budget_here(data)
        bound = f"memory limit of {limit >> 20} MiB" if limit < budget else f"data.memory_budget={data.memory_budget}"
        print(f"{bound}: {allowed} of {workers} workers, each may need {need / 2**20:.0f} MiB", file=sys.stderr)
    return min(allowed, workers)


def check_disk(path: Path, job: Job) -> None:
    """Refuse to start if the output and intermediate files will not fit on the disk."""
    rows = sum(_estimate_rows(job, source) for source in job.sources)
    tables = _multi_hot_bytes(job.schema, job.rules, job.bags)
    # Files written before the job was stopped.
    existing_bytes = sum(file.stat().st_size for file in job.work.rglob("*") if file.is_file())
    required_bytes = dataset_bytes(rows, job.schema, job.rules, job.bags) - existing_bytes
    if job.table is not None and job.rules.order is not None:  # all texts once more, at most
        required_bytes += int(sum(source.bytes * (GZIP_RATIO if source.compressed else 1) for source in job.sources))
    if job.table is not None and job.needs_statistics:  # numbers before their transform, and those sorted for quantiles
        num_sorted = sum(name == "quantile" for _, name in job.table.transforms)
        required_bytes += int(rows * job.raw_dense_dtype.itemsize * (len(job.schema.dense) + num_sorted))
    share = f", {in_words(tables)} of it for multi-hot tables" if tables else ""
    require_room(
        [Need(path, required_bytes, f"for the dataset{share}", about=True)], "free some, or choose another data.path"
    )


def dataset_bytes(rows: float, schema: Schema, rules: Rules, bags: MultiHot | None) -> int:
    """Return the maximum disk space needed to make a dataset with that many rows."""
    columns = len(schema.columns)
    if rules.order is not None:
        columns += 2 * len(schema.sparse)
    if rules.is_arranged:
        columns += 2 * len(schema.columns) + 6
    if rules.split_column is not None:
        columns += 2
    if bags is not None:
        columns += sum(bags.sizes) + 2 * len(bags.sizes)
    return int(rows * 4 * columns * DISK_MARGIN) + _multi_hot_bytes(schema, rules, bags)


def _multi_hot_bytes(schema: Schema, rules: Rules, bags: MultiHot | None) -> int:
    """Return the bytes of all bags if table sizes are known before the rows; else 0, and they are checked later."""
    if bags is None or rules.order is not None:
        return 0
    return bags.table_bytes([num_embeddings(rules, None)] * len(schema.sparse))


def _estimate_rows(job: Job, source: Source) -> float:
    """Return the rows of a source, from its metadata or estimated from the length of its first lines."""
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
