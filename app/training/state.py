"""The state of training between steps, and the monitor that stops it early."""

from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.config.app_config import AppConfig
from app.config.kinds import AUC, METRICS
from app.config.train import (
    Monitor,
    ScheduleConfig,
    TrainConfig,
    evaluation_steps,
    keys_by_evaluations,
    metrics_of,
    samples_of,
    steps_within,
)
from app.data.split import TRAIN, Split, find_split
from app.metrics.documents import (
    Best,
    EarlyStop,
    EvaluationFigures,
    Measured,
    Monitored,
    Parent,
    monitored_value,
    score,
)
from app.optimizer import learning_rate
from common.errors import UserError
from common.keys import shown
from data_prep.dataset.format import Manifest

ROUNDING = 1e-6  # in steps: a product of floats this little below a whole step counts as that step
AGREE_EVERY_STEPS = 10  # how often processes ask each other whether to stop; a single process checks at every step


@dataclass
class RunState:
    """Everything the next step depends on besides tensors, and the run's history."""

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    losses: list[NDArray[np.float32]] = field(default_factory=list)  # each step's mean over the global batch, in parts
    step_seconds: list[NDArray[np.float32]] = field(default_factory=list)  # of steps after each warm-up, in parts
    measured: Measured = field(default_factory=Measured)  # over all launches
    accuracies: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))  # one per unreported step
    parent: Parent | None = None  # the run whose parameters this one began with
    skipped: int = 0  # steps without an update, because their loss was not finite (train.on_nan=skip)
    evaluation: EvaluationFigures | None = None  # the last one, with its step
    best: Best | None = None  # the best evaluation by train.monitor
    monitored: Monitored = field(default_factory=Monitored)  # replaced, not changed, by each evaluation

    @property
    def evaluated_at(self) -> int:
        """Return the step of the last evaluation; -1 if there was none."""
        return -1 if self.evaluation is None else self.evaluation.step or 0

    @property
    def updates(self) -> int:
        """Return the number of steps that updated parameters; Adam and LAMB correct their moments by it."""
        return (self.parent.updates if self.parent else 0) + self.step - self.skipped

    def all_losses(self) -> NDArray[np.float32]:
        """Return the losses of all steps, [steps] float32."""
        return np.concatenate([np.empty(0, np.float32), *self.losses])

    def all_step_seconds(self) -> NDArray[np.float32]:
        """Return the seconds of the counted steps, [counted steps] float32."""
        return np.concatenate([np.empty(0, np.float32), *self.step_seconds])


class RunLength(NamedTuple):
    """Steps of an epoch and of the whole run, and the steps to evaluate and to report after.

    first_evaluation, distance: as `evaluation_steps` returns them (None: train.eval_every_steps); before the first,
        only the run's last step is evaluated.
    evaluations, reports: a replay's steps to evaluate and to report after, in place of those that `train` gives.
    """

    steps_per_epoch: int
    total_steps: int
    train: TrainConfig
    first_evaluation: int = 0
    distance: float | None = None
    evaluations: frozenset[int] | None = None
    reports: frozenset[int] | None = None
    rows: int = 0  # number in the training split

    def reported(self, step: int) -> bool:
        """Return whether a window of steps ends with this step."""
        if self.reports is not None:
            return step in self.reports or step == self.total_steps
        return step % self.train.log_every_steps == 0 or step == self.total_steps

    def next_evaluation(self, step: int) -> int:
        """Return the step of the first evaluation after `step` steps, at the latest the run's last step."""
        if self.evaluations is not None:
            return min((due for due in self.evaluations if due > step), default=self.total_steps)
        distance = self.distance or self.train.eval_every_steps or self.total_steps or 1
        # A quotient of floats may be one too small or too large, so the multiple after `step` is searched from here on.
        number = int(step / distance)
        while int(number * distance + ROUNDING) <= step:
            number += 1
        return min(max(self.first_evaluation, int(number * distance + ROUNDING)), self.total_steps)


