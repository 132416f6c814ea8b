"""Two network namespaces joined by a virtual cable are two machines: a job across them, and the cable is cut."""

import ctypes
import functools
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.conftest import SMALL
from tests.app.group import train_group
from tests.app.launched import Launcher
from tests.app.run_files import events, losses, summary

ADDRESSES = ("10.213.71.1", "10.213.71.2")
CLONE_NEWNET = 0x40000000  # <sched.h>
TIMEOUT_SECONDS = 30  # of an exchange: others' work on this machine must not cost so much


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Names of two namespaces; each holds its end of the cable, which bears the same name."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    names = [f"cw{os.getpid()}{letter}" for letter in "ab"]
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
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def enter(host: str) -> None:
    """Let this process, and those that it starts, see that host's network."""
    with open(f"/run/netns/{host}") as network:
        if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), network.name)


DOCUMENTED = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "job",
              "--rdzv-endpoint", f"{ADDRESSES[0]}:29400"]  # fmt: skip


def start_one(hosts: list[str], number: int, out: Path, overrides: list[str], *options: str) -> Launcher:
    """app.launch on one of the machines, with one process, by the documented command."""
    given = [*DOCUMENTED, *options, "-m", "app.train", *overrides]
    return Launcher(*given, cwd=out.parent, out=out, prepare=functools.partial(enter, hosts[number]))


def start(hosts: list[str], cwd: Path, out: str, overrides: list[str], *options: str) -> list[Launcher]:
    """app.launch on both machines; the first is where they meet."""
    return [start_one(hosts, number, cwd / f"{out}_{number}", overrides, *options) for number in range(2)]


def kill(launcher: Launcher) -> None:
    """The launcher and its processes, as when a machine is lost."""
    pids = [launcher.process.pid or 0]
    for path in Path(f"/proc/{pids[0]}/task").glob("*/children"):
        pids += map(int, path.read_text().split())
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def wait_for_checkpoint(run: Path, launchers: list[Launcher]) -> None:
    deadline = time.monotonic() + 240
    while not ((run / "metrics.jsonl").exists() and events(run, "checkpoint")):
        assert time.monotonic() < deadline
        assert all(launcher.process.exitcode is None for launcher in launchers), "ended too early"
        time.sleep(0.02)


@pytest.mark.slow
def test_the_cable_is_cut_and_mended(hosts: list[str], dataset: Path, tmp_path: Path) -> None:
    overrides = [*SMALL, f"data.path={dataset}", "run.name=x", "train.epochs=6000", "checkpoint.every_steps=20",
                 f"runtime.timeout_minutes={TIMEOUT_SECONDS / 60}", "sharding.types=row_wise"]  # fmt: skip
    run, launchers = tmp_path / "runs/x", start(hosts, tmp_path, "cut", overrides)
    try:
        wait_for_checkpoint(run, launchers)
        ip("-n", hosts[1], "link", "set", hosts[1], "down")
        ended = [launcher.end() for launcher in launchers]
        said = [err for _, err in ended]
        result = [
            re.findall(r"error: process (\d): another process is lost or unreachable \(([^;]+);", err) for err in said
        ]
        (process, reason), (other, its_reason) = (one for (one,) in result)  # each end says one thing
        assert {process, other} == {"0", "1"}, said  # which host is which process is the rendezvous's to say
        assert all(re.search("timed out|timeout", words) for words in (reason, its_reason)), said  # no end hears more
        assert [status for status, _ in ended] == [75, 75], said
        assert summary(run)["status"] == "failed"
        overrides.append(f"train.max_steps={summary(run)['steps'] + 10}")
        ip("-n", hosts[1], "link", "set", hosts[1], "up")
        launchers = start(hosts, tmp_path, "mended", overrides)
        ended = [launcher.end() for launcher in launchers]
        assert [status for status, _ in ended] == [0, 0], ended
    finally:
        for launcher in launchers:
            launcher.process.kill()
    (tmp_path / "whole").mkdir()
    assert train_group(overrides, 2, tmp_path / "whole") == [0, 0]
    assert summary(run)["digest"] == summary(tmp_path / "whole/runs/x")["digest"]
    assert losses(run) == losses(tmp_path / "whole/runs/x")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "seconds"), [(1, 8.0), (0, 8.0), (1, 40.0), (0, 40.0)])
def test_a_lost_machine_comes_back(
    hosts: list[str], dataset: Path, tmp_path: Path, number: int, seconds: float
) -> None:
    """Launcher and process of a machine are killed and started again: the job heals, to the bits of one undisturbed."""
    overrides = [*SMALL, f"data.path={dataset}", "run.name=x", "train.max_steps=600", "checkpoint.every_steps=100",
                 "sharding.types=row_wise", "train.eval_every_steps=null"]  # fmt: skip
    run, launchers = tmp_path / "runs/x", start(hosts, tmp_path, "first", overrides, "--max-restarts", "3")
    try:
        wait_for_checkpoint(run, launchers)
        kill(launchers[number])
        time.sleep(seconds)
        launchers[number] = start_one(hosts, number, tmp_path / "again", overrides, "--max-restarts", "3")
        ended = [launcher.end() for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.process.kill()
    assert [status for status, _ in ended] == [0, 0], ended
    (tmp_path / "whole").mkdir()
    assert train_group(overrides, 2, tmp_path / "whole") == [0, 0]
    assert summary(run)["digest"] == summary(tmp_path / "whole/runs/x")["digest"]
