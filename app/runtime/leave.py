"""The end of a command's process; other machines of its job may wait for it."""

import atexit
import contextlib
import datetime
import logging
import os
import socket
import sys
import threading
import time
from typing import NoReturn

from common.cli import EXIT_BAD_INPUT
from common.signals import is_launched, say

REFUSAL_SECONDS = 30.0  # time within which the other machines of a job must hear of a refusal
HAS_MET = threading.Event()  # set once this process has met the others of its job
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def leave(status: int) -> NoReturn:
    """End the process with this exit status, without tearing the interpreter down.

    A signal during the tear-down would change the status. Under torchrun, a thread of gloo's that outlives its owner
    would also abort a process that has done its work ("terminate called without an active exception", in one of some
    ten runs).
    """
    if status == EXIT_BAD_INPUT and not HAS_MET.is_set():
        announce_refusal()
    if not is_launched():
        atexit._run_exitfuncs()
    logging.shutdown()
    try:
        if sys.stdout is not None:  # the reader may have ended
            sys.stdout.flush()
    except OSError as error:
        say(f"error: standard output: {error.strerror}")
        status = status or EXIT_BAD_INPUT
    os._exit(status)


def announce_refusal() -> None:
    """Let the other machines of the job, which wait for this process, end with exit status 2 as well.

    Otherwise they would wait until the timeout, since one machine's torchrun does not know of another's failure.
    """
    if not all(os.environ.get(name) for name in LAUNCHER_VARIABLES):
        return
    world_size, local_world_size = (int(os.environ.get(name) or 1) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if world_size <= local_world_size:
        return
    # Imported lazily, since it takes seconds: only a job of several machines needs it.
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    with contextlib.suppress(RuntimeError, ValueError):  # the others are unreachable, or have ended
        store, rank, _ = next(rendezvous("env://", timeout=datetime.timedelta(seconds=REFUSAL_SECONDS)))
        meeting, until = dist.PrefixStore("meeting", store), time.monotonic() + REFUSAL_SECONDS
        meeting.compare_set("refused", "", socket.gethostname())  # the first one gives the reason
        meeting.set(f"refusal heard/{rank}", "")
        others = [f"refusal heard/{other}" for other in range(0, world_size, local_world_size)]
        while not meeting.check(others) and time.monotonic() < until:
            time.sleep(0.02)
