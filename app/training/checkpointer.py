"""Saving of a run's state during training, at the steps that the configuration asks for."""

import time

from app.checkpoint import files, model_state
from app.checkpoint.saver import Saver
from app.metrics.documents import OtherEvent
from app.metrics.timing import StepTimer
from app.training import resume
from app.training.recording.recorder import Recorder
from app.training.session import Session
from app.training.state import AGREE_EVERY_STEPS, RunLength, RunState
from common.disk_space import Need, require_room
from common.documents import Json
from common.sizes import in_words

NO_SPACE = "free some, or give run.dir on another disk, checkpoint.keep=1 or checkpoint.keep_best=false"


class Checkpointer:
    """Saves a session's state in its run's directory."""

    def __init__(self, session: Session, recorder: Recorder, timer: StepTimer) -> None:
        """Make the saver; a collective call."""
        self.config = session.config.checkpoint
        self.saved_step: int | None = None  # the newest step with a checkpoint in this run's directory
        self._session, self._recorder, self._timer = session, recorder, timer
        self._directory = recorder.directory.checkpoints
        self._saver = Saver(
            self._directory, self.config.keep, self.config.asynchronous, session.runtime.local_world_size
        )
        self._stalls: dict[int, float] = {}  # seconds that training waited while a step was saved
        self._saved_at = time.perf_counter()

    def require_space(self, step: int, length: RunLength) -> None:
        """Refuse a run that continues from `step` if its checkpoints do not fit on the disk; a collective call."""
        size = model_state.stored_bytes(model_state.tensors_of(self._session.model, self._session.optimizer))
        old_files = [path for checkpoint in files.whole_checkpoints(self._directory) for path in checkpoint.iterdir()]
        remaining, whole = length.total_steps - step, max(1, length.total_steps)
        evaluations = int(remaining // (length.distance or whole)) if self.config.keep_best else 0
        number = self.config.keep + 1 + (evaluations > 1)  # an old one is removed when the new one is complete
        if self.config.every_minutes is None:
            number = min(number, 1 + (remaining - 1) // (self.config.every_steps or whole) + evaluations)
        num_bytes = max(size, number * size - sum(path.stat().st_size for path in old_files))
        need = Need(self._directory, num_bytes, f"for checkpoints of {in_words(size)}, up to {number} at a time")
        self._session.runtime.on_rank_0(lambda: require_room([need], NO_SPACE))

    def due(self, step: int) -> bool:
        """Return whether to save at this step; the same on all processes."""
        if self.config.every_steps is not None and step % self.config.every_steps == 0:
            return True
        if self.config.every_minutes is None or step % AGREE_EVERY_STEPS:
            return False
        waited = self._session.runtime.highest(time.perf_counter() - self._saved_at)
        return waited >= self.config.every_minutes * 60

    def save(self, state: RunState, best: bool = False) -> None:
        """Begin to write a checkpoint of the state, if its step has none. Raises UserError as Saver.save does."""
        if self.saved_step == state.step:
            return
        with self._timer.apart("checkpoint"):
            began = time.perf_counter()
            self._recorder.measure_energy()
            content = resume.checkpoint_state(self._session, state, self._recorder.seconds())
            self._saver.save(state.step, self._session.model, self._session.optimizer, content, best)
            self._stalls[state.step] = time.perf_counter() - began
        self.saved_step, self._saved_at = state.step, time.perf_counter()
        self.report_finished()

    def keep_best(self, state: RunState) -> None:
        """Keep the state as the best so far: save it, or mark its checkpoint."""
        if not self.config.keep_best:
            return
        if self.saved_step != state.step:
            self.save(state, best=True)
            return
        with self._timer.apart("checkpoint"):
            self._saver.mark_best(state.step)
        self.report_finished()

    def report_finished(self) -> None:
        """Report each checkpoint that was completed since the last call."""
        for checkpoint in self._saver.finished():
            values = {"write_seconds": checkpoint.seconds, "stall_seconds": self._stalls.pop(checkpoint.step)}
            about: Json = {"path": checkpoint.path.name, **values}
            self._recorder.event(OtherEvent(event="checkpoint", step=checkpoint.step, rest=about))

    def failed(self) -> bool:
        """Return whether a checkpoint could not be written; `wait` raises the reason."""
        return self._saver.failed()

    def wait(self) -> None:
        """Wait until all is written. Raises UserError if something cannot be."""
        with self._timer.apart("checkpoint"):
            self._saver.wait()
        self.report_finished()

    def close(self) -> None:
        """Wait for the checkpoint that is being written; log, and do not raise, its failure."""
        self._saver.close()
