"""What machines do to a process, in words: memory that is not there, and other processes of the job that are lost."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

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


class Advice(NamedTuple):
    """What helps a command: where memory is not enough, and where a process was lost."""

    less_memory: str
    go_on: str


TRAINING = Advice(
    "use a smaller train.global_batch_size or data.shuffle_window_blocks, or more processes; a run that is there goes "
    "on from its checkpoint",
    "the same command goes on from the last checkpoint",
)
READING = Advice("use more processes, and a smaller batch where the command has one", "start the same command again")

NO_MEMORY = ("not enough memory", "Cannot allocate memory", "can't allocate memory", "std::bad_alloc")


@contextmanager
def clear_words(rank: int, timeout_minutes: float, advice: Advice) -> Iterator[None]:
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
