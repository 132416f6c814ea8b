"""Progress of training on rank 0: a bar on a terminal, otherwise a line from time to time."""

import logging
import os
import shutil
import sys
import time
from typing import Any

from tqdm import tqdm

from app.kinds.metrics import ACCURACY, METRICS
from app.metrics.documents import EvaluationFigures, TrainEvent

log = logging.getLogger("clickwork")

FIRST_SECONDS, QUIET_SECONDS = 5.0, 20.0  # before the first line, and between lines, without a terminal
BAR = "{desc}{percentage:3.0f}%|{bar}| step {n_fmt}/{total_fmt} [{elapsed}<{remaining}]{postfix}"


def _columns_but_those_of_a_key(stream: Any) -> tuple[int, int]:
    """Return a terminal's columns and lines; fewer columns, as its own ^C would break a bar of full width."""
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except OSError:  # the terminal was closed
        columns, lines = shutil.get_terminal_size()
    return columns - len("^C") - 1, lines


class ProgressDisplay:
    """Shows steps done, loss, global samples/s and the time left."""

    def __init__(self, total_steps: int, visible: bool, all_windows: bool = False, may_end_early: bool = False) -> None:
        """all_windows: print a line for each window of steps (train.print_windows).

        may_end_early: whether the run may end before its last step; the display then says "at most".
        """
        self._all_windows, self._at_most = all_windows, "at most " * may_end_early
        self._bar: Any = None
        self._next_line = self._began = time.monotonic()
        self._visible, self._total, self._first = visible, total_steps, 0

    def start(self, step: int) -> None:
        """Start to show progress; `step` steps were done before."""
        self._began, self._first = time.monotonic(), step
        self._next_line = self._began + FIRST_SECONDS
        if self._visible and sys.stderr.isatty():
            self._bar = tqdm(
                total=self._total, initial=step, dynamic_ncols=True, mininterval=0.2, bar_format=self._bar_format()
            )
            self._bar.dynamic_ncols = _columns_but_those_of_a_key

    def update(self, event: TrainEvent, evaluation: EvaluationFigures | None) -> None:
        """Show the state after a window's event: loss and accuracy, global rate, share of time waiting for input.

        evaluation: the last one.
        """
        if not self._visible:
            return
        loss, accuracy = event.figure("loss"), event.figure(ACCURACY)
        rate, wait = event.figure("samples_per_second") or 0.0, event.figure("input_wait_fraction") or 0.0
        right = "" if accuracy is None else f" accuracy {accuracy:.2%}"
        text = "all skipped" if loss is None else f"loss {loss:.4f}{right}"
        text = f"epoch {event.epoch} {text} {rate:,.0f} samples/s, input wait {wait:.0%}"
        if evaluation is not None and (value := evaluation.figure(evaluation.main)) is not None:
            text += f", last {METRICS[evaluation.main].label} {value:.4f}"
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(event.step - self._bar.n)
        now = time.monotonic()
        if self._all_windows or (self._bar is None and now >= self._next_line):
            self._next_line = now + QUIET_SECONDS
            eta = (now - self._began) / max(1, event.step - self._first) * (self._total - event.step)
            log.info(
                "step %d/%d %s, %s%s to go", event.step, self._total, text, self._at_most, tqdm.format_interval(eta)
            )

    def _bar_format(self) -> str:
        """Return the bar's format, without the share of all steps if the run may end early."""
        if not self._at_most:
            return BAR
        return BAR.replace("{percentage:3.0f}%", "").replace("/{total_fmt}", " of at most {total_fmt}")

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()
