"""`run`, `train`, `loss`, `eval`, `checkpoint`, `optimizer`, `schedule`, `runtime`, `environment` and `record`."""

import math
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

from app.config.data import part_size
from app.config.kinds import AUC, OptimizerName, ScheduleName, with_key
from common.errors import UserError
from common.keys import MISSING, key, shown

NOT_IN_NAMES = frozenset("/\\$;&|<>*?\"'`!(){}[]#~")
# File systems take names of at most 255 bytes, and other names are made from this one.
MAX_NAME_BYTES = 200
# MLPerf Training 6.1 rules for dlrmv4: three times the samples before the first evaluation; a minimum, and per batch.
DLRMV4_FIRST_EVAL, DLRMV4_FIRST_EVAL_PER_BATCH = 135_331_840, 4480


LAYOUT = "layout"  # value of train.deterministic
MICRO_BATCH = 256  # chosen by benchmarks.invariance: 128 rows cost 10 % more
LARGE_BATCH = 1024  # samples; on CPUs, fp32 products differ from this size on (docs/performance.md)
DEFAULT_EVAL_FRACTION = 0.3  # share of an epoch: three evaluations, and one at its end
Monitor: TypeAlias = str | dict[str, float]  # value of train.monitor


@dataclass(frozen=True)
class RunConfig:
    """The run's name and directory."""

    decides_bits: ClassVar[bool] = False

    name: str = key(MISSING, "name of the run and its directory", is_name=True, is_common=True)
    dir: str = key("runs/${run.name}", "directory of the run", is_name=True)


