"""Norms whose bits do not depend on the number of threads, and clipping by them."""

from collections.abc import Iterable

import torch
from torch import Tensor

BLOCK = 4096  # torch adds up this many values on one thread


def total_norm(tensors: Iterable[Tensor]) -> Tensor:
    """Return the 2-norm of all values of the tensors, a scalar float32; 0 if there are none."""
    squares = [_sum(tensor.float().square()) for tensor in tensors]
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros(())


def _sum(values: Tensor) -> Tensor:
    """Return the sum, added block by block: torch divides a longer sum by the number of threads."""
    values = values.flatten()
    while len(values) > BLOCK:
        values = torch.nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK).sum(dim=1)
    return values.sum()


def clip(gradients: list[Tensor], max_norm: float) -> None:
    """Scale gradients in place so that their common 2-norm is at most max_norm, as torch's clip_grad_norm_ does."""
    factor = (max_norm / (total_norm(gradients) + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(gradients, factor)
