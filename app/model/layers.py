"""Perceptrons with batch norm and dropout, and interactions of the dense vector with the F sparse vectors.

Dropout's number of each value is a 32-bit hash (C. Wellons' lowbias32) of its row's key plus its column's, in int32
arithmetic, which all devices have. A run that is resumed, replayed or spread over another number of processes therefore
draws the same masks. On a CPU this is faster than torch's generator, which cannot begin at a row.

With train.deterministic=layout, statistics of batch norm are of a micro-batch, as in ghost batch norm (Hoffer et al.
2017).

Shapes: B samples of this process, W values of a layer's outputs or W processes, C channels, I inputs and O outputs of a
layer, F sparse features, D embedding_dim, P pairs. An interaction has `num_outputs`, and maps dense [B, D] and sparse
[B, F, D] to [B, num_outputs]; `order` is as for `join`. If dense features have a vector each, or there are none, dense
is [B, N, D], and `num_numeric` is N instead of None.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import register_flop_formula
from torchrec.modules.crossnet import LowRankCrossNet
from typing_extensions import assert_never

from app.config.model import ModelConfig
from app.config.train import LARGE_BATCH


class Dropout(nn.Module):
    """Sets a share `rate` of values to 0 in training and divides the others by 1 - rate (Srivastava et al. 2014).

    Call `draw` before each step.
    """

    keys: Tensor
    columns: Tensor

    def __init__(self, width: int, rate: float) -> None:
        """width: W; rate in [0, 1)."""
        super().__init__()
        self.rate = rate
        # Two words of the step's key and the first row, overwritten in place: a recorded CUDA graph reads this memory.
        self.register_buffer("keys", torch.zeros(3, dtype=torch.int32), persistent=False)
        self.register_buffer("columns", hash_numbers(torch.arange(width, dtype=torch.int32)), persistent=False)

    def draw(self, seed: int, step: int, layer: int, first_row: int) -> None:
        """Set the keys of a step's masks, for rows of the global batch from `first_row` on; `mask` computes the masks.

        layer: number of this module among the model's Dropouts, which thereby have unlike masks.
        """
        # SeedSequence mixes seed, step and layer, so that neighbouring steps have unlike masks.
        words = np.random.SeedSequence([seed, step, layer]).generate_state(2).view(np.int32)
        keys = torch.from_numpy(np.append(words, np.int32(first_row)))
        keys = keys.pin_memory() if self.keys.is_cuda else keys  # otherwise the copy would wait for the device
        self.keys.copy_(keys, non_blocking=True)

    def mask(self, rows: int) -> Tensor:
        """Return which values are kept, [rows, W] bool."""
        first, second, first_row = self.keys.unbind()
        numbers = torch.arange(rows, dtype=torch.int32, device=self.keys.device) + first_row
        # A second word, since with the first alone two steps could have the same masks, moved by some rows.
        row_keys = hash_numbers(hash_numbers(numbers + first) ^ second)
        lowest_kept = round(self.rate * (1 << 32)) - (1 << 31)  # the numbers are uniform in [-2^31, 2^31)
        return hash_numbers(row_keys.unsqueeze(1) + self.columns) >= lowest_kept

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply dropout to inputs [B, W]."""
        if not self.training or self.rate == 0:
            return inputs
        factors = self.mask(len(inputs)).to(inputs.dtype).mul_(1 / (1 - self.rate))
        return inputs * factors


