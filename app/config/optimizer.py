"""`optimizer` and `schedule`: the update rule and its learning rate."""

from dataclasses import dataclass
from enum import Enum

from omegaconf import MISSING

from app.config.checks import require_at_least, require_positive
from common.errors import UserError


class OptimizerName(Enum):
    """The algorithm for tables (fused into FBGEMM's backward where it has it) and for dense parameters.

    rowwise_*: one second moment a row of a table, the mean over the row; dense parameters get the plain one.
    adam: Kingma and Ba 2015; lamb: You et al. 2020, its trust ratio per row of a table, per dense tensor.
    """

    sgd = "sgd"
    adagrad = "adagrad"
    rowwise_adagrad = "rowwise_adagrad"
    adam = "adam"
    rowwise_adam = "rowwise_adam"
    lamb = "lamb"
    rowwise_lamb = "rowwise_lamb"


ADAGRADS = (OptimizerName.adagrad, OptimizerName.rowwise_adagrad)
ADAMS = (OptimizerName.adam, OptimizerName.rowwise_adam, OptimizerName.lamb, OptimizerName.rowwise_lamb)
# Algorithms that need all columns of a row: with a part of them in a shard they would be another algorithm.
NEEDS_WHOLE_ROWS = (OptimizerName.rowwise_adagrad, OptimizerName.rowwise_adam, OptimizerName.lamb,
                    OptimizerName.rowwise_lamb)  # fmt: skip
PLAIN = {
    OptimizerName.rowwise_adagrad: OptimizerName.adagrad,
    OptimizerName.rowwise_adam: OptimizerName.adam,
    OptimizerName.rowwise_lamb: OptimizerName.lamb,
}


class ScheduleName(Enum):
    """The course of the learning rate.

    constant; warmup_poly: linear warm-up, hold and polynomial decay of power 2; cosine: linear warm-up, hold and
    half a cosine (Loshchilov and Hutter 2017); warmup: linear from 0 at the first step, then hold (MLPerf's DLRMv4).
    """

    constant = "constant"
    warmup_poly = "warmup_poly"
    cosine = "cosine"
    warmup = "warmup"


@dataclass
class OptimizerConfig:
    """The algorithms and their rates."""

    name: OptimizerName = MISSING  # for tables, and for dense parameters unless `dense` names another
    lr: float = MISSING  # at schedule factor 1
    eps: float | None = None  # all but SGD: added to the root of the second moment
    dense: OptimizerName | None = None  # for dense parameters; null: `name` without its rowwise_
    sparse_lr: float | None = None  # of tables, at schedule factor 1; null: lr
    beta1: float | None = None  # Adam and LAMB: decay of the first moment a step
    beta2: float | None = None  # and of the second
    max_grad_norm: float | None = None  # clip the dense gradients' common 2-norm to this; null: leave them

    @property
    def table_lr(self) -> float:
        """The base rate of tables."""
        return self.lr if self.sparse_lr is None else self.sparse_lr

    @property
    def dense_name(self) -> OptimizerName:
        """The algorithm for dense parameters."""
        return self.dense or PLAIN.get(self.name, self.name)


@dataclass
class ScheduleConfig:
    """Factor on the learning rates at each step; all values in steps but `end_factor`."""

    name: ScheduleName = MISSING
    warmup_steps: int = 0
    decay_start_step: int = 0
    decay_steps: int = 0
    end_factor: float = 0.0  # cosine: final factor


def validate_optimizer(optimizer: OptimizerConfig) -> None:
    """Raises UserError for values that cannot work or would do nothing."""
    require_positive({f"optimizer.{key}": getattr(optimizer, key) for key in ("lr", "sparse_lr", "eps",
                                                                             "max_grad_norm")})  # fmt: skip
    if optimizer.dense in PLAIN:
        raise UserError(
            f"optimizer.dense={optimizer.dense.value}: only tables have rows; use {PLAIN[optimizer.dense].value}"
        )
    used = {optimizer.name, optimizer.dense_name}
    names = " and ".join(sorted(name.value for name in used))
    has_eps, has_betas = used != {OptimizerName.sgd}, bool(used & set(ADAMS))
    for key, needed, example in (("eps", has_eps, "1e-8"), ("beta1", has_betas, "0.9"), ("beta2", has_betas, "0.999")):
        value = getattr(optimizer, key)
        if needed and value is None:
            raise UserError(f"optimizer.{key}=null: {names} needs one, such as {example}")
        if not needed and value is not None:
            raise UserError(f"optimizer.{key}={value}: has no effect with {names}")
    for key in ("beta1", "beta2"):
        value = getattr(optimizer, key)
        if value is not None and not 0 <= value < 1:
            raise UserError(f"optimizer.{key}={value}: must be in [0, 1)")


def validate_schedule(schedule: ScheduleConfig) -> None:
    """Raises UserError for values that cannot work or would do nothing."""
    keys = ("warmup_steps", "decay_start_step", "decay_steps")
    require_at_least({f"schedule.{key}": (getattr(schedule, key), 0) for key in keys})
    if schedule.name is ScheduleName.constant:
        for key in keys:
            if getattr(schedule, key):
                raise UserError(f"schedule.{key}={getattr(schedule, key)}: has no effect with schedule=constant")
    if schedule.name is ScheduleName.warmup:
        require_at_least({"schedule.warmup_steps": (schedule.warmup_steps, 1)})
        for key in ("decay_start_step", "decay_steps"):
            if getattr(schedule, key):
                raise UserError(f"schedule.{key}={getattr(schedule, key)}: has no effect with schedule=warmup")
    if schedule.end_factor and schedule.name is not ScheduleName.cosine:
        raise UserError(f"schedule.end_factor={schedule.end_factor}: has no effect with "
                        f"schedule={schedule.name.value}")  # fmt: skip
    if not 0 <= schedule.end_factor <= 1:
        raise UserError(f"schedule.end_factor={schedule.end_factor}: must be in [0, 1]")
    if schedule.name is ScheduleName.cosine and not schedule.decay_steps:
        raise UserError("schedule.decay_steps=0: schedule=cosine needs the steps that its decay takes")
    if schedule.decay_steps and schedule.decay_start_step < schedule.warmup_steps:
        raise UserError(
            f"schedule.decay_start_step={schedule.decay_start_step}: the decay may not start before the warm-up ends "
            f"(schedule.warmup_steps={schedule.warmup_steps})"
        )
