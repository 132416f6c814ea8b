"""The one training loop: the same on CPU, CUDA and ROCm, with one process or many.

Read `run` for the course of a run, `_step` for what happens to a batch, `_after_step` for what follows a step.
"""

import logging
import time
from dataclasses import dataclass

from app.config import OnNan
from app.data.batch import Batch
from app.kinds.metrics import ACCURACY
from app.metrics.profiling import StepProfiler
from app.metrics.timing import StepTimer
from app.optimizer.build import set_step
from app.optimizer.schedule import learning_rate
from app.training.checkpointer import Checkpointer
from app.training.data_loader import DataLoader
from app.training.evaluator import Evaluator
from app.training.monitor import best_of, early_stop, monitored_value, score_of, watch
from app.training.predictor import EvaluationInterrupted
from app.training.recording.recorder import Recorder
from app.training.session import Session
from app.training.state import RunLength, RunState
from app.training.stop import StopCheck
from app.training.window import StepWindow
from common.keys import shown

log = logging.getLogger("clickwork")


@dataclass
class TrainingLoop:
    """Trains a session from a state to the end of its run.

    Attributes:
        session: the model, its loss and its optimizer.
        data: batches on this process's device.
        evaluator: metrics of the evaluation split.
        checkpointer: when to save, and the saving.
        recorder: events, trackers, progress.
        profiler, timer: where a step's time goes.
        stop: whether any process was asked to stop.
        length: steps of the run.
        state: step, epoch and history; advanced in place.
    """

    session: Session
    data: DataLoader
    evaluator: Evaluator
    checkpointer: Checkpointer
    recorder: Recorder
    profiler: StepProfiler
    timer: StepTimer
    stop: StopCheck
    length: RunLength
    state: RunState

    def run(self) -> str:
        """Train to the end; return the run's status: completed, target_reached or interrupted."""
        state = self.state
        self.session.cuts = state.monitored.cuts
        # A run that starts from another run's last step has no checkpoint in its directory yet.
        if 0 < state.step == self.length.total_steps:
            self.checkpointer.save(state)
        # A checkpoint is saved before the evaluation of its step, so a resumed run may have to evaluate first.
        if self._evaluation_due():
            status = self._evaluate()
            if status is not None:
                return status
        if target_reached(state, self.length):
            return "target_reached"
        if early_stop(state, self.length) is not None:
            return "completed"
        window = StepWindow(self.session, self.timer, self.length, state)
        self.timer.start()
        while state.step < self.length.total_steps:
            waiting_since = time.perf_counter()
            for batch in self.data.batches(state.epoch, state.step_in_epoch):
                input_wait = time.perf_counter() - waiting_since
                self._step(batch, window)
                self.timer.step_done(input_wait)
                status = self._after_step(window)
                if status is not None:
                    return status
                waiting_since = time.perf_counter()
            state.epoch, state.step_in_epoch = state.epoch + 1, 0
        return "completed"

    def _step(self, batch: Batch, window: StepWindow) -> None:
        """Train on one batch: logits, loss, gradients (the backward updates the tables), dense update."""
        session, state = self.session, self.state
        self.profiler.step_begins(state.step + 1)
        self.timer.step_begins()
        window.lr = session.begin_step(state.step)
        session.optimizer.zero_grad()
        logits = session.forward(batch)
        self.data.forward_done()
        loss = session.loss_of(logits, batch)
        self.timer.phase_done("forward")
        # Skip before the backward, since the backward updates the tables.
        if self.length.train.on_nan is OnNan.skip and not session.is_finite(loss):
            session.undo_step()
            window.skip()
            set_step(session.optimizer, state.updates + 1)  # FBGEMM's optimizers counted the forward
        else:
            session.backward(loss)
            self.timer.phase_done("backward")
            if self.length.reported(state.step + 1):
                window.gradient_norm = session.gradient_norm()
            session.optimizer.step()
            self.timer.phase_done("optimizer")
        window.add(loss, logits, batch)
        state.step += 1
        state.step_in_epoch += 1

    def _after_step(self, window: StepWindow) -> str | None:
        """Log, save and evaluate where that is due; return the status if the run ends here."""
        state = self.state
        is_last = state.step == self.length.total_steps
        stop = self.stop.requested(state.step)
        evaluate = self._evaluation_due()
        save = is_last or stop or self.checkpointer.due(state.step)
        logged = self.length.reported(state.step)
        if evaluate or save or logged or state.step == window.first_counted_step:
            window.synchronise()
        if logged:
            self.recorder.steps(state, window.take())
        if save:
            self.checkpointer.save(state)
        # A run that stops here evaluates when it is resumed.
        if is_last or (evaluate and not stop):
            return self._evaluate()
        return "interrupted" if stop else None

    def _evaluate(self) -> str | None:
        """Evaluate, keep the best; return the status if the run ends here."""
        state = self.state
        try:
            state.evaluation = self.evaluator.evaluate(state.step)
        except EvaluationInterrupted:
            self.checkpointer.save(state)
            return "interrupted"
        monitor = self.length.train.monitor
        best = best_of(state.evaluation, monitor)
        if best is not None:
            self._watch(monitored_value(state.evaluation, monitor))
        is_best = best is not None and (state.best is None or score_of(best, monitor) > score_of(state.best, monitor))
        self.evaluator.keep(state.step, is_best)
        if is_best:
            state.best = best
            self.checkpointer.keep_best(state)
        return self._end()

    def _watch(self, value: float | None) -> None:
        """Update the monitor with an evaluation's value of train.monitor, which may cut the learning rate."""
        state, config, before = self.state, self.session.config, self.state.monitored
        state.monitored = watch(before, value, config.train.monitor, config.schedule)
        self.session.cuts = state.monitored.cuts
        if state.monitored.cuts > before.cuts:
            rate, lower = (
                learning_rate(config.optimizer.lr, config.schedule, state.step, monitored.cuts)
                for monitored in (before, state.monitored)
            )
            if lower < rate:
                log.info(
                    "schedule: step %d: no gain of train.monitor=%s, learning rate %g to %g",
                    state.step,
                    shown(config.train.monitor),
                    rate,
                    lower,
                )

    def _end(self) -> str | None:
        """Save and return the status if the state's evaluation ends the run, or nothing is left to train."""
        state = self.state
        if target_reached(state, self.length):
            self.checkpointer.save(state)
            return "target_reached"
        if (early := early_stop(state, self.length)) is not None:
            self.checkpointer.save(state)
            log.info("early stop: step %d: %s", state.step, early.reason)
            return "completed"
        return "completed" if state.step == self.length.total_steps else None

    def _evaluation_due(self) -> bool:
        """Return whether the state's step is due for an evaluation and has none yet."""
        step, evaluation = self.state.step, self.state.evaluation
        due = step > 0 and self.length.next_evaluation(step - 1) == step
        return due and (evaluation is None or evaluation.step != step)


def target_reached(state: RunState, length: RunLength) -> bool:
    """Return whether this step's evaluation reached train.target_auc or train.target_accuracy."""
    result, train = state.evaluation, length.train
    if result is None or result.step != state.step:
        return False
    targets = ((result.auc, train.target_auc), (result.figure(ACCURACY), train.target_accuracy))
    return any(target is not None and value is not None and value >= target for value, target in targets)
