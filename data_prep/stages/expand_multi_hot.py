"""Finished shards of one id per feature to shards of bags: MLPerf v2's multi-hot data, written to disk."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.dataset.format import FileDigest, Shard, digest_file, shard_path, write_atomically
from data_prep.dataset.multi_hot import BLOCK_VALUES, ID_BYTES, TABLES_DIRECTORY, MultiHot, MultiHotTables
from data_prep.engine.job import Job
from data_prep.engine.processes import counters
from data_prep.io.buffered_file import release_pieces
from data_prep.io.buffers import release_scratch
from data_prep.io.memory_map import let_go, take_mapped
from data_prep.io.npy import NpyWriter
from data_prep.stages.split import BuiltShard

KINDS = ("sparse", "values", "offsets")


@dataclass(frozen=True)
class ExpandTask:
    """A shard whose files lie in the work's directory, and the tables that its ids are expanded by."""

    job: Job
    root: Path
    built: BuiltShard
    num_embeddings: tuple[int, ...]


def expanded_bytes(built: BuiltShard, bags: MultiHot) -> int:
    """Bytes that the expansion of a shard writes."""
    return ID_BYTES * built.shard.rows * sum(bags.sizes)


def run_expand_task(task: ExpandTask) -> BuiltShard:
    """Write a shard's bags, if that was not done already; the shard with its new files.

    Of the tables and of the shard's ids, which may be larger than the memory budget, little is resident at a time.
    """
    release_pieces()  # what encoding used
    release_scratch()
    job, built = task.job, task.built
    assert job.bags is not None
    stem = job.work / "expanded" / f"{built.split}-{built.shard.name}"
    paths = {kind: stem.with_name(f"{stem.name}.{kind}.npy") for kind in KINDS}
    done = stem.with_name(f"{stem.name}.json")
    files = _load_files(done, paths)
    if files is None:
        stem.parent.mkdir(exist_ok=True)
        tables = MultiHotTables.open(job.work / TABLES_DIRECTORY, task.num_embeddings, job.bags)
        source = next(source for source, target in built.moves if target.endswith(".sparse.npy"))
        _expand(np.load(job.work / source, mmap_mode="r"), tables, paths)
        files = {kind: digest_file(path) for kind, path in paths.items()}
        write_atomically(done, json.dumps({kind: asdict(digest) for kind, digest in files.items()}).encode())
    counters().add(expanded_bytes(built, job.bags), built.shard.rows)
    moves = [move for move in built.moves if not move[1].endswith(".sparse.npy")]
    for kind, path in paths.items():
        target = shard_path(task.root, built.split, built.shard.name, kind)
        moves.append((str(path.relative_to(job.work)), str(target.relative_to(task.root))))
    shard = Shard(built.shard.name, built.shard.rows, built.shard.files | files)
    return replace(built, shard=shard, moves=moves)


def _load_files(done: Path, paths: dict[str, Path]) -> dict[str, FileDigest] | None:
    """The sums of a shard's files, if they are all as they were written."""
    try:
        files = {kind: FileDigest(**digest) for kind, digest in json.loads(done.read_bytes()).items()}
        return files if files == {kind: digest_file(path) for kind, path in paths.items()} else None
    except (FileNotFoundError, ValueError):
        return None


def _expand(ids: NDArray[np.int32], tables: MultiHotTables, paths: dict[str, Path]) -> None:
    """Write the files of `paths` from ids [rows, F], memory-mapped."""
    rows = len(ids)
    single = [feature for feature, size in enumerate(tables.sizes) if size == 1]
    sparse = NpyWriter(paths["sparse"], np.int32, len(single))
    for start in range(0, rows, BLOCK_VALUES // ids.shape[1]):
        sparse.append(ids[start : start + BLOCK_VALUES // ids.shape[1]][:, single])
        let_go(ids)
    sparse.close()
    values, offsets = NpyWriter(paths["values"], np.int32, None), NpyWriter(paths["offsets"], np.int64, None)
    offsets.append(np.zeros(1, np.int64))
    last = 0
    for feature, table in enumerate(tables.tables):
        if table is None:
            continue
        size = table.shape[1]
        step = max(1, BLOCK_VALUES // size)
        for start in range(0, rows, step):
            bags = take_mapped(table, np.array(ids[start : start + step, feature]))
            let_go(ids)
            values.append(bags.reshape(-1))
            offsets.append(last + size * np.arange(1, len(bags) + 1, dtype=np.int64))
            last += bags.size
    values.close()
    offsets.close()
