"""Profiles of environment variables."""

import json
import os
from pathlib import Path

import pytest

from app.config.app_config import CONFIG_DIR
from app.config.train import EnvironmentConfig
from app.runtime import environment, platform
from app.runtime import environment as leave
from app.runtime import platform as process_group
from tests.app.conftest import Command, composed

PROFILES = sorted(path.stem for path in (CONFIG_DIR / "environment").glob("*.yaml"))


@pytest.mark.parametrize("name", PROFILES)
def test_every_variable_has_its_reason(name: str) -> None:
    profile = composed(f"environment={name}").environment
    assert profile.name == name
    assert set(profile.variables) == set(profile.reasons)
    assert all(profile.reasons.values())


@pytest.mark.parametrize("choice", ["environment=amd_node", "environment=amd_cluster", "recipe=amd_2026"])
def test_tf32_is_allowed_where_amd_allows_it(choice: str) -> None:
    profile = composed(choice).environment
    assert profile.variables["HIPBLASLT_ALLOW_TF32"] == "1"
    assert set(profile.variables) == set(profile.reasons)
    both = composed("recipe=amd_2026", choice).environment
    assert both.variables == profile.variables


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
    """As Docker Compose sets those that it does not know."""
    for name in (*leave.LAUNCHER_VARIABLES, "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "")
    leave.announce_refusal()


@pytest.mark.slow("processes")
def test_each_command_applies_the_profile_of_the_run(run_app: Command, small: list[str], tmp_path: Path) -> None:
    """Recorded whatever its name is, and no change to `verify`."""
    variable = "+environment.variables.A_VARIABLE=7"
    process = run_app("train", *small, "run.name=x", "train.max_steps=2", variable)
    assert json.loads((tmp_path / "runs/x/manifest.json").read_bytes())["environment"]["A_VARIABLE"] == "7"
    for command in ("evaluate", "verify"):
        process = run_app(command, "run=runs/x")
        assert "environment: none sets A_VARIABLE=7" in process.stderr
        assert "A_VARIABLE: 7 then" not in process.stderr


def test_a_process_group_has_the_environment_of_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it starts: libraries read their variables once."""
    config = composed("+environment.variables.A_VARIABLE=7")
    variables = []

    def start(*_: object) -> None:
        variables.append(os.environ.get("A_VARIABLE"))
        raise SystemExit

    monkeypatch.setattr(platform, "start", start)
    with pytest.raises(SystemExit), process_group.joined(config, process_group.READING):
        pass
    assert variables == ["7"]
    os.environ.pop("A_VARIABLE")
