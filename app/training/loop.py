"""The training loop, and the parts of a run that are put together around it.

Read `run` for the course of a run, `_step` for what happens to a batch, `_after_step` for what follows a step.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from app.checkpoint import files
from app.config.app_config import AppConfig
from app.config.kinds import ACCURACY, TENSORBOARD
from app.data.batch import Batch
from app.metrics.documents import EvaluationFigures, Event, Monitored, monitored_value
from app.metrics.timing import StepProfiler, StepTimer, step_time_histogram
from app.model.embeddings import parameter_counts
from app.optimizer import learning_rate, set_step
from app.record.directory import RunDirectory, ignoring_full_disk
from app.record.documents import DONE, read_evaluations, read_events, read_summary
from app.training import checkpointer, recorder
from app.training.checkpointer import Checkpointer
from app.training.evaluator import Evaluator
from app.training.predictor import EvaluationInterrupted
from app.training.recorder import Recorder
from app.training.session import DataLoader, Session, StepWindow
from app.training.state import RunLength, RunState, best_of, early_stop, next_monitored, run_length, score_of
from common.command import log
from common.errors import UserError
from common.keys import shown
from common.signals import StopRequest


@dataclass
class TrainingLoop:
    """Trains a session from a state to the end of its run.

    Attributes:
        session: the model, its loss and its optimizer.
        data: batches on this process's device.
        evaluator: metrics of the evaluation split.
        checkpointer: when to save and to stop, and the saving.
        recorder: events, trackers, progress.
        profiler, timer: where a step's time goes.
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
    length: RunLength
    state: RunState

    def run(self) -> str:
        """Train to the end; return the run's status: completed, target_reached or interrupted."""
        state = self.state
        # A resumed run goes on at the rate to which earlier evaluations have cut it.
        self.session.cuts = state.monitored.cuts
        # A run that starts from another run's last step has no checkpoint in its directory yet.
        if 0 < state.step == self.length.total_steps:
            self.checkpointer.save(state)
        # A checkpoint is saved before the evaluation of its step, so a resumed run may have to evaluate first.
        if self._evaluation_due():
            status = self._evaluate()
            if status is not None:
                return status
        # A run that was killed after its last evaluation, but before its end was recorded, ends here.
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
        # The rates come first, since zero_grad passes them on to FBGEMM's optimizers.
        window.lr = session.begin_step(state.step)
        session.optimizer.zero_grad()
        logits = session.forward(batch)
        # The next batch's ids may travel while this batch's backward runs.
        self.data.forward_done()
        loss = session.loss_of(logits, batch)
        self.timer.phase_done("forward")
        # Skip before the backward, since the backward updates the tables.
        if self.length.train.on_nan == "skip" and not session.is_finite(loss):
            session.undo_step()
            window.skip()
            set_step(session.optimizer, state.updates + 1)  # FBGEMM's optimizers counted the forward
        else:
            session.backward(loss)
            self.timer.phase_done("backward")
            # The norm is that before clipping. It reads every gradient, so only reported steps compute it.
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
        stop = self.checkpointer.stop_requested(state.step)
        evaluate = self._evaluation_due()
        save = is_last or stop or self.checkpointer.due(state.step)
        logged = self.length.reported(state.step)
        # Losses are checked before a save or an evaluation, so that a step with a NaN is never saved. The stop at the
        # first counted step keeps warm-up steps out of the figures.
        if evaluate or save or logged or state.step == window.first_counted_step:
            window.synchronise()
        # The window is written before the checkpoint: a run that resumes from there will not write it again.
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
            # The evaluation left no result, so the resumed run evaluates this step again.
            self.checkpointer.save(state)
            return "interrupted"
        monitor = self.length.train.monitor
        best = best_of(state.evaluation, monitor)
        if best is not None:
            self._update_monitor(monitored_value(state.evaluation, monitor))
        is_best = best is not None and (state.best is None or score_of(best, monitor) > score_of(state.best, monitor))
        self.evaluator.keep(state.step, is_best)
        if is_best:
            state.best = best
            self.checkpointer.keep_best(state)
        # The step of an evaluation need not be one that checkpoint.every_steps saves.
        if target_reached(state, self.length):
            self.checkpointer.save(state)
            return "target_reached"
        if (early := early_stop(state, self.length)) is not None:
            self.checkpointer.save(state)
            log.info("early stop: step %d: %s", state.step, early.reason)
            return "completed"
        return "completed" if state.step == self.length.total_steps else None

    def _update_monitor(self, value: float | None) -> None:
        """Update the monitor with an evaluation's value of train.monitor, which may cut the learning rate."""
        state, config, before = self.state, self.session.config, self.state.monitored
        state.monitored = next_monitored(before, value, config.train.monitor, config.schedule)
        self.session.cuts = state.monitored.cuts
        if state.monitored.cuts > before.cuts:
            rate, lower = (
                learning_rate(config.optimizer.lr, config.schedule, state.step, monitored.cuts)
                for monitored in (before, state.monitored)
            )
            # At the schedule's lowest rate a cut changes nothing.
            if lower < rate:
                log.info(
                    "schedule: step %d: no gain of train.monitor=%s, learning rate %g to %g",
                    state.step,
                    shown(config.train.monitor),
                    rate,
                    lower,
                )

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


