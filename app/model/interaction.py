"""Interactions: they map the dense vector and the F sparse vectors of each sample to the over_arch's input.

Shapes: B samples, F sparse features, D embedding_dim, P pairs. Each module has `num_outputs`, and maps dense [B, D] and
sparse [B, F, D] to [B, num_outputs]; `order` is as for `join`. If dense features have a vector each, or there are no
dense features, dense is [B, N, D], and `num_numeric` is N instead of None.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.modules.crossnet import LowRankCrossNet
from typing_extensions import assert_never

from app.config import Interaction, ModelConfig
from app.config.model import Numeric
from app.config.train import LARGE_BATCH
from app.model.mlp import HiddenLayers, mlp

DCN_NUM_LAYERS = 3  # as MLPerf v2; app/config/model.py documents the defaults of the widths
DCN_RANK_PART = 4
PROJECTION_VECTORS = 16


Order = tuple[Tensor, Tensor] | None


def join(dense: Tensor, sparse: Tensor, order: Order) -> Tensor:
    """Join dense [B, D] or [B, N, D] and sparse [B, F, D] to [B, F + 1, D] or [B, N + F, D].

    order: the place [F] of each feature's vector in `sparse`, and its inverse; None: vectors are in the features'
        order.
    """
    # Cast once: autocast gives dense in bf16, and would cast both factors. On CPUs, recorded runs keep their bits.
    if sparse.is_cuda:
        sparse = sparse.to(dense.dtype)
    if dense.dim() == 2:
        dense = dense.unsqueeze(1)
    if order is None:
        return torch.cat([dense, sparse], dim=1)
    if torch.compiler.is_compiling():  # the compiler itself makes this one copy
        return torch.cat([dense, sparse.index_select(1, order[0])], dim=1)
    return _JoinInOrder.apply(dense, sparse, *order)


class _JoinInOrder(torch.autograd.Function):
    """`join` in one copy. The backward gathers; autograd would scatter, with atomic additions on GPUs."""

    @staticmethod
    def forward(ctx: Any, dense: Tensor, sparse: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        (batch, num_sparse, dim), ctx.num_dense = sparse.shape, dense.shape[1]
        dtype = torch.promote_types(dense.dtype, sparse.dtype)
        joined = sparse.new_empty(batch, ctx.num_dense + num_sparse, dim, dtype=dtype)
        joined[:, : ctx.num_dense] = dense
        torch.index_select(sparse, 1, order, out=joined[:, ctx.num_dense :])
        return joined

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (inverse,), (grad,) = ctx.saved_tensors, grad_outputs
        return grad[:, : ctx.num_dense], grad[:, ctx.num_dense :].index_select(1, inverse), None, None


class _PairProducts(torch.autograd.Function):
    """Maps vectors [B, V, D] to their pairwise products [B, P].

    The backward gathers the pairs' gradients into [V, V]; autograd would scatter them, slower and with atomic additions
    on GPUs. The two products are autograd's own, so that results equal TorchRec's bit for bit wherever that is
    possible. It is not for large batches on CPUs, which oneDNN rounds differently anyway, nor for bf16.
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
        padded = nn.functional.pad(grad, (0, 1))  # the last column is the 0 of unused pairs
        matrix = padded.index_select(1, pair_of).view(-1, num_vectors, num_vectors)
        matrix = matrix.to(vectors.dtype)  # autocast may have made it bf16
        if vectors.dtype is torch.bfloat16 or (vectors.is_cpu and len(vectors) >= LARGE_BATCH):
            # Results cannot equal TorchRec's bits here, so one product serves for both.
            return torch.bmm(matrix + matrix.transpose(1, 2), vectors), None, None
        left, right = torch.bmm(matrix, vectors), torch.bmm(vectors.transpose(1, 2), matrix)
        return left + right.transpose(1, 2), None, None


def _upper_triangle(num_vectors: int, itself: bool) -> tuple[Tensor, Tensor]:
    """Return indices [P] of the pairs in a flat [V, V], row by row, and the pair [V * V] at each index (P for none)."""
    row, column = torch.triu_indices(num_vectors, num_vectors, offset=0 if itself else 1)
    pair_of = torch.full((num_vectors, num_vectors), len(row))
    pair_of[row, column] = torch.arange(len(row))
    return row * num_vectors + column, pair_of.flatten()


