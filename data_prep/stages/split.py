"""Which rows go to which split, and the finished files from the units."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.dataset.bags import BAG_KINDS, Bags, pack, unpack
from data_prep.dataset.format import (
    SPLITS,
    FileDigest,
    Manifest,
    Shard,
    digest_file,
    shard_path,
)
from data_prep.dataset.multi_hot import table_files
from data_prep.encoding.lookup import vocabulary_path
from data_prep.engine.job import Job, UnitRecord
from data_prep.engine.processes import counters
from data_prep.io.atomic import save_array
from data_prep.io.buffered_file import HeldArray
from data_prep.io.direct_io import read_rows
from data_prep.stages.encode import count_unknown, unknown_of_all
from data_prep.stages.gather import GatheredShard, GatherTask, gathered_path
from data_prep.stages.shuffle_order import split_sizes

COPY_ROWS = 1 << 16


@dataclass(frozen=True)
class Piece:
    """Rows start..end of a unit as one shard of a split."""

    split: str
    name: str
    record: UnitRecord
    start: int
    end: int

    @property
    def is_whole(self) -> bool:
        """Whether the unit's own files are the shard's."""
        return self.start == 0 and self.end == self.record.rows


def split_rows(job: Job, records: list[UnitRecord]) -> dict[str, int]:
    """Rows of train, val and test, where they follow each other in the order of the raw rows."""
    total = sum(record.rows for record in records)
    last_day = sum(record.rows for record in records if record.source == len(job.sources) - 1)
    return split_sizes(job.rules, total, last_day)


def refuse_no_train_rows(job: Job, rows: dict[str, int]) -> None:
    """Nothing can be learnt from a dataset that holds all its rows out."""
    if not sum(rows.values()):
        raise UserError("data.sampling.negative_drop_rate: no row is left; give a lower rate")
    if not rows["train"]:
        method = job.rules.split.value
        raise UserError(
            f"data.split: all {sum(rows.values())} rows are held out (method {method}), none is left to train on; "
            "give more rows, or a smaller data.split.held_out"
        )


def plan_pieces(records: list[UnitRecord], rows: dict[str, int]) -> list[Piece]:
    """The shards of every split, cut out of the units."""
    pieces: list[Piece] = []
    bounds = np.cumsum([0, *(rows[split] for split in SPLITS)]).tolist()
    counts = dict.fromkeys(SPLITS, 0)
    begin = 0
    for record in records:
        end = begin + record.rows
        for split, low, high in zip(SPLITS, bounds[:-1], bounds[1:], strict=True):
            start, stop = max(begin, low), min(end, high)
            if start < stop:
                pieces.append(Piece(split, f"{counts[split]:05d}", record, start - begin, stop - begin))
                counts[split] += 1
        begin = end
    return pieces


@dataclass
class BuiltShard:
    """A shard as it will be, the moves that make it so, and what its rows hold."""

    split: str
    shard: Shard
    moves: list[tuple[str, str]]
    positives: int
    unknown: list[int]


@dataclass(frozen=True)
class BuildTask:
    """A piece that is to become a shard of the dataset at `root`."""

    job: Job
    root: Path
    piece: Piece


def copied_bytes(job: Job, piece: Piece) -> int:
    """About how much is copied for a piece to have files of its own: nothing if its unit's are the shard's."""
    unit = sum(piece.record.files[f"{kind}.npy"].bytes for kind in job.kinds)
    return 0 if piece.is_whole else unit * (piece.end - piece.start) // piece.record.rows


def run_build_task(task: BuildTask) -> BuiltShard:
    """Have the files of one shard ready to be moved to their place; a part of a unit is copied out first."""
    job, root, piece = task.job, task.root, task.piece
    record = piece.record
    files: dict[str, FileDigest] = {}
    moves = []
    positives, unknown = record.positives, record.unknown
    if not piece.is_whole and job.schema.ragged:
        _cut_bags(job, piece)
    for kind in job.kinds:
        path = job.unit_path(record.source, record.chunk, f"{kind}.npy")
        if piece.is_whole:
            files[kind] = record.files[f"{kind}.npy"]
        elif kind in BAG_KINDS:
            path = cut_path(job, piece, kind)
            files[kind] = digest_file(path)
        else:
            # private, not read-only: kernels are compiled anew for arrays that cannot be written
            part = np.load(path, mmap_mode="c")[piece.start : piece.end]
            files[kind] = _copy_rows(path, piece, part, cut_path(job, piece, kind))
            path = cut_path(job, piece, kind)
            if kind == "labels":
                positives = int(part.sum(dtype=np.int64))
            elif kind == "sparse" and any(record.unknown):
                unknown = unknown_of_all(job, count_unknown(job, part), _bags_of(job, piece))
        target = shard_path(root, piece.split, piece.name, kind)
        moves.append((str(path.relative_to(job.work)), str(target.relative_to(root))))
    counters().add(copied_bytes(job, piece), piece.end - piece.start)
    shard = Shard(piece.name, piece.end - piece.start, files)
    return BuiltShard(piece.split, shard, moves, positives, unknown)


def cut_path(job: Job, piece: Piece, kind: str) -> Path:
    """Where the array of a shard that is a part of a unit lies before it is moved to its place."""
    return job.work / "cut" / f"{piece.split}-{piece.name}.{kind}.npy"


def _bags_of(job: Job, piece: Piece) -> tuple[Bags, ...]:
    """The bags of a piece's rows."""
    if not job.schema.ragged:
        return ()
    paths = [job.unit_path(piece.record.source, piece.record.chunk, f"{kind}.npy") for kind in BAG_KINDS]
    values, offsets = (np.load(path, mmap_mode="r") for path in paths)
    return tuple(bags.part(piece.start, piece.end) for bags in unpack(values, offsets, len(job.schema.ragged)))


