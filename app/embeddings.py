"""Tables: their declaration, and initial values that depend on nothing but seed, table and row."""

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig

INIT_BLOCK_ROWS = 65_536


def declare_tables(num_embeddings: Mapping[str, int], embedding_dim: int) -> EmbeddingBagCollection:
    """A sum-pooled fp32 table for each feature, on the meta device: no memory until it is sharded."""
    tables = [
        EmbeddingBagConfig(
            name=f"t_{feature}",
            feature_names=[feature],
            num_embeddings=rows,
            embedding_dim=embedding_dim,
            init_fn=_leave_as_is,
        )
        for feature, rows in num_embeddings.items()
    ]
    return EmbeddingBagCollection(tables=tables, device=torch.device("meta"))


def initial_rows(
    seed: int, table: str, num_embeddings: int, embedding_dim: int, start: int, stop: int
) -> NDArray[np.float32]:
    """Initial values of a table's rows [start, stop), [stop - start, D] float32.

    Uniform in ±1/sqrt(num_embeddings), as facebookresearch/dlrm and TorchRec draw them, from one counter-based
    stream for each block of rows: the same for every layout and number of processes.
    """
    bound = 1 / np.sqrt(num_embeddings)
    key = np.frombuffer(hashlib.sha256(f"{seed}/{table}".encode()).digest()[:16], dtype=np.uint64)
    rows = np.empty((stop - start, embedding_dim), dtype=np.float32)
    for block in range(start // INIT_BLOCK_ROWS, -(-stop // INIT_BLOCK_ROWS)):
        first = block * INIT_BLOCK_ROWS
        last = min(first + INIT_BLOCK_ROWS, num_embeddings)
        stream = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, block]))
        values = stream.random((last - first, embedding_dim), dtype=np.float32)
        low, high = max(start, first), min(stop, last)
        rows[low - start : high - start] = values[low - first : high - first]
    rows *= np.float32(2 * bound)
    rows -= np.float32(bound)
    return rows


def _leave_as_is(weight: torch.Tensor) -> torch.Tensor:
    """TorchRec draws initial values in an order that depends on the layout; they are filled in afterwards."""
    return weight
