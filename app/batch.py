"""What one step reads. Shapes: B samples of this process, N dense features, F sparse features, L ids."""

from dataclasses import dataclass

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
