"""Whether to stop before the end: a signal, the time limit, or a checkpoint that could not be written."""

import logging
import signal
import time

from app.config import TrainConfig
from app.runtime.platform import Runtime
from app.training.checkpointer import Checkpointer
from app.training.state import AGREE_EVERY_STEPS
from common.signals import StopRequest

log = logging.getLogger("clickwork")

OVER, FAILED = 0.5, 1000.0  # what processes agree on, besides a signal's number: the highest counts


class StopCheck:
    """Decision to stop, the same on all processes."""

    def __init__(
        self,
        request: StopRequest | None,
        checkpointer: Checkpointer,
        train: TrainConfig,
        runtime: Runtime,
        began: float,
    ) -> None:
        """request: None where signals end the command. began: time.perf_counter() when the command began."""
        self._request, self._checkpointer, self._runtime, self._began = request, checkpointer, runtime, began
        self._max_seconds = None if train.max_minutes is None else train.max_minutes * 60

    def requested(self, step: int) -> bool:
        """Return whether to stop after this step, or batch of an evaluation; several processes agree every tenth.

        Raises:
            UserError: a checkpoint could not be written in the background; on all processes at once.
        """
        self._checkpointer.report_finished()
        over = self._max_seconds is not None and time.perf_counter() - self._began >= self._max_seconds
        came = self._request.signal if self._request is not None else None
        wants = FAILED if self._checkpointer.failed() else float(came or (OVER if over else 0.0))
        if self._runtime.world_size > 1:
            wants = 0.0 if step % AGREE_EVERY_STEPS else self._runtime.highest(wants)
        if wants == FAILED:
            self._checkpointer.wait()
        if wants >= 1 and came is None and self._request is not None:
            self._request.note(int(wants))
            log.warning("%s: another process was asked to stop", signal.Signals(int(wants)).name)
        return wants > 0
