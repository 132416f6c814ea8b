"""Runs that another command trains, and scores on test, each time in a process of its own."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout

from app.metrics.documents import EvaluationFigures
from app.record.reading import LOCK, SUMMARY, read_config, read_manifest
from common import signals
from common.cli import EXIT_DONE, EXIT_STOPPED
from common.config_file import literal
from common.documents import read_document
from common.errors import UserError
from common.signals import Interrupted

SECONDS_TO_LEAVE = 300  # patience with the process of a killed command
TEST, TEST_FIGURES = "test", "test.json"  # the split, and the file of its metrics in a run's directory


def start_module(
    words: Sequence[str], stdout: int | None = None, stderr: IO[bytes] | None = None
) -> "subprocess.Popen[bytes]":
    """Start `python -m WORDS`, which ends with this process; a terminal's signals reach it only through this one."""
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=signals.end_with_parent,  # noqa: PLW1509  # this process has no threads
    )


def wait_for_orphan(directory: Path) -> None:
    """Wait until the process of a killed command, which is still saving, has left the run."""
    if directory.is_dir():
        try:
            with FileLock(directory / LOCK, timeout=SECONDS_TO_LEAVE):
                pass
        except Timeout as error:
            raise UserError(f"{directory}: another process is training there; wait for its end") from error


def run_module(words: Sequence[str], stdout: int | None = None) -> int:
    """Run `python -m WORDS`, pass on a signal to stop, and return the exit status.

    A process killed by a signal has a shell's status. Raise Interrupted for a signal after which nothing was saved.
    """
    process = start_module(words, stdout)
    try:
        status = process.wait()
    except Interrupted as error:
        process.send_signal(error.signal)
        if process.wait() == EXIT_STOPPED:
            return EXIT_STOPPED
        raise
    return status if status >= 0 else 128 - status


def evaluation_of_test(directory: Path) -> list[str]:
    """Return the words after `python -m` that write test.json of a finished run."""
    out = literal(str(directory / TEST_FIGURES))
    return ["app.evaluate", f"run={literal(str(directory))}", f"split={TEST}", f"out={out}"]


def score_test_split(directory: Path, launcher: Sequence[str] = ()) -> int:
    """Write test.json of a finished run that was evaluated on another split; return the exit status."""
    config, rows = read_config(directory), read_manifest(directory).dataset.rows
    is_built = config["train"].get("max_steps") == 0  # and not trained
    if is_built or not rows.get(TEST) or config["eval"]["split"] == TEST or figures_of_test(directory) is not None:
        return EXIT_DONE
    return run_module([*launcher, *evaluation_of_test(directory)], stdout=subprocess.DEVNULL)


def figures_of_test(directory: Path) -> EvaluationFigures | None:
    """Return the figures of a run's test split, if measured after its summary was written."""
    path = directory / TEST_FIGURES
    try:
        if path.stat().st_mtime_ns < (directory / SUMMARY).stat().st_mtime_ns:
            return None
        return read_document(path, EvaluationFigures, "remove it, and it is measured again")
    except FileNotFoundError:
        return None
