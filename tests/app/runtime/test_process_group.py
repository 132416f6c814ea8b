"""A process of the job is lost: the others say so at once. That torchrun starts them again: test_launch."""

import signal
from pathlib import Path

import pytest

from app.runtime.process_group import READING, reporting_failures
from common.cli import EXIT_LOST
from common.errors import LostPeerError
from tests.app.conftest import ended, forked


@pytest.mark.parametrize(
    ("command", "options"),
    [("evaluate", ["split=val", "global_batch_size=64"]), pytest.param("verify", [], marks=pytest.mark.slow)],
)
def test_who_reads_a_run_says_so_too(command: str, options: list[str], uninterrupted: Path, tmp_path: Path) -> None:
    keys = [f"run={uninterrupted}", *options, "runtime.num_threads=1", "runtime.platform=cpu"]
    forks = forked(command, *keys, cwd=tmp_path, processes=2, fault="process 1 is lost:2")
    result = ended(forks, tmp_path)
    assert [fork.exitcode for fork in forks] == [EXIT_LOST, -signal.SIGKILL], result.stderr
    (line,) = [line for line in result.stderr.splitlines() if "another process is lost" in line]
    assert line.startswith("error: process 0: ")
    assert line.endswith("; start the same command again")
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
    with pytest.raises(LostPeerError, match="process 3: another process is lost"), reporting_failures(3, 1.0, READING):
        raise RuntimeError(words)


def test_other_faults_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shape"), reporting_failures(0, 1.0, READING):
        raise RuntimeError("shape '[2, 3]' is invalid for input of size 5")