def hash_numbers(numbers: Tensor) -> Tensor:
    """Return lowbias32 of int32 numbers without its last step, which leaves the high bits as they are."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - (1 << 32))):  # factors as int32
        unsigned = (numbers >> shift) & ((1 << (32 - shift)) - 1)  # int32's own shift repeats the sign
        numbers = (numbers ^ unsigned) * factor
    return numbers


EPSILON, MOMENTUM = 1e-5, 0.1  # torch's


class BatchNorm(nn.Module):
    """torch.nn.BatchNorm1d over [B, C] with the samples of all processes; padding does not count."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(num_channels)), nn.Parameter(torch.zeros(num_channels))
        self.register_buffer("running_mean", torch.zeros(num_channels))
        self.register_buffer("running_var", torch.ones(num_channels))
        # If set, as `MicroBatches` does, a forward leaves the running statistics to `update`.
        self.of_micro_batch = False
        self.statistics = torch.empty(0)  # [2, C], of the last micro-batch: mean and unbiased variance
        self._num_valid: int | None = None
        self._before: tuple[Tensor, Tensor] | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise inputs [B, C]; the outputs are float32."""
        inputs = inputs.float()  # autocast may have made them bf16
        mean, var, weight, bias = self.running_mean, self.running_var, self.weight, self.bias
        # Where one process has all rows, torch's own kernel gives torch's bits.
        is_plain = self._num_valid is None and not self.of_micro_batch
        if not self.training or (is_plain and num_processes() == 1):
            return nn.functional.batch_norm(inputs, mean, var, weight, bias, self.training, MOMENTUM, EPSILON)
        num_valid = len(inputs) if self._num_valid is None else self._num_valid
        outputs, statistics = _GlobalBatchNorm.apply(inputs, weight, bias, num_valid, not self.of_micro_batch)
        if self.of_micro_batch:
            self.statistics = statistics
        else:
            self.update(statistics)
        return outputs

    def update(self, statistics: Tensor) -> None:
        """Move the running statistics towards those of a global batch, [2, C]."""
        with torch.no_grad():
            self.running_mean.lerp_(statistics[0], MOMENTUM)
            self.running_var.lerp_(statistics[1], MOMENTUM)

    def begin_step(self, num_valid: int | None = None) -> None:
        """Keep the running statistics, in case the step is skipped after its forward.

        num_valid: samples of this process's batch before its padding; None: all.
        """
        self._num_valid = num_valid
        self._before = self.running_mean.clone(), self.running_var.clone()

    def undo_step(self) -> None:
        """Set the running statistics back to those before the step."""
        assert self._before is not None, "begin_step comes first"
        self.running_mean.copy_(self._before[0])
        self.running_var.copy_(self._before[1])


def num_processes() -> int:
    """Return W; 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


