"""`optimizer` and `schedule`: the update rule and its learning rate."""

from dataclasses import dataclass

from app.kinds.optimizers import FusedDecay, OptimizerName
from app.kinds.schedules import ScheduleName, with_key
from common.errors import UserError
from common.keys import MISSING, key

SETTINGS = ("eps", "beta1", "beta2")  # keys that some optimizers need, and the others lack


@dataclass(frozen=True)
class OptimizerConfig:
    """The algorithms and their learning rates."""

    name: OptimizerName = key(MISSING, "algorithm of tables, and of dense parameters unless `dense` names another")
    lr: float = key(MISSING, "learning rate, which the schedule multiplies", above=0, is_common=True)
    eps: float | None = key(None, "all but SGD: added to the root of the second moment", above=0)
    dense: OptimizerName | None = key(None, "algorithm of dense parameters; null: `name` without its rowwise_")
    sparse_lr: float | None = key(
        None, "learning rate of tables, which the schedule multiplies; null: lr", above=0, is_common=True
    )
    beta1: float | None = key(None, "Adam and LAMB: decay of the first moment per step", within="[0, 1)")
    beta2: float | None = key(None, "Adam and LAMB: decay of the second moment per step", within="[0, 1)")
    max_grad_norm: float | None = key(
        None, "clip the dense gradients' common 2-norm to this; null: leave them", above=0
    )
    clip_tables: bool = key(
        False,
        "clip tables' gradients too, by the norm of all gradients with their decay; torch then updates tables",
        only_with=("max_grad_norm",),
    )
    weight_decay: float = key(0.0, "L2 of dense parameters: adds this times a parameter to its gradient", at_least=0)
    sparse_weight_decay: float = key(
        0.0,
        "L2 of tables, on all rows at every step, and of dense features' vectors; torch then updates tables",
        at_least=0,
    )

    fused_weight_decay: float | None = key(
        None, "weight decay of the rows in each batch, by FBGEMM where it updates tables", above=0
    )
    fused_weight_decay_mode: FusedDecay | None = key(
        None,
        "l2: add the decay to the gradient; decouple: apply it apart from the gradient",
        only_with=("fused_weight_decay",),
    )

    @property
    def table_lr(self) -> float:
        """Base learning rate of tables."""
        return self.lr if self.sparse_lr is None else self.sparse_lr

    @property
    def needs_whole_tables(self) -> bool:
        """Whether each update concerns whole tables, as no fused update does."""
        return self.clip_tables or self.sparse_weight_decay > 0

    @property
    def dense_name(self) -> OptimizerName:
        """Algorithm for dense parameters."""
        return self.dense or self.name.plain


@dataclass(frozen=True)
class ScheduleConfig:
    """Factor on the learning rates at each step."""

    name: ScheduleName = key(MISSING, "set by schedule=NAME")
    warmup_steps: int = key(0, "steps of the linear warm-up", at_least=0, only_with=("name", *with_key("warmup_steps")))
    decay_start_step: int = key(
        0, "step at which the decay begins", at_least=0, only_with=("name", *with_key("decay_start_step"))
    )
    decay_steps: int = key(0, "steps that the decay takes", at_least=0, only_with=("name", *with_key("decay_steps")))
    end_factor: float = key(0.0, "cosine: final factor", within="[0, 1]", only_with=("name", *with_key("end_factor")))
    factor: float = key(
        0.1, "plateau: factor of the rates at a cut", within="(0, 1)", only_with=("name", *with_key("factor"))
    )
    patience: int = key(
        0,
        "plateau: number of evaluations without a gain before a cut; 0: cut at the first",
        at_least=0,
        only_with=("name", *with_key("patience")),
    )
    threshold: float = key(
        1e-6,
        "the smallest gain of train.monitor that counts, for plateau and train.early_stop_patience",
        at_least=0,
    )
    min_lr: float = key(1e-6, "plateau: lowest rate after cuts", at_least=0, only_with=("name", *with_key("min_lr")))


def validate_optimizer(optimizer: OptimizerConfig) -> None:
    """Raise UserError for values that cannot work or would do nothing."""
    if optimizer.dense is not None and optimizer.dense.plain is not optimizer.dense:
        raise UserError(
            f"optimizer.dense={optimizer.dense.value}: only tables have rows; use {optimizer.dense.plain.value}"
        )
    optimizers = {optimizer.name, optimizer.dense_name}
    names = " and ".join(sorted(name.value for name in optimizers))
    usual_values = {name: usual for each in optimizers for name, usual in each.algorithm.settings.items()}
    for name in SETTINGS:
        value = getattr(optimizer, name)
        if name in usual_values and value is None:
            raise UserError(f"optimizer.{name}=null: {names} needs one, such as {usual_values[name]}")
        if name not in usual_values and value is not None:
            raise UserError(f"optimizer.{name}={value}: has no effect with {names}")
    for name, optimizer_name in (("weight_decay", optimizer.dense_name), ("sparse_weight_decay", optimizer.name)):
        if (value := getattr(optimizer, name)) and not optimizer_name.algorithm.has_weight_decay:
            usable = ", ".join(each.value for each in OptimizerName if each.algorithm.has_weight_decay)
            raise UserError(f"optimizer.{name}={value}: {optimizer_name.value} has none; use one of {usable}")

    _validate_fused_decay(optimizer)


def _validate_fused_decay(optimizer: OptimizerConfig) -> None:
    """Raise UserError for a decay that FBGEMM lacks."""
    if optimizer.fused_weight_decay is None:
        return
    prefix, modes = f"optimizer.fused_weight_decay={optimizer.fused_weight_decay}", optimizer.name.algorithm.fused_decay
    if not modes:
        usable = ", ".join(each.value for each in OptimizerName if each.algorithm.fused_decay)
        raise UserError(f"{prefix}: FBGEMM's {optimizer.name.value} has none; use one of {usable}")
    if optimizer.fused_weight_decay_mode not in modes:
        usable = " or ".join(each.value for each in modes)
        raise UserError(f"{prefix}: with {optimizer.name.value} give optimizer.fused_weight_decay_mode={usable}")
    if optimizer.needs_whole_tables:
        raise UserError(
            f"{prefix}: FBGEMM updates no table with optimizer.sparse_weight_decay or clip_tables; leave it out"
        )


def validate_schedule(schedule: ScheduleConfig) -> None:
    """Raise UserError for values that cannot work or would do nothing."""
    for name, rule in schedule.name.schedule.needs.items():
        if not getattr(schedule, name):
            raise UserError(f"schedule.{name}=0: {rule}")
    if schedule.decay_steps and schedule.decay_start_step < schedule.warmup_steps:
        raise UserError(
            f"schedule.decay_start_step={schedule.decay_start_step}: the decay may not start before the warm-up ends "
            f"(schedule.warmup_steps={schedule.warmup_steps})"
        )
