"""Training losses of logits; facebookresearch/dlrm has the same losses of predictions."""

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from app.config import LossConfig, LossName
from app.kinds.tasks import CLICK, Task


class Loss(Protocol):
    """The loss of logits and labels (0 or 1), float32 of one shape, a scalar; weights: of each sample, if any."""

    def __call__(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, /) -> Tensor: ...


def make_loss(config: LossConfig, factor: float = 1.0, task: Task = CLICK, mean_weight: float = 1.0) -> Loss:
    """Return a function from logits, labels and sample weights to factor times the mean loss.

    If labels are numbers, the function maps predicted numbers and labels to factor times their mean squared error.

    With weights, a sample's loss is multiplied by its weight over `mean_weight`, that of all training samples. The mean
    over an epoch is then sum(weight * loss) / sum(weight). The weights of a batch do not divide its loss: its samples
    would count for more in a batch of small weights, and the split of a batch over processes would matter.

    A clamped prediction gives no gradient, as in facebookresearch/dlrm. This clamps the logits instead, which is the
    same since sigmoid is monotonic; clamping predictions would lose the precision of small ones.
    """
    name, (negative, positive) = config.name, config.class_weights or (1.0, 1.0)
    bound = math.log((1 - config.threshold) / config.threshold) if config.threshold else math.inf

    def loss(logits: Tensor, labels: Tensor, weights: Tensor | None = None, /) -> Tensor:
        logits = logits if bound == math.inf else logits.clamp(-bound, bound)
        weight = None if weights is None else weights / mean_weight
        if name is LossName.mse:
            preds = torch.sigmoid(logits) if task.has_clicks else logits
            return F.mse_loss(preds, labels) if weight is None else (weight * (preds - labels).square()).mean()
        if name is LossName.weighted_bce:
            of_class = torch.where(labels > 0.5, positive, negative)
            weight = of_class if weight is None else of_class * weight
        return F.binary_cross_entropy_with_logits(logits, labels, weight)

    return loss if factor == 1 else lambda logits, labels, *weights: factor * loss(logits, labels, *weights)
