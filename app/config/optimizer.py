"""`optimizer` and `schedule`: the update rule and its learning rate."""

from dataclasses import dataclass
from enum import Enum

from omegaconf import MISSING

from app.config.checks import require_at_least, require_positive
from common.errors import UserError


class OptimizerName(Enum):
    """The algorithm for tables (fused into FBGEMM's backward) and for dense parameters (torch.optim)."""

    sgd = "sgd"
    adagrad = "adagrad"
    rowwise_adagrad = "rowwise_adagrad"


class ScheduleName(Enum):
    """constant, or linear warm-up, hold and polynomial decay of power 2."""

    constant = "constant"
    warmup_poly = "warmup_poly"


@dataclass
class OptimizerConfig:
    """One algorithm and one learning rate for tables and dense parameters."""

    name: OptimizerName = MISSING
    lr: float = MISSING  # at schedule factor 1
    eps: float | None = None  # Adagrad only: added to the root of the sum of squares


@dataclass
class ScheduleConfig:
    """Factor on the learning rate at each step; all values in steps."""

    name: ScheduleName = MISSING
    warmup_steps: int = 0
    decay_start_step: int = 0
    decay_steps: int = 0


def validate_optimizer(optimizer: OptimizerConfig) -> None:
    """Raises UserError for values that cannot work or would do nothing."""
    require_positive({"optimizer.lr": optimizer.lr, "optimizer.eps": optimizer.eps})
    if optimizer.name is OptimizerName.sgd and optimizer.eps is not None:
        raise UserError(f"optimizer.eps={optimizer.eps}: has no effect with optimizer=sgd")
    if optimizer.name is not OptimizerName.sgd and optimizer.eps is None:
        raise UserError(f"optimizer.eps=null: optimizer={optimizer.name.value} needs one, such as 1e-10")


def validate_schedule(schedule: ScheduleConfig) -> None:
    """Raises UserError for values that cannot work or would do nothing."""
    keys = ("warmup_steps", "decay_start_step", "decay_steps")
    require_at_least({f"schedule.{key}": (getattr(schedule, key), 0) for key in keys})
    if schedule.name is ScheduleName.constant:
        for key in keys:
            if getattr(schedule, key):
                raise UserError(f"schedule.{key}={getattr(schedule, key)}: has no effect with schedule=constant")
    if schedule.decay_steps and schedule.decay_start_step < schedule.warmup_steps:
        raise UserError(
            f"schedule.decay_start_step={schedule.decay_start_step}: the decay may not start before the warm-up ends "
            f"(schedule.warmup_steps={schedule.warmup_steps})"
        )
