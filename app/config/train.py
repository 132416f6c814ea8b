"""`run`, `train`, `loss`, `eval` and `checkpoint`: the course of a run."""

import math
import unicodedata
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar, TypeAlias

from app.kinds.metrics import AUC, GROUPS, METRICS, RANKED
from common.errors import UserError
from common.keys import MISSING, key, shown

NOT_IN_NAMES = frozenset("/\\$;&|<>*?\"'`!(){}[]#~")
MAX_NAME_BYTES = 200
# MLPerf Training 6.1 rules for dlrmv4: three times the samples before the first evaluation; a minimum, and per batch.
DLRMV4_FIRST_EVAL, DLRMV4_FIRST_EVAL_PER_BATCH = 135_331_840, 4480


LAYOUT = "layout"  # value of train.deterministic
MICRO_BATCH = 256  # chosen by benchmarks.invariance: 128 rows cost 10 % more
LARGE_BATCH = 1024  # samples; on CPUs, fp32 products differ from this size on (docs/performance.md)
DEFAULT_EVAL_FRACTION = 0.3  # share of an epoch: three evaluations, and one at its end
Monitor: TypeAlias = str | dict[str, float]  # value of train.monitor


class OnNan(Enum):
    """Reaction to a loss that is not finite: stop, or skip its step's update. Such gradients always stop the run."""

    stop = "stop"
    skip = "skip"


class Pipeline(Enum):
    """none: one batch after the other; sparse_dist: the next batch's ids travel meanwhile, by TorchRec's stages."""

    auto = "auto"
    none = "none"
    sparse_dist = "sparse_dist"


class EvalGrid(Enum):
    """Rounding of evaluation steps. down: each one down; dlrmv4: their distance up, the first late as in MLPerf 6.1."""

    down = "down"
    dlrmv4 = "dlrmv4"


@dataclass(frozen=True)
class RunConfig:
    """The run's name and directory."""

    decides_bits: ClassVar[bool] = False

    name: str = key(MISSING, "name of the run and its directory", is_name=True, is_common=True)
    dir: str = key("runs/${run.name}", "directory of the run", is_name=True)


