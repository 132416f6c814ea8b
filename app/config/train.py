"""`run`, `train`, `loss`, `eval` and `checkpoint`: the course of a run."""

import math
import unicodedata
from dataclasses import dataclass, replace
from enum import Enum

from omegaconf import MISSING

from app.config.checks import require_at_least, require_positive
from common.errors import UserError

NOT_IN_NAMES = frozenset("/\\$;&|<>*?\"'`!(){}[]#~")
MAX_NAME_BYTES = 200
# Three times the samples before the first evaluation in MLPerf Training 6.1's rules for dlrmv4: at least, and per batch
DLRMV4_FIRST_EVAL, DLRMV4_FIRST_EVAL_PER_BATCH = 135_331_840, 4480


class OnNan(Enum):
    """stop at a loss that is NaN or infinite, or skip the update of its step; of gradients, always stop."""

    stop = "stop"
    skip = "skip"


class Pipeline(Enum):
    """none: one batch after the other; sparse_dist: the next one's ids travel meanwhile, by TorchRec's stages."""

    auto = "auto"
    none = "none"
    sparse_dist = "sparse_dist"


class EvalGrid(Enum):
    """down: each step rounded down; dlrmv4: their distance rounded up, the first held back by MLPerf 6.1."""

    down = "down"
    dlrmv4 = "dlrmv4"


@dataclass
class RunConfig:
    """The run's name and directory."""

    name: str = MISSING
    dir: str = "runs/${run.name}"


@dataclass
class TrainConfig:
    """Length of the run, batch size, evaluation and logging."""

    global_batch_size: int = 0  # samples a step over all processes; 0: local_batch_size times their number
    local_batch_size: int | None = None  # samples a step of each process
    epochs: int | None = None  # null: one, or as many as max_steps or max_samples take
    max_steps: int | None = None  # stop after this number of steps; 0 builds the run and ends
    max_samples: int | None = None  # stop before the step that would exceed this number of samples
    max_minutes: float | None = None  # stop resumably after this time
    seed: int = 0  # initial values and data order
    eval_every_steps: int | None = None  # null: only at the end
    eval_every_fraction: float | None = None  # the same as a share of an epoch: 0.05: 20 times in each, 1: at its end
    eval_grid: EvalGrid = EvalGrid.down  # steps that eval_every_fraction means
    target_auc: float | None = None  # stop once an evaluation reaches it
    target_accuracy: float | None = None  # likewise
    log_every_steps: int = 50  # steps in one window: a line of metrics.jsonl
    print_windows: bool = False  # each window on the terminal too, as benchmarks print them
    warmup_steps_excluded: int = 10  # first steps of this process left out of throughput figures
    on_nan: OnNan = OnNan.stop  # skip: waits for the device at each step
    pipeline: Pipeline = Pipeline.auto  # auto: sparse_dist where several processes have a GPU each
    deterministic: bool = False  # GPU: slower kernels with fixed summation order. On CPU always so


@dataclass
class EvalConfig:
    """Evaluation during and after training."""

    split: str = "val"
    train_split: bool = False  # evaluate the training split as well, each time, and compare both
    global_batch_size: int = 16_384
    exact_rows: int = 1 << 28  # of a larger split the AUC is from a histogram, with its error's bound


@dataclass
class CheckpointConfig:
    """Intervals of saving, checkpoints kept, and the one to start from."""

    every_steps: int | None = None
    every_minutes: float | None = None
    keep: int = 2  # newest whole checkpoints that stay
    keep_best: bool = True  # and the one of the highest eval AUC; an evaluation that is the best so far saves it
    asynchronous: bool = True  # training waits for a copy in host memory only; a thread writes it
    resume: str = "auto"  # auto: the run's newest whole one; never: start over; a path: of a checkpoint or a run
    overwrite: bool = False  # let `resume` remove checkpoints of this run: all, or those after the one it starts from


def validate_names(run: RunConfig, checkpoint: CheckpointConfig) -> None:
    """Raises UserError for a name that is empty."""
    named = {"run.name": run.name, "run.dir": run.dir, "checkpoint.resume": checkpoint.resume}
    for key, text in named.items():
        if not text.strip() or "\0" in text:
            raise UserError(f"{key}={text.strip()}: must be a name, not empty and without null characters")


