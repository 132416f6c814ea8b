"""A process of the job is lost: the others say so at once, and torchrun starts them again where they were."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.peers import TRAINING, clear_words
from common.errors import LostPeerError
from tests.app.conftest import SMALL, app_environment, ended, forked
from tests.app.group import train_group
from tests.app.test_train import events, losses, summary

LAUNCH = [sys.executable, "-m", "app.launch"]


def wait_for_checkpoint(run: Path, launchers: "list[subprocess.Popen[str]]") -> None:
    deadline = time.monotonic() + 240
    while not ((run / "metrics.jsonl").exists() and events(run, "checkpoint")):
        assert time.monotonic() < deadline
        assert all(launcher.poll() is None for launcher in launchers), "ended too early"
        time.sleep(0.02)


@pytest.mark.slow
def test_the_elastic_launch_goes_on_after_a_kill(dataset: Path, tmp_path: Path) -> None:
    """Even a job that was told to start over, and to the bits of a job that nothing happened to."""
    overrides = [*SMALL, f"data.path={dataset}", "run.name=x", "train.max_steps=60", "checkpoint.every_steps=25",
                 "checkpoint.resume=never", "sharding.types=row_wise"]  # fmt: skip
    (tmp_path / "whole").mkdir()
    assert train_group(overrides, 2, tmp_path / "whole") == [0, 0]
    command = [*LAUNCH, "--nproc-per-node", "2", "--max-restarts", "2", "-m", "tests.app.killed_once", *overrides]
    done = subprocess.run(command, cwd=tmp_path, env=app_environment(), stderr=subprocess.PIPE, text=True, check=False,
                          timeout=480)  # fmt: skip
    run, err = tmp_path / "runs/x", done.stderr
    assert done.returncode == 0, err
    lines = [line for line in err.splitlines() if line.startswith("error: process 0: another process is gone")]
    assert len(lines) == 1, err
    assert "so checkpoint.resume is auto now, not never" in err
    assert "resume: from runs/x/checkpoints/step_00000025" in err
    assert summary(run)["digest"] == summary(tmp_path / "whole/runs/x")["digest"]
    assert losses(run) == losses(tmp_path / "whole/runs/x")


@pytest.mark.parametrize(
    ("command", "options"),
    [("evaluate", ["split=val", "global_batch_size=64"]), pytest.param("verify", [], marks=pytest.mark.slow)],
)
def test_who_reads_a_run_says_so_too(command: str, options: list[str], uninterrupted: Path, tmp_path: Path) -> None:
    threads = ["runtime.num_threads=1", "runtime.platform=cpu"]
    forks = forked(command, f"run={uninterrupted}", *options, *threads, cwd=tmp_path, processes=2,
                   fault="process 1 is lost:2")  # fmt: skip
    result = ended(forks, tmp_path)
    assert [fork.exitcode for fork in forks] == [75, -signal.SIGKILL], result.stderr
    told = [line for line in result.stderr.splitlines() if "another process is gone" in line]
    assert len(told) == 1, result.stderr
    assert told[0].startswith("error: process 0: ")
    assert told[0].endswith("; start the same command again")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:46812",
        "[../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 15000ms for recv operation to complete",
        "NCCL error in: ProcessGroupNCCL.cpp:3384, remote process exited or there was a network error",
    ],
)
def test_what_a_lost_process_looks_like(words: str) -> None:
    with pytest.raises(LostPeerError, match="process 3: another process is gone"), clear_words(3, 1.0, TRAINING):
        raise RuntimeError(words)


def test_other_faults_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shape"), clear_words(0, 1.0, TRAINING):
        raise RuntimeError("shape '[2, 3]' is invalid for input of size 5")