def _cut_bags(job: Job, piece: Piece) -> None:
    """Copy the bags of a part of a unit."""
    cut_path(job, piece, "values").parent.mkdir(exist_ok=True)
    for kind, array in zip(BAG_KINDS, pack(_bags_of(job, piece)), strict=True):
        save_array(cut_path(job, piece, kind), array)


def place_gathered(job: Job, root: Path, task: GatherTask, gathered: GatheredShard) -> BuiltShard:
    """As `run_build_task`, for a shard that was gathered."""
    moves = []
    for kind in job.kinds:
        path = gathered_path(job, task.split, task.name, kind)
        target = shard_path(root, task.split, task.name, kind)
        moves.append((str(path.relative_to(job.work)), str(target.relative_to(root))))
    shard = Shard(task.name, task.stop - task.start, gathered.files)
    return BuiltShard(task.split, shard, moves, gathered.positives, gathered.unknown)


def _copy_rows(source: Path, piece: Piece, like: NDArray[Any], path: Path) -> FileDigest:
    """Write the rows of a piece to a file of their own, `like` them in dtype and width; its size and sum."""
    path.parent.mkdir(exist_ok=True)
    target = HeldArray(path, like.dtype, like.shape[1])
    blocks = [(start, min(start + COPY_ROWS, piece.end)) for start in range(piece.start, piece.end, COPY_ROWS)]
    for rows in read_rows(source, blocks, like.shape[1], like.dtype, "cut"):
        target.append(rows)
    return target.close(hashlib.sha256)


def moves_to_dataset(job: Job, manifest: Manifest, built: list[BuiltShard]) -> list[tuple[str, str]]:
    """Of each file of the dataset its path in the work's directory and in the dataset's."""
    moves = [move for shard in built for move in shard.moves]
    for feature in manifest.encoding.get("vocabulary", {}):
        name = str(vocabulary_path(job.work, feature).relative_to(job.work))
        moves.append((name, name))
    return moves + [(name, name) for name in table_files(job.work)]
