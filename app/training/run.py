"""Composition: one run on this process, from where it starts to its summary."""

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.config import to_plain
from app.metrics.curves import click_curves
from app.metrics.power import EnergyMeter
from app.metrics.profiling import Profiler
from app.metrics.timing import PHASES, StepTimer, memory_in_use, step_time_histogram
from app.model import losses
from app.optimizer.build import set_learning_rate, set_step
from app.optimizer.schedule import learning_rate
from app.record import provenance
from app.record.directory import Record, told_where_no_room
from app.record.progress import Progress
from app.runtime.signals import StopRequest
from app.sharding.execute import plan_summary
from app.trackers.run_trackers import FILES, TENSORBOARD, Trackers
from app.training import loop, resume, summary
from app.training.checkpointer import Checkpointer
from app.training.data_loader import Feed
from app.training.finite_checks import Health
from app.training.run_length import course_of
from app.training.session import Session, mean_over_ranks
from app.training.state import AGREE_EVERY_STEPS, LOSS, Parts, State, Steps
from app.training.summary import closing_lines

log = logging.getLogger("clickwork")


class Run:
    """A session that trains, with its state, its directory and its clock."""

    def __init__(self, session: Session, record: Record, stop: StopRequest, began: float) -> None:
        """`began`: time.perf_counter() when the command began. Raises UserError for a batch that does not fit."""
        self.session, self.record, self.stop = session, record, stop
        self.config, self.runtime = session.config, session.runtime
        self.state = State()
        self.meter, self.trackers = StepTimer(self.runtime.device), Trackers()
        self.seconds_before: dict[str, float] = {}
        self.resumed = ""
        self.began = began
        self.measured_before = 0  # steps, before a resumption
        self.keeper = Checkpointer(session, record.checkpoints, self.meter, self.seconds, self._event)
        train = self.config.train
        course = course_of(train, session.split("train").rows, self.runtime.world_size)
        self.steps_per_epoch, self.total_steps, self.course = course
        self.feed = Feed(session, course)
        self.energy = EnergyMeter(self.runtime.device)
        self.progress = Progress(self.total_steps, self.runtime.rank == 0, train.print_windows)

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint; a collective call. Raises UserError as app.resume.restore does."""
        self.state, self.seconds_before, self.resumed = resume.restore(path, self.session)
        set_step(self.session.optimizer, self.state.step)
        if self.record.was_killed():
            self.resumed += " (the part before was killed, as by a lack of memory, or the machine went down)"
        self.measured_before = len(self.state.all_step_seconds())
        self.keeper.start_from(path, self.state.step)

    def is_done(self, before: dict[str, Any]) -> bool:
        """Whether the run that wrote this summary had come to the end that the configuration now asks for."""
        if before["steps"] != self.state.step or before["status"] not in ("completed", "target_reached"):
            return False
        self.state.evaluation = before["eval"]
        same_split = before["eval"].get("split") == self.config.eval.split
        return same_split and (self.state.step >= self.total_steps or loop.reached(self.state, self.course))

    def train(self) -> str:
        """Train from the state to the end and write the run's directory; return the status."""
        plain, manifest, afresh = to_plain(self.config), self._manifest(), not self.resumed
        evaluated = self.state.evaluation is not None and self.state.evaluation["step"] == self.state.step
        self.runtime.on_rank_0(lambda: self.record.begin(plain, manifest, self.state.step, evaluated, afresh, FILES))
        self.runtime.on_rank_0(lambda: self._track(plain))
        counts = self.session.parameter_counts()
        log.info("run: %s, %d steps of %d samples, %s parameters (%s in tables), %d process(es) on %s",
                 self.record.directory, self.total_steps, self.config.train.global_batch_size,
                 f"{counts['total']:,}", f"{counts['embedding']:,}", self.runtime.world_size,
                 self.runtime.platform.value)  # fmt: skip
        log.info("sharding: %s; pipeline: %s", self.session.plan.summary(), self.feed.name)
        if self.resumed:
            log.info("%s", self.resumed)
            self._event("resume", self.state.step, line=self.resumed)
        self.progress.start(self.state.step)
        self.profiler = self._profiler()
        self.energy.start()
        try:
            status = loop.train(self._parts(), self.course, self.state)
            self.feed.close()
            self.keeper.wait()
            self.profiler.close()
        except Exception as error:
            figures = summary.summarise_failure(self.session, self.state, error, self.seconds())
            self.keeper.close()  # a checkpoint that fills the disk is gone then: there is room for the last figures
            with told_where_no_room():
                self.record.summary(figures)
                self.trackers.close(figures)
            raise
        finally:
            self.progress.close()
            self.keeper.close()
            with told_where_no_room():
                self.record.step_times(step_time_histogram(self.state.all_step_seconds()))
        figures = summary.summarise(self.session, self.state, status, self.seconds(), self._gauges())
        self.record.summary(figures)
        self.trackers.close(figures)
        spread = summary.throughput_spread(self.state, self.config.train.log_every_steps)
        num_nodes = self.runtime.world_size // self.runtime.local_world_size
        self.record.results(self.config.run.name, figures, self.config.train.global_batch_size, num_nodes, spread)
        log.info("\n".join(closing_lines(figures, self.measured_before)))
        if self.stop.signal is not None:
            log.info("stopped %.1f s after %s", time.perf_counter() - self.stop.came_at, self.stop.signal.name)
        return status

    def seconds(self) -> dict[str, float]:
        """Seconds spent so far, those before a resumption included."""
        spent = {"total": time.perf_counter() - self.began, **self.meter.spent}
        return {kind: value + self.seconds_before.get(kind, 0.0) for kind, value in spent.items()}

    def _profiler(self) -> Profiler:
        """Traces as asked for; among several processes, exchanges of a warm-up step are measured too."""
        warm_up = self.config.train.warmup_steps_excluded
        sampled = self.state.step + warm_up - 1 if self.runtime.world_size > 1 and warm_up > 1 else None
        directory, steps = self.record.directory / TENSORBOARD, self.config.runtime.profile_steps
        return Profiler(self.runtime.device, directory, self.runtime.rank, steps, sampled)

    def _gauges(self) -> dict[str, Any]:
        """Mean seconds of a step's phases and of what processes exchange in it, on the slowest of them; power."""
        phases = {name: self.runtime.highest(self.meter.phases.get(name, 0.0)) or None for name in PHASES}
        exchanged = self.runtime.highest(self.profiler.communication_seconds or 0.0) or None
        return {"phase_seconds": {**phases, "communication": exchanged}, "power": self.energy.figures()}

    def _track(self, plain: dict[str, Any]) -> None:
        """Open the views of the run for other tools, cut back to where it goes on."""
        step, record = self.state.step, self.record
        rows = {name: split.rows for name, split in self.session.manifest.splits.items()}
        self.trackers.start(record.directory, self.config, plain, rows, self.runtime.world_size, step)
        self.trackers.show_again(record.events_at(step), record.curves_at(step))

    def _parts(self) -> Parts:
        health = Health(self.session.model.module.interaction, self.session.dense_parameters(), LOSS)
        return Parts(
            batches=self.feed.batches,
            total_steps=self.total_steps,
            steps_per_epoch=self.steps_per_epoch,
            forward=self.feed.forward,
            loss=losses.make_loss(self.config.loss),
            optimizer=self.session.optimizer,
            set_learning_rate=self._set_learning_rate,
            mean_over_ranks=lambda losses: mean_over_ranks(self.runtime, losses),
            health=health,
            health_names=health.names,
            not_finite=lambda loss: self.runtime.highest(float(not torch.isfinite(loss))) > 0,
            evaluate=self._evaluate,
            save=self.keeper.save,
            keep_best=self.keeper.keep_best,
            report=self._report,
            interrupted=self._interrupted,
            checkpoint_due=self.keeper.due,
            meter=self.meter,
            step_begins=self.profiler.step_begins,
        )

    def _set_learning_rate(self, step: int) -> float:
        rates, schedule = self.config.optimizer, self.config.schedule
        lr = learning_rate(rates.lr, schedule, step)
        set_learning_rate(self.session.optimizer, lr, learning_rate(rates.table_lr, schedule, step))
        return lr

    def _event(self, kind: str, step: int, **values: Any) -> None:
        samples = step * self.config.train.global_batch_size
        self.record.event(kind, step, samples, self.seconds()["total"], **values)
        self.trackers.event(kind, step, samples, values)

    def _report(self, state: State, steps: Steps) -> None:
        loss, accuracy = summary.mean_loss(steps.losses), float(steps.accuracies.mean(dtype=np.float64))
        total = float(steps.seconds.sum(dtype=np.float64))
        rate = self.config.train.global_batch_size * len(steps.seconds) / total
        self._event("train", state.step, epoch=state.epoch, steps=len(steps.losses), loss=loss, accuracy=accuracy,
                    logloss=loss if self.config.loss.is_logloss else None, lr=steps.lr, samples_per_second=rate,
                    input_wait_fraction=steps.input_wait / total, phase_seconds=self.meter.phases,
                    watts=self.energy.watts(),
                    **memory_in_use(self.runtime.device))  # fmt: skip
        auc = state.evaluation["auc"] if state.evaluation else None
        self.progress.update(state.step, state.epoch, loss, accuracy, rate, steps.input_wait / total, auc)

    def _evaluate(self, state: State) -> dict[str, Any]:
        split, spent = self.config.eval.split, self.meter.spent["eval"]
        with self.meter.apart("eval"):
            predictions = self.session.predict(split, self._interrupted)
            result = self.session.measure(split, predictions)
            about = {"step": state.step, "split": split}
            curves = self.record.curves(about, lambda: click_curves(*predictions))
            set_step(self.session.optimizer, state.step)
        self.trackers.curves(state.step, curves)
        self._evaluated("eval", state.step, {**result, "eval_seconds": self.meter.spent["eval"] - spent})
        log.info("eval: step %d %s", state.step, summary.describe_evaluation(result))
        if result["auc"] is None and self.runtime.rank == 0:
            lack = "has not both labels" if result["samples"] else "has no rows"
            log.warning("eval: split %s %s; AUC is not defined", split, lack)
        if self.runtime.rank == 0 and summary.is_collapsed(result):
            log.warning("eval: next to a constant predictor (AUC %.4f, NE %.4f): look at optimizer.lr and the data",
                        result["auc"], result["ne"])  # fmt: skip
        if self.config.eval.train_split:
            self._compare_with_train(state, result)
        return {"step": state.step, **result}

    def _evaluated(self, kind: str, step: int, result: dict[str, Any]) -> None:
        figures = {key: value for key, value in result.items() if key != "samples"}
        self._event(kind, step, eval_samples=result["samples"], **figures)

    def _compare_with_train(self, state: State, result: dict[str, Any]) -> None:
        """Evaluate the training split too and tell both as AMD's blog does, with what unmasks its accuracy."""
        with self.meter.apart("eval"):
            on_train = self.session.measure("train", self.session.predict("train"))
            set_step(self.session.optimizer, state.step)
        self._evaluated("eval_train", state.step, on_train)
        for line in summary.describe_beside_train(on_train, result, state.step / max(self.steps_per_epoch, 1)):
            log.info(line)

    def _interrupted(self, step: int) -> bool:
        """Whether a signal came or the time is over, at any process.

        Raises:
            UserError: a checkpoint could not be written behind training's back; on all processes at once.
        """
        self.keeper.tell()
        limit = self.config.train.max_minutes
        stop = bool(self.stop) or (limit is not None and time.perf_counter() - self.began >= limit * 60)
        wants = 2.0 if self.keeper.failed() else float(stop)
        if self.runtime.world_size > 1:
            wants = 0.0 if step % AGREE_EVERY_STEPS else self.runtime.highest(wants)
        if wants > 1:
            self.keeper.wait()
        return wants > 0

    def _manifest(self) -> dict[str, Any]:
        """What makes this run, for manifest.json."""
        return {
            **provenance.describe_run(),
            "dataset": self.session.describe_dataset(),
            "seeds": {"train.seed": self.config.train.seed},
            "world_size": self.runtime.world_size,
            "platform": self.runtime.platform.value,
            "num_threads": self.runtime.num_threads,
            "plan": plan_summary(self.session.model),
            "pipeline": self.feed.name,
            "tables": self.session.describe_tables(),
        }
