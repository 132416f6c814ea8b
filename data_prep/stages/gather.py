"""Rows from the units to shards in another order, second step: every shard put together from all units."""

import hashlib
import json
import operator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.dataset.bags import BAG_KINDS, Bags, join, pack, unpack
from data_prep.dataset.format import ROW_KINDS, SPLITS, FileDigest, digest_file, write_atomically
from data_prep.engine.job import ARRANGED_ROW_BYTES, ARRANGED_VALUE_BYTES, VALUE_BYTES, Job, UnitRecord
from data_prep.engine.processes import counters
from data_prep.io.array_writer import ArrayWriter
from data_prep.io.atomic import save_array
from data_prep.stages.encode import count_unknown, unknown_of_all
from data_prep.stages.gather_rows import KeptRows, Moved, MovedRows, between
from data_prep.stages.row_layout import RecordLayout
from data_prep.stages.scatter import MOVED_SUFFIX, POSITION_SUFFIX, KeptUnit

WINDOW_ROWS = 1 << 18  # of a shard made at once
LAST_ROWS = 1 << 15  # at its end, so that little is left to be written when all is made
PART_ROWS = 1 << 9  # of a unit read at once: on average at least so many


@dataclass(frozen=True)
class GatherTask:
    """Positions start..stop as one shard; `units` are (source, chunk) of all scattered units, `kept` the others."""

    job: Job
    split: str
    name: str
    start: int
    stop: int
    units: tuple[tuple[int, int], ...]
    kept: tuple[KeptUnit, ...]
    layout: RecordLayout


@dataclass
class GatheredShard:
    """A shard's files, its positive labels, and the values of each feature without an id of their own."""

    files: dict[str, FileDigest]
    positives: int
    unknown: list[int]


def rows_per_shard(job: Job, records: list[UnitRecord]) -> int:
    """Rows of a shard, fewer where they hold many values; `records` are all units, encoded."""
    values = sum(record.files["values.npy"].bytes for record in records if job.schema.ragged) // VALUE_BYTES
    a_row = values / max(1, sum(record.rows for record in records))
    return max(1, int(job.chunk_bytes / (ARRANGED_ROW_BYTES + ARRANGED_VALUE_BYTES * a_row)))


def gather_tasks(
    job: Job,
    records: list[UnitRecord],
    kept: list[KeptUnit],
    rows: dict[str, int],
    layout: RecordLayout,
    shard_rows: int,
) -> list[GatherTask]:
    """The shards of all splits, from the units that were scattered and those that were not."""
    units = tuple((record.source, record.chunk) for record in records)
    tasks = []
    first = 0
    for split in SPLITS:
        for i, begin in enumerate(range(first, first + rows[split], shard_rows)):
            end = min(begin + shard_rows, first + rows[split])
            mine = tuple(unit for unit in kept if operator.lt(*unit.rows_between(begin, end)))
            tasks.append(GatherTask(job, split, f"{i:05d}", begin, end, units, mine, layout))
        first += rows[split]
    return tasks


def gathered_path(job: Job, split: str, name: str, kind: str) -> Path:
    """Where a gathered shard's file lies before it is moved to its place."""
    return job.work / "gathered" / f"{split}-{name}.{kind}.npy"


def run_gather_task(task: GatherTask) -> GatheredShard:
    """Put a shard together from all units."""
    job = task.job
    done = gathered_path(job, task.split, task.name, "labels").with_suffix(".json")
    shard = _load_gathered(task, done)
    if shard is None:
        done.parent.mkdir(exist_ok=True)
        slices = [_slice(task, *unit) for unit in task.units]
        shard = GatheredShard({}, 0, [])
        bags = _gather_bags(task, slices) if job.schema.ragged else ()
        if bags:
            for kind, array in zip(BAG_KINDS, pack(bags), strict=True):
                save_array(gathered_path(job, task.split, task.name, kind), array)
                shard.files[kind] = digest_file(gathered_path(job, task.split, task.name, kind))
        _gather_rows(task, slices, bags, shard)
        write_atomically(done, json.dumps(asdict(shard)).encode())
    counters().add(sum(digest.bytes for digest in shard.files.values()), task.stop - task.start)
    return shard


