"""Composition: when a run's state is saved, what is told of it, and what is kept."""

import time
from collections.abc import Callable
from pathlib import Path

from app.checkpoint.saver import Saver
from app.metrics.timing import StepTimer
from app.training import resume
from app.training.session import Session
from app.training.state import AGREE_EVERY_STEPS, State

Tell = Callable[..., None]


class Checkpointer:
    """Saves a session's state under one directory."""

    def __init__(
        self, session: Session, directory: Path, meter: StepTimer, seconds: Callable[[], dict[str, float]], tell: Tell
    ) -> None:
        """seconds: spent so far, for the checkpoint. tell(kind, step, **values): an event. A collective call."""
        self.config = session.config.checkpoint
        self.saved_step: int | None = None
        self._session, self._directory, self._meter = session, directory, meter
        self._seconds, self._tell = seconds, tell
        self._saver = Saver(directory, self.config.keep, self.config.asynchronous, session.runtime.local_world_size)
        self._stalls: dict[int, float] = {}  # seconds that training waited for the saving of a step
        self._saved_at = time.perf_counter()

    def start_from(self, path: Path, step: int) -> None:
        """The state was loaded from there: if it is one of these checkpoints, its step needs none any more."""
        if path.parent.resolve() == self._directory.resolve():
            self.saved_step = step

    def due(self, step: int) -> bool:
        """Whether to save at this step; the same on all processes."""
        if self.config.every_steps is not None and step % self.config.every_steps == 0:
            return True
        if self.config.every_minutes is None or step % AGREE_EVERY_STEPS:
            return False
        waited = self._session.runtime.highest(time.perf_counter() - self._saved_at)
        return waited >= self.config.every_minutes * 60

    def save(self, state: State, best: bool = False) -> None:
        """Begin to write a checkpoint of the state, if its step has none. Raises UserError as Saver.save does."""
        if self.saved_step == state.step:
            return
        with self._meter.apart("checkpoint"):
            began = time.perf_counter()
            saved = resume.saved(self._session, state, self._seconds())
            self._saver.save(state.step, self._session.model, self._session.optimizer, saved, best)
            self._stalls[state.step] = time.perf_counter() - began
        self.saved_step, self._saved_at = state.step, time.perf_counter()
        self.tell()

    def keep_best(self, state: State) -> None:
        """The state is the best so far: keep its checkpoint."""
        if not self.config.keep_best:
            return
        if self.saved_step != state.step:
            self.save(state, best=True)
            return
        with self._meter.apart("checkpoint"):
            self._saver.mark_best(state.step)
        self.tell()

    def tell(self) -> None:
        """Tell of each checkpoint that has become whole."""
        for written in self._saver.finished():
            self._tell("checkpoint", written.step, path=written.path.name, write_seconds=written.seconds,
                       stall_seconds=self._stalls.pop(written.step))  # fmt: skip

    def failed(self) -> bool:
        """Whether a checkpoint could not be written; `wait` says why."""
        return self._saver.failed()

    def wait(self) -> None:
        """Until all is written. Raises UserError if something cannot be."""
        with self._meter.apart("checkpoint"):
            self._saver.wait()
        self.tell()

    def close(self) -> None:
        """Wait for what is being written, after something else went wrong."""
        self._saver.close()