@dataclass(frozen=True)
class TrainConfig:
    """Length of the run, batch size, evaluation and logging."""

    decides_bits: ClassVar[bool] = False

    global_batch_size: int = key(
        2048, "samples per step over all processes", at_least=1, is_common=True, decides_bits=True
    )
    epochs: int | None = key(
        None,
        "passes over the training split; null: one, or as many as max_steps or max_samples need",
        at_least=1,
        is_common=True,
    )
    max_steps: int | None = key(
        None, "stop after this number of steps; 0 builds the run and ends", at_least=0, is_common=True
    )
    max_samples: int | None = key(None, "stop before the step that would exceed this number of samples", at_least=0)
    max_minutes: float | None = key(None, "minutes after which the run saves and stops, to be resumed", above=0)
    seed: int = key(
        0, "seed of initial values and data order", at_least=0, below=2**63, is_common=True, decides_bits=True
    )
    drop_last: bool = key(
        True, "leave out the rows of an epoch that fill no whole batch; false: train on them, too", decides_bits=True
    )
    eval_every_steps: int | None = key(
        None,
        "steps between evaluations; null: only at the end; 0: 0.3 of an epoch, unless eval_every_fraction is given",
        at_least=0,
        is_common=True,
        only_with={"eval_every_fraction": None},
    )
    eval_every_fraction: float | None = key(
        None,
        "share of an epoch between evaluations: 0.05 is 20 evaluations an epoch, 1 is one at its end",
        within="(0, 1]",
    )
    # Rounding of evaluation steps. down: each one down; dlrmv4: their distance up, the first late as in MLPerf 6.1.
    eval_grid: Literal["down", "dlrmv4"] = key(
        "down", "how eval_every_fraction is rounded to steps", only_with="eval_every_fraction"
    )
    target_auc: float | None = key(None, "stop once an evaluation reaches this AUC", within="(0, 1]", is_common=True)
    target_accuracy: float | None = key(None, "stop once an evaluation reaches this accuracy", within="(0, 1]")
    monitor: Any = key(
        AUC,
        "metric that ranks evaluations; or weights of a sum to maximise, such as {auc:1,logloss:-1}",
        is_common=True,
        decides_bits=True,
    )
    early_stop_patience: int | None = key(
        None,
        "end the run after this number of evaluations in a row without a gain of monitor; null: never",
        at_least=1,
        is_common=True,
    )
    log_every_steps: int = key(50, "steps in one window: a line of metrics.jsonl", at_least=1)
    warmup_steps_excluded: int = key(10, "first steps of this process left out of throughput figures", at_least=0)
    # Reaction to a loss that is not finite: stop, or skip its step's update. Such gradients always stop the run.
    on_nan: Literal["stop", "skip"] = key(
        "stop", "response to a loss that is not finite; skip waits for the device at each step"
    )
    # none: one batch after the other; sparse_dist: the next batch's ids travel meanwhile, by TorchRec's stages.
    pipeline: Literal["auto", "none", "sparse_dist"] = key(
        "auto", "order of work on batches; auto: sparse_dist if several processes have a GPU each"
    )
    deterministic: Any = key(
        False,
        "true: slower GPU kernels that add in a fixed order, as CPUs always do; layout: the same bits on any number of "
        "processes and threads",
    )
    micro_batch_size: int | None = key(
        None,
        f"rows of a micro-batch of deterministic=layout; null: {MICRO_BATCH}",
        at_least=1,
        below=LARGE_BATCH,
        only_with={"deterministic": LAYOUT},
        decides_bits=True,
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

    def faults(self) -> Iterator[str]:
        batch = self.global_batch_size
        if self.max_samples is not None and self.max_steps != 0 and self.max_samples < batch:
            yield f"train.max_samples={self.max_samples}: not one batch of train.global_batch_size={batch}"
        if self.deterministic not in (False, True, LAYOUT):
            yield f"train.deterministic={shown(self.deterministic)}: must be true, false or {LAYOUT}"


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation during and after training."""

    decides_bits: ClassVar[bool] = False

    split: str = key("val", "split to evaluate", is_common=True)
    train_split: bool = key(False, "evaluate the training split as well, each time, and compare both")
    before_training: bool = key(False, "evaluate before the first step, too")
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
        None, "steps between checkpoints; null: by every_minutes, or one at the end", at_least=1, is_common=True
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
    warm_start_from: str | None = key(
        None,
        "run or checkpoint whose parameters a new run begins with; rows of tables are matched by value",
        is_name=True,
        decides_bits=True,
    )
    warm_start_optimizer: bool = key(
        True, "take the optimizer's state, too", only_with="warm_start_from", decides_bits=True
    )
    warm_start_skip: list[str] = key(
        [], "dense layers that begin anew, such as [over_arch.0]", only_with="warm_start_from", decides_bits=True
    )

    def faults(self) -> Iterator[str]:
        if self.warm_start_from is not None and self.resume not in ("auto", "never"):
            yield f"checkpoint.resume={self.resume}: has no effect beside checkpoint.warm_start_from; leave one out"
        if self.overwrite and self.resume == "auto":
            yield (
                "checkpoint.overwrite=true: has no effect with checkpoint.resume=auto; leave it out, or give "
                "checkpoint.resume=never to start over"
            )


def validate_new_name(name: str) -> None:
    """Raise UserError if a new run's name is not a plain directory name that is safe to type in a shell."""
    odd = [c for c in name if c in NOT_IN_NAMES or unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    faults = [f"{character!r} in it" for character in odd]
    faults += [f"{name[0]!r} at its beginning"] if name[0] in ".-" else []
    faults += ["a blank at its end"] if name != name.strip() else []
    faults += [f"more than {MAX_NAME_BYTES} bytes"] if len(name.encode()) > MAX_NAME_BYTES else []
    for fault in faults:
        raise UserError(
            f"run.name={name}: a name with {fault} is not taken; choose a plain one, such as a1, and give "
            "the directory in run.dir"
        )


def keys_by_evaluations(train: TrainConfig, cuts_rate: bool) -> list[str]:
    """Return the settings by which evaluations stop the run or cut its rate; cuts_rate: whether the schedule does."""
    patience = train.early_stop_patience
    stops = [] if patience is None else [f"train.early_stop_patience={patience}"]
    return stops + ["schedule=plateau"] * cuts_rate


def metrics_of(monitor: Monitor) -> list[str]:
    """Return the metrics that train.monitor names."""
    return [monitor] if isinstance(monitor, str) else list(monitor)


def with_evaluation_distance(train: TrainConfig, steps_per_epoch: int) -> TrainConfig:
    """Return the configuration without eval_every_steps=0, which leaves the distance to the length of an epoch.

    It becomes None beside eval_every_fraction, and else DEFAULT_EVAL_FRACTION of an epoch's steps, at least 1.
    """
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
    # The last batch of an epoch may be smaller, so whole epochs are counted by their rows.
    epochs, further_steps = divmod(steps, steps_per_epoch(train, rows))
    return epochs * rows + further_steps * train.global_batch_size


def steps_within(train: TrainConfig, rows: int, samples: int) -> int:
    """Return the most steps that have at most this number of samples; rows: number in the training split."""
    if train.drop_last:
        return samples // train.global_batch_size
    epochs, further_samples = divmod(samples, rows)
    return epochs * steps_per_epoch(train, rows) + further_samples // train.global_batch_size


def evaluation_steps(train: TrainConfig, rows: int) -> tuple[float | None, int]:
    """Return the distance of evaluations in steps, at least 1, and a number of steps before which there is none.

    The k-th evaluation is after k distances, rounded down. A distance of None means only one, at the end. rows: number
    in the training split; an epoch may leave out some of them.
    """
    share, batch = train.eval_every_fraction, train.global_batch_size
    if share is None:
        return train.eval_every_steps, 0
    if train.eval_grid == "down":
        return max(1.0, share * steps_per_epoch(train, rows)), 0
    distance = max(1, math.ceil(share * rows / batch))
    # As DLRMv4's reference: the first evaluation is at the first multiple of the distance with this many samples.
    first_samples = (DLRMV4_FIRST_EVAL + DLRMV4_FIRST_EVAL_PER_BATCH * batch) // 3
    return distance, math.ceil(first_samples / (distance * batch)) * distance


# Mean over the batch of binary cross-entropy, of the same with a weight per class, or of the squared error.
LossName: TypeAlias = Literal["bce", "weighted_bce", "mse"]


@dataclass(frozen=True)
class LossConfig:
    """The training loss; evaluation's metrics do not depend on it. Formulas: docs/models.md."""

    name: LossName = key(MISSING, "set by loss=NAME")
    class_weights: list[float] | None = key(
        None,
        "weighted_bce: weights of label 0 and of label 1, such as [1,3]; they shift probabilities",
        only_with={"name": "weighted_bce"},
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
        return self.name == "bce" and not self.threshold

    def faults(self) -> Iterator[str]:
        weights = self.class_weights
        is_pair = weights is not None and len(weights) == 2 and all(0 < weight < math.inf for weight in weights)
        if self.name == "weighted_bce" and not is_pair:
            yield f"loss.class_weights={weights}: must be the weights of label 0 and of label 1, such as [1,3]"


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
        only_with="max_grad_norm",
    )
    weight_decay: float = key(0.0, "L2 of dense parameters: adds this times a parameter to its gradient", at_least=0)
    sparse_weight_decay: float = key(
        0.0,
        "L2 of tables, on all rows at every step, and of dense features' vectors; torch then updates tables",
        at_least=0,
    )

    @property
    def table_lr(self) -> float:
        """Base learning rate of tables."""
        return self.lr if self.sparse_lr is None else self.sparse_lr

    @property
    def dense_name(self) -> OptimizerName:
        """Algorithm for dense parameters."""
        return self.dense or self.name.plain

    def faults(self) -> Iterator[str]:
        if self.dense is not None and self.dense.plain is not self.dense:
            yield f"optimizer.dense={self.dense.value}: only tables have rows; use {self.dense.plain.value}"
        # One key serves the algorithms of tables and of layers, so it is needed if either needs it.
        used = {self.name, self.dense_name}
        names = " and ".join(sorted(name.value for name in used))
        examples = {name: value for kind in used for name, value in kind.algorithm.settings.items()}
        for name in ("eps", "beta1", "beta2"):
            value = getattr(self, name)
            if name in examples and value is None:
                yield f"optimizer.{name}=null: {names} needs one, such as {examples[name]}"
            if name not in examples and value is not None:
                yield f"optimizer.{name}={value}: has no effect with {names}"
        for name, kind in (("weight_decay", self.dense_name), ("sparse_weight_decay", self.name)):
            if getattr(self, name) and not kind.algorithm.has_weight_decay:
                usable = ", ".join(
                    optimizer.value for optimizer in OptimizerName if optimizer.algorithm.has_weight_decay
                )
                yield f"optimizer.{name}={getattr(self, name)}: {kind.value} has none; use one of {usable}"


@dataclass(frozen=True)
class ScheduleConfig:
    """Factor on the learning rates at each step."""

    name: ScheduleName = key(MISSING, "set by schedule=NAME")
    warmup_steps: int = key(0, "steps of the linear warm-up", at_least=0, only_with={"name": with_key("warmup_steps")})
    decay_start_step: int = key(
        0, "step at which the decay begins", at_least=0, only_with={"name": with_key("decay_start_step")}
    )
    decay_steps: int = key(0, "steps that the decay takes", at_least=0, only_with={"name": with_key("decay_steps")})
    end_factor: float = key(0.0, "cosine: final factor", within="[0, 1]", only_with={"name": with_key("end_factor")})
    factor: float = key(
        0.1, "plateau: factor of the rates at a cut", within="(0, 1)", only_with={"name": with_key("factor")}
    )
    patience: int = key(
        0,
        "plateau: number of evaluations without a gain before a cut; 0: cut at the first",
        at_least=0,
        only_with={"name": with_key("patience")},
    )
    threshold: float = key(
        1e-6, "the smallest gain of train.monitor that counts, for plateau and train.early_stop_patience", at_least=0
    )
    min_lr: float = key(1e-6, "plateau: lowest rate after cuts", at_least=0, only_with={"name": with_key("min_lr")})

    def faults(self) -> Iterator[str]:
        needed = self.name.schedule.needs
        yield from (f"schedule.{name}=0: {rule}" for name, rule in needed.items() if not getattr(self, name))
        if self.decay_steps and self.decay_start_step < self.warmup_steps:
            yield (
                f"schedule.decay_start_step={self.decay_start_step}: the decay may not start before the warm-up ends "
                f"(schedule.warmup_steps={self.warmup_steps})"
            )


# Devices to compute on; `auto` takes the GPUs that torch was built for, if it sees any.
Platform: TypeAlias = Literal["auto", "cpu", "cuda", "rocm"]
# Arithmetic of the dense layers; tables and losses stay fp32.
Precision: TypeAlias = Literal["fp32", "tf32", "bf16"]
# Execution of DLRM's dense layers and interaction in training: kernel by kernel, by torch.compile, or by CUDA graphs of
# the kernels of `none`. auto: step where graphs can hold every batch, else none (`Session.compile`); of an existing
# run, its own.
Compile: TypeAlias = Literal["auto", "none", "dense", "step"]


@dataclass(frozen=True)
class RuntimeConfig:
    """Platform, threads, precision, and limits of waiting."""

    decides_bits: ClassVar[bool] = False

    platform: Platform = key(
        "auto", "devices to compute on; auto: the GPUs that torch was built for, if it sees any", is_common=True
    )
    num_threads: int | None = key(
        None,
        "torch's threads per process, which change bits on CPUs; null: cores / processes here",
        at_least=1,
        at_most=4_096,
        is_common=True,
    )
    precision: Precision | None = key(
        None, "arithmetic of dense layers; null: fp32, or an existing run's own", is_common=True, decides_bits=True
    )
    compile: Compile | None = key(
        "auto",
        "execution of dense layers in training; auto: step on one CUDA device, else none, or an existing run's own; "
        "dense changes bits",
    )
    timeout_minutes: float = key(30.0, "longest wait of a process for another, in minutes", above=0, at_most=100_000)
    different_releases: bool = key(False, "let machines of a job have other releases of torch, TorchRec, FBGEMM, NumPy")
    profile_steps: list[int] | None = key(None, "first and last step, counted from 1, of a torch.profiler trace")

    def faults(self) -> Iterator[str]:
        steps = self.profile_steps
        if steps is not None and not (len(steps) == 2 and 1 <= steps[0] <= steps[1]):
            yield f"runtime.profile_steps={steps}: must be the first and the last step, such as [20,25]"


def require_graphs(runtime: RuntimeConfig, device_type: str) -> None:
    """Raise UserError if training is to replay CUDA graphs on a device that has none."""
    if runtime.compile == "step" and device_type == "cpu":
        raise UserError(
            "runtime.compile=step: CUDA graphs need a GPU; give runtime.compile=none, or runtime.compile=dense"
        )


@dataclass(frozen=True)
class EnvironmentConfig:
    """Environment variables set before the process group is made, unless the user has set them."""

    decides_bits: ClassVar[bool] = False

    name: str = key("none", "name of the profile, set by environment=NAME")
    variables: dict[str, str] = key({}, "values by variable")
    reasons: dict[str, str] = key({}, "purposes by variable")

    def faults(self) -> Iterator[str]:
        for name in self.variables:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                yield f"environment.variables.{name}: not a name of an environment variable"


@dataclass(frozen=True)
class RecordConfig:
    """Views of a run for other tools; its own files are always written."""

    decides_bits: ClassVar[bool] = False

    tensorboard: bool = key(True, "events in the run's tensorboard/, if the tensorboard package is here")
