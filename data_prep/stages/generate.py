"""Shards of generated rows, and the Bayes-optimal scores of synthetic ones."""

import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from common.documents import Json
from common.files import Need, require_room
from data_prep.config import DataConfig
from data_prep.dataset.format import SPLITS, Manifest, ShardArrays, build_manifest, shard_path, write_shard
from data_prep.dataset.options import Schema
from data_prep.io import open_array
from data_prep.job import ChunkRecord, Job, claim_work, find_finished, publish, refuse_foreign_files
from data_prep.stages.parse import TRUTH_SUFFIX
from data_prep.stages.place import chunk_positions
from data_prep.synthetic import PROBABILITY_STEPS, bayes_scores, row_settings, truth_path

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
    """Write the dataset of generated rows to `root`, or return it if it is already done."""
    with claim_work(root) as work:
        finished = find_finished(root, generator.encoding, None, (), data)
        if finished is not None:
            return finished
        refuse_foreign_files(root, work, ())
        required_bytes = int(sum(generator.rows.values()) * generator.row_bytes * DISK_MARGIN)
        require_room(
            [Need(root, required_bytes, "for the dataset", about=True)], "free some, or choose another data.path"
        )
        begin = time.monotonic()
        scratch, shards, moves = work / "shards", [], []
        shutil.rmtree(scratch, ignore_errors=True)  # leftovers of a killed job
        for split in SPLITS:
            for number, start in enumerate(range(0, generator.rows[split], SHARD_ROWS)):
                arrays = generator.shard(split, start, min(SHARD_ROWS, generator.rows[split] - start))
                shard = write_shard(scratch, split, f"{number:05d}", arrays)
                shards.append((split, shard, int(arrays.labels.sum())))
                targets = (str(shard_path(Path(), split, shard.name, kind)) for kind in shard.files)
                moves += [(f"{scratch.name}/{target}", target) for target in targets]
        encoding = {**generator.encoding, "raw_schema": None, "dense_transform": None}
        extra = generator.extra()
        manifest = build_manifest(generator.schema, encoding, generator.num_embeddings, shards, extra=extra)
        manifest.extra["seconds"] = round(time.monotonic() - begin, 3)
        manifest = publish(work, root, manifest, moves)
    rate = manifest.rows / max(manifest.extra["seconds"], 1e-9)
    print(f"{root}: {manifest.rows:,} rows generated, {rate:,.0f} rows/s", file=sys.stderr)
    return manifest


def figures(data: DataConfig, job: Job, records: list[ChunkRecord], rows: dict[str, int]) -> Json:
    """Return the manifest's `extra` for generated rows: their settings, and scores overall and by split.

    Args:
        records: all chunks in row order; their labels and truth must still be on disk.
        rows: number of rows of each split.
    """
    histograms = {split: np.zeros((2, PROBABILITY_STEPS), np.int64) for split in SPLITS if rows[split]}
    bounds = np.cumsum([rows[split] for split in SPLITS])
    begin = begin_in_source = 0
    source = -1
    for record in records:
        if record.source != source:
            source, begin_in_source = record.source, 0
        labels = open_array(job.chunk_path(record.source, record.chunk, "labels.npy"))[:, 0]
        if job.sources[record.source].generator is not None:
            probability = open_array(job.chunk_path(record.source, record.chunk, TRUTH_SUFFIX))[:, 0]
        else:
            day = open_array(truth_path(Path(job.sources[record.source].path)))
            probability = day[begin_in_source : begin_in_source + record.rows, 0]
        positions: NDArray[np.signedinteger] = np.arange(begin, begin + record.rows)
        if job.rules.is_arranged:
            positions = chunk_positions(job, begin, record.rows)  # -1: left out
        begin += record.rows
        begin_in_source += record.rows
        # Dropping a share of the negatives multiplies the odds of a click by 1 / (1 - share).
        drawn = probability.astype(np.float64)
        kept = drawn / (drawn + (1 - drawn) * (1 - job.rules.negative_drop_rate))
        # A probability of 0 or 1 would make the logloss infinite.
        steps = np.clip(np.rint(kept * PROBABILITY_STEPS), 1, PROBABILITY_STEPS - 1).astype(np.int64)
        split_of = np.searchsorted(bounds, positions, side="right")
        for number, split in enumerate(SPLITS):
            in_split = (split_of == number) & (positions >= 0)
            if in_split.any():
                for label in (0, 1):
                    label_steps = steps[in_split & (labels == label)]
                    histograms[split][label] += np.bincount(label_steps, minlength=PROBABILITY_STEPS)
    total = np.sum(list(histograms.values()), axis=0)
    splits = {split: asdict(bayes_scores(counts.sum(axis=0), counts[1])) for split, counts in histograms.items()}
    bayes = {**asdict(bayes_scores(total.sum(axis=0), total[1])), "splits": splits}
    return {"bayes": bayes, data.source_kind.group: row_settings(data.synthetic)}
