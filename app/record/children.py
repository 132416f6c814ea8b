"""Runs that another command trains, each a process of app.train."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from app.record.reading import LOCK
from common import signals
from common.errors import UserError

SECONDS_TO_LEAVE = 300  # for the process of a killed command


def start_module(words: Sequence[str], stdout: int | None = None) -> "subprocess.Popen[bytes]":
    """Start `python -m WORDS`, which ends with this process; a terminal's signals reach it only through this one."""
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        stdout=stdout,
        start_new_session=True,
        preexec_fn=signals.end_with_parent,  # noqa: PLW1509  # this process has no threads
    )


def wait_for_orphan(directory: Path) -> None:
    """Wait until the process of a killed command, which is still saving, has left the run.

    Raises:
        UserError: it has not left after SECONDS_TO_LEAVE.
    """
    if directory.is_dir():
        try:
            with FileLock(directory / LOCK, timeout=SECONDS_TO_LEAVE):
                pass
        except Timeout as error:
            raise UserError(f"{directory}: another process is training there; wait for its end") from error
