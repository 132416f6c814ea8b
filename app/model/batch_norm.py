"""Batch norm (Ioffe and Szegedy 2015) with statistics of the global batch, whatever the number of processes.

With train.deterministic=layout, statistics are of a micro-batch, as in ghost batch norm (Hoffer et al. 2017).

Shapes: B samples of this process, C channels, W processes.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

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
        self.of_micro_batch = False
        self.statistics = torch.empty(0)  # [2, C], of the last micro-batch: mean and unbiased variance
        self._num_valid: int | None = None
        self._before: tuple[Tensor, Tensor] | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise inputs [B, C]; the outputs are float32."""
        inputs = inputs.float()  # autocast may have made them bf16
        mean, var, weight, bias = self.running_mean, self.running_var, self.weight, self.bias
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
        local_mean = valid.mean(0) if num_valid else torch.zeros_like(weight)
        squares = (valid - local_mean).square().sum(0)
        statistics = torch.cat([weight.new_full((1,), num_valid), local_mean, squares])
        every = _gathered(statistics) if joins else statistics.unsqueeze(0)
        counts, means, squares = every.split([1, len(weight), len(weight)], dim=1)
        count = counts.sum().clamp(min=1)  # 0 in a micro-batch of padding
        mean = (counts * means).sum(0) / count
        total = squares.sum(0) + (counts * (means - mean).square()).sum(0)
        inverse = (total / count + EPSILON).rsqrt()
        normed = (inputs - mean) * inverse
        ctx.save_for_backward(normed, weight, inverse, count)
        ctx.num_valid, ctx.joins = num_valid, joins
        statistics = torch.stack([mean, total / (count - 1)])
        ctx.mark_non_differentiable(statistics)
        return normed * weight + bias, statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        normed, weight, inverse, count = ctx.saved_tensors
        grad, valid = grad_outputs[0], slice(ctx.num_valid)
        of_bias, of_weight = grad[valid].sum(0), (grad[valid] * normed[valid]).sum(0)
        sums = torch.stack([of_bias, of_weight])
        if ctx.joins and num_processes() > 1:
            dist.all_reduce(sums)
        of_inputs = weight * inverse * (grad - (sums[0] + normed * sums[1]) / count)
        of_inputs[ctx.num_valid :] = 0
        return of_inputs, of_weight, of_bias, None, None


def _gathered(statistics: Tensor) -> Tensor:
    """Return the statistics [n] of all processes as [W, n]."""
    if num_processes() == 1:
        return statistics.unsqueeze(0)
    parts = [torch.empty_like(statistics) for _ in range(num_processes())]
    dist.all_gather(parts, statistics)
    return torch.stack(parts)
