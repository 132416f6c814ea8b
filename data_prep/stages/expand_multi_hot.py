"""Expansion of finished shards from one id per feature to bags: MLPerf v2's multi-hot data on disk."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from common.files import FileDigest
from data_prep.dataset.format import Shard
from data_prep.dataset.multi_hot import BLOCK_VALUES, ID_BYTES, TABLES_DIRECTORY, MultiHotTables
from data_prep.engine.executor import Worker
from data_prep.engine.job import Job, LoggedTask
from data_prep.io.arrays import ArrayWriter, let_go, open_array, take_mapped
from data_prep.stages.split import BuiltShard, move_of

KINDS = ("sparse", "values", "offsets")


@dataclass
class ExpandedShard:
    """The new files of a shard."""

    files: dict[str, FileDigest]


@dataclass(frozen=True)
class ExpandTask(LoggedTask[ExpandedShard]):
    """Writes the bags of a shard in the directory of the job's work; num_embeddings: table rows of its features.

    Tables and ids may exceed the memory budget; only a small part of them is resident at any time.
    """

    stage: ClassVar[str] = "expanded"
    record_type: ClassVar[type[ExpandedShard]] = ExpandedShard

    job: Job
    built: BuiltShard
    num_embeddings: tuple[int, ...]

    @property
    def stem(self) -> Path:
        return self.job.work / "expanded" / f"{self.built.split}-{self.built.shard.name}"

    @property
    def size(self) -> tuple[int, int]:
        assert self.job.bags is not None
        return ID_BYTES * self.built.shard.rows * sum(self.job.bags.sizes), self.built.shard.rows

    def do(self, worker: Worker) -> ExpandedShard:
        assert self.job.bags is not None
        tables = MultiHotTables.open(self.job.work / TABLES_DIRECTORY, self.num_embeddings, self.job.bags)
        source = next(source for source, target in self.built.moves if target.endswith(".sparse.npy"))
        digests = _expand(open_array(self.job.work / source), tables, {kind: self._path(kind) for kind in KINDS})
        worker.count(*self.size)
        return ExpandedShard({f"{kind}.npy": digest for kind, digest in digests.items()})

    def result(self, expanded: ExpandedShard) -> BuiltShard:
        """Return the shard with its new files."""
        built = self.built
        moves = [move for move in built.moves if not move[1].endswith(".sparse.npy")]
        moves += [move_of(self.job.work, self._path(kind), built.split, built.shard.name, kind) for kind in KINDS]
        files = {kind: expanded.files[f"{kind}.npy"] for kind in KINDS}
        return replace(built, shard=Shard(built.shard.name, built.shard.rows, built.shard.files | files), moves=moves)

    def _path(self, kind: str) -> Path:
        return self.stem.with_name(f"{self.stem.name}.{kind}.npy")


def _expand(ids: NDArray[np.int32], tables: MultiHotTables, paths: dict[str, Path]) -> dict[str, FileDigest]:
    """Write the files of `paths` from memory-mapped ids [rows, F]."""
    rows = len(ids)
    single = [feature for feature, size in enumerate(tables.sizes) if size == 1]
    sparse = ArrayWriter(paths["sparse"], np.int32, len(single), rows)
    step = BLOCK_VALUES // ids.shape[1]
    for start in range(0, rows, step):
        sparse.append(ids[start : start + step][:, single])
        let_go(ids)
    multi_hot = [(feature, table) for feature, table in enumerate(tables.tables) if table is not None]
    values = ArrayWriter(paths["values"], np.int32, None, rows * sum(table.shape[1] for _, table in multi_hot))
    offsets = ArrayWriter(paths["offsets"], np.int64, None, rows * len(multi_hot) + 1)
    offsets.append(np.zeros(1, np.int64))
    last = 0
    for feature, table in multi_hot:
        size = table.shape[1]
        step = max(1, BLOCK_VALUES // size)
        for start in range(0, rows, step):
            bags = take_mapped(table, np.array(ids[start : start + step, feature]))
            let_go(ids)
            values.append(bags.reshape(-1))
            offsets.append(last + size * np.arange(1, len(bags) + 1, dtype=np.int64))
            last += bags.size
    return {"sparse": sparse.close(), "values": values.close(), "offsets": offsets.close()}
