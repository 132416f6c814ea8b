"""`python -m tests.app.blocked_launcher`: a launcher whose watch over its process is a call in C of some seconds.

As where the first machine's store is slow to answer: meanwhile no handler of a signal runs. Its process, with `save`,
saves for some seconds once it is asked to stop.
"""

import hashlib
import os
import sys
import time
from typing import Any

ITERATIONS = 12_000_000  # some 3 s; a call that holds no lock of the interpreter
SECONDS = 6.0


def save() -> None:
    from common import signals

    request = signals.StopRequest("stops after the checkpoint", lambda: "the checkpoint")
    print("under way", flush=True)
    while not request:
        time.sleep(0.1)
    time.sleep(SECONDS)
    print("saved", flush=True)
    os._exit(75)


def launch() -> None:
    from app import launch

    watch = launch.Agent._monitor_workers

    def watch_slowly(agent: launch.Agent, worker_group: Any) -> Any:
        hashlib.pbkdf2_hmac("sha256", b"x", b"y", ITERATIONS)
        return watch(agent, worker_group)

    launch.Agent._monitor_workers = watch_slowly  # type: ignore[method-assign,assignment]
    os._exit(launch.main(["--nproc-per-node", "1", "-m", "tests.app.blocked_launcher", "save"]))


if __name__ == "__main__":
    save() if sys.argv[1:] else launch()