class _GlobalBatchNorm(torch.autograd.Function):
    """Maps inputs [B, C], whose first num_valid samples count, to outputs and [2, C]: mean and unbiased variance.

    joins: whether statistics are over all processes' inputs or this process's alone. One exchange in the forward
    combines the processes' means and squares around them (Chan et al. 1983); the backward sums two vectors. The
    gradients of weight and bias are this process's; DistributedDataParallel averages them.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, num_valid: int, joins: bool
    ) -> tuple[Tensor, Tensor]:
        valid = inputs[:num_valid]
        # A process may have padding alone, whose mean would be NaN.
        local_mean = valid.mean(0) if num_valid else torch.zeros_like(weight)
        # Squares are taken around the mean: squares of the values minus the mean's square would lose digits.
        squares = (valid - local_mean).square().sum(0)
        statistics = torch.cat([weight.new_full((1,), num_valid), local_mean, squares])
        parts = [statistics]
        if joins and num_processes() > 1:
            parts = [torch.empty_like(statistics) for _ in range(num_processes())]
            dist.all_gather(parts, statistics)
        by_process = torch.stack(parts)
        counts, means, squares = by_process.split([1, len(weight), len(weight)], dim=1)
        count = counts.sum().clamp(min=1)  # 0 in a micro-batch of padding
        mean = (counts * means).sum(0) / count
        total = squares.sum(0) + (counts * (means - mean).square()).sum(0)
        inverse = (total / count + EPSILON).rsqrt()
        normed = (inputs - mean) * inverse
        ctx.save_for_backward(normed, weight, inverse, count)
        ctx.num_valid, ctx.joins = num_valid, joins
        # As in torch, the running variance is the unbiased one, and normalising takes the biased one.
        statistics = torch.stack([mean, total / (count - 1)])
        # As in torch, no gradient goes through the running statistics.
        ctx.mark_non_differentiable(statistics)
        return normed * weight + bias, statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        normed, weight, inverse, count = ctx.saved_tensors
        grad, valid = grad_outputs[0], slice(ctx.num_valid)
        grad_bias, grad_weight = grad[valid].sum(0), (grad[valid] * normed[valid]).sum(0)
        sums = torch.stack([grad_bias, grad_weight])
        if ctx.joins and num_processes() > 1:
            dist.all_reduce(sums)
        grad_inputs = weight * inverse * (grad - (sums[0] + normed * sums[1]) / count)
        # Padding does not count in the statistics, so it must not get a gradient through them.
        grad_inputs[ctx.num_valid :] = 0
        return grad_inputs, grad_weight, grad_bias, None, None


# A build of torch may lack oneDNN's operators.
HAS_ONEDNN = hasattr(torch.ops.mkldnn, "_linear_pointwise")


def mlp(
    num_inputs: int,
    widths: Sequence[int],
    final_relu: bool,
    batch_norm: bool = False,
    dropout: Sequence[float] = (),
    has_output: bool = True,
) -> nn.Sequential:
    """Return layers of the given widths, which map [B, num_inputs] to [B, the last width].

    A ReLU follows each layer, but the last one only if final_relu. All layers but the last are hidden; without
    has_output the last one is, too. A hidden layer's product is followed by batch norm if `batch_norm`, the ReLU, then
    dropout of one rate per hidden layer, or of one for all; none means 0. This is FuxiCTR's MLP_Block. Names are those
    of a torch.nn.Sequential with each ReLU as a module, so checkpoints of both load.
    """
    layers: dict[str, nn.Module] = {}
    num_hidden = len(widths) - 1 if has_output else len(widths)
    rates = [*dropout] if len(dropout) > 1 else [*dropout, 0.0][:1] * num_hidden
    for number, (num_in, num_out) in enumerate(pairwise([num_inputs, *widths])):
        is_hidden, relu = number < num_hidden, final_relu or number < len(widths) - 1
        has_norm = is_hidden and batch_norm
        layers[str(2 * number)] = Layer(num_in, num_out, relu=relu and not has_norm)
        following: list[nn.Module] = [BatchNorm(num_out), nn.ReLU()] if has_norm else []
        if is_hidden and rates[number]:
            following.append(Dropout(num_out, rates[number]))
        if following:
            layers[str(2 * number + 1)] = nn.Sequential(*following)
    return nn.Sequential(OrderedDict(layers))


class Layer(nn.Linear):
    """A linear layer, with a ReLU if `relu`.

    Training in fp32 on a CPU calls oneDNN from LARGE_BATCH samples on. In all other cases, evaluation and exported
    programs included, the layer is torch's.
    """

    def __init__(self, in_features: int, out_features: int, relu: bool) -> None:
        super().__init__(in_features, out_features)
        self.relu = relu

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs [B, I] to outputs [B, O]."""
        # Evaluation keeps torch's products, so that its bits do not depend on the batch size, and so do exported
        # programs. Below LARGE_BATCH the fixed cost of each call to oneDNN outweighs its speed.
        if (
            torch.is_grad_enabled()
            and not torch.compiler.is_exporting()
            and len(inputs) >= LARGE_BATCH
            and inputs.is_cpu
            and inputs.dtype is torch.float32
            and not torch.is_autocast_enabled("cpu")
            and HAS_ONEDNN
        ):
            onednn_outputs: Tensor = _OneDNN.apply(inputs, self.weight, self.bias, self.relu)
            return onednn_outputs
        outputs = super().forward(inputs)
        return nn.functional.relu(outputs) if self.relu else outputs


torch.library.define("clickwork::linear", "(Tensor inputs, Tensor weight, Tensor? bias, bool relu) -> Tensor")


@torch.library.impl("clickwork::linear", "CPU")
def _linear(inputs: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """Compute a linear layer by oneDNN.

    This is an operator of its own, since torch.compile uses oneDNN's for constant weights only.
    """
    outputs: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "relu" if relu else "none", [], "")
    return outputs


