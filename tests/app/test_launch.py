"""`python -m app.launch`, on one machine and on two: its exit status and last words are those of the processes."""

import functools
import importlib
import re
import signal
import sys
import time
import warnings
from pathlib import Path

import pytest

from app.launch import first_failure
from tests.app import machines
from tests.app.conftest import SMALL
from tests.app.group import train_group
from tests.app.machines import ADDRESSES, DISTURBED, Launcher, enter, ip, kill, undisturbed
from tests.app.machines import hosts as hosts
from tests.app.run_files import losses, summary

NO_NODES = "min_nodes must be > 0 and <= max_nodes, got min_nodes=0, max_nodes=0"
GIVE = "give numbers of at least 1"


def launched(tmp_path: Path, *words: str, python: str = "") -> Launcher:
    return Launcher(*words, cwd=tmp_path, out=tmp_path / "out", python=python)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--nproc-per-node 2 -m data_prep data.path=", "data.path: not given; name the directory of the dataset"),
        ("--nproc-per-node 0 -m data_prep", f"--nproc-per-node 0 --nnodes 1:1: at least one process is needed; {GIVE}"),
        ("--nnodes 0 -m data_prep", f"--nproc-per-node 1 --nnodes 0: {NO_NODES}; {GIVE}"),
    ],
)
def test_status_and_words_are_those_of_the_processes(words: str, message: str, tmp_path: Path) -> None:
    assert launched(tmp_path, *words.split(), python=sys.executable).end() == (2, f"error: {message}\n")


@pytest.mark.parametrize(
    ("failures", "cause"),
    [
        ({0: (100, 75), 1: (100, -9)}, (1, -9)),  # both had ended when torchrun looked
        ({0: (100, 75), 1: (101, -9)}, (1, -9)),
        ({0: (100, 75), 1: (100, -15)}, (0, 75)),  # process 1 was ended by torchrun
        ({0: (100, 75), 1: (400, -9)}, (0, 75)),  # it did not
        ({0: (100, 2), 1: (100, 2)}, (0, 2)),
    ],
)
def test_the_cause_is_reported_not_its_effects(failures: dict[int, tuple[int, int]], cause: tuple[int, int]) -> None:
    assert first_failure(failures) == cause


