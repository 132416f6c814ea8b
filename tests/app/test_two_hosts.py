"""Two network namespaces joined by a virtual cable are two machines: a job across them, and the cable is cut."""

import ctypes
import functools
import importlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.app import machines
from tests.app.conftest import REPOSITORY, SMALL
from tests.app.group import train_group
from tests.app.launched import Launcher
from tests.app.machines import ADDRESSES, DISTURBED, enter, hosts, ip, kill, two_machines, undisturbed
from tests.app.run_files import losses, summary
from tests.data_prep import oracle
from tests.waits import wait_until

__all__ = ["hosts"]  # a fixture
TIMEOUT_SECONDS = 12  # of an exchange: others' work on this machine must not cost so much
LOST_AFTER = "keep_alive_interval=1,keep_alive_max_attempt=5"  # seconds, in torchrun's words
TWO = "--nnodes 2 --nproc-per-node 1"
DOCUMENTED = f"{TWO} --rdzv-backend c10d --rdzv-id job --rdzv-endpoint {ADDRESSES[0]}:29400".split()
STATIC = f"{TWO} --master-addr {ADDRESSES[0]} --master-port 29500".split()


def start_one(
    host: str, out: Path, overrides: list[str], *options: str, prepare: Callable[[str], None] = enter
) -> Launcher:
    """app.launch on one of the machines, with one process, by the documented command."""
    arguments = [*DOCUMENTED, *options, "-m", "app.train", *overrides]
    return Launcher(*arguments, cwd=out.parent, out=out, prepare=functools.partial(prepare, host))


def start(
    hosts: list[str], out: Path, overrides: list[str], *options: str, prepare: Callable[[str], None]
) -> list[Launcher]:
    """app.launch on both machines; the first is where they meet."""
    outs = (out.with_name(f"{out.name}_{number}") for number in range(2))
    return [start_one(host, own, overrides, *options, prepare=prepare) for host, own in zip(hosts, outs, strict=True)]


def enter_impatiently(host: str) -> None:
    """The launcher there sooner gives up on torchrun."""
    enter(host)
    warnings.filterwarnings("ignore", module="runpy")  # which warns that it is imported already
    vars(importlib.import_module("app.launch"))["STUCK_SECONDS"] = 5


@pytest.mark.slow("container")
def test_the_cable_is_cut_and_mended(hosts: list[str], dataset: Path, tmp_path: Path) -> None:
    overrides = [*brief(dataset), "train.epochs=6000", "train.max_steps=null", "checkpoint.every_steps=20"]
    overrides.append(f"runtime.timeout_minutes={TIMEOUT_SECONDS / 60}")
    run, launchers = tmp_path / "runs/x", start(hosts, tmp_path / "cut", overrides, prepare=enter_impatiently)
    try:
        machines.wait_for_checkpoint(run, launchers)
        ip("-n", hosts[1], "link", "set", hosts[1], "down")
        results = [launcher.end() for launcher in launchers]
        errors = [err for _, err in results]
        result = [
            re.findall(r"error: process (\d): another process is lost or unreachable \(([^;]+);", err) for err in errors
        ]
        (process, reason), (other, its_reason) = (one for (one,) in result)  # each end says one thing
        assert {process, other} == {"0", "1"}, errors  # which host is which process is the rendezvous's to say
        assert all(re.search("timed out|timeout", words) for words in (reason, its_reason)), errors  # no end hears more
        assert [status for status, _ in results] == [75, 75], errors
        assert summary(run)["status"] == "failed"
        overrides.append(f"train.max_steps={summary(run)['steps'] + 10}")
        ip("-n", hosts[1], "link", "set", hosts[1], "up")
        launchers = start(hosts, tmp_path / "repaired", overrides, prepare=enter_impatiently)
        results = [launcher.end() for launcher in launchers]
        assert [status for status, _ in results] == [0, 0], results
    finally:
        for launcher in launchers:
            launcher.process.kill()
    (tmp_path / "whole").mkdir()
    assert train_group(overrides, 2, tmp_path / "whole") == [0, 0]
    assert summary(run)["digest"] == summary(tmp_path / "whole/runs/x")["digest"]
    assert losses(run) == losses(tmp_path / "whole/runs/x")


def enter_by_name(host: str) -> None:
    """The first machine's own name means loopback there, as Debian installs it; the second's does not resolve."""
    enter(host)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(machines.CLONE_NEWNS | machines.CLONE_NEWUTS) == 0
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    name = {"a": "first", "b": "nowhere"}[host[-1]]
    socket.sethostname(name)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".hosts", delete=False) as file:
        file.write(f"127.0.0.1 localhost\n{'127.0.1.1' if name == 'first' else ADDRESSES[0]} first\n")
    subprocess.run(["mount", "--bind", file.name, "/etc/hosts"], check=True)


