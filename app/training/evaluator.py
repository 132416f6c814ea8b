"""Evaluation during training: metrics and curves of a split, recorded and logged."""

import logging
from collections.abc import Callable
from pathlib import Path

from msgspec import structs

from app.config import AppConfig
from app.config.train import keys_by_evaluations
from app.kinds.metrics import ACCURACY, AUC, BASE_RATE, LOGLOSS, METRICS, NE
from app.metrics.curves import click_curves
from app.metrics.documents import EvaluationFigures
from app.metrics.timing import StepTimer
from app.optimizer.build import set_step
from app.training.after_training import steps_after_training
from app.training.labels import task_of
from app.training.monitor import monitored_value
from app.training.recording.recorder import Recorder
from app.training.session import Session
from app.training.state import RunState
from app.training.stop import StopCheck

log = logging.getLogger("clickwork")

COLLAPSED_AUC, COLLAPSED_NE = 0.005, 0.9999  # largest distance of AUC from 0.5; NE above which it counts as 1


class Evaluator:
    """Evaluates the configured split, and the training split if eval.train_split."""

    def __init__(
        self,
        session: Session,
        recorder: Recorder,
        timer: StepTimer,
        stop: StopCheck,
        steps_per_epoch: int,
        state: RunState,
    ) -> None:
        self._state = state
        self._session, self._recorder, self._timer, self._stop = session, recorder, timer, stop
        self._config, self._steps_per_epoch = session.config.eval, steps_per_epoch
        self._writers: list[Callable[[Path, int], None] | None] = []  # one per extension, for the newest evaluation

    def evaluate(self, step: int) -> EvaluationFigures:
        """Return the metrics of the evaluation split after this step; a collective call.

        Raises:
            EvaluationInterrupted: the run was asked to stop.
        """
        seconds_before = self._timer.seconds["eval"]
        with self._timer.apart("eval"):
            evaluation = self._session.predictor.evaluate(self._config.split, self._stop.requested)
            result, logits, labels = evaluation
            self._writers = [step.keep(self._session.predictor, evaluation) for step in steps_after_training()]
            curves = None
            if task_of(self._session.manifest).has_clicks and not self._session.manifest.weight:
                curves = self._recorder.directory.curves(
                    lambda: structs.replace(click_curves(logits, labels, result), step=step, split=self._config.split)
                )
            # FBGEMM's optimizers counted the evaluation's forwards as steps.
            set_step(self._session.optimizer, self._state.updates)
        self._recorder.curves(curves)
        self._recorder.evaluation("eval", step, result, self._timer.seconds["eval"] - seconds_before)
        if self._session.runtime.rank == 0:
            _log(step, result, self._session.config)
        if self._config.train_split:
            self._compare_with_train(step, result)
        return structs.replace(result, step=step)

    def keep(self, step: int, is_best: bool) -> None:
        """Let extensions write what they keep of the newest evaluation, if the run serves this model so far."""
        if is_best or not self._session.config.checkpoint.keep_best:
            for write in filter(None, self._writers):
                write(self._recorder.directory.path, step)

    def _compare_with_train(self, step: int, result: EvaluationFigures) -> None:
        """Evaluate the training split too; log both as AMD's blog does, with the majority class for comparison."""
        with self._timer.apart("eval"):
            on_train = self._session.predictor.evaluate("train", self._stop.requested).figures
            set_step(self._session.optimizer, self._state.updates)
        self._recorder.evaluation("eval_train", step, on_train)
        for line in _beside_train(on_train, result, step / max(self._steps_per_epoch, 1)):
            log.info(line)


def is_collapsed(evaluation: EvaluationFigures) -> bool:
    """Return whether the model ranks no better than chance and knows no more than the base rate."""
    auc, ne = evaluation.auc, evaluation.figure(NE)
    return auc is not None and ne is not None and abs(auc - 0.5) < COLLAPSED_AUC and ne > COLLAPSED_NE


def _log(step: int, result: EvaluationFigures, config: AppConfig) -> None:
    """Log an evaluation on one line, with warnings if it is undefined or collapsed."""
    values = [(key, result.figure(key)) for key, metric in METRICS.items() if metric.logged]
    figures = " ".join(f"{key} {value:.5f}" for key, value in values if value is not None)
    if (error := result.figure("auc_error")) is not None:
        figures += f" (AUC from a histogram, within {error:.1e})"
    log.info("eval: step %d %s (%s samples) %s", step, result.split, f"{result.samples:,}", figures)
    if result.figure(result.main) is None:
        reason = "has only one class" if result.samples else "has no rows"
        deciding = keys_by_evaluations(config.train, config.schedule.name.schedule.by_metric)
        idle = deciding if monitored_value(result, config.train.monitor) is None else []
        effect = f", so {' and '.join(idle)} cannot act" if idle else ""
        log.warning("eval: split %s %s; AUC is undefined%s", result.split, reason, effect)
    if is_collapsed(result):
        text = f"AUC {result.auc:.4f}, NE {result.figure(NE):.4f}"
        log.warning("eval: close to a constant predictor (%s): check optimizer.lr and the data", text)


def _beside_train(train: EvaluationFigures, held_out: EvaluationFigures, epochs: float) -> list[str]:
    """Return lines with accuracy and average loss of both splits, beside a guess that needs no model."""
    lines = [f"epoch {epochs:g}"]
    for result in (train, held_out):
        if result.samples and result.main != AUC:
            lines.append(f"{result.split} {METRICS[result.main].label} = {result.figure(result.main):.6f}")
        elif result.samples:
            auc = "undefined" if result.auc is None else f"{result.auc:.5f}"
            base_rate = result.figure(BASE_RATE) or 0.0
            majority = max(base_rate, 1 - base_rate)
            lines.append(
                f"{result.split} accuracy = {result.figure(ACCURACY):.2%}, "
                f"avg loss = {result.figure(LOGLOSS):.6f}, "
                f"AUC = {auc}; always guessing the majority class: accuracy = {majority:.2%}"
            )
    return lines
