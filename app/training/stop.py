"""Stops before a run's end: for a signal, the time limit, or a checkpoint that could not be written."""

import logging
import signal
import time
from typing import NamedTuple

import numpy as np

from app.config import TrainConfig
from app.runtime.platform import Runtime
from app.training.checkpointer import Checkpointer
from app.training.state import AGREE_EVERY_STEPS
from common.signals import StopRequest

log = logging.getLogger("clickwork")


class StopReasons(NamedTuple):
    """Reasons for a process to stop; after `agreed`, those of any process."""

    failed: bool  # a checkpoint could not be written
    signal: int  # its number, the highest of several; 0: there was none
    over: bool  # the time limit is reached

    def agreed(self, runtime: Runtime) -> "StopReasons":
        """Return the reasons of all processes together; a collective call."""
        failed, number, over = np.max(runtime.gather(np.array(self, np.int64)), axis=0).tolist()
        return StopReasons(bool(failed), number, bool(over))


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
        """request: None if signals end the command. began: time.perf_counter() when the command began."""
        self._request, self._checkpointer, self._runtime, self._began = request, checkpointer, runtime, began
        self._max_seconds = None if train.max_minutes is None else train.max_minutes * 60

    def requested(self, step: int) -> bool:
        """Return whether to stop after this step or evaluation batch; several processes agree at every tenth."""
        self._checkpointer.report_finished()
        over = self._max_seconds is not None and time.perf_counter() - self._began >= self._max_seconds
        came = self._request.signal if self._request is not None else None
        reasons = StopReasons(self._checkpointer.failed(), int(came or 0), over)
        if self._runtime.world_size > 1:
            if step % AGREE_EVERY_STEPS:
                return False
            reasons = reasons.agreed(self._runtime)
        if reasons.failed:
            self._checkpointer.wait()
        if reasons.signal and came is None and self._request is not None:
            self._request.note(reasons.signal)
            log.warning("%s: another process was asked to stop", signal.Signals(reasons.signal).name)
        return any(reasons)