def brief(dataset: Path) -> list[str]:
    keys = ["run.name=x", "train.max_steps=4", "sharding.types=row_wise", "baselines=false"]
    return [*SMALL, f"data.path={dataset}", *keys]


def ended(launchers: list[Launcher]) -> list[tuple[int, str]]:
    try:
        return [launcher.end() for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.process.kill()


@pytest.mark.slow("container")
def test_machines_meet_by_a_name_that_is_loopback_on_one(hosts: list[str], dataset: Path, tmp_path: Path) -> None:
    options = ["--rdzv-endpoint", "first:29400"]
    results = ended(start(hosts, tmp_path / "out", brief(dataset), *options, prepare=enter_by_name))
    assert [status for status, _ in results] == [0, 0], results
    for (_, err), address, host in zip(results, ADDRESSES, hosts, strict=True):
        assert f"launch: {address} on {host}, meeting at first:29400" in err
    assert summary(tmp_path / "runs/x")["status"] == "completed"


@pytest.mark.slow("container")
@pytest.mark.parametrize("number", [0, 1])
def test_a_refusal_on_one_machine_ends_both(hosts: list[str], dataset: Path, tmp_path: Path, number: int) -> None:
    """At once, with restarts left, and whichever machine it is."""
    options = ["--max-restarts", "3"]
    overrides = [[*brief(dataset), *["train.epocs=1"] * (one == number)] for one in range(2)]
    results = ended([start_one(hosts[one], tmp_path / str(one), overrides[one], *options) for one in range(2)])
    assert [status for status, _ in results] == [2, 2], results
    assert results[number][1].count("did you mean train.epochs?") == 1
    assert results[1 - number][1].count("refused its settings or its input") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow("container")
def test_a_machine_that_never_comes_is_named(hosts: list[str], dataset: Path, tmp_path: Path) -> None:
    for number, timeout, words in (
        (0, "join_timeout=5", f"1 of 2 machines came ({ADDRESSES[0]}) after "),
        (1, "read_timeout=2", "no answer after "),
    ):
        launcher = start_one(hosts[number], tmp_path / str(number), brief(dataset), "--rdzv-conf", timeout)
        assert f"{ADDRESSES[0]}:29400: {words}" in unavailable(launcher)


def unavailable(launcher: Launcher) -> str:
    """The line of the error that a launcher ends with."""
    ((status, err),) = ended([launcher])
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert status == 69, err
    return line


def start_static(hosts: list[str], number: int, out: Path, dataset: Path, *options: str) -> Launcher:
    """app.launch on one of the machines, whose number it is given, as Kubernetes gives it."""
    arguments = [*STATIC, "--node-rank", str(number), *options, "-m", "app.train", *brief(dataset)]
    return Launcher(*arguments, cwd=out.parent, out=out, prepare=functools.partial(enter, hosts[number]))


@pytest.mark.slow("container")
@pytest.mark.parametrize(
    ("number", "message"),
    [
        (0, "only this one of 2 machines came after .* s; start the others with the same --master-addr"),
        (1, "no answer after .* s; check that the first machine has been started"),
    ],
)
def test_a_lost_pod_is_named(hosts: list[str], dataset: Path, tmp_path: Path, number: int, message: str) -> None:
    launcher = start_static(hosts, number, tmp_path / "out", dataset, "--rdzv-conf", "timeout=3")
    assert re.fullmatch(f"error: {ADDRESSES[0]}:29500: {message}.*", unavailable(launcher))
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow("container")
@pytest.mark.parametrize("number", [0, 1])
def test_a_signal_ends_a_pod_that_waits(hosts: list[str], dataset: Path, tmp_path: Path, number: int) -> None:
    launcher = start_static(hosts, number, tmp_path / "out", dataset)  # would wait for 15 minutes
    log = tmp_path / "out/stderr"
    wait_until(lambda: log.exists() and "meeting at" in log.read_text(), lambda: launcher.process.exitcode is None)
    time.sleep(2)  # until torch waits
    os.kill(launcher.process.pid or 0, signal.SIGTERM)
    ((status, err),) = ended([launcher])  # within eight minutes
    assert (status, err.splitlines()[1:]) == (128 + signal.SIGTERM, ["SIGTERM: stopped before it began"])


DASK = f"tcp://{ADDRESSES[0]}:8786"
# In a namespace of its own: another host name, and nothing where the others have the folder $0.
APART = 'hostname second && mount -t tmpfs none "$0" && exec "$@"'


@pytest.mark.slow("container")
@pytest.mark.parametrize("missing", ["raw", "out"])
def test_a_folder_that_a_dask_worker_lacks_is_named(hosts: list[str], tmp_path: Path, missing: str) -> None:
    for name in ("raw", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "raw/day_0").write_bytes(oracle.make_rows(500, 0))
    module = [sys.executable, "-m"]
    worker = [*module, "distributed.cli.dask_worker", DASK, "--nthreads", "1", "--no-nanny", "--no-dashboard"]
    scheduler = [*module, "distributed.cli.dask_scheduler", "--host", ADDRESSES[0], "--no-dashboard"]
    commands = [
        on(hosts[0], *scheduler),
        on(hosts[0], *worker),
        on(hosts[1], "unshare", "--mount", "--uts", "sh", "-c", APART, str(tmp_path / missing), *worker),
    ]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with ExitStack() as stack:
        with open(tmp_path / "cluster.log", "wb") as log:
            for command in commands:
                process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
                stack.callback(process.wait)
                stack.callback(process.kill)
        wait_until(lambda: (tmp_path / "cluster.log").read_text().count("Register worker") >= 2)
        arguments = [f"data.raw={tmp_path}/raw/day_0", f"data.path={tmp_path}/out/x", "data.chunk_bytes=2000"]
        prepare = on(hosts[0], *module, "data_prep", *arguments, f"data.scheduler={DASK}")
        pipes: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 120}
        result = subprocess.run(prepare, check=False, cwd=tmp_path, env=environment, **pipes)
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert result.returncode == 2
    assert line.startswith(f"error: on second: {tmp_path}/{missing}"), line
    assert not (tmp_path / "out/x/manifest.json").exists()