def _load_gathered(task: GatherTask, done: Path) -> GatheredShard | None:
    try:
        shard = GatheredShard(**json.loads(done.read_bytes()))
        shard.files = {kind: FileDigest(**digest) for kind, digest in shard.files.items()}  # type: ignore[arg-type]
        found = {k: digest_file(gathered_path(task.job, task.split, task.name, k)) for k in task.job.kinds}
    except (FileNotFoundError, ValueError):
        return None
    return shard if found == shard.files else None


def _slice(task: GatherTask, source: int, chunk: int) -> slice:
    """Which rows of a unit, as scattered, are of this shard."""
    positions = np.load(task.job.unit_path(source, chunk, POSITION_SUFFIX), mmap_mode="r")
    return slice(*between(positions, (task.start, task.stop)).tolist())


def _gather_rows(task: GatherTask, slices: list[slice], bags: tuple[Bags, ...], shard: GatheredShard) -> None:
    """Write labels, dense values and ids in the order of their positions, and note what they hold."""
    job, rows = task.job, task.stop - task.start
    moved = []
    for unit, part in zip(task.units, slices, strict=True):
        if part.start < part.stop:
            positions = np.load(job.unit_path(*unit, POSITION_SUFFIX), mmap_mode="r")[part]
            moved.append(Moved(job.unit_path(*unit, MOVED_SUFFIX), part.start, positions - task.start))
    bounds = window_bounds(rows, PART_ROWS * len(moved))
    moved_rows = MovedRows(task.layout, moved, bounds)
    kept_rows = KeptRows(task.kept, task.start, task.stop)
    unknown = np.zeros(task.layout.width("sparse"), np.int64)
    with ArrayWriter() as writer:
        files = {}
        for kind in ROW_KINDS:
            path = gathered_path(job, task.split, task.name, kind)
            files[kind] = writer.create(path, kind, job.dtypes[kind], (rows, task.layout.width(kind)), hashlib.sha256)
        for number, (start, stop) in enumerate(pairwise(bounds)):
            window = {kind: file.window(stop - start) for kind, file in files.items()}
            moved_rows.fill(number, window)
            kept_rows.fill(start, stop, window)
            _finish_ids(task, window["sparse"])
            shard.positives += int(window["labels"].sum(dtype=np.int64))
            unknown += count_unknown(job, window["sparse"])
        digests = {kind: file.close() for kind, file in files.items()}
        shard.files |= {kind: digest.result() for kind, digest in digests.items()}
    shard.unknown = unknown_of_all(job, unknown, bags)


def window_bounds(rows: int, least: int) -> list[int]:
    """Where a shard's windows begin, and its end; the last ones are smaller and smaller, but none below `least`."""
    bounds = [0]
    while bounds[-1] < rows:
        left = rows - bounds[-1]
        size = max(min(WINDOW_ROWS, left // 2), LAST_ROWS, least)
        bounds.append(bounds[-1] + min(size, left))
    return bounds


def _gather_bags(task: GatherTask, slices: list[slice]) -> tuple[Bags, ...]:
    """The bags of every multi-valued column, in the order of their positions."""
    num_features = len(task.job.schema.ragged)
    parts: list[tuple[Bags, ...]] = []
    positions = []
    for (source, chunk), part in zip(task.units, slices, strict=True):
        if part.start < part.stop:
            paths = [task.job.unit_path(source, chunk, f"moved-{kind}.npy") for kind in BAG_KINDS]
            values, offsets = (np.load(path, mmap_mode="r") for path in paths)
            mine = (bags.part(part.start, part.stop) for bags in unpack(values, offsets, num_features))
            parts.append(tuple(bags.copy() for bags in mine))  # a mapped file is an open one, and units may be many
            mapped = np.load(task.job.unit_path(source, chunk, POSITION_SUFFIX), mmap_mode="r")
            positions.append(np.array(mapped[part]))
    order = np.argsort(np.concatenate(positions))
    return tuple(join(feature).take(order) for feature in zip(*parts, strict=True))


def _finish_ids(task: GatherTask, ids: NDArray[np.int32]) -> None:
    """What TorchRec does to ids after they are contiguous: its shuffle rounds, its reader wraps."""
    rules = task.job.rules
    if rules.rounds_ids and task.split == "train":
        ids[:] = ids.astype(np.float32)
    if rules.wraps and rules.max_ind_range is not None and rules.order is not None:
        ids %= np.int32(rules.max_ind_range)