@pytest.mark.slow("processes")
def test_a_killed_process_is_started_again_or_told(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [*small, "run.name=x", "train.max_steps=60", "checkpoint.every_steps=25"]
    overrides += ["sharding.types=row_wise", "baselines=false"]
    (tmp_path / "whole").mkdir()
    assert train_group(overrides, 2, tmp_path / "whole") == [0, 0]
    words = ["--nproc-per-node", "2", "--max-restarts", "1", "-m", "tests.app.at_moment", "train", *overrides]
    monkeypatch.setenv("MOMENT", "killed twice:49")
    status, err = launched(tmp_path, *words, "checkpoint.resume=never").end()
    assert status == 128 + signal.SIGKILL, err
    first, second = err.split("resume: from runs/x/checkpoints/step_00000025")
    for part in (first, second):
        lines = [line for line in part.splitlines() if line.startswith("error: process 0: another process is lost")]
        assert len(lines) == 1, err
    assert "so checkpoint.resume=auto instead of never" in first
    assert "error: process 1 was ended by SIGKILL" not in first
    assert "error: process 1 was ended by SIGKILL" in second
    assert "Traceback" not in second
    run = tmp_path / "runs/x"
    assert train_group(overrides, 2, tmp_path) == [0, 0]
    assert summary(run)["digest"] == summary(tmp_path / "whole/runs/x")["digest"]
    assert losses(run) == losses(tmp_path / "whole/runs/x")


TIMEOUT_SECONDS = 12  # of an exchange: others' work on this machine must not cost so much
LOST_AFTER = "keep_alive_interval=1,keep_alive_max_attempt=5"  # seconds, in torchrun's words
TWO = "--nnodes 2 --nproc-per-node 1"
DOCUMENTED = f"{TWO} --rdzv-backend c10d --rdzv-id job --rdzv-endpoint {ADDRESSES[0]}:29400".split()
STATIC = [f"{TWO} --master-addr {ADDRESSES[0]} --master-port 29500 --node-rank {number}".split() for number in (0, 1)]


def start_one(host: str, out: Path, overrides: list[str], *options: str, base: list[str] = DOCUMENTED) -> Launcher:
    """app.launch on one of the machines, with one process."""
    arguments = [*base, *options, "-m", "app.train", *overrides]
    return Launcher(*arguments, cwd=out.parent, out=out, prepare=functools.partial(enter_impatiently, host))


def start(hosts: list[str], out: Path, overrides: list[str], *options: str) -> list[Launcher]:
    """app.launch on both machines; the first is where they meet."""
    outs = (out.with_name(f"{out.name}_{number}") for number in range(2))
    return [start_one(host, own, overrides, *options) for host, own in zip(hosts, outs, strict=True)]


def enter_impatiently(host: str) -> None:
    """The launcher there sooner gives up on torchrun."""
    enter(host)
    warnings.filterwarnings("ignore", module="runpy")  # which warns that it is imported already
    vars(importlib.import_module("app.launch"))["STUCK_SECONDS"] = 5


@pytest.mark.slow("container")
def test_a_cut_cable_ends_both_machines(hosts: list[str], dataset: Path, tmp_path: Path) -> None:
    overrides = [*brief(dataset), "train.epochs=6000", "train.max_steps=null", "checkpoint.every_steps=20"]
    overrides.append(f"runtime.timeout_minutes={TIMEOUT_SECONDS / 60}")
    launchers = start(hosts, tmp_path / "cut", overrides)
    try:
        machines.wait_for_checkpoint(tmp_path / "runs/x", launchers)
        ip("-n", hosts[1], "link", "set", hosts[1], "down")
    finally:
        results = ended(launchers)
    lost = r"error: process (\d): another process is lost or unreachable \(([^;]+);"
    (process, reason), (other, its_reason) = (one for _, err in results for one in re.findall(lost, err))
    assert {process, other} == {"0", "1"}, results  # which host is which process is the rendezvous's to say
    assert all(re.search("timed out|timeout", words) for words in (reason, its_reason)), results  # no end hears more
    assert [status for status, _ in results] == [75, 75], results
    assert summary(tmp_path / "runs/x")["status"] == "failed"


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
def test_a_refusal_on_one_machine_ends_both(hosts: list[str], dataset: Path, tmp_path: Path) -> None:
    overrides = [[*brief(dataset), *["train.epocs=1"] * one] for one in range(2)]
    options = ["--max-restarts", "3"]
    results = ended([start_one(hosts[one], tmp_path / str(one), overrides[one], *options) for one in range(2)])
    assert [status for status, _ in results] == [2, 2], results
    assert results[1][1].count("did you mean train.epochs?") == 1
    assert results[0][1].count("refused its settings or its input") == 1
    assert not (tmp_path / "runs").exists()


NEVER_CAME = {
    (False, 0): ("join_timeout=5", f"29400: 1 of 2 machines came ({ADDRESSES[0]}) after "),
    (True, 1): ("timeout=3", "29500: no answer after "),
}


@pytest.mark.slow("container")
@pytest.mark.parametrize(("static", "number"), NEVER_CAME)
def test_a_machine_that_never_comes_is_named(
    hosts: list[str], dataset: Path, tmp_path: Path, static: bool, number: int
) -> None:
    timeout, message = NEVER_CAME[static, number]
    base = STATIC[number] if static else DOCUMENTED
    launcher = start_one(hosts[number], tmp_path / "out", brief(dataset), "--rdzv-conf", timeout, base=base)
    ((status, err),) = ended([launcher])
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert (status, line.startswith(f"error: {ADDRESSES[0]}:{message}")) == (69, True), err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow("container")
def test_a_lost_machine_comes_back(
    hosts: list[str], dataset: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One before, one after the other counts it as lost: the job heals, to the bits of one undisturbed."""
    overrides, run = [*DISTURBED, f"data.path={dataset}"], tmp_path / "runs/mine"
    options = ["--max-restarts", "3", "--rdzv-conf", LOST_AFTER]
    launchers = start(hosts, tmp_path / "first", overrides, *options)
    try:
        for number, seconds, checkpoints in ((1, 1.5, 1), (0, 9.0, 3)):
            machines.wait_for_checkpoint(run, launchers, checkpoints)
            kill(launchers[number].process.pid or 0)
            time.sleep(seconds)
            launchers[number] = start_one(hosts[number], tmp_path / f"again_{number}", overrides, *options)
    finally:
        results = ended(launchers)
    assert [status for status, _ in results] == [0, 0], results
    assert summary(run)["digest"] == summary(undisturbed(tmp_path_factory, dataset))["digest"]


@pytest.mark.slow("container")
def test_a_machine_that_is_lost_for_good_leaves_75(hosts: list[str], dataset: Path, tmp_path: Path) -> None:
    """A checkpoint is there: not 69, which nothing queues again."""
    # The time-outs are long enough for a launcher that other tests delay.
    options = ["--max-restarts", "1", "--rdzv-conf", f"join_timeout=20,read_timeout=10,{LOST_AFTER}"]
    overrides = [*DISTURBED, f"data.path={dataset}"]
    launchers = start(hosts, tmp_path / "only", overrides, *options)
    try:
        machines.wait_for_checkpoint(tmp_path / "runs/mine", launchers)
        kill(launchers[0].process.pid or 0)
    finally:
        _, (status, err) = ended(launchers)
    assert status == 75, err
    assert re.search(rf"^error: {ADDRESSES[0]}:29400: .* after \d+ s; .*the same command resumes", err, re.M), err
    assert "Traceback" not in err
