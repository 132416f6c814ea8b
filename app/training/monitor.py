"""Decisions that a run's evaluations make by train.monitor: the best, when to cut the rate, when to stop early."""

from pathlib import Path

from app.config import AppConfig, EvalConfig, ScheduleConfig, TrainConfig
from app.config.train import Monitor, keys_by_evaluations, metrics_of
from app.data.shards import TRAIN, find_split
from app.kinds.metrics import AUC, METRICS
from app.metrics.documents import Best, EarlyStop, EvaluationFigures, Monitored
from app.training.state import RunLength, RunState
from common.errors import UserError
from common.keys import shown
from data_prep.dataset.format import Manifest


def require_rows_to_evaluate(config: AppConfig, root: Path, manifest: Manifest) -> None:
    """Refuse eval.split as `require_validation` does, unless it is of events, whose rows the manifest does not have."""
    if manifest.kind.windows:
        return
    rows = find_split(root, manifest, config.eval.split).rows if config.eval.split in manifest.splits else 0
    rows *= config.data.negatives.rows_per_positive if config.eval.split == TRAIN else 1
    require_validation(config.train, config.schedule, config.eval, rows)


def require_validation(train: TrainConfig, schedule: ScheduleConfig, evaluation: EvalConfig, rows: int) -> None:
    """Refuse a run whose evaluation split cannot decide what its keys ask for; rows: number in eval.split."""
    keys = keys_by_evaluations(train, schedule.name.schedule.by_metric)
    if keys and not rows:
        raise UserError(
            f"{keys[0]}: the dataset has no rows in split {evaluation.split}; prepare it with a validation split "
            f"(data.split.method), give another in eval.split, or leave {keys[0].partition('=')[0]} out"
        )
    monitor = train.monitor
    score_metrics = [name for name in metrics_of(monitor) if METRICS[name].needs_scores]
    if score_metrics and rows > evaluation.exact_rows:
        raise UserError(
            f"train.monitor={shown(monitor)}: {score_metrics[0]} is not computed of the {rows:,} rows of split "
            f"{evaluation.split}, more than eval.exact_rows={evaluation.exact_rows}; use auc, or "
            f"eval.exact_rows={rows}"
        )


def monitored_value(evaluation: EvaluationFigures, monitor: Monitor) -> float | None:
    """Return the metric that train.monitor names, or its weighted sum of metrics; None if one of them is undefined."""
    if isinstance(monitor, str):
        return evaluation.figure(monitor)
    values = [(weight, evaluation.figure(name)) for name, weight in monitor.items()]
    if any(value is None for _, value in values):
        return None
    return float(sum(weight * (value or 0.0) for weight, value in values))


def score(value: float, monitor: Monitor) -> float:
    """Return the value of train.monitor, negated if smaller is better: the best evaluation has the highest score."""
    return -value if isinstance(monitor, str) and METRICS[monitor].larger_is_better is False else value


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
    """Return the score of a run's best evaluation."""
    value = best.of_monitor
    return -float("inf") if value is None else score(value, monitor)


def watch(before: Monitored, value: float | None, monitor: Monitor, schedule: ScheduleConfig) -> Monitored:
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
