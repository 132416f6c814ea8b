"""`loss`: what training makes small."""

import math
from dataclasses import dataclass
from enum import Enum

from omegaconf import MISSING

from common.errors import UserError


class LossName(Enum):
    """Mean over the batch of binary cross-entropy, of that with a weight for each class, or of the squared error."""

    bce = "bce"
    weighted_bce = "weighted_bce"
    mse = "mse"


@dataclass
class LossConfig:
    """The training loss; evaluation's metrics do not depend on it. Formulas: docs/models.md."""

    name: LossName = MISSING
    class_weights: list[float] | None = None  # weighted_bce: of samples of label 0 and of label 1
    threshold: float = 0.0  # the loss sees predictions clamped to [threshold, 1 - threshold], and no gradient beyond

    @property
    def is_logloss(self) -> bool:
        """Whether the training loss is the logloss of the samples trained on."""
        return self.name is LossName.bce and not self.threshold


def validate_loss(loss: LossConfig) -> None:
    """Raises UserError for values that cannot work or would do nothing."""
    weights = loss.class_weights
    if loss.name is LossName.weighted_bce:
        if weights is None or len(weights) != 2 or not all(0 < weight < math.inf for weight in weights):
            raise UserError(
                f"loss.class_weights={weights}: must be the weights of label 0 and of label 1, such as [1,3]"
            )
    elif weights is not None:
        raise UserError(f"loss.class_weights={weights}: has no effect with loss={loss.name.value}")
    if not 0 <= loss.threshold < 0.5:
        raise UserError(f"loss.threshold={loss.threshold}: must be at least 0 and below 0.5")
