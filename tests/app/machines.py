"""Two network namespaces joined by a virtual cable are two machines; app.launch on one of them."""

import contextlib
import ctypes
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.app.conftest import SMALL, app_environment
from tests.app.group import train_group
from tests.app.run_files import wait_for
from tests.fast_python import fast_python
from tests.forks import start_module
from tests.once import made_once


class Launcher:
    """A launcher under way in `cwd`; what it and its processes say goes to the directory `out`, which it makes."""

    def __init__(
        self, *arguments: str, cwd: Path, out: Path, python: str = "", prepare: Callable[[], None] | None = None
    ) -> None:
        """python: another than the fast one, whose start takes 7 s."""
        out.mkdir()
        variables = {key: value for key, value in app_environment().items() if key != "OMP_NUM_THREADS"}
        variables["PYTHON_EXEC"] = python or str(fast_python())  # read by torchrun
        self.out = out
        self.process = start_module("app.launch", *arguments, cwd=cwd, out=out, environment=variables, prepare=prepare)

    def end(self) -> tuple[int, str]:
        """Wait for its exit status, and what was said on stderr."""
        self.process.join(480)
        assert self.process.exitcode is not None, "the launcher did not end"
        return self.process.exitcode, (self.out / "stderr").read_text()


ADDRESSES = ("10.213.71.1", "10.213.71.2")
CLONE_NEWNET = 0x40000000  # <sched.h>
DISTURBED = [*SMALL, "run.name=mine", "train.max_steps=300", "checkpoint.every_steps=50", "sharding.types=row_wise"]
DISTURBED += ["train.eval_every_steps=null", "baselines=false"]

_NUMBERS = itertools.count()


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextlib.contextmanager
def two_machines() -> Iterator[list[str]]:
    """Names of two namespaces; each holds its end of the cable, which bears the same name."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    number = next(_NUMBERS)
    names = [f"cw{os.getpid()}.{number}{letter}" for letter in "ab"]
    try:
        try:
            for name in names:
                ip("netns", "add", name)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not allowed here: {error.stderr.decode().strip()}")
        ip("link", "add", names[0], "netns", names[0], "type", "veth", "peer", "name", names[1], "netns", names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", name)
            ip("-n", name, "link", "set", name, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            lose(name)
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    with two_machines() as names:
        yield names


def enter(host: str) -> None:
    """Let this process, and those that it starts, see that host's network."""
    with open(f"/run/netns/{host}", encoding="utf-8") as network:
        if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), network.name)


def kill(pid: int) -> None:
    """A process and all that it has started, as when a machine is lost."""
    pids = [pid]
    for parent in pids:
        for path in Path(f"/proc/{parent}/task").glob("*/children"):
            pids += map(int, path.read_text().split())
    end(pids)


def pids_in(host: str) -> list[int]:
    return [int(pid) for pid in subprocess.check_output(["ip", "netns", "pids", host], text=True).split()]


def lose(host: str) -> None:
    """All processes of a machine, as when it is switched off."""
    end(pids_in(host))


def end(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def num_checkpoints(run: Path) -> int:
    """Count the checkpoints in a run's log, whose last line may be half a line."""
    metrics = run / "metrics.jsonl"
    return metrics.read_text().count('{"event": "checkpoint"') if metrics.exists() else 0


def wait_for_checkpoint(run: Path, launchers: list[Launcher], number: int = 1) -> None:
    """Wait until a run has written that many, while its launchers are under way."""
    processes = [launcher.process for launcher in launchers]
    wait_for(run / "metrics.jsonl", lambda: num_checkpoints(run) >= number, processes)


def undisturbed(factory: pytest.TempPathFactory, dataset: Path) -> Path:
    """The run of `DISTURBED` by two processes that nothing happened to."""

    def train(directory: Path) -> None:
        assert train_group([*DISTURBED, f"data.path={dataset}"], 2, directory) == [0, 0]

    return made_once(factory, "undisturbed_pair", train) / "runs/mine"
