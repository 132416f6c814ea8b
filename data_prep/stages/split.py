"""Rows to splits where they keep their order: shards cut out of the chunks; how finished shards move to the dataset."""

import operator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from common.errors import UserError
from data_prep.dataset.format import SPLITS, Manifest, Shard, shard_path
from data_prep.dataset.multi_hot import table_files
from data_prep.encoding.lookup import vocabulary_path
from data_prep.encoding.texts import text_path
from data_prep.engine.job import ChunkRecord, Job
from data_prep.stages.encode import EncodeTask
from data_prep.stages.gather import GatheredShard, GatherTask
from data_prep.stages.scatter import KeptChunk, RowLayout


def refuse_no_train_rows(job: Job, rows: dict[str, int]) -> None:
    """Refuse a dataset that holds all its rows out."""
    if not sum(rows.values()):
        raise UserError("data.sampling.negative_drop_rate: no row is left; give a lower rate")
    if rows["train"]:
        return
    if job.rules.split is None:
        raise UserError("data.sampling.negative_drop_rate: no row of data.train is left; give a lower rate")
    raise UserError(
        f"data.split: all {sum(rows.values())} rows are held out (method {job.rules.split.value}), none is left to "
        "train on; give more rows, or a smaller data.split.held_out"
    )


def plan_cut(chunks: list[EncodeTask], rows: dict[str, int], layout: RowLayout) -> list[GatherTask]:
    """The shards of every split: the rows of some consecutive encoded chunks that are of it."""
    tasks: list[GatherTask] = []
    bounds = np.cumsum([0, *(rows[split] for split in SPLITS)]).tolist()
    counts = dict.fromkeys(SPLITS, 0)
    begin = 0
    for _, group in groupby(chunks, lambda each: (each.record.source, each.record.chunk // each.job.chunks_per_shard)):
        kept_chunks = []
        end = begin
        for chunk in group:
            kept_chunks.append(KeptChunk(chunk, end))
            end += chunk.record.rows
        for split, low, high in zip(SPLITS, bounds[:-1], bounds[1:], strict=True):
            start, stop = max(begin, low), min(end, high)
            if start < stop:
                parts = tuple(each for each in kept_chunks if operator.lt(*each.rows_between(start, stop)))
                job, name = parts[0].chunk.job, f"{counts[split]:05d}"
                tasks.append(GatherTask(job, split, name, start, stop, (), parts, layout))
                counts[split] += 1
        begin = end
    return tasks


def fitted_records(job: Job, records: list[ChunkRecord]) -> list[ChunkRecord]:
    """The chunks whose rows spellings, ranges and warnings are of: train's, where splits are given, else all."""
    return [record for record in records if job.sources[record.source].split in (None, "train")]


@dataclass
class BuiltShard:
    """A shard as it will be, the moves that make it so, and what its rows hold."""

    split: str
    shard: Shard
    moves: list[tuple[str, str]]
    positives: int
    unknown: list[int]


def is_whole_chunk(task: GatherTask) -> bool:
    """Whether a shard of `plan_cut` has all rows of its chunk, whose files are the shard's then."""
    return len(task.kept_chunks) == 1 and task.stop - task.start == task.kept_chunks[0].chunk.record.rows


def whole_chunk(task: GatherTask) -> BuiltShard:
    """A shard that is a chunk, ready to be moved to the dataset."""
    job, record = task.job, task.kept_chunks[0].chunk.record
    paths = {kind: job.chunk_path(record.source, record.chunk, f"{kind}.npy") for kind in job.kinds}
    moves = [move_of(job.work, path, task.split, task.name, kind) for kind, path in paths.items()]
    shard = Shard(task.name, record.rows, {kind: record.files[f"{kind}.npy"] for kind in job.kinds})
    return BuiltShard(task.split, shard, moves, record.positives, record.unknown)


def move_of(work: Path, path: Path, split: str, name: str, kind: str) -> tuple[str, str]:
    """The path of a shard's array relative to `work`, and where it goes relative to the dataset's directory."""
    return str(path.relative_to(work)), str(shard_path(Path(), split, name, kind))


def built_shard(task: GatherTask, gathered: GatheredShard) -> BuiltShard:
    """A shard that was gathered, ready to be moved to the dataset."""
    kinds = task.job.kinds
    moves = [move_of(task.job.work, task.path(kind), task.split, task.name, kind) for kind in kinds]
    shard = Shard(task.name, task.stop - task.start, {kind: gathered.files[f"{kind}.npy"] for kind in kinds})
    return BuiltShard(task.split, shard, moves, gathered.positives, gathered.unknown)


def moves_to_dataset(job: Job, manifest: Manifest, built: list[BuiltShard]) -> list[tuple[str, str]]:
    """Return for each file of the dataset its path in the work's directory and in the dataset's."""
    moves = [move for shard in built for move in shard.moves]
    for feature, entry in manifest.encoding.get("vocabulary", {}).items():
        paths = [
            vocabulary_path(job.work, feature),
            *(text_path(job.work, feature, kind) for kind in entry.get("texts", ())),
        ]
        moves += [(name, name) for name in (str(path.relative_to(job.work)) for path in paths)]
    return moves + [(name, name) for name in table_files(job.work)]
