"""launch/slurm.sh with a Slurm that is played; tests/app/test_slurm.py runs it with a real one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed.run import parse_args

from tests.waits import wait_until

ROOT = Path(__file__).parent.parent

# What srun and scontrol do, on one machine.
SRUN = '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec env SLURM_NNODES=1 SLURM_NODEID=0 "$@"\n'
SCONTROL = '#!/bin/bash\nif [ "$1" = show ]; then echo 127.0.0.1; else echo "$@" >> requeued; fi\n'
# The command of a container of clickwork:cpu, without one; with a note of the options.
DOCKER = """#!/bin/bash
while [ "$1" != clickwork:cpu ]; do echo "$1" >> options; shift; done
shift
exec dumb-init "$@"
"""
# A stand-in for Python: logs its arguments, and ends with 75 at the signal that time is up.
PYTHON = """#!/bin/bash
trap 'echo signalled >> asked; exit 75' USR1
printf '%s\\n' "$@" >> asked
while true; do sleep 0.1; done
"""


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("python", PYTHON), ("docker", DOCKER)):
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


@pytest.mark.parametrize("in_container", [False, True])
def test_slurm_starts_the_launcher_and_queues_a_stopped_job_again(
    slurm: dict[str, str], tmp_path: Path, in_container: bool
) -> None:
    if in_container:
        slurm |= {
            "PYTHON": str(ROOT / "launch/python_in_container.sh"),
            "IMAGE": "clickwork:cpu",
            "NCCL_DEBUG": "INFO",
            "CLICKWORK_MEMLOCK": "65536",
            "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
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
    if in_container:
        options = (tmp_path / "options").read_text().splitlines()
        assert {"--network=host", "--ipc=host", "NCCL_DEBUG", "memlock=65536"} <= set(options)
        assert {f"{tmp_path}/{name}:/opt/clickwork/{name}" for name in ("data", "runs")} <= set(options)
        assert ("IPC_LOCK" in options) == Path("/dev/infiniband").exists()


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


def test_the_launchers_options_are_torchruns(slurm: dict[str, str]) -> None:
    """As the scripts give them; parsed by torchrun itself."""
    script = (ROOT / "launch/slurm.sh").read_text()
    words = (
        "--nnodes 2 --nproc-per-node 8 --max-restarts 3 --rdzv-backend c10d --rdzv-endpoint a1:20042 --rdzv-id 10042"
    )
    options = [*words.split(), "--rdzv-conf", "is_host=1"]
    assert all(option in script for option in options if option.startswith("--"))
    parsed = parse_args([*options, "-m", "app.train"])
    assert (parsed.nnodes, parsed.max_restarts, parsed.training_script) == ("2", 3, "app.train")
