"""What can go wrong with `python -m app.train` at an exact moment: `forked(..., fault="in the save:2")`.

The N-th time the moment comes, the process is killed as by kill -9, or whatever else the fault says.
"""

import os
import resource
import shutil
import signal
from collections.abc import Callable
from typing import Any

from app import run
from app.checkpoint import files, saver


def kill_at(module: Any, name: str, number: int, when: Callable[..., bool] = lambda *_, **__: True) -> None:
    """Replace `module.name` by a function that kills the process at its `number`-th call that `when` holds for."""
    original, count = getattr(module, name), [0]

    def replacement(*arguments: Any, **keywords: Any) -> Any:
        if when(*arguments, **keywords):
            count[0] += 1
            if count[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **keywords)

    setattr(module, name, replacement)


def stop_at(step: int) -> None:
    """As if a signal had come during that step."""
    run.Run._interrupted = lambda self, now: now == step  # type: ignore[method-assign]


def limit_file_size(size: int) -> None:
    """No file may become larger: writing on fails as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


FAULTS: dict[str, Callable[[int], None]] = {
    "in the step": lambda n: kill_at(run.optimizer, "set_learning_rate", n),
    "before the save": lambda n: kill_at(saver.dcp, "save", n),
    "in the save": lambda n: kill_at(files, "complete", n),
    "before the rename": lambda n: kill_at(os, "rename", n, lambda a, b: str(a).endswith(files.PART)),
    "after the rename": lambda n: kill_at(files, "write_atomically", n, lambda p, c: p.name == files.LATEST),
    "before the best": lambda n: kill_at(files, "write_atomically", n, lambda p, c: p.name == files.BEST),
    "in the pruning": lambda n: kill_at(shutil, "rmtree", n, lambda p, **_: str(p).endswith(files.OLD)),
    "stop": stop_at,
    "disk full": limit_file_size,
}


def install(fault: str) -> None:
    """Let it go wrong, in this process; an empty fault is none."""
    if fault:
        name, number = fault.split(":")
        FAULTS[name](int(number))
