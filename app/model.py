"""DLRM (Naumov et al. 2019, arXiv:1906.00091): architecture only; wrapping for many processes is elsewhere.

Shapes: B samples, N dense features, F sparse features, D embedding_dim.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, KeyedJaggedTensor, KeyedTensor

from app.config import Interaction, ModelConfig


def mlp(num_inputs: int, widths: Sequence[int], final_relu: bool) -> nn.Sequential:
    """Linear layers of the given widths, ReLU after each; after the last one only if final_relu."""
    layers: list[nn.Module] = []
    for num_in, num_out in zip([num_inputs, *widths], widths, strict=False):
        layers += [nn.Linear(num_in, num_out), nn.ReLU()]
    return nn.Sequential(*(layers if final_relu else layers[:-1]))


class _PairProducts(torch.autograd.Function):
    """[B, V, D] vectors to their pairwise products [B, P].

    The backward gathers the pairs' gradients into a symmetric [V, V] matrix and multiplies once, where
    autograd would scatter and multiply twice: faster, and without atomic additions on GPUs.
    """

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, pairs: Tensor, pair_of: Tensor) -> Tensor:
        ctx.save_for_backward(vectors, pair_of)
        return torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, pairs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = grad_outputs
        vectors, pair_of = ctx.saved_tensors
        num_vectors = vectors.shape[1]
        padded = nn.functional.pad(grad, (0, 1))  # its last column is the 0 of pairs that are not used
        matrix = padded.index_select(1, pair_of).view(-1, num_vectors, num_vectors)
        matrix.diagonal(dim1=1, dim2=2).mul_(2)  # d(x.x)/dx = 2x
        return torch.bmm(matrix.to(vectors.dtype), vectors), None, None  # autocast may have given it bf16


class DotInteraction(nn.Module):
    """The dense vector, and the products of all pairs of the F+1 vectors, itself included if so asked.

    Pairs come row by row of the upper triangle (TorchRec's order); vector 0 is the dense one.
    """

    pairs: Tensor
    pair_of: Tensor

    def __init__(self, num_sparse: int, embedding_dim: int, itself: bool) -> None:
        super().__init__()
        num_vectors = num_sparse + 1
        row, column = torch.triu_indices(num_vectors, num_vectors, offset=0 if itself else 1)
        num_pairs = len(row)
        pair_of = torch.full((num_vectors, num_vectors), num_pairs)
        pair_of[row, column] = pair_of[column, row] = torch.arange(num_pairs)
        self.register_buffer("pairs", row * num_vectors + column, persistent=False)
        self.register_buffer("pair_of", pair_of.flatten(), persistent=False)
        self.num_outputs = embedding_dim + num_pairs

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """dense [B, D] and sparse [B, F, D] to [B, D + pairs]."""
        vectors = torch.cat([dense.unsqueeze(1), sparse], dim=1)
        return torch.cat([dense, _PairProducts.apply(vectors, self.pairs, self.pair_of)], dim=1)


class CatInteraction(nn.Module):
    """All F+1 vectors side by side."""

    def __init__(self, num_sparse: int, embedding_dim: int) -> None:
        super().__init__()
        self.num_outputs = (num_sparse + 1) * embedding_dim

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """dense [B, D] and sparse [B, F, D] to [B, (F + 1) * D]."""
        return torch.cat([dense, sparse.flatten(1)], dim=1)


class DLRM(nn.Module):
    """dense_arch over dense features, sparse_arch over ids, their interaction, over_arch to one logit."""

    def __init__(self, config: ModelConfig, num_dense: int, sparse_arch: EmbeddingBagCollection) -> None:
        """sparse_arch: one table a feature, all of dimension config.embedding_dim."""
        super().__init__()
        self.feature_names = [name for table in sparse_arch.embedding_bag_configs() for name in table.feature_names]
        num_sparse = len(self.feature_names)
        self.sparse_arch = sparse_arch
        self.dense_arch = mlp(num_dense, config.dense_arch, final_relu=True)
        self.interaction: DotInteraction | CatInteraction
        if config.interaction is Interaction.dot:
            self.interaction = DotInteraction(num_sparse, config.embedding_dim, config.interaction_itself)
        else:
            self.interaction = CatInteraction(num_sparse, config.embedding_dim)
        self.over_arch = mlp(self.interaction.num_outputs, config.over_arch, final_relu=False)
        self._order: Tensor | None = None
        self._order_known = False

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        """dense_features [B, N] float32 and F bags a sample to logits [B] float32."""
        sparse = self._in_feature_order(self.sparse_arch(sparse_features))
        dense = self.dense_arch(dense_features)
        return self.over_arch(self.interaction(dense, sparse)).squeeze(1).float()

    def _in_feature_order(self, pooled: KeyedTensor) -> Tensor:
        """[B, F, D]: a sharded collection returns its features grouped by the rank that holds them."""
        values = pooled.values().view(-1, len(self.feature_names), pooled.length_per_key()[0])
        if not self._order_known:
            keys = list(pooled.keys())
            if keys != self.feature_names:
                self._order = torch.tensor([keys.index(name) for name in self.feature_names], device=values.device)
            self._order_known = True
        return values if self._order is None else values.index_select(1, self._order)
