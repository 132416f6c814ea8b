"""Training losses of logits; facebookresearch/dlrm has the same losses of predictions."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from app.config import LossConfig, LossName
from app.kinds.tasks import CLICK, Task


def make_loss(config: LossConfig, factor: float = 1.0, task: Task = CLICK) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function from logits and labels (0 or 1), float32 of one shape, to factor times the mean loss, a scalar.

    If labels are numbers, the function maps predicted numbers and labels to factor times their mean squared error.

    A clamped prediction gives no gradient, as in facebookresearch/dlrm. This clamps the logits instead, which is the
    same since sigmoid is monotonic; clamping predictions would lose the precision of small ones.
    """
    name, (negative, positive) = config.name, config.class_weights or (1.0, 1.0)
    bound = math.log((1 - config.threshold) / config.threshold) if config.threshold else math.inf

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        logits = logits if bound == math.inf else logits.clamp(-bound, bound)
        if name is LossName.mse:
            return F.mse_loss(torch.sigmoid(logits) if task.has_clicks else logits, labels)
        weight = None
        if name is LossName.weighted_bce:
            weight = torch.where(labels > 0.5, positive, negative)
        return F.binary_cross_entropy_with_logits(logits, labels, weight)

    return loss if factor == 1 else lambda logits, labels: factor * loss(logits, labels)
