"""`run`, `train`, `eval` and `checkpoint`: the course of a run."""

from dataclasses import dataclass
from enum import Enum

from omegaconf import MISSING

from app.config.checks import require_at_least, require_positive
from common.errors import UserError


class OnNan(Enum):
    """stop at a loss that is NaN or infinite, or skip the update of its step; of gradients, always stop."""

    stop = "stop"
    skip = "skip"


@dataclass
class RunConfig:
    """Where the run is recorded."""

    name: str = MISSING
    dir: str = "runs/${run.name}"


@dataclass
class TrainConfig:
    """How long, how much at once, and what is looked at on the way."""

    global_batch_size: int = MISSING  # samples a step over all processes
    epochs: int | None = None  # null: one, or as many as max_steps or max_samples take
    max_steps: int | None = None  # stop after so many steps; 0 builds the run and ends
    max_samples: int | None = None  # stop before the step that would exceed so many samples
    max_minutes: float | None = None  # stop resumably once this process has run so long
    seed: int = 0  # initial values and data order
    eval_every_steps: int | None = None  # null: only at the end
    target_auc: float | None = None  # stop once an evaluation reaches it
    log_every_steps: int = 50
    warmup_steps_excluded: int = 10  # first steps of this process left out of throughput figures
    on_nan: OnNan = OnNan.stop  # skip: waits for the device at each step
    deterministic: bool = False  # GPU: slower kernels with fixed summation order. On CPU always so


@dataclass
class EvalConfig:
    """Evaluation during and after training."""

    split: str = "val"
    global_batch_size: int = 16_384


@dataclass
class CheckpointConfig:
    """When state is saved, how much is kept, where a run starts from."""

    every_steps: int | None = None
    every_minutes: float | None = None
    keep: int = 2  # newest whole checkpoints that stay
    keep_best: bool = True  # and the one of the highest eval AUC; an evaluation that is the best so far saves it
    asynchronous: bool = True  # training waits for a copy in host memory only; a thread writes it
    resume: str = "auto"  # auto: the run's newest whole one; never: start over; a path: of a checkpoint or a run


def validate_names(run: RunConfig, checkpoint: CheckpointConfig) -> None:
    """Raises UserError for a name that is empty."""
    named = {"run.name": run.name, "run.dir": run.dir, "checkpoint.resume": checkpoint.resume}
    for key, text in named.items():
        if not text.strip():
            raise UserError(f"{key}=: must not be empty")


def validate_train(train: TrainConfig) -> None:
    """Raises UserError for values that cannot work."""
    least = {"global_batch_size": 1, "epochs": 1, "max_steps": 0, "max_samples": 0, "seed": 0, "eval_every_steps": 1,
             "log_every_steps": 1, "warmup_steps_excluded": 0}  # fmt: skip
    require_at_least({f"train.{key}": (getattr(train, key), bound) for key, bound in least.items()})
    require_positive({"train.max_minutes": train.max_minutes})
    if train.target_auc is not None and not 0 < train.target_auc <= 1:
        raise UserError(f"train.target_auc={train.target_auc}: must be in (0, 1]")
    if train.seed >= 2**63:
        raise UserError(f"train.seed={train.seed}: must be below 2^63")
    if train.max_samples is not None and train.max_steps is None and train.max_samples < train.global_batch_size:
        raise UserError(
            f"train.max_samples={train.max_samples}: not one batch of train.global_batch_size={train.global_batch_size}"
        )


def validate_checkpoint(checkpoint: CheckpointConfig) -> None:
    """Raises UserError for values that cannot work."""
    require_at_least({"checkpoint.every_steps": (checkpoint.every_steps, 1), "checkpoint.keep": (checkpoint.keep, 1)})
    require_positive({"checkpoint.every_minutes": checkpoint.every_minutes})


def validate_eval(evaluation: EvalConfig) -> None:
    """Raises UserError for values that cannot work."""
    require_at_least({"eval.global_batch_size": (evaluation.global_batch_size, 1)})