class TrainingRun:
    """A session that trains, with its state, its directory and its clock."""

    def __init__(
        self,
        session: Session,
        directory: RunDirectory,
        began: float,
        length: RunLength | None = None,
        make_checkpointer: Callable[[Session, Recorder, StepTimer], Checkpointer] = Checkpointer,
    ) -> None:
        """Prepare a run of the session.

        began: time.perf_counter() when the command began. length: a replay's, in place of the configured one.
        make_checkpointer: a replay gives a class that compares instead of saving.
        """
        self.session, self.config, self.runtime = session, session.config, session.runtime
        self.state = RunState()
        _require_rows_for_batch_norm(self.config, session.split("train").rows)
        self.length = length or run_length(self.config.train, session.split("train"), self.runtime.world_size)
        # Compile before any thread of ours copies to the GPU: recording a graph forbids such copies.
        session.compile(self.config.train.local_rows(self.runtime.world_size))
        self.timer = StepTimer(self.runtime.device)
        self.recorder = Recorder(session, directory, self.timer, self.length, began)
        self.checkpointer = make_checkpointer(session, self.recorder, self.timer)
        self.data = DataLoader(session, self.length)
        self._directory = directory
        self._resumed = ""  # the log line that describes the resumption; empty without one
        self.continues = False  # whether it resumes from a checkpoint of its own
        self._measured_before = 0  # steps that were timed before a resumption

    def restore(self, path: Path) -> None:
        """Resume from this run's checkpoint, or start from another run's; a collective call."""
        self.state, self.recorder.seconds_before, self._resumed = checkpointer.restore(path, self.session)
        set_step(self.session.optimizer, self.state.updates)
        self.continues = path.parent.resolve() == self._directory.checkpoints.resolve()
        if self.continues:
            # Rank 0 alone reads the record, so that all processes adopt the same evaluations.
            state, directory, seconds = self.state, self._directory, self.recorder.seconds_before
            adopted, self.recorder.seconds_before = self.runtime.on_rank_0(
                lambda: checkpointer.adopt_evaluations(state, directory, self.config, seconds)
            )
            self.state = replace(state, **adopted)
            if directory.was_killed():
                self._resumed += " (the part before was killed, as by a lack of memory, or the machine went down)"
            self.checkpointer.saved_step = self.state.step
        else:  # another run's evaluations have no checkpoints in this directory
            self.state.evaluation = self.state.best = None
            # Cuts of the rate belong to the parameters that are taken over, hits and misses to the other run.
            self.state.monitored = Monitored(cuts=self.state.monitored.cuts)
        self._measured_before = len(self.state.all_step_seconds())

    def warm_start(self, path: str) -> None:
        """Begin with the parameters of another run or checkpoint; a collective call."""
        self.state, self._resumed = checkpointer.warm_start(self.session, self._directory.path, path)
        set_step(self.session.optimizer, self.state.updates)

    def status_if_done(self) -> str | None:
        """Return the status in the run's summary if it had reached the end that is configured now; else None."""
        before, state = read_summary(self._directory.path) if self.continues else None, self.state
        # A summary or an evaluation of another step than the checkpoint's leaves something to train or to evaluate.
        if before is None or before.status not in DONE or not before.steps == state.step == state.evaluated_at:
            return None
        ends = target_reached(state, self.length) or early_stop(state, self.length) is not None
        return before.status if ends or state.step >= self.length.total_steps else None

    def train(self, stop: StopRequest | None = None) -> str:
        """Train from the state to the end, or to a stop, and write the run's directory; return the status."""
        self.recorder.begin(self.state, self.continues, self.data.pipeline)
        self._log_start()
        self.recorder.start(self.state.step)
        # The last warm-up step but one is traced: that slows it, and the trace ends when the next step begins.
        warm_up = self.config.train.warmup_steps_excluded
        sampled = self.state.step + warm_up - 1 if self.runtime.world_size > 1 and warm_up > 1 else None
        directory, steps = self._directory.path / TENSORBOARD, self.config.runtime.profile_steps
        profiler = StepProfiler(self.runtime.device, directory, self.runtime.rank, steps, sampled)
        self.checkpointer.stop = stop
        steps_per_epoch = self.length.steps_per_epoch
        evaluator = Evaluator(self.session, self.recorder, self.timer, self.checkpointer, steps_per_epoch, self.state)
        loop = TrainingLoop(
            self.session,
            self.data,
            evaluator,
            self.checkpointer,
            self.recorder,
            profiler,
            self.timer,
            self.length,
            self.state,
        )
        with self._report_failure():
            status = self._evaluate_first(evaluator) or loop.run()
            # A run is complete only when its exchanges have ended and its last checkpoint is on the disk.
            self.data.close()
            self.checkpointer.wait()
            profiler.close()
        self._write_results(status, profiler)
        if stop is not None and stop.signal is not None:
            log.info("stopped %.1f s after %s", time.monotonic() - stop.came_at, stop.signal.name)
        return status

    def _log_start(self) -> None:
        """Log the run's size, its plan and, of a resumed run, the step that it resumes from."""
        counts = parameter_counts(self.session.model)
        at_most = "" if self.config.train.early_stop_patience is None else "at most "
        log.info(
            "run: %s, %s%d steps of %d samples, %s parameters (%s in tables), %d process(es) on %s",
            self._directory.path,
            at_most,
            self.length.total_steps,
            self.config.train.global_batch_size,
            f"{counts['total']:,}",
            f"{counts['embedding']:,}",
            self.runtime.world_size,
            self.runtime.platform,
        )
        if self.session.compile_reason and self.runtime.device.type != "cpu":
            log.info("runtime.compile=auto: %s; %s", self.session.compiled, self.session.compile_reason)
        log.info("sharding: %s; pipeline: %s", self.session.plan.summary(), self.data.pipeline)
        warmup, steps = self.config.schedule.warmup_steps, self.length.total_steps
        if warmup > steps:
            log.warning(
                "schedule.warmup_steps=%d: longer than the run's %d steps, so the learning rate stays small; "
                "set schedule.warmup_steps=%d, or schedule=constant",
                warmup,
                steps,
                steps // 10,
            )
        if self._resumed:
            log.info("%s", self._resumed)
            self.recorder.event(Event(event="resume", step=self.state.step, rest={"line": self._resumed}))

    @contextlib.contextmanager
    def _report_failure(self) -> Iterator[None]:
        """Write the summary of a run that fails; close what is open in any case."""
        try:
            yield
        except Exception as error:
            # Closing removes a checkpoint that fills the disk, which makes room for the summary.
            self.checkpointer.saver.close()
            served = None
            with contextlib.suppress(UserError, OSError):  # the original failure is the one to report
                served = self._served_evaluation()
            # Made by this process without the others, which may be gone.
            figures = self.recorder.local_summary("failed", served)
            figures.error = f"{type(error).__name__}: {error}"
            with ignoring_full_disk():
                self._directory.summary(figures)
                self.recorder.trackers.close(figures)
            raise
        finally:
            self.recorder.close()
            self.checkpointer.saver.close()
            with ignoring_full_disk():
                self._directory.step_times(step_time_histogram(self.state.all_step_seconds()))

    def _write_results(self, status: str, profiler: StepProfiler) -> None:
        """Write summary.json and the line of results.csv, and log the run's last lines; a collective call."""
        figures = self.recorder.summarise(status, self._served_evaluation(), profiler.communication_seconds)
        figures.early_stop = early_stop(self.state, self.length)
        events = read_events(self._directory.path) if self.runtime.rank == 0 else []
        figures.events = dict(Counter(event.event for event in events))
        self._directory.summary(figures)
        self.recorder.trackers.close(figures)
        spread = recorder.throughput_spread(self.state, self.config.train.log_every_steps)
        num_nodes = self.runtime.world_size // self.runtime.local_world_size
        self._directory.results(self.config, figures, num_nodes, spread)
        log.info("\n".join(recorder.closing_lines(figures, self.session, self.state, self._measured_before)))

    def _served_evaluation(self) -> EvaluationFigures | None:
        """Return on rank 0 the recorded evaluation of the checkpoint that `best` names; None if there is none."""
        best = files.pointed_to(self._directory.checkpoints, files.BEST) if self.runtime.rank == 0 else None
        if best is None:
            return None
        # The best may be of an earlier launch, so its figures come from the record.
        evaluations = read_evaluations(self._directory.path)
        by_checkpoint = {files.checkpoint_name(evaluation.step): evaluation for evaluation in evaluations}
        return by_checkpoint[best.name].figures() if best.name in by_checkpoint else None

    def _evaluate_first(self, evaluator: Evaluator) -> str | None:
        """Evaluate before the first step, if asked to; return the status if the run is stopped meanwhile."""
        state = self.state
        if not self.config.eval.before_training or state.step or state.evaluation is not None:
            return None
        # A new day's rows, before the model learns them, are a test of yesterday's model.
        is_new_day = state.parent is not None and state.parent.dataset != self.session.manifest.digest
        try:
            state.evaluation = evaluator.evaluate(0, with_train=is_new_day)
        except EvaluationInterrupted:
            return "interrupted"
        return None


def _require_rows_for_batch_norm(config: AppConfig, rows: int) -> None:
    """Raise UserError if an epoch ends with a batch of one row, which has no variance for batch norm."""
    if not config.model.batch_norm or config.train.drop_last:
        return
    batch, micro_batch = config.train.global_batch_size, config.train.micro_batch
    last = rows % batch
    if last == 1 or (micro_batch is not None and last % micro_batch == 1):
        fault = "has one" if last == 1 else f"ends with a micro-batch of one ({micro_batch} each)"
        raise UserError(
            f"train.drop_last=false: of {rows:,} rows the last batch of {batch} {fault}, and model.batch_norm=true "
            f"needs at least two; use train.global_batch_size={batch + 1}, or train.drop_last=true"
        )