def validate_new_name(name: str) -> None:
    """Raises UserError for the name of a new run that is no plain name of a directory, safe to type in a shell."""
    fault = next((f"{character!r} in it" for character in name
                  if character in NOT_IN_NAMES or unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")),
                 None)  # fmt: skip
    if fault is None and name[0] in ".-":
        fault = f"{name[0]!r} at its beginning"
    if fault is None and name != name.strip():
        fault = "a blank at its end"
    if fault is None and len(name.encode()) > MAX_NAME_BYTES:
        fault = f"more than {MAX_NAME_BYTES} bytes"
    if fault is not None:
        raise UserError(f"run.name={name}: a name with {fault} is not taken; choose a plain one, such as a1, and give "
                        "the directory in run.dir")  # fmt: skip


def validate_train(train: TrainConfig) -> None:
    """Raises UserError for values that cannot work."""
    _validate_batch(train)
    minima = {"epochs": 1, "max_steps": 0, "max_samples": 0, "seed": 0, "eval_every_steps": 1,
             "log_every_steps": 1, "warmup_steps_excluded": 0}  # fmt: skip
    require_at_least({f"train.{key}": (getattr(train, key), bound) for key, bound in minima.items()})
    require_positive({"train.max_minutes": train.max_minutes})
    for key in ("target_auc", "target_accuracy", "eval_every_fraction"):
        share = getattr(train, key)
        if share is not None and not 0 < share <= 1:
            raise UserError(f"train.{key}={share}: must be in (0, 1]")
    if train.eval_every_steps is not None and train.eval_every_fraction is not None:
        raise UserError(
            f"train.eval_every_steps={train.eval_every_steps}: has no effect with "
            f"train.eval_every_fraction={train.eval_every_fraction}; set one of them to null"
        )
    if train.eval_grid is not EvalGrid.down and train.eval_every_fraction is None:
        raise UserError(f"train.eval_grid={train.eval_grid.value}: has no effect without train.eval_every_fraction; "
                        "set it to down, or give a fraction such as train.eval_every_fraction=0.001")  # fmt: skip
    if train.seed >= 2**63:
        raise UserError(f"train.seed={train.seed}: must be below 2^63")
    if train.max_samples is not None and train.max_steps is None and train.max_samples < train.global_batch_size:
        raise UserError(
            f"train.max_samples={train.max_samples}: not one batch of train.global_batch_size={train.global_batch_size}"
        )


def _validate_batch(train: TrainConfig) -> None:
    total, local = train.global_batch_size, train.local_batch_size
    if local is not None and total:
        raise UserError(
            f"train.global_batch_size={total}: has no effect with train.local_batch_size={local}; set "
            "train.local_batch_size=null or train.global_batch_size=0"
        )
    key, value = ("global", total) if local is None else ("local", local)
    require_at_least({f"train.{key}_batch_size": (value, 1)})


def with_batch_of_all(train: TrainConfig, world_size: int) -> TrainConfig:
    """Return the configuration with the global batch size, if the local one was given."""
    if train.local_batch_size is None:
        return train
    return replace(train, global_batch_size=train.local_batch_size * world_size, local_batch_size=None)


def evaluation_steps(train: TrainConfig, rows: int) -> tuple[float | None, int]:
    """The distance of evaluations in steps, at least 1, and a number of steps before which there is none.

    The k-th is after k distances, rounded down. None: there is one at the end only. rows: of the training split, of
    which an epoch may leave out some.
    """
    share, batch = train.eval_every_fraction, train.global_batch_size
    if share is None:
        return train.eval_every_steps, 0
    if train.eval_grid is EvalGrid.down:
        return max(1.0, share * (rows // batch)), 0
    every = max(1, math.ceil(share * rows / batch))
    return every, math.ceil((DLRMV4_FIRST_EVAL + DLRMV4_FIRST_EVAL_PER_BATCH * batch) // 3 / (every * batch)) * every


def validate_checkpoint(checkpoint: CheckpointConfig) -> None:
    """Raises UserError for values that cannot work."""
    require_at_least({"checkpoint.every_steps": (checkpoint.every_steps, 1), "checkpoint.keep": (checkpoint.keep, 1)})
    require_positive({"checkpoint.every_minutes": checkpoint.every_minutes})
    if checkpoint.overwrite and checkpoint.resume == "auto":
        raise UserError(
            "checkpoint.overwrite=true: has no effect with checkpoint.resume=auto; leave it out, or give "
            "checkpoint.resume=never to start over"
        )


def validate_eval(evaluation: EvalConfig) -> None:
    """Raises UserError for values that cannot work."""
    require_at_least(
        {
            "eval.global_batch_size": (evaluation.global_batch_size, 1),
            "eval.exact_rows": (evaluation.exact_rows, 0),
        }
    )


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
