"""Runs of a search, each a process of app.train in a directory of its own."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from app.config.train import Monitor
from app.metrics.documents import EvaluationFigures
from app.record.children import evaluation_of_test, figures_of_test, score_test_split, start_module, wait_for_orphan
from app.record.documents import DONE
from app.record.reading import METRICS, read_evaluations, read_outcome
from app.report.read import read_run
from app.training.monitor import monitored_value, score
from common.cli import EXIT_DONE, EXIT_STOPPED
from common.config_file import literal
from common.errors import UserError, last_line
from common.keys import shown
from common.signals import Interrupted

SECONDS_BETWEEN_LOOKS = 0.5  # at the evaluations of a running trial
QUIET = ["baselines=false", "record.tensorboard=false"]  # unless the command line has them

STOPPED_BY_WATCH = -1  # in place of an exit status

Watch = Callable[[int, float], bool]  # takes a step and the score there; returns whether to stop


class SearchStopped(Exception):
    """The search was asked to stop, and its run has saved."""


class TuneRun(NamedTuple):
    """A run: the number of its trial, its seed, the drawn settings as overrides, and its directory."""

    trial: int
    seed: int
    settings: list[str]
    directory: Path

    @property
    def is_done(self) -> bool:
        """Whether it has ended and need not be trained again."""
        outcome = read_outcome(self.directory)
        return outcome is not None and outcome.status in DONE

    @property
    def overrides(self) -> list[str]:
        """Return the overrides that make the search's configuration this run."""
        name = f"{self.directory.resolve().parent.name}_{self.directory.name}"
        return [
            *self.settings,
            f"train.seed={self.seed}",
            f"run.name={name}",
            f"run.dir={literal(str(self.directory))}",
        ]

    def figures(self) -> EvaluationFigures:
        """Return the evaluation of the model that it serves."""
        return read_run(self.directory).evaluation

    def score(self, monitor: Monitor) -> float:
        """Return the served model's score on val. Raise UserError if train.monitor is undefined there."""
        value = monitored_value(self.figures(), monitor)
        if value is None:
            raise UserError(f"{self.directory}: {shown(monitor)} of val is undefined; val needs rows of both labels")
        return score(value, monitor)


def train(run: TuneRun, arguments: Sequence[str], monitor: Monitor, watch: Watch = lambda step, score: False) -> int:
    """Train a run unless it is done, and return the exit status; STOPPED_BY_WATCH if `watch` stopped it.

    arguments: app.train's. watch is called once for each evaluation, in order. The run's log.txt has its log; here a
    run that fails prints its last line.

    Raises:
        SearchStopped: a signal came, and the run has saved.
        Interrupted: a signal came, and the run has not saved.
        UserError: another process trains the run.
    """
    if run.is_done:
        return EXIT_DONE
    wait_for_orphan(run.directory)
    with tempfile.TemporaryFile() as log:
        words = ["app.train", *QUIET, *arguments, *run.overrides]
        status = _watched(start_module(words, subprocess.DEVNULL, log), run, monitor, watch)
        if status not in (EXIT_DONE, EXIT_STOPPED, STOPPED_BY_WATCH):
            log.seek(0)
            print(last_line(log.read().decode(errors="replace"), ""), file=sys.stderr)
        return status


def _watched(process: "subprocess.Popen[bytes]", run: TuneRun, monitor: Monitor, watch: Watch) -> int:
    seen, is_stopped = 0, False
    while True:
        try:
            status = process.wait(SECONDS_BETWEEN_LOOKS)
        except subprocess.TimeoutExpired:
            pass
        except Interrupted as error:
            process.send_signal(error.signal)
            if process.wait() == EXIT_STOPPED:
                raise SearchStopped from error
            raise
        else:
            return STOPPED_BY_WATCH if is_stopped else status
        evaluations = read_evaluations(run.directory) if (run.directory / METRICS).exists() else []
        for evaluation in evaluations[seen:]:
            value = monitored_value(evaluation.figures(), monitor)
            if not is_stopped and value is not None and watch(evaluation.step or 0, score(value, monitor)):
                is_stopped = True
                process.terminate()
        seen = len(evaluations)


def test_figures(run: TuneRun) -> EvaluationFigures | None:
    """Return the served model's figures of test, which are measured once; None if the dataset has no such rows."""
    if score_test_split(run.directory):
        words = " ".join(evaluation_of_test(run.directory))
        raise UserError(f"{run.directory}: its test split was not scored; python -m {words}")
    return figures_of_test(run.directory)
