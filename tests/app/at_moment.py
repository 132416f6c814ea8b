"""`python -m tests.app.at_moment COMMAND key=value ...`: what `python -m app.COMMAND` does, with a pause in it.

The environment's MOMENT, as "in the step:3", says where: process 0 writes REACHED to stderr, and goes on once the file
`go` is in the working directory. Of one moment it does not pause: process 1 is killed there.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.checkpoint import files
from app.commands import COMMANDS
from app.data import split
from app.training import predictor, session
from common import cli
from tests.app import inject

REACHED = "THE MOMENT IS HERE"


def pause(*_: Any, **__: Any) -> None:
    if os.environ.get("RANK", "0") == "0":
        os.write(2, f"\n{REACHED}\n".encode())
        while not Path("go").exists():
            time.sleep(0.02)


def kill_twice(step: int) -> None:
    """Kill process 1 in that step, and, started again at step 25, in it again: as late as before the next save."""
    if os.environ["RANK"] == "1":
        first = {"0": 0, "1": 25}[os.environ["TORCHELASTIC_RESTART_COUNT"]]
        inject.at_call(session.Session, "begin_step", step - first, inject.kill)


MOMENTS: dict[str, Callable[[int], None]] = {
    "killed twice": kill_twice,
    "in the digests": lambda n: inject.at_call(split, "verify_shard", n, pause),
    "in the evaluation": lambda n: inject.at_call(predictor.Predictor, "forward", n, pause, inject.in_evaluation),
    "in the save": lambda n: inject.at_call(files, "publish", n, pause),
}

if __name__ == "__main__":
    name, number = os.environ["MOMENT"].split(":")
    MOMENTS[name](int(number))
    command = sys.argv.pop(1)
    cli.run(COMMANDS[command])
