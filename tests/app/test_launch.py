"""`python -m app.launch`: torchrun whose exit status and last words are those of the processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.launch import first_failure
from tests.app.conftest import SMALL, app_environment

LAUNCH = [sys.executable, "-m", "app.launch", "--nproc-per-node", "2", "-m", "app.train"]


def launch(cwd: Path, *overrides: str) -> "subprocess.Popen[str]":
    environment = {key: value for key, value in app_environment().items() if key != "OMP_NUM_THREADS"}
    return subprocess.Popen(
        [*LAUNCH, *SMALL, *overrides], cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def wait_for_step(run: Path, step: int) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        metrics = run / "metrics.jsonl"
        if metrics.exists() and f'"step": {step},' in metrics.read_text():
            return
        time.sleep(0.1)
    raise AssertionError(f"{run} did not come to step {step}")


def test_bad_input_is_one_line_and_status_2(dataset: Path, tmp_path: Path) -> None:
    process = launch(tmp_path, f"data.path={dataset}", "run.name=a", "train.global_batch_size=65")
    _, err = process.communicate(timeout=480)
    assert process.returncode == 2
    assert err == "error: train.global_batch_size=65: not divisible by the 2 processes; every process takes an " \
                  "equal part\n"  # fmt: skip


@pytest.mark.parametrize(
    ("failures", "told"),
    [
        ({1: (100, -9), 0: (100, 75)}, (1, -9)),
        ({0: (100, 75), 1: (100, -9)}, (1, -9)),  # both had ended when torchrun looked
        ({0: (100, 75), 1: (101, -9)}, (1, -9)),
        ({0: (100, 75), 1: (100, -15)}, (0, 75)),  # process 1 was told to end, by torchrun
        ({0: (100, 75), 1: (400, -9)}, (0, 75)),  # it did not
        ({0: (100, 2), 1: (100, 2)}, (0, 2)),
        ({1: (100, 1), 0: (101, 75)}, (1, 1)),
    ],
)
def test_the_cause_is_told_and_not_what_came_of_it(failures: dict[int, tuple[int, int]], told: tuple[int, int]) -> None:
    assert first_failure(failures) == told


@pytest.mark.slow
def test_a_stopped_job_ends_with_75_and_a_killed_process_is_told(dataset: Path, tmp_path: Path) -> None:
    overrides = [f"data.path={dataset}", "run.name=a", "train.max_steps=100000", "checkpoint.every_steps=50"]
    process = launch(tmp_path, *overrides)
    wait_for_step(tmp_path / "runs/a", 60)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=480)
    assert process.returncode == 75, err
    assert "Traceback" not in err
    summary = json.loads((tmp_path / "runs/a/summary.json").read_bytes())
    assert summary["status"] == "interrupted"
    assert summary["steps"] > 50

    process = launch(tmp_path, *overrides)
    wait_for_step(tmp_path / "runs/a", summary["steps"] + 20)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [int(pid) for pid in children if b"app.train" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    _, err = process.communicate(timeout=480)
    assert process.returncode == 128 + signal.SIGKILL, err
    assert "error: process 1 was ended by SIGKILL" in err
    assert "Traceback" not in err.split("error: process 1")[1]
