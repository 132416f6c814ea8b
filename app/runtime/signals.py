"""Signals: the first asks the loop to stop after its step, the second ends the process immediately."""

import os
import signal
import time
from types import FrameType

# USR1 is what Slurm sends ahead of a time limit (sbatch --signal=USR1@60).
ANSWER = "stopping after this step and saving a checkpoint; signal again to stop immediately"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """True once this process was asked to stop."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.came_at = 0.0  # time.perf_counter()
        for number in STOP_SIGNALS:
            signal.signal(number, self._note)

    def __bool__(self) -> bool:
        return self.signal is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            os._exit(128 + number)
        self.signal, self.came_at = signal.Signals(number), time.perf_counter()
        if os.environ.get("LOCAL_RANK", "0") == "0":  # not through logging: it may be in the middle of a line
            os.write(2, f"{self.signal.name}: {ANSWER}\n".encode())
