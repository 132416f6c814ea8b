"""Splits whose rows keep their order, cut from chunks; and the moves of finished shards to the dataset."""

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
from data_prep.stages.split_choices import held_out_splits


def refuse_empty_splits(job: Job, rows: dict[str, int], is_allowed: bool) -> None:
    """Refuse a dataset without a row to train on, or without rows of a split that a column or the labels decide.

    Args:
        is_allowed: whether the latter may be empty.
    """
    if not sum(rows.values()):
        raise UserError("data.sampling.negative_drop_rate: no row is left; give a lower rate")
    method = job.rules.split
    if rows["train"]:
        empty = [split for split in held_out_splits(job) if not rows[split]]
        if empty and method is not None and method.algorithm.reads and job.rules.held_out and not is_allowed:
            column = "" if job.rules.split_column is None else f" data.split.column={job.rules.split_column}"
            raise UserError(
                f"data.split.method={method.value}{column}: {' and '.join(empty)} would have no rows, since these "
                f"{sum(rows.values())} have too few values; give a larger data.split.held_out, another data.split.seed "
                "or method, or data.allow_degenerate=true"
            )
        return
    if method is None:
        raise UserError("data.sampling.negative_drop_rate: no row of data.train is left; give a lower rate")
    raise UserError(
        f"data.split: all {sum(rows.values())} rows are held out (method {method.value}), none is left to "
        "train on; give more rows, or a smaller data.split.held_out"
    )


def plan_cut(chunks: list[EncodeTask], rows: dict[str, int], layout: RowLayout) -> list[GatherTask]:
    """Plan the shards of all splits; a shard is made of consecutive encoded chunks' rows that belong to its split."""
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
    """Return the chunks used to fit statistics: train's if splits are given, else all."""
    return [record for record in records if job.sources[record.source].split in (None, "train")]


@dataclass
class BuiltShard:
    """A shard, the moves that bring its files to the dataset, and statistics of its rows."""

    split: str
    shard: Shard
    moves: list[tuple[str, str]]
    positives: int
    unknown: list[int]


def is_whole_chunk(task: GatherTask) -> bool:
    """Return whether a shard of `plan_cut` has all rows of its chunk, so that the chunk's files can be moved."""
    return len(task.kept_chunks) == 1 and task.stop - task.start == task.kept_chunks[0].chunk.record.rows


def whole_chunk(task: GatherTask) -> BuiltShard:
    """Return the shard made of a whole chunk, ready to move to the dataset."""
    job, record = task.job, task.kept_chunks[0].chunk.record
    paths = {kind: job.chunk_path(record.source, record.chunk, f"{kind}.npy") for kind in job.kinds}
    moves = [move_of(job.work, path, task.split, task.name, kind) for kind, path in paths.items()]
    shard = Shard(task.name, record.rows, {kind: record.files[f"{kind}.npy"] for kind in job.kinds})
    return BuiltShard(task.split, shard, moves, record.positives, record.unknown)


def move_of(work: Path, path: Path, split: str, name: str, kind: str) -> tuple[str, str]:
    """Return an array's path relative to `work`, and its target relative to the dataset's directory."""
    return str(path.relative_to(work)), str(shard_path(Path(), split, name, kind))


def built_shard(task: GatherTask, gathered: GatheredShard) -> BuiltShard:
    """Return a gathered shard, ready to move to the dataset."""
    kinds = task.job.kinds
    moves = [move_of(task.job.work, task.path(kind), task.split, task.name, kind) for kind in kinds]
    shard = Shard(task.name, task.stop - task.start, {kind: gathered.files[f"{kind}.npy"] for kind in kinds})
    return BuiltShard(task.split, shard, moves, gathered.positives, gathered.unknown)


def moves_to_dataset(job: Job, manifest: Manifest, built: list[BuiltShard]) -> list[tuple[str, str]]:
    """Return the moves of all files: the path in the work's directory, and the path in the dataset."""
    moves = [move for shard in built for move in shard.moves]
    for feature, entry in manifest.encoding.get("vocabulary", {}).items():
        paths = [
            vocabulary_path(job.work, feature),
            *(text_path(job.work, feature, kind) for kind in entry.get("texts", ())),
        ]
        moves += [(name, name) for name in (str(path.relative_to(job.work)) for path in paths)]
    return moves + [(name, name) for name in table_files(job.work)]
