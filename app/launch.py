"""python -m app.launch --nproc-per-node N [torchrun's options] -m app.train key=value ...

torchrun with these differences: it ends with the processes' own exit status (2 bad input, 75 stopped and resumable),
reports in one line how they ended, forwards Slurm's SIGUSR1, gives them time to write a checkpoint, and on one machine
needs no resolvable host name.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.distributed import DistError
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError

from common.cli import EXIT_INTERRUPTED, EXIT_STOPPED

# Not SIGINT: a terminal sends it to the processes as well, and a second one would end them at once.
FORWARDED = "SIGTERM,SIGUSR1,SIGHUP,SIGQUIT"
SHUTDOWN_SECONDS = 300  # torchrun's 30 may be too few for a checkpoint
STUCK_SECONDS = 30
RESUMES = "the same command resumes from the last checkpoint"
LOOPBACK = "127.0.0.1"
DEFAULT_PORTS = (None, 29500)  # of --master-port: up to torch 2.10 the port that two jobs would both take


def main(arguments: list[str]) -> int:
    """Run torchrun with `arguments`; return the exit status of the process that failed first, 0 if none did."""
    options = _with_defaults(torchrun.parse_args(arguments))
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun does so too, with a banner
    os.environ.setdefault("TORCHELASTIC_SIGNALS_TO_HANDLE", FORWARDED)
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # failures are reported once, below
    signal.signal(signal.SIGINT, lambda number, frame: None)
    threading.Thread(target=_leave_if_stuck, daemon=True).start()
    try:
        torchrun.run(options)
    except ChildFailedError as error:
        return _report(*first_failure({rank: (failure.timestamp, failure.exitcode)
                                     for rank, failure in error.failures.items()}))  # fmt: skip
    except SignalException as error:
        return EXIT_STOPPED if error.sigval != signal.SIGINT else EXIT_INTERRUPTED
    except (RendezvousError, DistError) as error:
        reason = str(error).splitlines()[0]
        print(f"error: the other machines are unreachable ({reason}); {RESUMES}", file=sys.stderr)
        return EXIT_STOPPED
    return 0


def _leave_if_stuck() -> None:
    """End in torchrun's place if it no longer watches its processes.

    It asks the store of the first machine on every round, and where the way there is cut that call does not return.
    A process of its own that has ended and that it does not notice for so long shows it (on Linux).
    """
    ended_at: dict[str, float] = {}
    while True:
        time.sleep(1)
        states = {pid: _state(pid) for path in Path("/proc/self/task").glob("*/children")
                  for pid in path.read_text().split()}  # fmt: skip
        for pid, (state, code) in states.items():
            if state == "Z" and time.monotonic() - ended_at.setdefault(pid, time.monotonic()) > STUCK_SECONDS:
                status = code >> 8 or 128 + (code & 127)
                print(f"error: torchrun hangs, as when other machines are unreachable, and a process here has ended "
                      f"with {status}; {RESUMES}", file=sys.stderr)  # fmt: skip
                for other in states:
                    os.kill(int(other), signal.SIGTERM)
                os._exit(status)


def _state(pid: str) -> tuple[str, int]:
    """A process's state (R, S, Z …) and its exit code as wait() returns it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return fields[0], int(fields[-1])


def _with_defaults(options: Any) -> Any:
    """Defaults: time to stop, and on one machine a rendezvous that needs no host name."""
    for name, default, ours in (("signals_to_handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", FORWARDED),
                                ("shutdown_timeout", None, SHUTDOWN_SECONDS)):  # fmt: skip
        if hasattr(options, name) and getattr(options, name) == default:  # older releases lack them
            setattr(options, name, ours)
    if str(options.nnodes) in ("1", "1:1") and not options.rdzv_endpoint and options.master_port in DEFAULT_PORTS:
        options.rdzv_backend, options.rdzv_endpoint = "c10d", f"{LOOPBACK}:0"  # port 0: one that is free
        options.local_addr = options.local_addr or LOOPBACK
    return options


def first_failure(failures: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
    """Rank and status of the process that failed first, of each process's time (whole seconds) and status.

    Of those that torchrun found at the same time, prefer one that neither lost its peers nor was asked to end.
    """
    first = min(when for when, _ in failures.values())
    at_once = {rank: status for rank, (when, status) in failures.items() if when <= first + 1}
    return min(at_once.items(), key=lambda item: item[1] in (EXIT_STOPPED, -signal.SIGTERM))


def _report(rank: int, status: int) -> int:
    """Report what ended a process, unless it did so itself; returns the exit status to end with."""
    if status >= 0:
        return status
    name = signal.Signals(-status).name
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    print(f"error: process {rank} was ended by {name}{hint}; {RESUMES}", file=sys.stderr)
    return 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
