"""Evaluations during training, and the scores that a run keeps."""

from collections.abc import Callable
from pathlib import Path

from msgspec import structs

from app.checkpoint import files
from app.checkpoint.saver import load_tensors
from app.config.kinds import ACCURACY, AUC, BASE_RATE, LOGLOSS, METRICS, NE, AfterTraining
from app.config.train import EvalConfig, keys_by_evaluations
from app.metrics.documents import EvaluationFigures, monitored_value
from app.metrics.quality import click_curves
from app.metrics.timing import StepTimer
from app.optimizer import set_step
from app.record.documents import TEST, write_scores
from app.training.checkpointer import Checkpointer
from app.training.predictor import Evaluation, Predictor, task_of
from app.training.recorder import Recorder
from app.training.session import Session
from app.training.state import RunState
from common.command import log
from common.extensions import rows_of_extensions
from data_prep.dataset.format import Manifest


def keep_scores_of_served(session: Session, directory: Path, step: int) -> None:
    """Score the split of `kept_split` with the model that the run serves, and write the scores; a collective call.

    step: of the session's parameters. If the run keeps a best checkpoint, the parameters are that one's afterwards.
    """
    config = session.config
    split = kept_split(config.eval, session.manifest)
    if split is None:
        return
    if not has_few_rows(config.eval.keep_scores, split, session.split(split).rows, config.eval.exact_rows):
        return
    best = session.runtime.on_rank_0(lambda: files.pointed_to(directory / files.CHECKPOINTS, files.BEST))
    # The run serves its best checkpoint, while the session still has the parameters of the last step.
    if best is not None and best.name != files.checkpoint_name(step):
        load_tensors(best, session.model, optimizer=None)
        step = files.read_state(best).step
    keep(session, session.evaluate(split), directory, step)


def kept_split(config: EvalConfig, manifest: Manifest) -> str | None:
    """Return the split whose scores a run keeps, if any: test, or the evaluated split if the dataset has no test."""
    if not config.keep_scores:
        return None
    has_test = TEST in manifest.splits and manifest.splits[TEST].rows > 0
    return TEST if has_test else config.split


def has_few_rows(limit: int, split: str, rows: int, exact_rows: int) -> bool:
    """Return whether a split has at most `limit` and `exact_rows` rows, so that its scores are kept; warn if not."""
    if rows > limit:
        text = "keep_scores=%d: %s has %s rows, so no scores are kept; give keep_scores=%d"
        log.warning(text, limit, split, f"{rows:,}", rows)
    # Of a larger split an evaluation returns a sample of the scores.
    elif rows > exact_rows:
        log.warning("keep_scores: %s has more rows than exact_rows=%d, so no scores are kept", split, exact_rows)
    return rows <= min(limit, exact_rows)


def keep(predictor: Predictor, evaluation: Evaluation, directory: Path, step: int) -> None:
    """Write the scores of a whole split's evaluation into a run's directory, on rank 0; a collective call."""
    split, digest = str(evaluation.figures.split), predictor.manifest.digest
    logits, labels = evaluation.logits, evaluation.labels
    path = predictor.runtime.on_rank_0(lambda: write_scores(directory, split, step, digest, logits, labels))
    log.info("scores: %s", path)


class Evaluator:
    """Evaluates the configured split, and the training split if eval.train_split."""

    def __init__(
        self,
        session: Session,
        recorder: Recorder,
        timer: StepTimer,
        checkpointer: Checkpointer,
        steps_per_epoch: int,
        state: RunState,
    ) -> None:
        self._state = state
        self._session, self._recorder, self._timer, self._checkpointer = session, recorder, timer, checkpointer
        self._config, self._steps_per_epoch = session.config.eval, steps_per_epoch
        self._writers: list[Callable[[Path, int], None] | None] = []  # one per extension, for the newest evaluation

    def evaluate(self, step: int, with_train: bool = False) -> EvaluationFigures:
        """Return the metrics of the evaluation split after this step; a collective call.

        with_train: evaluate the training split, too, without eval.train_split.

        Raises EvaluationInterrupted: the run was asked to stop.
        """
        seconds_before = self._timer.seconds["eval"]
        with self._timer.apart("eval"):
            evaluation = self._session.evaluate(self._config.split, self._checkpointer.stop_requested)
            result, logits, labels = evaluation
            self._writers = [
                extension.keep(self._session, evaluation) for extension in rows_of_extensions(AfterTraining)
            ]
            # Curves count rows, so they would contradict the metrics of weighted rows.
            curves = None
            if task_of(self._session.manifest).has_clicks and not self._session.manifest.weight:
                curves = self._recorder.directory.curves(
                    lambda: structs.replace(click_curves(logits, labels, result), step=step, split=self._config.split)
                )
            # FBGEMM's optimizers counted the evaluation's forwards as steps.
            set_step(self._session.optimizer, self._state.updates)
        self._recorder.trackers.curves(curves)
        self._recorder.evaluation("eval", step, result, self._timer.seconds["eval"] - seconds_before)
        if self._session.runtime.rank == 0:
            config = self._session.config
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
            auc, ne = result.auc, result.figure(NE)
            if auc is not None and ne is not None and abs(auc - 0.5) < 0.005 and ne > 0.9999:
                text = f"AUC {result.auc:.4f}, NE {result.figure(NE):.4f}"
                log.warning("eval: close to a constant predictor (%s): check optimizer.lr and the data", text)
        if self._config.train_split or with_train:
            self._compare_with_train(step, result)
        return structs.replace(result, step=step)

    def keep(self, step: int, is_best: bool) -> None:
        """Let extensions write what they keep of the newest evaluation, if the run would serve this model by now.

        That is the best so far or, without checkpoint.keep_best, the newest.
        """
        if is_best or not self._session.config.checkpoint.keep_best:
            for write in filter(None, self._writers):
                write(self._recorder.directory.path, step)

    def _compare_with_train(self, step: int, result: EvaluationFigures) -> None:
        """Evaluate the training split too; log both as AMD's blog does, with the majority class for comparison."""
        with self._timer.apart("eval"):
            on_train = self._session.evaluate("train", self._checkpointer.stop_requested).figures
            # FBGEMM's optimizers counted these forwards, too.
            set_step(self._session.optimizer, self._state.updates)
        self._recorder.evaluation("eval_train", step, on_train)
        log.info("epoch %g", step / max(self._steps_per_epoch, 1))
        for figures in (on_train, result):
            if figures.samples and figures.main != AUC:
                log.info("%s %s = %.6f", figures.split, METRICS[figures.main].label, figures.figure(figures.main))
            elif figures.samples:
                auc = "undefined" if figures.auc is None else f"{figures.auc:.5f}"
                base_rate = figures.figure(BASE_RATE) or 0.0
                log.info(
                    f"{figures.split} accuracy = {figures.figure(ACCURACY):.2%}, "
                    f"avg loss = {figures.figure(LOGLOSS):.6f}, AUC = {auc}; "
                    f"always guessing the majority class: accuracy = {max(base_rate, 1 - base_rate):.2%}"
                )
