"""Rows to splits where they keep their order: shards cut out of the chunks; how finished shards move to the dataset."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.dataset.bags import BAG_KINDS, Bags, pack, unpack
from data_prep.dataset.format import SPLITS, FileDigest, Manifest, Shard, shard_path
from data_prep.dataset.multi_hot import table_files
from data_prep.encoding.lookup import vocabulary_path
from data_prep.engine.executor import Worker
from data_prep.engine.job import ChunkRecord, Job
from data_prep.io.arrays import ArrayWriter, open_array, read_rows, write_array
from data_prep.stages.encode import count_unknown, unknown_of_all
from data_prep.stages.gather import GatheredShard, GatherTask
from data_prep.stages.shuffle_order import split_sizes

COPY_ROWS = 1 << 16


@dataclass(frozen=True)
class ChunkSlice:
    """Rows start..end of a chunk as one shard of a split."""

    split: str
    name: str
    record: ChunkRecord
    start: int
    end: int

    @property
    def is_whole(self) -> bool:
        """Whether the chunk's own files are the shard's."""
        return self.start == 0 and self.end == self.record.rows


def split_rows(job: Job, records: list[ChunkRecord]) -> dict[str, int]:
    """Rows of train, val and test, where they follow each other in the order of the raw rows."""
    total = sum(record.rows for record in records)
    last_day = sum(record.rows for record in records if record.source == len(job.sources) - 1)
    return split_sizes(job.rules, total, last_day)


def refuse_no_train_rows(job: Job, rows: dict[str, int]) -> None:
    """Refuse a dataset that holds all its rows out."""
    if not sum(rows.values()):
        raise UserError("data.sampling.negative_drop_rate: no row is left; give a lower rate")
    if not rows["train"]:
        method = job.rules.split.value
        raise UserError(
            f"data.split: all {sum(rows.values())} rows are held out (method {method}), none is left to train on; "
            "give more rows, or a smaller data.split.held_out"
        )


def plan_slices(records: list[ChunkRecord], rows: dict[str, int]) -> list[ChunkSlice]:
    """The shards of every split, cut out of the chunks."""
    slices: list[ChunkSlice] = []
    bounds = np.cumsum([0, *(rows[split] for split in SPLITS)]).tolist()
    counts = dict.fromkeys(SPLITS, 0)
    begin = 0
    for record in records:
        end = begin + record.rows
        for split, low, high in zip(SPLITS, bounds[:-1], bounds[1:], strict=True):
            start, stop = max(begin, low), min(end, high)
            if start < stop:
                slices.append(ChunkSlice(split, f"{counts[split]:05d}", record, start - begin, stop - begin))
                counts[split] += 1
        begin = end
    return slices


@dataclass
class BuiltShard:
    """A shard as it will be, the moves that make it so, and what its rows hold."""

    split: str
    shard: Shard
    moves: list[tuple[str, str]]
    positives: int
    unknown: list[int]


def move_of(work: Path, path: Path, split: str, name: str, kind: str) -> tuple[str, str]:
    """The path of a shard's array relative to `work`, and where it goes relative to the dataset's directory."""
    return str(path.relative_to(work)), str(shard_path(Path(), split, name, kind))


@dataclass(frozen=True)
class CutTask:
    """Has the files of a slice's shard ready to be moved to the dataset; a part of a chunk is copied out first."""

    job: Job
    slice: ChunkSlice

    @property
    def copied_bytes(self) -> int:
        """About how much is copied: nothing if the chunk's files are the shard's."""
        record = self.slice.record
        chunk = sum(record.files[f"{kind}.npy"].bytes for kind in self.job.kinds)
        return 0 if self.slice.is_whole else chunk * (self.slice.end - self.slice.start) // record.rows

    def run(self, worker: Worker) -> BuiltShard:
        """Do it."""
        job, part, record = self.job, self.slice, self.slice.record
        files: dict[str, FileDigest] = {}
        moves = []
        positives, unknown = record.positives, record.unknown
        bags = () if part.is_whole else self._bags()
        packed = dict(zip(BAG_KINDS, pack(bags), strict=True)) if bags else {}
        for kind in job.kinds:
            path = self._chunk_path(kind)
            if part.is_whole:
                files[kind] = record.files[f"{kind}.npy"]
            else:
                rows = open_array(path)[part.start : part.end]
                path = self._cut_path(kind)
                path.parent.mkdir(exist_ok=True)
                files[kind] = write_array(path, packed[kind]) if kind in packed else self._copy(kind, rows, path)
                if kind == "labels":
                    positives = int(rows.sum(dtype=np.int64))
                elif kind == "sparse" and any(record.unknown):
                    blocks = (rows[i : i + COPY_ROWS] for i in range(0, len(rows), COPY_ROWS))
                    # copies: kernels would be compiled again for arrays that cannot be written
                    counts = np.sum([count_unknown(job, np.array(block)) for block in blocks], axis=0)
                    unknown = unknown_of_all(job, counts, bags)
            moves.append(move_of(job.work, path, part.split, part.name, kind))
        worker.count(self.copied_bytes, part.end - part.start)
        shard = Shard(part.name, part.end - part.start, files)
        return BuiltShard(part.split, shard, moves, positives, unknown)

    def _chunk_path(self, kind: str) -> Path:
        return self.job.chunk_path(self.slice.record.source, self.slice.record.chunk, f"{kind}.npy")

    def _cut_path(self, kind: str) -> Path:
        return self.job.work / "cut" / f"{self.slice.split}-{self.slice.name}.{kind}.npy"

    def _bags(self) -> tuple[Bags, ...]:
        """The bags of the slice's rows."""
        if not self.job.schema.ragged:
            return ()
        values, offsets = (open_array(self._chunk_path(kind)) for kind in BAG_KINDS)
        bags = unpack(values, offsets, len(self.job.schema.ragged))
        return tuple(each.part(self.slice.start, self.slice.end) for each in bags)

    def _copy(self, kind: str, rows: NDArray[Any], path: Path) -> FileDigest:
        """Write the slice's rows, mapped in `rows`, to a file of their own."""
        writer = ArrayWriter(path, rows.dtype, rows.shape[1], len(rows))
        starts = range(self.slice.start, self.slice.end, COPY_ROWS)
        blocks = [(start, min(start + COPY_ROWS, self.slice.end)) for start in starts]
        for block in read_rows(self._chunk_path(kind), blocks, rows.shape[1], rows.dtype):
            writer.append(block)
        return writer.close()


def built_shard(task: GatherTask, gathered: GatheredShard) -> BuiltShard:
    """A shard that was gathered, ready to be moved to the dataset."""
    kinds = task.job.kinds
    moves = [move_of(task.job.work, task.path(kind), task.split, task.name, kind) for kind in kinds]
    shard = Shard(task.name, task.stop - task.start, {kind: gathered.files[f"{kind}.npy"] for kind in kinds})
    return BuiltShard(task.split, shard, moves, gathered.positives, gathered.unknown)


def moves_to_dataset(job: Job, manifest: Manifest, built: list[BuiltShard]) -> list[tuple[str, str]]:
    """Return for each file of the dataset its path in the work's directory and in the dataset's."""
    moves = [move for shard in built for move in shard.moves]
    for feature in manifest.encoding.get("vocabulary", {}):
        name = str(vocabulary_path(job.work, feature).relative_to(job.work))
        moves.append((name, name))
    return moves + [(name, name) for name in table_files(job.work)]
