"""What can go wrong with `python -m app.train` at an exact moment: `forked(..., fault="in the save:2")`.

The N-th time the moment comes, the process is killed as by kill -9, or whatever else the fault says.
"""

import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from app.checkpoint import files
from app.data import split
from app.training import checkpointer, predictor, session


def at_call(
    module: Any, name: str, number: int, act: Callable[..., None], when: Callable[..., bool] = lambda *_, **__: True
) -> None:
    """Do something at the `number`-th call of `module.name` that `when` holds for, with its arguments, before it."""
    original, count = getattr(module, name), [0]

    def replacement(*arguments: Any, **keywords: Any) -> Any:
        if when(*arguments, **keywords):
            count[0] += 1
            if count[0] == number:
                act(*arguments, **keywords)
        return original(*arguments, **keywords)

    setattr(module, name, replacement)


def kill(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_job(*_: Any, **__: Any) -> None:
    """All processes, itself last: nobody lives to notice that another one is gone."""
    pids = [int(path.read_text()) for path in Path().glob(".pid.*")]
    for pid in sorted(pids, key=lambda pid: pid == os.getpid()):
        os.kill(pid, signal.SIGKILL)


def terminate(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def signal_in_step(name: str) -> Callable[[int], None]:
    number = signal.Signals[name]
    return lambda n: at_call(session.Session, "begin_step", n, lambda *_: os.kill(os.getpid(), number))


def stop_at(step: int) -> None:
    """As if a signal had come during that step."""
    vars(checkpointer)["Checkpointer"].stop_requested = lambda _, now: now == step


def take_disk(*_: Any, checkpoint_id: Path, **__: Any) -> None:
    """Somebody else's file leaves less of the disk than a checkpoint takes, but some for the last figures."""
    disk = checkpoint_id.parents[2]
    (disk / "others").write_bytes(bytes(shutil.disk_usage(disk).free - 45_000))


def limit_memory(step: int) -> None:
    """From that step on, no memory: an allocation of 64 GiB is tried, and more than there is now is forbidden."""

    def act(*_: Any, **__: Any) -> None:
        num_bytes = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes + (1 << 30), num_bytes + (1 << 30)))
        torch.empty(1 << 34)

    at_call(session.Session, "begin_step", step, act)


def spoil_loss(number: int, spoil: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The `number`-th step's loss is what `spoil` makes of it."""
    make, count = vars(session)["make_loss"], [0]

    def spoiled(*arguments: Any) -> Any:
        loss = make(*arguments)

        def replacement(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            count[0] += 1
            return spoil(loss(logits, labels)) if count[0] == number else loss(logits, labels)

        return replacement

    vars(session)["make_loss"] = spoiled


def infinite_gradient(loss: torch.Tensor) -> torch.Tensor:
    loss.register_hook(lambda gradient: gradient * float("inf"))
    return loss


def spoil_losses(number: int, count: int) -> None:
    for k in range(number, number + count):
        spoil_loss(k, lambda loss: loss * float("inf"))


def spoil_table(step: int) -> None:
    """Before that step, a NaN gets into every row of a table."""

    def act(*_: Any, **__: Any) -> None:
        for parameters in saved[0].model.state_dict().items():
            if "t_cat_1" in parameters[0]:
                for shard in parameters[1].local_shards():
                    shard.tensor.fill_(float("nan"))

    saved: list[session.Session] = []
    build = session.build
    session.build = lambda *arguments: saved.append(build(*arguments)) or saved[0]  # type: ignore[func-returns-value]
    at_call(session.Session, "begin_step", step, act)


def in_evaluation(*_: Any) -> bool:
    return not torch.is_grad_enabled()


def in_process_1(*_: Any) -> bool:
    return os.environ.get("RANK") == "1"


FAULTS: dict[str, Callable[[int], None]] = {
    "in the step": lambda n: at_call(session.Session, "begin_step", n, kill_job),
    "before the save": lambda n: at_call(dcp, "save", n, kill_job),
    "in the save": lambda n: at_call(files, "publish", n, kill_job),
    "before the rename": lambda n: at_call(os, "rename", n, kill_job, lambda a, b: str(a).endswith(files.PART)),
    "after the rename": lambda n: at_call(files, "write_atomically", n, kill_job, lambda p, c: p.name == files.LATEST),
    "before the best": lambda n: at_call(files, "write_atomically", n, kill_job, lambda p, c: p.name == files.BEST),
    "in the pruning": lambda n: at_call(shutil, "rmtree", n, kill_job, lambda p, **_: str(p).endswith(files.OLD)),
    "in the beginning": lambda n: at_call(os, "replace", n, kill_job, lambda a, b: "/runs/" in f"/{b}"),
    "kill": lambda n: at_call(session.Session, "begin_step", 1, kill_job, lambda _, step: step == n),
    "stop": stop_at,
    **{f"{name} in the step": signal_in_step(name) for name in ("SIGTERM", "SIGUSR1")},
    "signal in the evaluation": lambda n: at_call(predictor.Predictor, "forward", n, terminate, in_evaluation),
    "process 1 is lost": lambda n: at_call(predictor.Predictor, "forward", n, kill, in_process_1),
    "signal in the sums": lambda n: at_call(split, "verify_shard", n, terminate),
    "disk taken": lambda n: at_call(dcp, "save", n, take_disk),
    "no memory": limit_memory,
    "loss not finite": lambda n: spoil_loss(n, lambda loss: loss * float("nan")),
    "gradients not finite": lambda n: spoil_loss(n, infinite_gradient),
    "losses not finite": lambda n: spoil_losses(n, 20),
    "table not finite": spoil_table,
}


def install(fault: str) -> None:
    """Let it go wrong, in this process; an empty fault is none."""
    if fault:
        name, number = fault.split(":")
        FAULTS[name](int(number))