class DotInteraction(nn.Module):
    """The dense vector, followed by the products of all pairs of the F+1 vectors (each with itself too if `itself`).

    Pairs come row by row of the upper triangle (TorchRec's order); vector 0 is the dense one. Without a single dense
    vector (dense features have a vector each, or there are none), the output is the products alone.
    """

    pairs: Tensor
    pair_of: Tensor

    def __init__(self, num_sparse: int, embedding_dim: int, itself: bool, num_numeric: int | None = None) -> None:
        super().__init__()
        pairs, pair_of = _upper_triangle(_num_vectors(num_sparse, num_numeric), itself)
        self.register_buffer("pairs", pairs, persistent=False)
        self.register_buffer("pair_of", pair_of, persistent=False)
        self._has_dense = num_numeric is None
        self.num_outputs = len(pairs) + (embedding_dim if self._has_dense else 0)

    def forward(self, dense: Tensor, sparse: Tensor, order: Order = None) -> Tensor:
        """Map dense [B, D] and sparse [B, F, D] to [B, D + P], or dense [B, N, D] to [B, P]."""
        vectors = join(dense, sparse, order)
        products: Tensor = _PairProducts.apply(vectors, self.pairs, self.pair_of)
        return torch.cat([dense, products], dim=1) if self._has_dense else products


class CatInteraction(nn.Module):
    """All F+1 vectors side by side."""

    def __init__(self, num_sparse: int, embedding_dim: int, num_numeric: int | None = None) -> None:
        super().__init__()
        self.num_outputs = _num_vectors(num_sparse, num_numeric) * embedding_dim

    def forward(self, dense: Tensor, sparse: Tensor, order: Order = None) -> Tensor:
        """Map dense [B, D] and sparse [B, F, D] to [B, (F + 1) * D]."""
        return join(dense, sparse, order).flatten(1)


class SumInteraction(nn.Module):
    """The sum of all vectors' elements."""

    num_outputs = 1

    def forward(self, dense: Tensor, sparse: Tensor, order: Order = None) -> Tensor:
        """Map dense [B, D] or [B, N, D] and sparse [B, F, D] to [B, 1]."""
        return (dense.flatten(1).sum(1) + sparse.flatten(1).sum(1)).unsqueeze(1)


