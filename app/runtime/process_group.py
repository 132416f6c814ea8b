"""A command's process group from start to end, its logging, and one-line errors for lost peers and lack of memory."""

import contextlib
import logging
import re
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from tqdm import tqdm

from app.config import AppConfig
from app.runtime import environment, platform
from app.runtime.platform import Runtime
from common.errors import LostPeerError, OwnError
from common.redact import RedactingFormatter
from common.signals import erased, is_launched

log = logging.getLogger("clickwork")
# Phrases by which gloo, NCCL, RCCL and torch's store report that a peer is gone.
_LOST = re.compile(
    r"connection closed by peer|connection reset by peer|connection (?:was )?(?:likely )?closed|broken pipe|"
    r"socket closed|timed out waiting|application timeout|wait timeout|remote process exited|socket timeout|"
    r"no route to host|network is unreachable|failed to recv|nccl (?:remote|system) error|ncclremoteerror|"
    r"software caused connection abort|connection timed out|connection refused",
    re.IGNORECASE,
)


class FailureAdvice(NamedTuple):
    """Advice for a command that runs out of memory, and for one that loses a process.

    resumption: returns whether a checkpoint exists to resume from, and, to end a line, what the same command would do.
    """

    less_memory: str
    resumption: Callable[[], tuple[bool, str]]


READING = FailureAdvice(
    "use more processes, and a smaller batch where the command has one", lambda: (False, "start the same command again")
)

NO_MEMORY = ("not enough memory", "Cannot allocate memory", "can't allocate memory", "std::bad_alloc")


@contextlib.contextmanager
def reporting_failures(rank: int, timeout_minutes: float, advice: FailureAdvice) -> Iterator[None]:
    """Report failures from outside this program in one line: lack of memory, or the loss of another process.

    Raises:
        OwnError: there was not enough memory.
        LostPeerError: a collective operation failed because of another process or the way to it.
    """
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        text = str(error)
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(sign in text for sign in NO_MEMORY):
            reason, (_, remedy) = (text or "Python").splitlines()[0][:200], advice.resumption()
            message = f"out of memory ({reason}, process {rank}): {advice.less_memory}; {remedy}"
            raise OwnError(message) from error
        match = _LOST.search(text) if isinstance(error, RuntimeError) else None
        if not match:
            raise
        resumable, remedy = advice.resumption()
        raise LostPeerError(
            f"process {rank}: another process is lost or unreachable ({match.group().lower()}; "
            f"runtime.timeout_minutes={timeout_minutes:g}), perhaps killed for lack of memory; {remedy}",
            resumable,
        ) from error


@contextlib.contextmanager
def joined(config: AppConfig, advice: FailureAdvice) -> Iterator[Runtime]:
    """Context with a process group: rank 0 logs, and a lost peer is reported in one line.

    The configuration's environment is applied first: a run's commands compute as its training did.

    Raises:
        UserError: as `app.runtime.platform.start`, or there is not enough memory.
        LostPeerError: another process is gone.
    """
    settings = environment.apply(config.environment, with_networks=advice is not READING or is_launched())
    runtime = platform.start(config.runtime, config.train.seed, config.train.deterministic)
    log_to_terminal(runtime.rank)
    for line in settings:
        log.info("%s", line)
    try:
        with reporting_failures(runtime.rank, config.runtime.timeout_minutes, advice):
            yield runtime
    except KeyboardInterrupt:
        raise  # the process ends: the others may be inside a collective operation
    except BaseException:
        platform.stop(failed=True)
        raise
    platform.stop()


class _BesideBar(logging.StreamHandler):  # type: ignore[type-arg]  # Python 3.10 cannot subscript it
    """Writes log lines above the progress bar, without breaking it."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone
            tqdm.write(erased(2) + self.format(record), file=sys.stderr)


def log_to_terminal(rank: int) -> None:
    """Log to stderr: everything on rank 0, warnings on the others."""
    handler = _BesideBar()
    handler.setFormatter(RedactingFormatter("%(message)s", is_terminal=True))
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO if rank == 0 else logging.WARNING)
    log.propagate = False
