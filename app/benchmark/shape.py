"""Sizes at which to measure, and random input of those sizes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrec import KeyedJaggedTensor

from app.data.batch import Batch, layout_of

FLOAT_BYTES = ID_BYTES = 4


@dataclass(frozen=True)
class Shape:
    """Sizes of one process's part.

    Attributes:
        batch_size: samples of this process (B). num_dense: dense features (N).
        num_embeddings: rows of each table, one feature each (F). embedding_dim: D.
        bag_sizes: ids per bag of each feature.
    """

    batch_size: int
    num_dense: int
    num_embeddings: tuple[int, ...]
    embedding_dim: int
    bag_sizes: tuple[int, ...]

    @property
    def features(self) -> list[str]:
        """Names of the features."""
        return [f"cat_{i}" for i in range(len(self.num_embeddings))]

    @property
    def ids(self) -> int:
        """Number of ids in a batch of this process."""
        return self.batch_size * sum(self.bag_sizes)

    @property
    def pooled(self) -> int:
        """Number of elements in the pooled vectors of a batch: B * F * D."""
        return self.batch_size * len(self.num_embeddings) * self.embedding_dim

    def __str__(self) -> str:
        tables = f"{len(self.num_embeddings)} tables of {sum(self.num_embeddings):,} rows"
        return f"B={self.batch_size}, {tables}, D={self.embedding_dim}, {sum(self.bag_sizes)} ids a sample"


def random_ids(shape: Shape, seed: int) -> list[NDArray[np.int32]]:
    """Return ids of each feature's bags, [B * bag size] int32, with a long tail: rows * u^4 with u uniform."""
    rng = np.random.default_rng(seed)
    return [
        (rng.random(shape.batch_size * bag) ** 4 * rows).astype(np.int32)
        for rows, bag in zip(shape.num_embeddings, shape.bag_sizes, strict=True)
    ]


def keyed(shape: Shape, ids: list[NDArray[np.int32]]) -> KeyedJaggedTensor:
    """Return the ids in the form that the model takes."""
    layout = layout_of(shape.features, [np.full(shape.batch_size, size) for size in shape.bag_sizes])
    return layout.bags(torch.from_numpy(np.concatenate(ids)))


def random_batch(shape: Shape, seed: int, device: torch.device) -> Batch:
    """Return a batch of random samples, a quarter of them clicked."""
    rng = np.random.default_rng([seed, 1])
    dense = rng.standard_normal((shape.batch_size, shape.num_dense), dtype=np.float32)
    labels = (rng.random(shape.batch_size) < 0.25).astype(np.float32)
    sparse = keyed(shape, random_ids(shape, seed)).to(device)
    size = shape.batch_size
    return Batch(_on(device, dense), sparse, _on(device, labels), size, num_global=size)


def _on(device: torch.device, values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values).to(device)
