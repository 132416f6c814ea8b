"""`python -m app.launch`: torchrun whose exit status and last words are those of the processes."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.launch import Job, _status_after_signal, first_failure
from tests.app.conftest import REPOSITORY
from tests.app.group import train_group
from tests.app.launched import Launcher
from tests.app.run_files import losses, summary

NO_NODES = "min_nodes must be > 0 and <= max_nodes, got min_nodes=0, max_nodes=0"


def launched(tmp_path: Path, *words: str, python: str = "") -> Launcher:
    return Launcher(*words, cwd=tmp_path, out=tmp_path / "out", python=python)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("argument", "status", "message"),
    [
        ("data.path=", 2, "error: data.path: not given; name the directory of the dataset\n"),
        pytest.param("--help", 0, "", marks=pytest.mark.slow),
    ],
)
def test_status_and_words_are_those_of_the_processes(argument: str, status: int, message: str, tmp_path: Path) -> None:
    """Launch two that need no torch, while another job has torchrun's own port; app.train's bad input: test_train."""
    with socket.socket() as other:
        with contextlib.suppress(OSError):  # another has it indeed
            other.bind(("", 29500))
            other.listen()
        launcher = launched(tmp_path, "--nproc-per-node", "2", "-m", "data_prep", argument, python=sys.executable)
        assert launcher.end() == (status, message)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--nproc-per-node", "abc", "--nproc-per-node abc --nnodes 1:1: Unsupported nproc_per_node value: abc"),
        ("--nproc-per-node", "0", "--nproc-per-node 0 --nnodes 1:1: at least one process is needed"),
        ("--nnodes", "0", f"--nproc-per-node 1 --nnodes 0: {NO_NODES}"),
    ],
)
def test_a_number_that_is_none_is_one_line(option: str, value: str, message: str, tmp_path: Path) -> None:
    launcher = launched(tmp_path, option, value, "-m", "data_prep", python=sys.executable)
    assert launcher.end() == (2, f"error: {message}; give numbers of at least 1\n")


@pytest.mark.parametrize(
    ("failures", "cause"),
    [
        ({1: (100, -9), 0: (100, 75)}, (1, -9)),
        ({0: (100, 75), 1: (100, -9)}, (1, -9)),  # both had ended when torchrun looked
        ({0: (100, 75), 1: (101, -9)}, (1, -9)),
        ({0: (100, 75), 1: (100, -15)}, (0, 75)),  # process 1 was ended by torchrun
        ({0: (100, 75), 1: (400, -9)}, (0, 75)),  # it did not
        ({0: (100, 2), 1: (100, 2)}, (0, 2)),
        ({1: (100, 1), 0: (101, 75)}, (1, 1)),
    ],
)
def test_the_cause_is_reported_not_its_effects(failures: dict[int, tuple[int, int]], cause: tuple[int, int]) -> None:
    assert first_failure(failures) == cause


def test_a_signal_after_the_processes_have_saved_changes_no_status() -> None:
    """As when Kubernetes deletes one pod and then the other."""
    assert _status_after_signal(signal.SIGTERM, Job("a:1", "2", statuses={75})) == 75
    assert _status_after_signal(signal.SIGTERM, Job("a:1", "2")) == 128 + signal.SIGTERM


@pytest.mark.slow("processes")
def test_a_killed_process_is_started_again_or_told(small: list[str], tmp_path: Path) -> None:
    """One loss is made good, even in a job that was to start over, and to the same bits; two are one too many."""
    overrides = [*small, "run.name=x", "train.max_steps=60", "checkpoint.every_steps=25"]
    overrides += ["sharding.types=row_wise", "baselines=false"]
    (tmp_path / "whole").mkdir()
    assert train_group(overrides, 2, tmp_path / "whole") == [0, 0]
    words = ["--nproc-per-node", "2", "--max-restarts", "1", "-m", "tests.app.killed_twice", *overrides]
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


@pytest.mark.slow("processes")
def test_a_signal_comes_once_to_processes_while_torchrun_waits(tmp_path: Path) -> None:
    """A second time it would end them at once, without their checkpoint."""
    command = [sys.executable, "-m", "tests.app.blocked_launcher"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "under way\n"
        time.sleep(0.5)  # until the next watch has begun
        launcher.send_signal(signal.SIGTERM)
        assert launcher.stdout.read() == "saved\n"
        assert launcher.wait(60) == 75
