"""A command's process group from start to end, its logging, and one-line errors for lost peers and lack of memory."""

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from tqdm import tqdm

from app.config import AppConfig
from app.runtime import platform
from app.runtime.platform import Runtime
from common.errors import LostPeerError, UserError

log = logging.getLogger("clickwork")
# How gloo, NCCL, RCCL and torch's store tell that somebody is not there any more.
_LOST = re.compile(
    r"connection closed by peer|connection reset by peer|connection (?:was )?(?:likely )?closed|broken pipe|"
    r"socket closed|timed out waiting|application timeout|wait timeout|remote process exited|socket timeout|"
    r"no route to host|network is unreachable|failed to recv|nccl (?:remote|system) error|ncclremoteerror|"
    r"software caused connection abort|connection timed out|connection refused",
    re.IGNORECASE,
)


class FailureAdvice(NamedTuple):
    """What helps a command: where memory is not enough, and where a process was lost."""

    less_memory: str
    go_on: str


TRAINING = FailureAdvice(
    "use a smaller train.global_batch_size or data.shuffle_window_blocks, or more processes; a run that is there goes "
    "on from its checkpoint",
    "the same command goes on from the last checkpoint",
)
READING = FailureAdvice(
    "use more processes, and a smaller batch where the command has one", "start the same command again"
)

NO_MEMORY = ("not enough memory", "Cannot allocate memory", "can't allocate memory", "std::bad_alloc")


@contextmanager
def reporting_failures(rank: int, timeout_minutes: float, advice: FailureAdvice) -> Iterator[None]:
    """Say in one line what machines do to a process: no memory, or another process of the job that is gone.

    Raises:
        UserError: there was not enough memory.
        LostPeerError: a collective operation failed because of another process or the way to it.
    """
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        text = str(error)
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(sign in text for sign in NO_MEMORY):
            said = f"out of memory ({(text or 'Python').splitlines()[0][:200]}): {advice.less_memory}"
            if os.environ.get("LOCAL_RANK", "0") != "0":  # only the first one's UserErrors are printed
                log.error("process %d: %s", rank, said)
            raise UserError(said) from error
        found = _LOST.search(text) if isinstance(error, RuntimeError) else None
        if not found:
            raise
        raise LostPeerError(
            f"process {rank}: another process is gone or out of reach ({found.group().lower()}; "
            f"runtime.timeout_minutes={timeout_minutes:g}), killed perhaps for want of memory; {advice.go_on}"
        ) from error


@contextmanager
def joined(config: AppConfig, advice: FailureAdvice) -> Iterator[Runtime]:
    """Within it this process is one of the group's; rank 0 tells what happens, and losses are told in one line.

    Raises:
        UserError: as app.runtime.platform.start, or memory is not enough.
        LostPeerError: another process is gone.
    """
    here = platform.start(config.runtime, config.train.seed, config.train.deterministic)
    log_to_terminal(here.rank)
    try:
        with reporting_failures(here.rank, config.runtime.timeout_minutes, advice):
            yield here
    finally:
        platform.stop()


class _BesideBar(logging.StreamHandler):  # type: ignore[type-arg]  # Python 3.10 cannot subscript it
    """Log lines above the bar, without tearing it."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


def log_to_terminal(rank: int) -> None:
    """Rank 0 tells what happens on stderr; the others only warn."""
    handler = _BesideBar()
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO if rank == 0 else logging.WARNING)
    log.propagate = False
