"""launch/slurm.sh on a cluster of two: Debian's Slurm, with a daemon in each of two network namespaces."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.conftest import REPOSITORY
from tests.app.machines import ADDRESSES, DISTURBED, ip, kill, lose, num_checkpoints, pids_in, undisturbed
from tests.app.machines import hosts as hosts
from tests.app.run_files import summary
from tests.waits import wait_until

NAMES = ("first", "second")
# Machines of eight GPUs and 128 CPUs, as the script asks for, that are not there; no accounting, no authentication. A
# job that is queued again starts as soon as its credentials have expired.
SLURM_CONF = """
ClusterName=pair
SlurmctldHost=first
SlurmUser=root
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
MpiDefault=none
MessageTimeout=100
BatchStartTimeout=100
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=2
SelectType=select/cons_tres
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool_%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd_%n.pid
GresTypes=gpu
NodeName=first,second CPUs=128 Gres=gpu:8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""
# In namespaces of its own: the machines' names in /etc/hosts, its own name, and the command in its place. (Not `ip
# netns exec`, which hides /sys/fs/cgroup, without which slurmd does not start.)
START = 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"'
RATE = "2mbit"  # of the cable, so that a short run lasts


class Slurm:
    """The cluster; `folder` holds its configuration, state and logs."""

    def __init__(self, hosts: list[str], folder: Path) -> None:
        self._hosts, self.folder = hosts, folder
        for name in ("state", "spool_first", "spool_second"):
            (folder / name).mkdir(parents=True)
        lines = ["127.0.0.1 localhost", *map(" ".join, zip(ADDRESSES, NAMES, strict=True))]
        (folder / "hosts").write_text("\n".join(lines) + "\n")
        (folder / "slurm.conf").write_text(SLURM_CONF.format(folder=folder))
        for number in range(8):
            (folder / f"gpu{number}").touch()
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-7]\n")
        self.daemons = [self._start(0, "slurmctld"), *(self._start(number, "slurmd") for number in range(2))]

    def run(self, *words: str, cwd: Path | None = None, **variables: str) -> str:
        """The output of a command on the first machine."""
        command, env = self._on(0, *words), self._variables() | variables
        process = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
        return process.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        words = self.run("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def is_alive(self) -> bool:
        return all(daemon.poll() is None for daemon in self.daemons)

    def release(self, number: str) -> bool:
        """Release a job that is held since slurmd failed to start it, as on a machine with too much work; False."""
        if self.job(number)["Reason"] == "launch_failed_requeued_held":
            self.run("scontrol", "release", number)
        return False

    def _start(self, number: int, daemon: str) -> "subprocess.Popen[bytes]":
        with open(self.folder / f"{daemon}_{NAMES[number]}.log", "ab") as log:
            return subprocess.Popen(self._on(number, daemon, "-D"), env=self._variables(), stdout=log, stderr=log)

    def _on(self, number: int, *command: str) -> list[str]:
        enter = ["nsenter", f"--net=/run/netns/{self._hosts[number]}", "unshare", "--mount", "--uts"]
        return [*enter, "sh", "-c", START, f"{self.folder}/hosts", NAMES[number], *command]

    def _variables(self) -> dict[str, str]:
        own = {"SLURM_CONF": f"{self.folder}/slurm.conf", "PYTHONPATH": str(REPOSITORY), "PYTHON": sys.executable}
        return {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "PROCESSES": "1", **own}


@pytest.fixture
def slurm(hosts: list[str], tmp_path: Path) -> Iterator[Slurm]:
    if not os.environ.get("CLICKWORK_SLURM"):
        pytest.skip("Slurm is tried alone: .ci/run installs it and sets CLICKWORK_SLURM=1")
    if missing := [name for name in ("slurmctld", "slurmd", "sbatch", "tc") if shutil.which(name) is None]:
        pytest.skip(f"Slurm is not installed ({', '.join(missing)}): apt-get install slurm-wlm iproute2")
    cluster = Slurm(hosts, tmp_path / "slurm")
    try:
        wait_until(lambda: cluster.run("sinfo", "--noheader", "--format=%T %D") == "idle 2", cluster.is_alive)
        yield cluster
    finally:
        for host in hosts:  # of a job too
            lose(host)
        for daemon in cluster.daemons:
            daemon.wait()


@pytest.mark.slow("container")
def test_a_job_of_two_machines_survives_a_loss_and_its_time_limit(
    slurm: Slurm, hosts: list[str], dataset: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = tmp_path / "runs/mine"
    for host in hosts:
        ip(*f"netns exec {host} tc qdisc add dev {host} root tbf rate {RATE} burst 32kbit latency 400ms".split())
    options = ["--parsable", "--time=1", "--signal=USR1@50"]
    typed = [str(REPOSITORY / "launch/slurm.sh"), *DISTURBED, f"data.path={dataset}"]
    number = slurm.run("sbatch", *options, *typed, cwd=tmp_path, WAIT="3")
    wait_until(lambda: num_checkpoints(run) > 0 or slurm.release(number), slurm.is_alive)
    command = b"\0-m\0app.launch\0"  # srun's shell that starts it has them in one
    (launcher,) = [pid for pid in pids_in(hosts[1]) if command in Path(f"/proc/{pid}/cmdline").read_bytes()]
    kill(launcher)

    def is_interrupted() -> bool:
        return (run / "summary.json").exists() and summary(run)["status"] == "interrupted"

    wait_until(lambda: is_interrupted() or slurm.release(number), slurm.is_alive)
    for host in hosts:
        ip(*f"netns exec {host} tc qdisc del dev {host} root".split())
    wait_until(lambda: slurm.job(number)["JobState"] == "COMPLETED" or slurm.release(number), slurm.is_alive)
    log = (tmp_path / f"slurm-{number}.log").read_text()
    assert int(slurm.job(number)["Restarts"]) >= 2, log
    for words in ("task 1: Killed", "SIGUSR1: stopping", "Exited with exit code 75", "resume: from"):
        assert words in log, log
    assert "completed: 300 steps" in log, log
    assert summary(run)["digest"] == summary(undisturbed(tmp_path_factory, dataset))["digest"], log
