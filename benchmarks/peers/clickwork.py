"""Clickwork: shards on disk, read, shuffled and checked, through its training loop; no evaluation or checkpoints."""

import tempfile
from pathlib import Path

from app.config import CONFIG_DIR, AppConfig, RuntimeConfig
from app.config.runtime import Platform
from app.runtime import platform
from app.training import session
from benchmarks.peers.rows import DENSE_ARCH, DIM, LEARNING_RATE, NUM_DENSE, OVER_ARCH, Rows
from benchmarks.training_loop import time_loop
from common.cli import compose_config
from data_prep.dataset.format import Manifest, ShardArrays, Split, write_shard


def seconds_of_epoch(rows: Rows, batch_size: int, threads: int, device: str = "cpu") -> float:
    """Seconds to train on all rows once."""
    overrides = [f"model.embedding_dim={DIM}", f"model.dense_arch={list(DENSE_ARCH)}",
                 f"model.over_arch={list(OVER_ARCH)}", "optimizer=sgd",
                 f"optimizer.lr={LEARNING_RATE}", "schedule=constant", "loss=bce",
                 f"train.global_batch_size={batch_size}", f"runtime.num_threads={threads}"]  # fmt: skip
    config = compose_config(AppConfig, CONFIG_DIR, [override.replace(" ", "") for override in overrides])
    here = platform.start(
        RuntimeConfig(Platform.cpu if device == "cpu" else Platform.auto, threads), seed=0, deterministic=False
    )
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        this = session.build(config, here, root, _write(root, rows))
        split = this.split("train")
        steps = split.num_batches(batch_size)
        seconds = time_loop(this, steps, this.on_device(split.train_batches(batch_size, 0, 0, 0)))
        return seconds * len(rows.labels) / batch_size


def _write(root: Path, rows: Rows) -> Manifest:
    arrays = ShardArrays(rows.labels[:, None].astype("int32"), rows.dense, rows.sparse.astype("int32"))
    shard = write_shard(root, "train", "00000", arrays)
    features = {f"cat_{i}": count for i, count in enumerate(rows.tables)}
    return Manifest(
        schema={"label": "label", "dense": [f"int_{i}" for i in range(NUM_DENSE)], "sparse": list(features)},
        encoding={"name": "benchmark"}, num_embeddings=features,
        splits={"train": Split(len(rows.labels), 0.25, [shard])}, sources=[], rows=len(rows.labels), label_rate=0.25,
        tool_version="benchmark",
    )  # fmt: skip