@dataclass(frozen=True)
class TrainConfig:
    """Length of the run, batch size, evaluation and logging."""

    global_batch_size: int = key(
        0,
        "samples per step over all processes; 0: local_batch_size times the number of processes",
        at_least=0,
        is_common=True,
    )
    local_batch_size: int | None = key(None, "samples per step of each process", at_least=1, decides_bits=False)
    epochs: int | None = key(
        None,
        "passes over the training split; null: one, or as many as max_steps or max_samples need",
        at_least=1,
        is_common=True,
        decides_bits=False,
    )
    max_steps: int | None = key(
        None,
        "stop after this number of steps; 0 builds the run and ends",
        at_least=0,
        is_common=True,
        decides_bits=False,
    )
    max_samples: int | None = key(
        None, "stop before the step that would exceed this number of samples", at_least=0, decides_bits=False
    )
    max_minutes: float | None = key(
        None, "minutes after which the run saves and stops, to be resumed", above=0, decides_bits=False
    )
    seed: int = key(0, "seed of initial values and data order", at_least=0, below=2**63, is_common=True)
    drop_last: bool = key(True, "leave out the rows of an epoch that fill no whole batch; false: train on them, too")
    eval_every_steps: int | None = key(
        None,
        "steps between evaluations; null: only at the end; 0: 0.3 of an epoch, unless eval_every_fraction is given",
        at_least=0,
        is_common=True,
        decides_bits=False,
    )
    eval_every_fraction: float | None = key(
        None,
        "share of an epoch between evaluations: 0.05 is 20 evaluations an epoch, 1 is one at its end",
        within="(0, 1]",
        decides_bits=False,
    )
    eval_grid: EvalGrid = key(
        EvalGrid.down,
        "how eval_every_fraction is rounded to steps",
        only_with=("eval_every_fraction",),
        decides_bits=False,
    )
    target_auc: float | None = key(
        None, "stop once an evaluation reaches this AUC", within="(0, 1]", is_common=True, decides_bits=False
    )
    target_accuracy: float | None = key(
        None, "stop once an evaluation reaches this accuracy", within="(0, 1]", decides_bits=False
    )
    monitor: Any = key(
        AUC,
        "metric that ranks evaluations; or weights of a sum to maximise, such as {auc:1,logloss:-1}",
        is_common=True,
    )
    early_stop_patience: int | None = key(
        None,
        "end the run after this number of evaluations in a row without a gain of monitor; null: never",
        at_least=1,
        is_common=True,
        decides_bits=False,
    )
    log_every_steps: int = key(50, "steps in one window: a line of metrics.jsonl", at_least=1, decides_bits=False)
    print_windows: bool = key(False, "print a line for each window on the terminal too", decides_bits=False)
    warmup_steps_excluded: int = key(
        10, "first steps of this process left out of throughput figures", at_least=0, decides_bits=False
    )
    on_nan: OnNan = key(
        OnNan.stop, "response to a loss that is not finite; skip waits for the device at each step", decides_bits=False
    )
    pipeline: Pipeline = key(
        Pipeline.auto,
        "order of work on batches; auto: sparse_dist if several processes have a GPU each",
        decides_bits=False,
    )
    deterministic: Any = key(
        False,
        "true: slower GPU kernels that add in a fixed order, as CPUs always do; layout: the same bits on any number of "
        "processes and threads",
        decides_bits=False,
    )
    micro_batch_size: int | None = key(
        None, f"rows of a micro-batch of deterministic=layout; null: {MICRO_BATCH}", at_least=1, below=LARGE_BATCH
    )

    @property
    def micro_batch(self) -> int | None:
        """Rows of a micro-batch with train.deterministic=layout; None for other runs."""
        return (self.micro_batch_size or MICRO_BATCH) if self.deterministic == LAYOUT else None

    def local_rows(self, world_size: int) -> int:
        """Return each process's rows of a global batch; with deterministic=layout, the last ones may be padding."""
        if self.micro_batch is None:
            return self.global_batch_size // world_size
        return part_size(self.global_batch_size, world_size, self.micro_batch)

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches in a whole global batch, with train.deterministic=layout."""
        return -(-self.global_batch_size // (self.micro_batch or 1))


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation during and after training."""

    decides_bits: ClassVar[bool] = False

    split: str = key("val", "split to evaluate", is_common=True)
    train_split: bool = key(False, "evaluate the training split as well, each time, and compare both")
    global_batch_size: int = key(16_384, "samples per evaluation step over all processes", at_least=1)
    exact_rows: int = key(
        1 << 28, "largest split with an exact AUC; beyond, a histogram gives it with a bound of its error", at_least=0
    )
    group_by: str | None = key(
        None,
        "column with one id per row, such as the user's; GAUC, HR@10 and NDCG@10 are over groups of rows with the same "
        "id; null: none of these metrics",
        is_name=True,
        decides_bits=True,
    )
    keep_scores: int = key(
        0,
        "keep the served model's scores of the test split (without one, of the evaluated split) if it has at most this "
        "number of rows, to compare runs row by row; 0: keep none",
        at_least=0,
    )


@dataclass(frozen=True)
class CheckpointConfig:
    """Intervals of saving, the checkpoints to keep, and the one to start from."""

    decides_bits: ClassVar[bool] = False

    every_steps: int | None = key(
        None,
        "steps between checkpoints; null: by every_minutes, or one at the end",
        at_least=1,
        is_common=True,
    )
    every_minutes: float | None = key(
        None, "minutes between checkpoints; null: by every_steps, or one at the end", above=0
    )
    keep: int = key(2, "number of newest complete checkpoints to keep", at_least=1)
    keep_best: bool = key(True, "also keep the best by train.monitor, which is saved at its evaluation")
    asynchronous: bool = key(True, "training waits only for a copy in host memory, which a thread writes")
    resume: str = key(
        "auto",
        "auto: from the run's newest complete checkpoint; never: start over; or the path of a checkpoint or run",
        is_name=True,
        is_common=True,
    )
    overwrite: bool = key(
        False, "let `resume` remove checkpoints of this run: all, or those after the one it starts from"
    )


