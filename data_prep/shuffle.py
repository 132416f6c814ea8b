"""Rows from the units to shards in another order: sorted by destination per unit, then gathered per shard.

Both steps work in bounded memory, on any number of processes, and can be repeated after a kill.
"""

import hashlib
import json
import operator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.arrange import LEFT_OUT, SPLITS, kept_position, unit_positions
from data_prep.encoding import EncodeTask, count_unknown, unit_rows
from data_prep.files import save_array
from data_prep.format import FileDigest, digest_file, write_atomically
from data_prep.jit import jit
from data_prep.parts import read_parts, rows_part
from data_prep.pool import counters
from data_prep.ragged import Bags, join, pack, unpack
from data_prep.scratch import ScratchFile
from data_prep.work import Job, UnitRecord, digest_unit_files, load_record, save_record, sum_of

BAG_KINDS = ("values", "offsets")


@dataclass(frozen=True)
class ScatterTask:
    """A unit, whose first row is row `begin` of the dataset; what is not encoded yet is encoded on the way."""

    unit: EncodeTask
    begin: int


@dataclass(frozen=True)
class KeptUnit:
    """A unit whose rows keep their order, the first going to `position`: they are encoded when they are gathered."""

    unit: EncodeTask
    position: int

    def rows_between(self, start: int, stop: int) -> tuple[int, int]:
        """Which of its rows go to the positions start..stop; the second number is no larger if none do."""
        return max(0, start - self.position), min(self.unit.record.rows, stop - self.position)


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
    num_sparse: int


@dataclass
class GatheredShard:
    """A shard's files, its positive labels, and the values of each feature without an id of their own."""

    files: dict[str, FileDigest]
    positives: int
    unknown: list[int]


@jit
def place_rows(rows, places, results):  # type: ignore[no-untyped-def]
    """results[places[i]] = rows[i], but where the place is negative."""
    for i in range(len(places)):
        if places[i] >= 0:
            for column in range(rows.shape[1]):
                results[places[i], column] = rows[i, column]


def plan_scatter(job: Job, units: list[EncodeTask]) -> tuple[list[ScatterTask], list[KeptUnit]]:
    """Which units are to be scattered, and which go to shards as they are; where there are bags, all are scattered."""
    scatter, kept = [], []
    begin = 0
    for unit in units:
        position = None if job.schema.ragged else kept_position(job, begin, unit.record.rows)
        if position is None:
            scatter.append(ScatterTask(unit, begin))
        else:
            kept.append(KeptUnit(unit, position))
        begin += unit.record.rows
    return scatter, kept


def run_scatter_task(task: ScatterTask) -> UnitRecord:
    """Write a unit's rows in the order of their positions."""
    job, record = task.unit.job, task.unit.record
    unit = (record.source, record.chunk)
    done = load_record(job, "moved", *unit)
    if done is None:
        positions = unit_positions(job, task.begin, record.rows)
        order = np.argsort(positions)
        order = order[np.searchsorted(positions[order], LEFT_OUT, side="right") :]
        places = np.full(record.rows, -1)
        places[order] = np.arange(len(order))
        done = UnitRecord(*unit, len(order), 0, {})
        save_array(job.unit_path(*unit, "position.npy"), positions[order])
        done.files |= digest_unit_files(job, *unit, ["position.npy"])
        if job.schema.ragged:
            done.files |= _scatter_bags(job, unit, order)
        for kind in ("labels", "dense", "sparse") if len(order) else ():
            result = None
            for begin, rows in unit_rows(task.unit, kind, 0, record.rows):
                result = result or ScratchFile("moved", (len(order), rows.shape[1]), rows.dtype)
                place_rows(rows, places[begin : begin + len(rows)], result.array)
            assert result is not None
            suffix = f"moved-{kind}.npy"
            done.files[suffix] = result.save(job.unit_path(*unit, suffix), sum_of(job, suffix))
        save_record(job, "moved", done)
    counters().add(sum(digest.bytes for digest in done.files.values()), done.rows)
    return done


def _scatter_bags(job: Job, unit: tuple[int, int], order: NDArray[np.int64]) -> dict[str, FileDigest]:
    """Write a unit's bags in an order of its rows."""
    values, offsets = (np.load(job.unit_path(*unit, f"{kind}.npy")) for kind in BAG_KINDS)
    bags = unpack(values, offsets, len(job.schema.ragged))
    moved = pack([feature.take(order) for feature in bags])
    for kind, array in zip(BAG_KINDS, moved, strict=True):
        save_array(job.unit_path(*unit, f"moved-{kind}.npy"), array)
    return digest_unit_files(job, *unit, [f"moved-{kind}.npy" for kind in BAG_KINDS])


