"""What one step reads. Shapes: B samples of this process, N dense features, F sparse features, L ids."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrec import KeyedJaggedTensor


@dataclass
class Batch:
    """One process's share of a global batch.

    Attributes:
        dense_features: [B, N] float32.
        sparse_features: F keys, B bags each; values int32 [L], feature-major.
        labels: [B] float32, 0 or 1.
        num_valid: the first so many samples count; the rest is padding (evaluation only).
    """

    dense_features: Tensor
    sparse_features: KeyedJaggedTensor
    labels: Tensor
    num_valid: int


class Rows(NamedTuple):
    """Rows in the order of use: labels [n] float32, dense [n, N] float32, sparse [n, F] int32."""

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    sparse: NDArray[np.int32]

    def part(self, start: int, stop: int) -> "Rows":
        """Rows [start, stop), as views."""
        return Rows(self.labels[start:stop], self.dense[start:stop], self.sparse[start:stop])


class OneHot:
    """Makes batches of one id a bag; lengths and offsets are the same for all of them."""

    def __init__(self, features: list[str], local_batch_size: int) -> None:
        self._features, self._stride = features, local_batch_size
        self._lengths = torch.ones(len(features) * local_batch_size, dtype=torch.int32)
        self._offsets = torch.arange(len(features) * local_batch_size + 1, dtype=torch.int32)

    def batch(self, rows: Rows) -> Batch:
        """Rows, padded with zeros to the local batch size."""
        num_valid = len(rows.labels)
        if num_valid < self._stride:
            fill = (0, self._stride - num_valid)
            rows = Rows(
                np.pad(rows.labels, fill), np.pad(rows.dense, (fill, (0, 0))), np.pad(rows.sparse, (fill, (0, 0)))
            )
        sparse_features = KeyedJaggedTensor(
            keys=self._features,
            values=torch.from_numpy(np.ascontiguousarray(rows.sparse.T)).flatten(),
            lengths=self._lengths,
            offsets=self._offsets,
            stride=self._stride,
        )
        return Batch(torch.from_numpy(rows.dense), sparse_features, torch.from_numpy(rows.labels), num_valid)
