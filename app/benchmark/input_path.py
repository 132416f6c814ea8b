"""The path from shards to batches on the device: reading, shuffling, expanding to bags, building, copying."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, count
from pathlib import Path

import numpy as np
import torch

from app.benchmark.case import Case
from app.benchmark.shape import Shape, random_batch
from app.config import DataConfig, MultiHotConfig
from app.config.data import NegativesConfig
from app.data.batch import Batch, BatchBuilder, RowArrays
from app.data.split import SplitReader
from data_prep.dataset.format import Manifest, ShardArrays, write_shard
from data_prep.dataset.format import Split as SplitEntry

ROWS = 400_000
LABEL_BYTES = VALUE_BYTES = 4


@contextmanager
def dataset(shape: Shape) -> Iterator[tuple[Path, Manifest]]:
    """Context with a dataset of random rows, one id per feature, in a temporary directory."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        ids = rng.random((ROWS, len(shape.num_embeddings))) ** 4 * np.array(shape.num_embeddings)
        arrays = ShardArrays(
            labels=(rng.random((ROWS, 1)) < 0.25).astype(np.int32),
            dense=rng.standard_normal((ROWS, shape.num_dense), dtype=np.float32),
            sparse=ids.astype(np.int32),
        )
        shard = write_shard(root, "train", "00000", arrays)
        yield (
            root,
            Manifest(
                schema={
                    "label": "label",
                    "dense": [f"int_{i}" for i in range(shape.num_dense)],
                    "sparse": shape.features,
                },
                encoding={"name": "random"},
                num_embeddings=dict(zip(shape.features, shape.num_embeddings, strict=True)),
                splits={"train": SplitEntry(ROWS, 0.25, [shard])},
                sources=[],
                rows=ROWS,
                label_rate=0.25,
                tool_version="benchmark",
            ),
        )


def input_cases(
    shape: Shape, root: Path, manifest: Manifest, config: DataConfig, device: torch.device
) -> Iterator[Case]:
    """Yield cases of batches in the order on disk, shuffled, and with bags of several ids; and of their parts alone."""
    row_bytes = LABEL_BYTES + VALUE_BYTES * (shape.num_dense + len(shape.num_embeddings))
    plain = replace(config, multi_hot=MultiHotConfig(), negatives=NegativesConfig(), shuffle=False)
    kinds = {
        "input/read": plain,
        "input/read_shuffled": replace(plain, shuffle=True),
        "input/read_shuffled_multi_hot": replace(plain, shuffle=True, multi_hot=_bags(shape)),
    }
    for name, settings in kinds.items():
        if settings.multi_hot.sizes is None and name.endswith("multi_hot"):
            continue
        ids = sum(shape.bag_sizes) if name.endswith("multi_hot") else len(shape.num_embeddings)
        # A row is read, gathered, and its features are written feature-major.
        moved = shape.batch_size * (3 * row_bytes + VALUE_BYTES * ids)
        yield Case(
            name,
            f"B={shape.batch_size}, {ids} ids a sample",
            _next_batch(root, manifest, settings, shape),
            shape.batch_size,
            moved,
            0,
        )
    yield _building(shape, row_bytes)
    if device.type == "cuda":
        yield _copying(shape, device)


def _bags(shape: Shape) -> MultiHotConfig:
    several = max(shape.bag_sizes) > 1
    return MultiHotConfig(sizes=list(shape.bag_sizes) if several else None)


def _next_batch(root: Path, manifest: Manifest, config: DataConfig, shape: Shape) -> Callable[[], Batch]:
    """Return a function that takes the next batch of an endless stream over epochs."""
    split = SplitReader(root, manifest, "train", config, rank=0, world_size=1)
    epochs = (split.train_batches(shape.batch_size, seed=0, epoch=epoch, first=0) for epoch in count())
    return partial(next, chain.from_iterable(epochs))


def _building(shape: Shape, row_bytes: int) -> Case:
    """Return the case that turns rows in memory into a batch: the KeyedJaggedTensor alone."""
    make = BatchBuilder(shape.features, shape.batch_size, [], None)
    rng = np.random.default_rng(0)
    rows = RowArrays(
        labels=np.zeros(shape.batch_size, np.float32),
        dense=np.zeros((shape.batch_size, shape.num_dense), np.float32),
        sparse=rng.integers(0, 1 << 20, (shape.batch_size, len(shape.num_embeddings)), dtype=np.int32),
    )
    moved = 2 * VALUE_BYTES * rows.sparse.size
    return Case(
        "input/keyed_jagged_tensor",
        f"B={shape.batch_size}, one id a feature",
        lambda: make.batch(rows),
        shape.batch_size,
        moved,
        0,
    )


def _copying(shape: Shape, device: torch.device) -> Case:
    """Return the case that copies a batch from pinned host memory to the device."""
    batch = random_batch(shape, 0, torch.device("cpu"))
    dense, labels = batch.dense_features.pin_memory(), batch.labels.pin_memory()
    sparse = batch.sparse_features.pin_memory()

    def copy() -> None:
        dense.to(device, non_blocking=True)
        labels.to(device, non_blocking=True)
        sparse.to(device, non_blocking=True)

    moved = VALUE_BYTES * (dense.numel() + labels.numel() + shape.ids + len(shape.num_embeddings) * shape.batch_size)
    return Case("input/host_to_device", str(shape), copy, shape.batch_size, moved, 0)