def require_steps_left(length: RunLength, step: int, start: Path) -> None:
    """Raise UserError if a run that starts from checkpoint `start` of this step would end before it."""
    if step <= length.total_steps:
        return
    train, rows = length.train, length.rows
    steps_of_samples = None if train.max_samples is None else steps_within(train, rows, train.max_samples)
    # Of each key: its name, its value, the steps that it allows, and the least value that would allow a further step.
    limits = (
        ("max_steps", train.max_steps, train.max_steps, step),
        ("max_samples", train.max_samples, steps_of_samples, samples_of(train, rows, step)),
    )
    key, value, _, remedy = next(
        (limit for limit in limits if limit[2] == length.total_steps),
        ("epochs", train.epochs or 1, 0, -(-step // length.steps_per_epoch)),
    )
    raise UserError(
        f"train.{key}={value}: {start} is at step {step} already, and the run would end after {length.total_steps}; "
        f"give train.{key}={remedy} or more, or another run.name"
    )


def require_rates(length: RunLength, schedule: ScheduleConfig, step: int) -> None:
    """Raise UserError if a run at `step` would train at rate 0, after a decay that ends at 0."""
    total = length.total_steps
    if step >= total or "decay_steps" not in schedule.name.schedule.keys or learning_rate(1.0, schedule, total - 1):
        return
    # The rate does not rise again after its decay, so bisection finds the first step of rate 0.
    end = bisect_left(range(total), True, key=lambda number: not learning_rate(1.0, schedule, number))
    longer = f"schedule.decay_steps={total - schedule.decay_start_step}"
    name = f"schedule={schedule.name.value}"
    if step:
        stop = "" if end <= step else f", or train.max_steps={end}"
        raise UserError(
            f"{name}: the learning rate is 0 after step {end}, where its decay ends, and this run, at step {step}, "
            f"would train on to step {total} and learn nothing there; give another run.name and {longer}, to train "
            f"from the beginning{stop}"
        )
    raise UserError(
        f"{name}: the learning rate is 0 after step {end}, where its decay ends, and the run has {total} steps; give "
        f"{longer}, or train.max_steps={end}"
    )


def run_length(train: TrainConfig, split: Split, world_size: int) -> RunLength:
    """Return the length of a run. Raises UserError if a batch cannot be filled, or not shared by the processes."""
    batch = train.global_batch_size
    if train.micro_batch is not None and train.micro_batches < world_size:
        raise UserError(
            f"train.micro_batch_size={train.micro_batch}: makes {train.micro_batches} micro-batches of "
            f"train.global_batch_size={batch}, and there are {world_size} processes; use fewer "
            "processes, or a smaller train.micro_batch_size"
        )
    if train.micro_batch is None and batch % world_size:
        raise UserError(
            f"train.global_batch_size={batch}: not divisible by the {world_size} processes; every process takes an "
            "equal part"
        )
    steps_per_epoch = split.num_batches(batch)
    if train.max_steps != 0 and not steps_per_epoch:
        raise UserError(
            f"train.global_batch_size={batch}: no whole batch in the training split of {split.rows:,} rows; use a "
            "smaller batch"
        )
    steps_of_samples = None if train.max_samples is None else steps_within(train, split.rows, train.max_samples)
    limits = [limit for limit in (train.max_steps, steps_of_samples) if limit is not None]
    # Limits of steps and samples alone may take as many epochs as they need.
    if train.epochs is not None or not limits:
        limits.append((train.epochs or 1) * steps_per_epoch)
    distance, first = evaluation_steps(train, split.rows)
    return RunLength(steps_per_epoch, min(limits), train, first, distance, rows=split.rows)


def require_rows_to_evaluate(config: AppConfig, root: Path, manifest: Manifest) -> None:
    """Refuse eval.split as `require_validation` does, unless it is of events, whose rows the manifest does not have."""
    if manifest.kind.windows:
        return
    rows = find_split(root, manifest, config.eval.split).rows if config.eval.split in manifest.splits else 0
    rows *= config.data.negatives.rows_per_positive if config.eval.split == TRAIN else 1
    require_validation(config, rows)


def require_validation(config: AppConfig, rows: int) -> None:
    """Refuse a run whose evaluation split cannot decide what its keys ask for; rows: number in eval.split."""
    evaluation, monitor = config.eval, config.train.monitor
    keys = keys_by_evaluations(config.train, config.schedule.name.schedule.by_metric)
    if keys and not rows:
        raise UserError(
            f"{keys[0]}: the dataset has no rows in split {evaluation.split}; prepare it with a validation split "
            f"(data.split.method), give another in eval.split, or leave {keys[0].partition('=')[0]} out"
        )
    score_metrics = [name for name in metrics_of(monitor) if METRICS[name].needs_scores]
    if score_metrics and rows > evaluation.exact_rows:
        raise UserError(
            f"train.monitor={shown(monitor)}: {score_metrics[0]} is not computed of the {rows:,} rows of split "
            f"{evaluation.split}, more than eval.exact_rows={evaluation.exact_rows}; use auc, or "
            f"eval.exact_rows={rows}"
        )


def best_of(evaluation: EvaluationFigures, monitor: Monitor) -> Best | None:
    """Return an evaluation as a candidate for a run's best; None if train.monitor is undefined for it."""
    value = monitored_value(evaluation, monitor)
    if value is None:
        return None
    is_auc = monitor == AUC
    return Best(
        step=evaluation.step or 0,
        auc=evaluation.auc,
        monitor=None if is_auc else shown(monitor),
        value=None if is_auc else value,
    )


def score_of(best: Best, monitor: Monitor) -> float:
    """Return the score of a run's best evaluation, by which larger is better; -infinity if it has no value."""
    value = best.of_monitor
    return -float("inf") if value is None else score(value, monitor)


def next_monitored(before: Monitored, value: float | None, monitor: Monitor, schedule: ScheduleConfig) -> Monitored:
    """Return the monitor's state after one more evaluation; an undefined value changes nothing.

    A miss is a value below the best so far plus schedule.threshold (if smaller is better: above the best minus it).
    schedule=plateau cuts the rate at a miss that follows schedule.patience others since the last hit or cut. FuxiCTR
    does the same; so does torch's ReduceLROnPlateau with threshold_mode=abs, except that it counts an equal value as a
    miss.
    """
    if value is None:
        return before
    new = score(value, monitor)
    if before.best is None or new >= before.best + schedule.threshold:
        return Monitored(best=new, cuts=before.cuts)
    is_cut = schedule.name.schedule.by_metric and before.since_cut >= schedule.patience
    return Monitored(
        best=before.best,
        misses=before.misses + 1,
        since_cut=0 if is_cut else before.since_cut + 1,
        cuts=before.cuts + is_cut,
    )


def early_stop(state: RunState, length: RunLength) -> EarlyStop | None:
    """Return why the state's evaluation ends the run before its last step; None if it does not."""
    train, evaluation, misses = length.train, state.evaluation, state.monitored.misses
    is_evaluated = evaluation is not None and evaluation.step == state.step
    if not is_evaluated or state.step >= length.total_steps:
        return None
    if train.early_stop_patience is None or misses < train.early_stop_patience:
        return None
    best_step, value = (None, None) if state.best is None else (state.best.step, state.best.of_monitor)
    return EarlyStop(monitor=shown(train.monitor), misses=misses, best_step=best_step, best=value)