@torch.library.register_fake("clickwork::linear")
def _(inputs: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    return inputs.new_empty(inputs.shape[0], weight.shape[0])


@register_flop_formula(torch.ops.clickwork.linear)
def _linear_flops(inputs: tuple[int, int], weight: tuple[int, int], *settings: Any, **keywords: Any) -> int:
    """Return FLOP by the shapes [B, I] and [O, I]: torch's counter knows no operator of our own."""
    return 2 * inputs[0] * inputs[1] * weight[0]


class _OneDNN(torch.autograd.Function):
    """Maps inputs [B, I], weight [O, I] and bias [O] to [B, O], with a ReLU if `relu`.

    The library that torch uses on CPUs loses up to half its speed if I is odd, as it is after an interaction. But it
    computes the weight's gradient [O, I] fastest of all, if that is computed as [I, O].
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
        outputs: Tensor = torch.ops.clickwork.linear(inputs, weight, bias, relu)
        ctx.save_for_backward(inputs, weight, outputs if relu else None)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        inputs, weight, outputs = ctx.saved_tensors
        grad = grad_outputs[0].contiguous()
        # The output of a ReLU shows where its input was positive, so the input need not be kept.
        if outputs is not None:
            grad = torch.ops.aten.threshold_backward(grad, outputs, 0)
        grad_inputs = torch.ops.clickwork.linear(grad, weight.t(), None, False) if ctx.needs_input_grad[0] else None
        return grad_inputs, (inputs.t() @ grad).t(), grad.sum(0), None


DCN_NUM_LAYERS = 3  # as MLPerf v2; app/config/model.py documents the defaults of the widths
DCN_RANK_PART = 4  # the rank is a quarter of n
PROJECTION_VECTORS = 16  # F1 and F2


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
        # With the backward below, one flat index is faster than TorchRec's two, of rows and of columns.
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
    """All vectors side by side: F+1, or N+F if each of N dense features has its own."""

    def __init__(self, num_sparse: int, embedding_dim: int, num_numeric: int | None = None) -> None:
        super().__init__()
        self.num_outputs = _num_vectors(num_sparse, num_numeric) * embedding_dim

    def forward(self, dense: Tensor, sparse: Tensor, order: Order = None) -> Tensor:
        """Map dense [B, D] and sparse [B, F, D] to [B, (F + 1) * D], or dense [B, N, D] to [B, (N + F) * D]."""
        return join(dense, sparse, order).flatten(1)


class SumInteraction(nn.Module):
    """The sum of all vectors' elements; with D = 1, the logit of a logistic regression."""

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

    def __init__(self, num_inputs: int, config: ModelConfig) -> None:
        super().__init__()
        num_layers, widths = config.dcn_num_layers or DCN_NUM_LAYERS, config.deep_arch or []
        deep = None
        if widths:
            deep = mlp(num_inputs, widths, True, config.batch_norm, config.dropout, has_output=False)
        rank = config.dcn_low_rank_dim or num_inputs // DCN_RANK_PART
        self.crossnet: nn.Module = (
            CrossNet(num_inputs, num_layers) if config.dcn_full_rank else LowRankCrossNet(num_inputs, num_layers, rank)
        )
        self.deep_arch = deep
        self.num_outputs = num_inputs + sum(widths[-1:])

    def forward(self, dense: Tensor, sparse: Tensor, order: Order = None) -> Tensor:
        """Map dense [B, D] or [B, N, D] and sparse [B, F, D] to [B, n + deep_arch's last width]."""
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


def num_numeric(config: ModelConfig, num_dense: int) -> int | None:
    """Return the number of dense features that have a vector each; None if dense_arch makes one vector of them all."""
    if config.numeric == "vectors":
        return num_dense
    return None if config.dense_arch else 0


def _num_vectors(num_sparse: int, num_numeric: int | None) -> int:
    """Return the number of all vectors; None means that one vector stands for all dense features."""
    return num_sparse + (1 if num_numeric is None else num_numeric)


def make_interaction(
    config: ModelConfig, num_sparse: int, num_dense: int
) -> DotInteraction | CatInteraction | DCNInteraction | ProjectionInteraction | ScalarPairsInteraction | SumInteraction:
    """Return the interaction that the configuration names, with its defaults, for these numbers of features."""
    dim, numeric = config.embedding_dim, num_numeric(config, num_dense)
    if config.interaction == "dot":
        return DotInteraction(num_sparse, dim, config.interaction_itself, numeric)
    if config.interaction == "cat":
        return CatInteraction(num_sparse, dim, numeric)
    if config.interaction == "dcn":
        return DCNInteraction(_num_vectors(num_sparse, numeric) * dim, config)
    if config.interaction == "scalar_pairs":
        return ScalarPairsInteraction(num_sparse, dim, config.mixes_samples)
    if config.interaction == "projection":
        branches = (
            branch or [PROJECTION_VECTORS * dim] for branch in (config.projection_branch1, config.projection_branch2)
        )
        return ProjectionInteraction(num_sparse, dim, *branches)
    if config.interaction == "sum":
        return SumInteraction()
    assert_never(config.interaction)
