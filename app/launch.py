"""python -m app.launch --nproc-per-node N [torchrun's options] -m app.train key=value ...

torchrun, but: it ends with the processes' own exit status (2 bad input, 75 stopped and resumable), says in one line
what became of them, hands Slurm's SIGUSR1 on, gives them time to write a checkpoint, and on one machine needs no
host name that resolves.
"""

import logging
import os
import signal
import sys
from typing import Any

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from common.cli import EXIT_INTERRUPTED, EXIT_STOPPED

# Not SIGINT: a terminal sends it to the processes as well, and a second one would end them at once.
HANDED_ON = "SIGTERM,SIGUSR1,SIGHUP,SIGQUIT"
SHUTDOWN_SECONDS = 300  # torchrun's 30 may be too few for a checkpoint
LOOPBACK = "127.0.0.1"


def main(arguments: list[str]) -> int:
    """Run torchrun with `arguments`; return the exit status of the process that failed first, 0 if none did."""
    options = _with_defaults(torchrun.parse_args(arguments))
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun does so too, with a banner
    os.environ.setdefault("TORCHELASTIC_SIGNALS_TO_HANDLE", HANDED_ON)
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # what fails is told below, once
    signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        torchrun.run(options)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return _tell(rank, failure.exitcode)
    except SignalException as error:
        return EXIT_STOPPED if error.sigval != signal.SIGINT else EXIT_INTERRUPTED
    return 0


def _with_defaults(options: Any) -> Any:
    """Where the user said nothing: time to stop in, and on one machine a meeting place that needs no name."""
    for name, default, ours in (("signals_to_handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", HANDED_ON),
                                ("shutdown_timeout", None, SHUTDOWN_SECONDS)):  # fmt: skip
        if hasattr(options, name) and getattr(options, name) == default:  # older releases have them not
            setattr(options, name, ours)
    if str(options.nnodes) in ("1", "1:1") and not options.rdzv_endpoint and options.master_port is None:
        options.rdzv_backend, options.rdzv_endpoint = "c10d", f"{LOOPBACK}:0"  # port 0: one that is free
        options.local_addr = options.local_addr or LOOPBACK
    return options


def _tell(rank: int, status: int) -> int:
    """Say what ended a process, unless it said so itself; the exit status to end with."""
    if status >= 0:
        return status
    name = signal.Signals(-status).name
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    print(f"error: process {rank} was ended by {name}{hint}; the same command goes on from the last checkpoint",
          file=sys.stderr)  # fmt: skip
    return 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
