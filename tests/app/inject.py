"""`python -m app.train` with one thing going wrong at an exact moment: python -m tests.app.inject FAULT N OVERRIDES.

The N-th time the moment comes, the process is killed as by kill -9 (or, for `stop`, asked to stop).
"""

import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from typing import Any

from app import checkpoint, run, train
from app.config import CONFIG_DIR, AppConfig
from common.cli import run_command


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
    "before the save": lambda n: kill_at(checkpoint.dcp, "save", n),
    "in the save": lambda n: kill_at(checkpoint, "_complete", n),
    "before the rename": lambda n: kill_at(os, "rename", n, lambda a, b: str(a).endswith(checkpoint.PART)),
    "after the rename": lambda n: kill_at(checkpoint, "write_atomically", n, lambda p, c: p.name == checkpoint.LATEST),
    "in the pruning": lambda n: kill_at(shutil, "rmtree", n, lambda p, **_: str(p).endswith(checkpoint.OLD)),
    "stop": stop_at,
    "disk full": limit_file_size,
}

if __name__ == "__main__":
    fault, number = sys.argv[1], int(sys.argv[2])
    sys.argv[1:] = sys.argv[3:]
    FAULTS[fault](number)
    sys.exit(run_command(train.main, AppConfig, CONFIG_DIR))