def gather_tasks(
    job: Job, records: list[UnitRecord], kept: list[KeptUnit], rows: dict[str, int], num_sparse: int
) -> list[GatherTask]:
    """The shards of all splits, from the units that were scattered and those that were not."""
    units = tuple((record.source, record.chunk) for record in records)
    tasks = []
    first = 0
    for split in SPLITS:
        for i, begin in enumerate(range(first, first + rows[split], job.shard_rows)):
            end = min(begin + job.shard_rows, first + rows[split])
            mine = tuple(unit for unit in kept if operator.lt(*unit.rows_between(begin, end)))
            tasks.append(GatherTask(job, split, f"{i:05d}", begin, end, units, mine, num_sparse))
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
        slices = [_slice(task, *unit) for unit in task.units]
        done.parent.mkdir(exist_ok=True)
        files: dict[str, FileDigest] = {}
        bags = _gather_bags(task, slices) if job.schema.ragged else ()
        if bags:
            for kind, array in zip(BAG_KINDS, pack(bags), strict=True):
                save_array(gathered_path(job, task.split, task.name, kind), array)
                files[kind] = digest_file(gathered_path(job, task.split, task.name, kind))
        for kind in ("labels", "dense", "sparse"):
            gathered = _gather(task, kind, slices)
            if kind == "labels":
                positives = int(gathered.array.sum(dtype=np.int64))
            elif kind == "sparse":
                _finish_ids(task, gathered.array)
                unknown = count_unknown(job, gathered.array, bags)
            files[kind] = gathered.save(gathered_path(job, task.split, task.name, kind), hashlib.sha256)
        shard = GatheredShard(files, positives, unknown)
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
    positions = np.load(task.job.unit_path(source, chunk, "position.npy"), mmap_mode="r")
    start, stop = np.searchsorted(positions, (task.start, task.stop))
    return slice(int(start), int(stop))


def _gather(task: GatherTask, kind: str, slices: list[slice]) -> ScratchFile:
    """The rows of one kind, in the order of their positions."""
    widths = {"labels": 1, "dense": len(task.job.schema.dense), "sparse": task.num_sparse}
    width, dtype = widths[kind], np.dtype(np.float32 if kind == "dense" else np.int32)
    result = ScratchFile("gathered", (task.stop - task.start, width), dtype)
    units = [(unit, part) for unit, part in zip(task.units, slices, strict=True) if part.start < part.stop]
    path = partial(task.job.unit_path, suffix=f"moved-{kind}.npy")
    parts = (rows_part(path(*unit), part.start, part.stop, width, dtype) for unit, part in units)
    for (unit, part), content in zip(units, read_parts(parts, "part"), strict=True):
        positions = np.load(task.job.unit_path(*unit, "position.npy"), mmap_mode="r")
        rows = content.view(dtype).reshape(part.stop - part.start, width)
        place_rows(rows, positions[part] - task.start, result.array)
    for kept in task.kept:
        for begin, rows in unit_rows(kept.unit, kind, *kept.rows_between(task.start, task.stop)):
            place = kept.position + begin - task.start
            result.array[place : place + len(rows)] = rows
    return result


def _gather_bags(task: GatherTask, slices: list[slice]) -> tuple[Bags, ...]:
    """The bags of every multi-valued column, in the order of their positions."""
    num_features = len(task.job.schema.ragged)
    parts: list[tuple[Bags, ...]] = []
    positions = []
    for (source, chunk), part in zip(task.units, slices, strict=True):
        if part.start < part.stop:
            paths = [task.job.unit_path(source, chunk, f"moved-{kind}.npy") for kind in BAG_KINDS]
            values, offsets = (np.load(path, mmap_mode="r") for path in paths)
            parts.append(tuple(bags.part(part.start, part.stop) for bags in unpack(values, offsets, num_features)))
            positions.append(np.load(task.job.unit_path(source, chunk, "position.npy"), mmap_mode="r")[part])
    order = np.argsort(np.concatenate(positions))
    return tuple(join(feature).take(order) for feature in zip(*parts, strict=True))


def _finish_ids(task: GatherTask, ids: NDArray[np.int32]) -> None:
    """What TorchRec does to ids after they are contiguous: its shuffle rounds, its reader wraps."""
    rules = task.job.rules
    if rules.rounds_ids and task.split == "train":
        ids[:] = ids.astype(np.float32)
    if rules.wraps and rules.max_ind_range is not None and rules.order is not None:
        ids %= np.int32(rules.max_ind_range)