def part_size(rows: int, world_size: int, micro_batch: int | None) -> int:
    """Return the rows that each process takes of a batch: an equal part, or whole micro-batches, rounded up."""
    unit = micro_batch or 1
    return -(-rows // (unit * world_size)) * unit


def validate_new_name(name: str) -> None:
    """Raise UserError if a new run's name is not a plain directory name that is safe to type in a shell."""
    fault = next(
        (
            f"{character!r} in it"
            for character in name
            if character in NOT_IN_NAMES or unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        ),
        None,
    )
    if fault is None and name[0] in ".-":
        fault = f"{name[0]!r} at its beginning"
    if fault is None and name != name.strip():
        fault = "a blank at its end"
    if fault is None and len(name.encode()) > MAX_NAME_BYTES:
        fault = f"more than {MAX_NAME_BYTES} bytes"
    if fault is not None:
        raise UserError(
            f"run.name={name}: a name with {fault} is not taken; choose a plain one, such as a1, and give "
            "the directory in run.dir"
        )


def validate_train(train: TrainConfig) -> None:
    """Raise UserError for values that cannot work."""
    _validate_batch(train)
    if train.eval_every_steps and train.eval_every_fraction is not None:
        raise UserError(
            f"train.eval_every_steps={train.eval_every_steps}: has no effect with "
            f"train.eval_every_fraction={train.eval_every_fraction}; set one of them to null"
        )
    if train.max_samples is not None and train.max_steps is None and train.max_samples < train.global_batch_size:
        raise UserError(
            f"train.max_samples={train.max_samples}: not one batch of train.global_batch_size={train.global_batch_size}"
        )


def keys_by_evaluations(train: TrainConfig, cuts_rate: bool) -> list[str]:
    """Return the keys, with values, that let evaluations decide; cuts_rate: whether the schedule uses them."""
    patience = train.early_stop_patience
    stops = [] if patience is None else [f"train.early_stop_patience={patience}"]
    return stops + ["schedule=plateau"] * cuts_rate


def metrics_of(monitor: Monitor) -> list[str]:
    """Return the metrics that train.monitor names."""
    return [monitor] if isinstance(monitor, str) else list(monitor)


def validate_monitor(train: TrainConfig, checkpoint: CheckpointConfig, cuts_rate: bool, over: str) -> None:
    """Refuse keys that evaluations cannot decide.

    cuts_rate: whether the schedule uses evaluations. over: the unit of samples that metrics can be over; empty: none.
    """
    shown_monitor = f"train.monitor={shown(train.monitor)}"
    weights = {train.monitor: 1.0} if isinstance(train.monitor, str) else train.monitor
    for name, weight in weights.items() if isinstance(weights, dict) and weights else [("", 0.0)]:
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if name not in RANKED or not is_number or not math.isfinite(weight) or not weight:
            raise UserError(
                f"{shown_monitor}: must be one of {', '.join(RANKED)}, or weights of some, such as {{auc:1,logloss:-1}}"
            )
        if METRICS[name].over and over not in METRICS[name].over:
            entities = "users, which only logs of events have"
            remedy = "use auc"
            if GROUPS in METRICS[name].over:
                entities, remedy = "groups of rows", "use gauc" if over else "give eval.group_by=COLUMN, or use auc"
            raise UserError(f"{shown_monitor}: {name} is over {entities}; {remedy}")
    users = keys_by_evaluations(train, cuts_rate)
    if users and train.eval_every_steps is None and train.eval_every_fraction is None:
        raise UserError(
            f"{users[0]}: has no effect without evaluations while training; add train.eval_every_fraction=1 for one an "
            "epoch, or train.eval_every_steps"
        )
    if train.monitor != AUC and not users and not checkpoint.keep_best:
        raise UserError(
            f"{shown_monitor}: has no effect with checkpoint.keep_best=false; leave it out, or use "
            "train.early_stop_patience or schedule=plateau"
        )


def _validate_batch(train: TrainConfig) -> None:
    total, local = train.global_batch_size, train.local_batch_size
    if local is not None and total:
        raise UserError(
            f"train.global_batch_size={total}: has no effect with train.local_batch_size={local}; set "
            "train.local_batch_size=null or train.global_batch_size=0"
        )
    if local is None and not total:
        raise UserError("train.global_batch_size=0: must be at least 1, or give train.local_batch_size")


def with_batch_of_all(train: TrainConfig, world_size: int) -> TrainConfig:
    """Return the configuration with the global batch size, if the local one was given."""
    if train.local_batch_size is None:
        return train
    return replace(train, global_batch_size=train.local_batch_size * world_size, local_batch_size=None)


def with_evaluation_distance(train: TrainConfig, steps_per_epoch: int) -> TrainConfig:
    """Return the configuration with the steps between evaluations, if they were left to the length of an epoch."""
    if train.eval_every_steps != 0:
        return train
    if train.eval_every_fraction is not None:
        return replace(train, eval_every_steps=None)
    return replace(train, eval_every_steps=max(1, int(DEFAULT_EVAL_FRACTION * steps_per_epoch)))


def steps_per_epoch(train: TrainConfig, rows: int) -> int:
    """Return the steps of an epoch over rows (not events)."""
    return rows // train.global_batch_size if train.drop_last else -(-rows // train.global_batch_size)


def samples_of(train: TrainConfig, rows: int, steps: int) -> int:
    """Return the samples of a run's first steps; rows: number in the training split."""
    if train.drop_last:
        return steps * train.global_batch_size
    epochs, others = divmod(steps, steps_per_epoch(train, rows))
    return epochs * rows + others * train.global_batch_size


def steps_within(train: TrainConfig, rows: int, samples: int) -> int:
    """Return the most steps that have at most this number of samples; rows: number in the training split."""
    if train.drop_last:
        return samples // train.global_batch_size
    epochs, others = divmod(samples, rows)
    return epochs * steps_per_epoch(train, rows) + others // train.global_batch_size


def evaluation_steps(train: TrainConfig, rows: int) -> tuple[float | None, int]:
    """Return the distance of evaluations in steps, at least 1, and a number of steps before which there is none.

    The k-th evaluation is after k distances, rounded down. A distance of None means only one, at the end. rows: number
    in the training split; an epoch may leave out some of them.
    """
    share, batch = train.eval_every_fraction, train.global_batch_size
    if share is None:
        return train.eval_every_steps, 0
    if train.eval_grid is EvalGrid.down:
        return max(1.0, share * steps_per_epoch(train, rows)), 0
    every = max(1, math.ceil(share * rows / batch))
    return every, math.ceil((DLRMV4_FIRST_EVAL + DLRMV4_FIRST_EVAL_PER_BATCH * batch) // 3 / (every * batch)) * every


def validate_checkpoint(checkpoint: CheckpointConfig) -> None:
    """Raise UserError for values that cannot work."""
    if checkpoint.overwrite and checkpoint.resume == "auto":
        raise UserError(
            "checkpoint.overwrite=true: has no effect with checkpoint.resume=auto; leave it out, or give "
            "checkpoint.resume=never to start over"
        )


class LossName(Enum):
    """Mean over the batch of binary cross-entropy, of the same with a weight per class, or of the squared error."""

    bce = "bce"
    weighted_bce = "weighted_bce"
    mse = "mse"


@dataclass(frozen=True)
class LossConfig:
    """The training loss; evaluation's metrics do not depend on it. Formulas: docs/models.md."""

    name: LossName = key(MISSING, "set by loss=NAME")
    class_weights: list[float] | None = key(
        None, "weighted_bce: weights of label 0 and of label 1, such as [1,3]; they shift probabilities"
    )
    threshold: float = key(
        0.0,
        "clamp the predictions in the loss to [threshold, 1 - threshold], without a gradient beyond",
        at_least=0,
        below=0.5,
    )

    @property
    def is_logloss(self) -> bool:
        """Whether the training loss is the logloss of the samples trained on."""
        return self.name is LossName.bce and not self.threshold


def validate_loss(loss: LossConfig) -> None:
    """Raise UserError for values that cannot work or would do nothing."""
    weights = loss.class_weights
    if loss.name is LossName.weighted_bce:
        if weights is None or len(weights) != 2 or not all(0 < weight < math.inf for weight in weights):
            raise UserError(
                f"loss.class_weights={weights}: must be the weights of label 0 and of label 1, such as [1,3]"
            )
    elif weights is not None:
        raise UserError(f"loss.class_weights={weights}: has no effect with loss={loss.name.value}")
