"""launch/slurm.sh with a Slurm that is played; tests/app/test_slurm.py runs it with a real one."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.waits import wait_until

ROOT = Path(__file__).parent.parent

# What srun and scontrol do, on one machine.
SRUN = '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec env SLURM_NNODES=1 SLURM_NODEID=0 "$@"\n'
SCONTROL = '#!/bin/bash\nif [ "$1" = show ]; then echo 127.0.0.1; else echo "$@" >> requeued; fi\n'
# A stand-in for Python: logs its arguments, and ends with 75 at the signal that time is up.
PYTHON = """#!/bin/bash
trap 'echo signalled >> asked; exit 75' USR1
printf '%s\\n' "$@" >> asked
while true; do sleep 0.1; done
"""


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("python", PYTHON)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "10042",
        "SLURM_JOB_NODELIST": "a[1-2]",
        "SLURM_GPUS_ON_NODE": "8",
        "PYTHON": str(tmp_path / "python"),
    }


def test_slurm_starts_the_launcher_and_queues_a_stopped_job_again(slurm: dict[str, str], tmp_path: Path) -> None:
    command = ["bash", str(ROOT / "launch/slurm.sh"), "recipe=quickstart", "run.name=a b"]
    job = subprocess.Popen(command, cwd=tmp_path, env=slurm)
    call_file = tmp_path / "asked"
    wait_until(lambda: call_file.exists() and "run.name" in call_file.read_text())
    job.send_signal(signal.SIGUSR1)
    assert job.wait(240) == 75
    *words, last_word = call_file.read_text().splitlines()
    assert last_word == "signalled"
    assert words[:6] == ["-m", "app.launch", "--nnodes", "1", "--nproc-per-node", "8"]
    assert words[words.index("--rdzv-endpoint") + 1] == "127.0.0.1:20042"
    assert words[-4:] == ["-m", "app.train", "recipe=quickstart", "run.name=a b"]
    assert (tmp_path / "requeued").read_text() == "requeue 10042\n"


@pytest.mark.parametrize(("status", "queued"), [(0, False), (2, False), (69, False), (137, True), (138, True)])
def test_what_slurm_queues_again(slurm: dict[str, str], tmp_path: Path, status: int, queued: bool) -> None:
    (tmp_path / "python").write_text(f"#!/bin/bash\nexit {status}\n")
    job = subprocess.run(["bash", str(ROOT / "launch/slurm.sh")], cwd=tmp_path, env=slurm, check=False)
    assert job.returncode == status
    assert (tmp_path / "requeued").exists() == queued
    (tmp_path / "requeued").unlink(missing_ok=True)
    subprocess.run(
        ["bash", str(ROOT / "launch/slurm.sh")], cwd=tmp_path, env={**slurm, "SLURM_RESTART_COUNT": "3"}, check=False
    )
    assert (tmp_path / "requeued").exists() == (status == 138)  # what is killed each time would be killed for ever
