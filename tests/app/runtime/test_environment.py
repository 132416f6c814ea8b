"""Environment variables, and the network between processes: one that is lost, the way to another machine."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.config.app_config import CONFIG_DIR
from app.config.train import EnvironmentConfig
from app.runtime import environment
from app.runtime import environment as leave
from app.runtime.platform import READING, reporting_failures
from common.cli import EXIT_LOST
from common.errors import LostPeerError, UserError
from tests.app.conftest import REPOSITORY, Command, composed, ended, forked
from tests.app.machines import ADDRESSES, ip, two_machines

PROFILES = sorted(path.stem for path in (CONFIG_DIR / "environment").glob("*.yaml"))


@pytest.mark.parametrize("name", PROFILES)
def test_every_variable_has_its_reason(name: str) -> None:
    profile = composed(f"environment={name}").environment
    assert profile.name == name
    assert set(profile.variables) == set(profile.reasons)
    assert all(profile.reasons.values())


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = composed("environment=amd_node", "+environment.variables.NCCL_SOCKET_IFNAME=eth7").environment
    for variable in profile.variables:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("GPU_MAX_HW_QUEUES", "2")
    lines = environment.apply(profile)
    expected = {"GPU_MAX_HW_QUEUES": "2", "NCCL_SOCKET_IFNAME": "eth7", "HSA_NO_SCRATCH_RECLAIM": "1"}
    assert {name: os.environ[name] for name in expected} == expected
    assert "environment: amd_node would set GPU_MAX_HW_QUEUES=4; 2 of the environment stays" in lines
    assert "environment: amd_node sets HSA_NO_SCRATCH_RECLAIM=1" in lines
    for variable in profile.variables:
        os.environ.pop(variable, None)  # what apply set, which monkeypatch would put back


def test_a_profile_comes_before_the_launchers_own_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = EnvironmentConfig("mine", {"GLOO_SOCKET_IFNAME": "ib0", "OMP_PROC_BIND": "true"})
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    assert environment.apply(profile, with_networks=False) == []  # one process that reads a run of a cluster
    environment.apply(profile)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth0"
    monkeypatch.setenv(environment.SET_BY_LAUNCHER, "GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME")
    environment.apply(profile)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"


def test_empty_variables_of_a_launcher_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*leave.LAUNCHER_VARIABLES, "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "")
    leave.announce_refusal()


@pytest.mark.slow("processes")
def test_each_command_applies_the_profile_of_the_run(run_app: Command, small: list[str], tmp_path: Path) -> None:
    variable = "+environment.variables.A_VARIABLE=7"
    process = run_app("train", *small, "run.name=x", "train.max_steps=2", variable)
    assert json.loads((tmp_path / "runs/x/manifest.json").read_bytes())["environment"]["A_VARIABLE"] == "7"
    for command in ("evaluate", "verify"):
        process = run_app(command, "run=runs/x")
        assert "environment: none sets A_VARIABLE=7" in process.stderr
        assert "A_VARIABLE: 7 then" not in process.stderr


@pytest.mark.medium
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


WAYS = """
import json, sys
from app.runtime import environment as network
from common.errors import UserError
for host in sys.argv[1:]:
    try:
        way = network.route_to(host)
        print(json.dumps([way.address, way.interface, way.is_own]))
    except UserError as error:
        print(json.dumps(str(error)))
"""


def ways(host: str, *endpoints: str) -> list[Any]:
    command = ["ip", "netns", "exec", host, sys.executable, "-c", WAYS, *endpoints]
    lines = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def test_the_route_decides_among_interfaces() -> None:
    with two_machines() as (host, other):
        ip("link", "add", "storage0", "netns", host, "type", "veth", "peer", "name", "storage0", "netns", other)
        ip("-n", host, "addr", "add", "10.214.0.1/24", "dev", "storage0")
        for name in (host, other):
            ip("-n", name, "link", "set", "storage0", "up")
        assert ways(host, ADDRESSES[1], "10.214.0.2", ADDRESSES[0], "127.0.1.1", "203.0.113.9") == [
            [ADDRESSES[0], host, False],
            ["10.214.0.1", "storage0", False],
            [ADDRESSES[0], host, True],
            [ADDRESSES[0], host, True],  # what others reach, not loopback
            "203.0.113.9: no route to 203.0.113.9 from this machine; give another address, or check its network",
        ]


def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "RESOLVE_SECONDS", 0.0)
    with pytest.raises(UserError, match=r"nowhere.invalid: the name does not resolve on this machine \(.*/etc/hosts"):
        environment.route_to("nowhere.invalid")
