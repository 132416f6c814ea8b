"""Writer of datasets from generated shards (`data.source=random`, `trace`), which publishes them atomically."""

import shutil
import sys
import time
from pathlib import Path
from typing import Protocol

from common.disk_space import Need, require_room
from common.documents import Json
from data_prep.config.keys import DataConfig
from data_prep.dataset.format import (
    SPLITS,
    Manifest,
    ShardArrays,
    build_manifest,
    shard_path,
    write_shard,
)
from data_prep.dataset.schema import Schema
from data_prep.engine.workspace import claimed, find_finished, publish, refuse_foreign_files

SHARD_ROWS = 1 << 18
DISK_MARGIN = 1.05


class Generator(Protocol):
    """Generator of rows; `encoding` has everything that decides them."""

    schema: Schema
    num_embeddings: dict[str, int]
    encoding: Json
    row_bytes: float
    rows: dict[str, int]

    def shard(self, split: str, start: int, rows: int) -> ShardArrays:
        """Return rows start to start + rows of a split. Calls come in order: train, val, then test."""
        ...

    def extra(self) -> Json:
        """Return figures for the manifest, after all rows are made."""
        ...


def write_generated(data: DataConfig, root: Path, generator: Generator) -> Manifest:
    """Write the dataset, or return it if it is already done."""
    with claimed(root) as work:
        finished = find_finished(root, generator.encoding, None, (), data)
        if finished is not None:
            return finished
        refuse_foreign_files(root, work, ())
        required_bytes = int(sum(generator.rows.values()) * generator.row_bytes * DISK_MARGIN)
        require_room(
            [Need(root, required_bytes, "for the dataset", about=True)], "free some, or choose another data.path"
        )
        begin = time.monotonic()
        manifest, moves = _write(work, generator)
        manifest.extra["seconds"] = round(time.monotonic() - begin, 3)
        manifest = publish(work, root, manifest, moves)
    rate = manifest.rows / max(manifest.extra["seconds"], 1e-9)
    print(f"{root}: {manifest.rows:,} rows generated, {rate:,.0f} rows/s", file=sys.stderr)
    return manifest


def _write(work: Path, generator: Generator) -> tuple[Manifest, list[tuple[str, str]]]:
    """Write all shards below `work`; return the manifest, and the moves of files to the dataset."""
    scratch = work / "shards"
    shutil.rmtree(scratch, ignore_errors=True)  # leftovers of a killed job
    shards, moves = [], []
    for split in SPLITS:
        for number, start in enumerate(range(0, generator.rows[split], SHARD_ROWS)):
            arrays = generator.shard(split, start, min(SHARD_ROWS, generator.rows[split] - start))
            shard = write_shard(scratch, split, f"{number:05d}", arrays)
            shards.append((split, shard, int(arrays.labels.sum())))
            for kind in shard.files:
                target = str(shard_path(Path(), split, shard.name, kind))
                moves.append((f"{scratch.name}/{target}", target))
    encoding = {**generator.encoding, "raw_schema": None, "dense_transform": None}
    manifest = build_manifest(generator.schema, encoding, generator.num_embeddings, shards, extra=generator.extra())
    return manifest, moves
