"""Batch norm (Ioffe and Szegedy 2015) whose statistics are of the global batch, whatever the number of processes.

Shapes: B samples of this process, C channels, W processes.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

EPSILON, MOMENTUM = 1e-5, 0.1  # torch's


class BatchNorm(nn.Module):
    """torch.nn.BatchNorm1d over [B, C], with samples of all processes; padded ones do not count."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(num_channels)), nn.Parameter(torch.zeros(num_channels))
        self.register_buffer("running_mean", torch.zeros(num_channels))
        self.register_buffer("running_var", torch.ones(num_channels))
        self._num_valid: int | None = None
        self._before: tuple[Tensor, Tensor] | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, C] to the same, float32."""
        inputs = inputs.float()  # autocast has made them of bf16
        mean, var, weight, bias = self.running_mean, self.running_var, self.weight, self.bias
        if not self.training or (num_processes() == 1 and self._num_valid is None):
            return nn.functional.batch_norm(inputs, mean, var, weight, bias, self.training, MOMENTUM, EPSILON)
        num_valid = len(inputs) if self._num_valid is None else self._num_valid
        outputs, batch_mean, batch_var = _GlobalBatchNorm.apply(inputs, weight, bias, num_valid)
        with torch.no_grad():
            mean.lerp_(batch_mean, MOMENTUM)
            var.lerp_(batch_var, MOMENTUM)
        return outputs

    def begin_step(self, num_valid: int | None = None) -> None:
        """Keep the running statistics, for a step that is skipped after its forward.

        num_valid: samples of this process's batch before its padding; None: all.
        """
        self._num_valid = num_valid
        self._before = self.running_mean.clone(), self.running_var.clone()

    def undo_step(self) -> None:
        """Set the running statistics to those before the step."""
        assert self._before is not None, "begin_step comes first"
        self.running_mean.copy_(self._before[0])
        self.running_var.copy_(self._before[1])


def num_processes() -> int:
    """W; 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


class _GlobalBatchNorm(torch.autograd.Function):
    """Inputs [B, C], of which the first num_valid samples count, to outputs, mean [C] and unbiased variance [C].

    Each process's mean and squares around it are combined by Chan et al. 1983, in one exchange forward; the backward
    sums two vectors. Gradients of weight and bias are this process's, which DistributedDataParallel averages.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, num_valid: int) -> tuple[Tensor, ...]:
        valid = inputs[:num_valid]
        local_mean = valid.mean(0) if num_valid else torch.zeros_like(weight)
        squares = (valid - local_mean).square().sum(0)
        statistics = torch.cat([weight.new_full((1,), num_valid), local_mean, squares])
        counts, means, squares = _gathered(statistics).split([1, len(weight), len(weight)], dim=1)
        count = counts.sum()
        mean = (counts * means).sum(0) / count
        total = squares.sum(0) + (counts * (means - mean).square()).sum(0)
        inverse = (total / count + EPSILON).rsqrt()
        normed = (inputs - mean) * inverse
        ctx.save_for_backward(normed, weight, inverse, count)
        ctx.num_valid = num_valid
        variance = total / (count - 1)
        ctx.mark_non_differentiable(mean, variance)
        return normed * weight + bias, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        normed, weight, inverse, count = ctx.saved_tensors
        grad, valid = grad_outputs[0], slice(ctx.num_valid)
        of_bias, of_weight = grad[valid].sum(0), (grad[valid] * normed[valid]).sum(0)
        sums = torch.stack([of_bias, of_weight])
        if num_processes() > 1:
            dist.all_reduce(sums)
        of_inputs = weight * inverse * (grad - (sums[0] + normed * sums[1]) / count)
        of_inputs[ctx.num_valid :] = 0
        return of_inputs, of_weight, of_bias, None


def _gathered(statistics: Tensor) -> Tensor:
    """[n] of each process to [W, n]."""
    if num_processes() == 1:
        return statistics.unsqueeze(0)
    parts = [torch.empty_like(statistics) for _ in range(num_processes())]
    dist.all_gather(parts, statistics)
    return torch.stack(parts)
