"""What a job may use: workers within the memory budget, room on the disk."""

import shutil
import sys
from pathlib import Path

from common.errors import UserError
from data_prep.config import DataConfig, parse_size, usable_cpus
from data_prep.held import HOLD_BYTES
from data_prep.lines import LineBlocks
from data_prep.lookup import LookupTable
from data_prep.parquet import num_rows
from data_prep.passes import Slice, plan_passes
from data_prep.sources import Source
from data_prep.vocabulary import PART_BYTES
from data_prep.work import Job

MEBIBYTE = 1 << 20
PARENT_BYTES = 190 * MEBIBYTE  # interpreter, NumPy, Numba and its compiler
WORKER_BYTES = 190 * MEBIBYTE
BLOCK_BYTES_IN_WORK = 32 * MEBIBYTE
UNIT_BYTES_PER_CHUNK_BYTE = 0.7  # a unit's labels, integers and values until they are written
COUNT_BYTES_PER_CHUNK_BYTE = 0.65  # one column of the most rows a chunk can hold, being sorted and counted
SHUFFLE_BYTES_PER_ROW = 2 * 104 + 24  # the ids of a shard, a copy, positions
SAMPLE_BYTES = MEBIBYTE
MIN_PASS_BYTES = 128 * MEBIBYTE
GZIP_RATIO = 3.5  # of Criteo's days, where a sample cannot tell
DISK_MARGIN = 1.05


def num_workers(data: DataConfig, job: Job, num_tasks: int) -> int:
    """Processes for parsing: as asked for or one per CPU, never more than tasks, within the memory budget."""
    need = WORKER_BYTES + BLOCK_BYTES_IN_WORK + 2 * _unit_bytes(job.chunk_bytes)  # one being written, one parsed
    if job.rules.order is not None:
        need += max(PART_BYTES, int(job.chunk_bytes * COUNT_BYTES_PER_CHUNK_BYTE))
    if job.rules.is_arranged:
        need += int(job.shard_rows * SHUFFLE_BYTES_PER_ROW)
    wanted = min(data.workers or usable_cpus(), num_tasks)
    if data.scheduler is not None:
        wanted = 1  # a cluster's workers each have the budget to themselves
    return _within_budget(data, wanted, need)


def plan_encoding(
    data: DataConfig, chunk_bytes: int, workers: int, table_values: dict[str, int]
) -> tuple[int, tuple[tuple[Slice, ...], ...]]:
    """Processes for encoding, each of which holds its lookup tables, and the passes it takes.

    No passes means that all tables fit at once.

    Raises:
        UserError: the budget is too small for any number of passes.
    """
    tables = sum(LookupTable.bytes_for(values) for values in table_values.values())
    budget = parse_size(data.memory_budget, "data.memory_budget")
    in_work = BLOCK_BYTES_IN_WORK + _unit_bytes(chunk_bytes)
    base = WORKER_BYTES + in_work
    if PARENT_BYTES + in_work + tables <= budget:
        return _within_budget(data, workers, base + tables), ()
    workers = _within_budget(data, workers, base + MIN_PASS_BYTES)
    # a single worker is this process itself
    allowance = (budget - PARENT_BYTES) // workers - (base if workers > 1 else in_work)
    passes = plan_passes(table_values, max(allowance, MIN_PASS_BYTES))
    print(
        f"data.memory_budget={data.memory_budget}: the vocabulary's lookup tables need {tables / 2**30:.2f} GiB; "
        f"encoding in {len(passes)} passes",
        file=sys.stderr,
    )
    return workers, tuple(passes)


def _unit_bytes(chunk_bytes: int) -> int:
    """Memory of a unit's files until they are written."""
    return min(3 * HOLD_BYTES, int(chunk_bytes * UNIT_BYTES_PER_CHUNK_BYTE))


def _within_budget(data: DataConfig, wanted: int, need: int) -> int:
    budget = parse_size(data.memory_budget, "data.memory_budget")
    allowed = max(1, (budget - PARENT_BYTES) // need)
    if allowed < wanted:
        print(
            f"data.memory_budget={data.memory_budget}: {allowed} of {wanted} workers, "
            f"each may need {need / 2**20:.0f} MiB",
            file=sys.stderr,
        )
    return min(allowed, wanted)


def check_disk(path: Path, job: Job) -> None:
    """Refuse to start where the output and the intermediate files will not fit.

    Raises:
        UserError: naming what is needed and what is free.
    """
    columns = len(job.schema.columns)
    if job.rules.order is not None:
        columns += 2 * len(job.schema.sparse)
    if job.rules.is_arranged:
        columns += 2 * len(job.schema.columns) + 6
    if job.bags is not None:
        columns += sum(job.bags.sizes) + 2 * len(job.bags.sizes)
    needed = int(sum(_estimate_rows(job, source) for source in job.sources) * 4 * columns * DISK_MARGIN)
    free = shutil.disk_usage(path).free
    if needed > free:
        raise UserError(
            f"{path}: about {needed / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free; "
            "free some, or choose another data.path"
        )


def _estimate_rows(job: Job, source: Source) -> float:
    """Rows of a source: as it says itself, else from the length of its first lines."""
    if source.generated_rows is not None:
        return float(source.generated_rows)
    if job.table is not None and job.table.is_parquet:
        return float(num_rows(source))
    with LineBlocks(source, block_bytes=SAMPLE_BYTES) as lines:
        for block in lines.until(SAMPLE_BYTES):
            length = block.end - block.start
            rows = int((block.buffer[block.start : block.end] == ord("\n")).sum())
            size = source.bytes * (GZIP_RATIO if source.compressed else 1)
            return float(rows) if block.is_last else size * rows / length
    return 0.0