class CrossNet(nn.Module):
    """DCN v2's cross layers of full rank: x_{l+1} = x_0 * (W_l x_l + b_l) + x_l, with W_l [n, n]."""

    def __init__(self, num_inputs: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(num_inputs, num_inputs) for _ in range(num_layers))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map x_0 [B, n] to [B, n]."""
        outputs = inputs
        for layer in self.layers:
            outputs = inputs * layer(outputs) + outputs
        return outputs


class DCNInteraction(nn.Module):
    """DCN v2 (Wang et al. 2020, arXiv:2008.13535) over all F+1 vectors side by side: x_0 [B, n], n = (F + 1) * D.

    Layer l: x_{l+1} = x_0 * (W_l (V_l x_l) + b_l) + x_l, with V_l [rank, n] and W_l [n, rank], by TorchRec's module as
    in its DLRM_DCN; without a rank, `CrossNet`. The outputs of a deep_arch (the paper's parallel structure) follow.
    """

    def __init__(
        self,
        num_inputs: int,
        num_layers: int,
        low_rank_dim: int | None,
        deep_arch: nn.Module | None = None,
        deep_outputs: int = 0,
    ) -> None:
        """deep_arch: maps [B, n] to [B, deep_outputs]."""
        super().__init__()
        self.crossnet = (
            CrossNet(num_inputs, num_layers)
            if low_rank_dim is None
            else LowRankCrossNet(num_inputs, num_layers, low_rank_dim)
        )
        self.deep_arch = deep_arch
        self.num_outputs = num_inputs + deep_outputs

    def forward(self, dense: Tensor, sparse: Tensor, order: Order = None) -> Tensor:
        """Map dense [B, D] or [B, N, D] and sparse [B, F, D] to [B, n + deep_outputs]."""
        inputs = join(dense, sparse, order).flatten(1)
        crossed: Tensor = self.crossnet(inputs)
        return crossed if self.deep_arch is None else torch.cat([crossed, self.deep_arch(inputs)], dim=1)


class ProjectionInteraction(nn.Module):
    """Two perceptrons map all F+1 vectors to F1 and F2 vectors [D], which are multiplied pairwise: DLRM_Projection.

    The products are of [B, F1, D] and [B, D, F2], which is how TorchRec reads the second branch.
    """

    def __init__(self, num_sparse: int, embedding_dim: int, branch1: Sequence[int], branch2: Sequence[int]) -> None:
        """branch1, branch2: widths of their layers, each with a ReLU; the last widths are F1 * D and F2 * D."""
        super().__init__()
        num_inputs = (num_sparse + 1) * embedding_dim
        self.branch1 = mlp(num_inputs, branch1, final_relu=True)
        self.branch2 = mlp(num_inputs, branch2, final_relu=True)
        self.num_outputs = embedding_dim + (branch1[-1] // embedding_dim) * (branch2[-1] // embedding_dim)

    def forward(self, dense: Tensor, sparse: Tensor, order: Order = None) -> Tensor:
        """Map dense [B, D] and sparse [B, F, D] to [B, D + F1 * F2]."""
        (batch, dim), flat = dense.shape, join(dense, sparse, order).flatten(1)
        left, right = self.branch1(flat).view(batch, -1, dim), self.branch2(flat).view(batch, dim, -1)
        return torch.cat([dense, torch.bmm(left, right).flatten(1)], dim=1)


class ScalarPairsInteraction(nn.Module):
    """Products of all pairs of the vectors' elements, also with themselves, then the dense vector (AMD's blog of 2024).

    `mixes_samples`: compute it as the blog does. The blog joins the features' [B, 1, D] along B instead of F and reads
    the result as B rows. Row b then holds vectors b * F to b * F + F - 1 of a list that goes feature by feature; all
    but a few of them belong to other samples.
    """

    pairs: Tensor
    pair_of: Tensor

    def __init__(self, num_sparse: int, embedding_dim: int, mixes_samples: bool) -> None:
        super().__init__()
        pairs, pair_of = _upper_triangle((num_sparse + 1) * embedding_dim, itself=True)
        self.register_buffer("pairs", pairs, persistent=False)
        self.register_buffer("pair_of", pair_of, persistent=False)
        self.mixes_samples = mixes_samples
        self.num_outputs = len(pairs) + embedding_dim

    def forward(self, dense: Tensor, sparse: Tensor, order: Order = None) -> Tensor:
        """Map dense [B, D] and sparse [B, F, D] to [B, P + D], with P = n (n + 1) / 2 for n = (F + 1) * D."""
        sparse = sparse if order is None else sparse[:, order[0]]
        rows = sparse.transpose(0, 1) if self.mixes_samples else sparse
        elements = torch.cat([rows.reshape(dense.shape[0], -1), dense], dim=1)
        products = _PairProducts.apply(elements.unsqueeze(2), self.pairs, self.pair_of)
        return torch.cat([products, dense], dim=1)


AnyInteraction = (
    DotInteraction | CatInteraction | DCNInteraction | ProjectionInteraction | ScalarPairsInteraction | SumInteraction
)


def num_numeric(config: ModelConfig, num_dense: int) -> int | None:
    """Return the number of dense features that have a vector each; None if dense_arch makes one vector of them all."""
    if config.numeric is Numeric.vectors:
        return num_dense
    return None if config.dense_arch else 0


def _num_vectors(num_sparse: int, num_numeric: int | None) -> int:
    return num_sparse + (1 if num_numeric is None else num_numeric)


def make_interaction(config: ModelConfig, num_sparse: int, num_dense: int) -> AnyInteraction:
    """Return the interaction that the configuration names, with its defaults, for these numbers of features."""
    dim, numeric = config.embedding_dim, num_numeric(config, num_dense)
    if config.interaction is Interaction.dot:
        return DotInteraction(num_sparse, dim, config.interaction_itself, numeric)
    if config.interaction is Interaction.cat:
        return CatInteraction(num_sparse, dim, numeric)
    if config.interaction is Interaction.dcn:
        return _make_dcn(config, _num_vectors(num_sparse, numeric) * dim)
    if config.interaction is Interaction.scalar_pairs:
        return ScalarPairsInteraction(num_sparse, dim, config.mixes_samples)
    if config.interaction is Interaction.projection:
        widths = [PROJECTION_VECTORS * dim]
        return ProjectionInteraction(
            num_sparse, dim, config.projection_branch1 or widths, config.projection_branch2 or widths
        )
    if config.interaction is Interaction.sum:
        return SumInteraction()
    assert_never(config.interaction)


def _make_dcn(config: ModelConfig, num_inputs: int) -> DCNInteraction:
    num_layers, rank = config.dcn_num_layers or DCN_NUM_LAYERS, config.dcn_low_rank_dim or num_inputs // DCN_RANK_PART
    deep, widths = None, config.deep_arch or []
    if widths:
        deep = mlp(num_inputs, widths, True, HiddenLayers(config.batch_norm, config.dropout), has_output=False)
    return DCNInteraction(num_inputs, num_layers, None if config.dcn_full_rank else rank, deep, sum(widths[-1:]))
