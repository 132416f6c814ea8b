"""Rows from the units to shards in another order: sorted by destination per unit, then gathered per shard.

Both steps work in bounded memory, on any number of processes, and can be repeated after a kill.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.arrange import LEFT_OUT, SPLITS, unit_positions
from data_prep.files import save_array
from data_prep.format import FileDigest, digest_file, write_atomically
from data_prep.pool import counters
from data_prep.ragged import Bags, join, pack, unpack
from data_prep.work import Job, UnitRecord, digest_unit_files, load_record, save_record

BAG_KINDS = ("values", "offsets")


@dataclass(frozen=True)
class ScatterTask:
    """A finished unit, whose first row is row `begin` of the dataset."""

    job: Job
    record: UnitRecord
    begin: int


@dataclass(frozen=True)
class GatherTask:
    """Positions start..stop as one shard; `units` are (source, chunk) of all units."""

    job: Job
    split: str
    name: str
    start: int
    stop: int
    units: tuple[tuple[int, int], ...]


@dataclass
class GatheredShard:
    """A shard's files, its positive labels, and the values of each feature without an id of their own."""

    files: dict[str, FileDigest]
    positives: int
    unknown: list[int]


def run_scatter_task(task: ScatterTask) -> UnitRecord:
    """Write a unit's rows in the order of their positions."""
    job, record = task.job, task.record
    done = load_record(job, "moved", record.source, record.chunk)
    if done is None:
        positions = unit_positions(job, task.begin, record.rows)
        order = np.argsort(positions, kind="stable")
        order = order[np.searchsorted(positions[order], LEFT_OUT, side="right") :]
        save_array(job.unit_path(record.source, record.chunk, "position.npy"), positions[order])
        arrays = {kind: np.load(job.unit_path(record.source, record.chunk, f"{kind}.npy")) for kind in job.kinds}
        if job.schema.ragged:
            bags = unpack(arrays.pop("values"), arrays.pop("offsets"), len(job.schema.ragged))
            moved = pack([feature.take(order) for feature in bags])
            for kind, array in zip(BAG_KINDS, moved, strict=True):
                save_array(job.unit_path(record.source, record.chunk, f"moved-{kind}.npy"), array)
        for kind, rows in arrays.items():
            save_array(job.unit_path(record.source, record.chunk, f"moved-{kind}.npy"), rows[order])
        suffixes = ["position.npy", *(f"moved-{kind}.npy" for kind in job.kinds)]
        files = digest_unit_files(job, record.source, record.chunk, suffixes)
        done = UnitRecord(record.source, record.chunk, len(order), 0, files)
        save_record(job, "moved", done)
    counters().add(sum(digest.bytes for digest in done.files.values()), done.rows)
    return done


def gather_tasks(job: Job, records: list[UnitRecord], rows: dict[str, int]) -> list[GatherTask]:
    """The shards of all splits."""
    units = tuple((record.source, record.chunk) for record in records)
    tasks = []
    first = 0
    for split in SPLITS:
        for i, start in enumerate(range(0, rows[split], job.shard_rows)):
            stop = min(start + job.shard_rows, rows[split])
            tasks.append(GatherTask(job, split, f"{i:05d}", first + start, first + stop, units))
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
        positives, unknown = 0, [0]
        bags = _gather_bags(task, slices) if job.schema.ragged else ()
        if bags:
            for kind, array in zip(BAG_KINDS, pack(bags), strict=True):
                save_array(gathered_path(job, task.split, task.name, kind), array)
        for kind in ("labels", "dense", "sparse"):
            array = _gather(task, kind, slices)
            if kind == "labels":
                positives = int(array.sum(dtype=np.int64))
            elif kind == "sparse":
                array = _finish_ids(task, array)
                unknown = count_unknown(job, array, bags)
            save_array(gathered_path(job, task.split, task.name, kind), array)
        files = {kind: digest_file(gathered_path(job, task.split, task.name, kind)) for kind in job.kinds}
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


def _gather(task: GatherTask, kind: str, slices: list[slice]) -> NDArray:  # type: ignore[type-arg]
    """The rows of one kind, in the order of their positions."""
    result = None
    for rows, positions in _parts(task, kind, slices):
        if result is None:
            result = np.empty((task.stop - task.start, rows.shape[1]), rows.dtype)
        result[positions - task.start] = rows
    assert result is not None
    return result


def _parts(task: GatherTask, kind: str, slices: list[slice]) -> Iterator[tuple[NDArray, NDArray]]:  # type: ignore[type-arg]
    """The shard's rows of each unit and their positions."""
    for (source, chunk), part in zip(task.units, slices, strict=True):
        if part.start < part.stop:
            rows = np.load(task.job.unit_path(source, chunk, f"moved-{kind}.npy"), mmap_mode="r")
            positions = np.load(task.job.unit_path(source, chunk, "position.npy"), mmap_mode="r")
            yield rows[part], positions[part]


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


def _finish_ids(task: GatherTask, ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """What TorchRec does to ids after they are contiguous: its shuffle rounds, its reader wraps."""
    rules = task.job.rules
    if rules.rounds_ids and task.split == "train":
        ids = ids.astype(np.float32).astype(np.int32)
    if rules.wraps and rules.max_ind_range is not None and rules.order is not None:
        ids = ids % np.int32(rules.max_ind_range)
    return ids


def count_unknown(job: Job, ids: NDArray[np.int32], bags: Sequence[Bags]) -> list[int]:
    """Values of each feature without an id of their own, where an id is kept for them and nothing else."""
    rules = job.rules
    is_reserved = rules.order is not None and rules.first_id > rules.unknown_id
    if not is_reserved or (rules.wraps and rules.max_ind_range is not None):
        return [0] * (ids.shape[1] + len(bags))
    several = iter(int((feature.ids == rules.unknown_id).sum()) for feature in bags)
    single = iter((ids == rules.unknown_id).sum(axis=0).tolist())
    if not bags:
        return list(single)
    return [next(several if name in job.schema.ragged else single) for name in job.schema.sparse]
