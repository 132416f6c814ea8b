"""Reports of a run while it trains: events in its directory, trackers, progress, and its clock."""

import time
from datetime import datetime, timezone

import numpy as np
from msgspec import structs

from app.config import Compile
from app.metrics.documents import AnyEvent, Curves, EvaluationEvent, EvaluationFigures, TrainEvent
from app.metrics.power import EnergyMeter
from app.metrics.timing import StepTimer, memory_in_use
from app.metrics.totals import Measured
from app.record import provenance
from app.record.directory import RunDirectory
from app.record.documents import RunManifest
from app.record.progress import ProgressDisplay
from app.trackers.run_trackers import FILES, Trackers
from app.training.labels import task_of
from app.training.recording.describe import describe_dataset, describe_files, describe_tables
from app.training.recording.summary import mean_loss
from app.training.session import Session
from app.training.state import RunLength, RunState
from app.training.window import StepFigures
from common.keys import to_plain
from common.redact import redact


class Recorder:
    """Reports a session's run to its directory, to other tools and to the terminal."""

    def __init__(
        self, session: Session, directory: RunDirectory, timer: StepTimer, length: RunLength, began: float
    ) -> None:
        """began: time.perf_counter() when the command began."""
        self.directory, self.trackers = directory, Trackers()
        self.energy = EnergyMeter(session.runtime.device)
        self.seconds_before: dict[str, float] = {}  # seconds before a resumption, by kind
        self._session, self._timer, self._began, self._state = session, timer, began, RunState()
        train = session.config.train
        self._is_logloss, self._length = session.is_logloss, length
        self._progress = ProgressDisplay(
            length.total_steps,
            session.runtime.rank == 0,
            train.print_windows,
            may_end_early=train.early_stop_patience is not None,
        )

    def begin(self, state: RunState, continues: bool, pipeline: str) -> None:
        """Write the run's configuration and manifest, and open its trackers; a collective call.

        continues: whether the state is from this run's own checkpoint; the record up to there then stays.
        """
        session, directory, self._state = self._session, self.directory, state
        plain, manifest = redact(to_plain(session.config)), self._manifest(pipeline)
        evaluated = state.evaluation is not None and state.evaluation.step == state.step
        rows = {
            **session.predictor.split_rows(),
            "train": session.predictor.split("train").rows,
        }  # this includes drawn negatives

        def open_trackers() -> None:
            world_size = session.runtime.world_size
            self.trackers.start(directory.path, session.config, plain, rows, world_size, state.step)
            self.trackers.show_again(directory.events_at(state.step), directory.curves_at(state.step))

        session.runtime.on_rank_0(lambda: directory.begin(plain, manifest, state.step, evaluated, not continues, FILES))
        if directory.is_tracked:
            session.runtime.on_rank_0(open_trackers)

    def measure_energy(self) -> None:
        """Count the energy that all processes' devices used since the last call; a collective call.

        On CPUs one process of each machine counts for all, because the meter covers the whole machine.
        """
        lap, runtime = self.energy.lap(), self._session.runtime
        counts = runtime.device.type != "cpu" or runtime.rank % runtime.local_world_size == 0
        energy = np.array([lap[0] if counts else 0.0, lap[1]] if lap is not None else [np.nan, np.nan])
        energies = np.stack(runtime.gather(energy))
        if np.isfinite(energies).all():
            self._state.count(Measured(joules=float(energies[:, 0].sum()), energy_seconds=float(energies[:, 1].max())))

    def start(self, step: int) -> None:
        """Start the progress display and the energy meter; `step` steps were done before."""
        self._progress.start(step)
        self.energy.start()

    def seconds(self) -> dict[str, float]:
        """Return the seconds spent so far, including those before a resumption."""
        seconds_by_kind = {"total": time.perf_counter() - self._began, **self._timer.seconds}
        return {kind: value + self.seconds_before.get(kind, 0.0) for kind, value in seconds_by_kind.items()}

    def event(self, event: AnyEvent) -> None:
        """Append an event, with samples and seconds so far, to metrics.jsonl and show it in the trackers."""
        event.samples, event.seconds = self._session.predictor.samples(event.step), self.seconds()["total"]
        self.directory.event(event)
        self.trackers.event(event)

    def steps(self, state: RunState, figures: StepFigures) -> None:
        """Report a window of steps; the state's step is the last of them."""
        loss, accuracy = mean_loss(figures.losses), None
        if task_of(self._session.manifest).has_clicks:
            accuracy = float(figures.accuracies.mean(dtype=np.float64))
        total = float(figures.seconds.sum(dtype=np.float64))
        samples = self._session.predictor.samples
        rate = (samples(state.step) - samples(state.step - len(figures.seconds))) / total
        wait = figures.input_wait / total
        self.measure_energy()
        measured = state.take_unreported()
        host_bytes, device_bytes = memory_in_use(self._session.runtime.device)
        event = TrainEvent(
            event="train",
            step=state.step,
            epoch=state.epoch,
            steps=len(figures.losses),
            loss=loss,
            accuracy=accuracy,
            logloss=loss if self._is_logloss else None,
            lr=figures.lr,
            gradient_norm=figures.gradient_norm,
            samples_per_second=rate,
            input_wait_fraction=wait,
            phase_seconds={**figures.phases},
            watts=measured.joules / measured.energy_seconds if measured.energy_seconds else None,
            measured=measured,
            host_bytes=host_bytes,
            device_bytes=device_bytes,
        )
        self.event(event)
        self._progress.update(event, state.evaluation)

    def evaluation(self, kind: str, step: int, result: EvaluationFigures, seconds: float | None = None) -> None:
        """Report the metrics of a split, and the seconds that they took; a collective call."""
        self.measure_energy()
        event = EvaluationEvent(
            event=kind,
            step=step,
            eval_samples=result.samples,
            split=result.split,
            auc=result.auc,
            rest=result.rest,
            eval_seconds=seconds,
            measured=self._state.take_unreported(),
        )
        self.event(event)

    def curves(self, curves: Curves | None) -> None:
        """Show an evaluation's curves in the trackers; None on ranks that have none."""
        self.trackers.curves(curves)

    def close(self) -> None:
        """Leave the progress display as it stands."""
        self._progress.close()

    def _manifest(self, pipeline: str) -> RunManifest:
        """Return the run's provenance, data, plan and tables, for manifest.json."""
        session = self._session
        return RunManifest(
            **structs.asdict(provenance.describe_run(session.config.environment.variables)),
            dataset=describe_dataset(session),
            files=describe_files(session) if session.runtime.rank == 0 else {},
            seeds={"train.seed": session.config.train.seed},
            world_size=session.runtime.world_size,
            platform=session.runtime.platform.value,
            num_threads=session.runtime.num_threads,
            compile=(session.config.runtime.compile or Compile.none).value,
            local_world_size=session.runtime.local_world_size,
            plan=session.plan.describe_tables(),
            began=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            pipeline=pipeline,
            tables=describe_tables(session),
            schedule=self._length.schedule(session.config.eval.train_split),
            from_step=0,
            results_before=0,  # both are set when the directory is opened
        )