def on(host: str, *command: str) -> list[str]:
    return ["ip", "netns", "exec", host, *command]


def lose_machines(cwd: Path, dataset: Path, absences: list[tuple[int, float]]) -> dict[str, Any]:
    """One after the other, launcher and process of a machine are killed, and started again some seconds later.

    Returns the job's summary.
    """
    overrides = [*DISTURBED, f"data.path={dataset}"]
    cwd.mkdir()
    with two_machines() as hosts:
        options = ["--max-restarts", "3", "--rdzv-conf", LOST_AFTER]
        launchers = start(hosts, cwd / "first", overrides, *options, prepare=enter_impatiently)
        try:
            for order, (number, seconds) in enumerate(absences):
                machines.wait_for_checkpoint(cwd / "runs/mine", launchers, 1 + 2 * order)
                kill(launchers[number].process.pid or 0)
                time.sleep(seconds)
                launchers[number] = start_one(hosts[number], cwd / f"again_{order}", overrides, *options)
        finally:
            results = ended(launchers)
    assert [status for status, _ in results] == [0, 0], (absences, results)
    return summary(cwd / "runs/mine")


@pytest.mark.slow("container")
def test_a_lost_machine_comes_back(dataset: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One before, one after the other counts it as lost: the job heals, to the bits of one undisturbed."""
    digest = summary(undisturbed(tmp_path_factory, dataset))["digest"]
    assert lose_machines(tmp_path / "job", dataset, [(1, 1.5), (0, 9.0)])["digest"] == digest


def lose_for_good(cwd: Path, dataset: Path, number: int) -> tuple[int, str]:
    """Launcher and process of a machine are killed and do not come back: how the other's launcher ends."""
    overrides = [*DISTURBED, f"data.path={dataset}"]
    # The time-outs are long enough for a launcher that other tests delay.
    options = ["--max-restarts", "1", "--rdzv-conf", f"join_timeout=20,read_timeout=10,{LOST_AFTER}"]
    cwd.mkdir()
    with two_machines() as hosts:
        launchers = start(hosts, cwd / "only", overrides, *options, prepare=enter_impatiently)
        try:
            machines.wait_for_checkpoint(cwd / "runs/mine", launchers)
            kill(launchers[number].process.pid or 0)
        finally:
            results = ended(launchers)
    return results[1 - number]


@pytest.mark.slow("container")
def test_a_machine_that_is_lost_for_good_leaves_75(dataset: Path, tmp_path: Path) -> None:
    """A checkpoint is there: not 69, which nothing queues again."""
    with ThreadPoolExecutor() as threads:  # they mostly wait
        jobs = [threads.submit(lose_for_good, tmp_path / str(number), dataset, number) for number in range(2)]
    for job in jobs:
        status, err = job.result()
        assert status == 75, err
        assert re.search(rf"^error: {ADDRESSES[0]}:29400: .* after \d+ s; .*the same command resumes", err, re.M), err
        assert "Traceback" not in err
