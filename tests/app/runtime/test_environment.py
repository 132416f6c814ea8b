"""Profiles of environment variables."""

import os

import pytest

from app.config import CONFIG_DIR, AppConfig, validate
from app.runtime import environment
from common.cli import compose_config
from common.errors import UserError

PROFILES = sorted(path.stem for path in (CONFIG_DIR / "environment").glob("*.yaml"))


@pytest.mark.parametrize("name", PROFILES)
def test_every_variable_has_its_reason(name: str) -> None:
    profile = compose_config(AppConfig, CONFIG_DIR, [f"environment={name}"]).environment
    assert profile.name == name
    assert set(profile.variables) == set(profile.reasons)
    assert all(profile.reasons.values())


@pytest.mark.parametrize("choice", ["environment=amd_node", "environment=amd_cluster", "recipe=amd_2026"])
def test_tf32_is_allowed_where_amd_allows_it(choice: str) -> None:
    profile = compose_config(AppConfig, CONFIG_DIR, [choice]).environment
    assert profile.variables["HIPBLASLT_ALLOW_TF32"] == "1"
    assert set(profile.variables) == set(profile.reasons)


def test_a_recipe_and_a_profile_go_together() -> None:
    both = compose_config(AppConfig, CONFIG_DIR, ["recipe=amd_2026", "environment=amd_node"]).environment
    alone = compose_config(AppConfig, CONFIG_DIR, ["environment=amd_node"]).environment
    assert both.variables == alone.variables


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = ["environment=amd_node", "+environment.variables.NCCL_SOCKET_IFNAME=eth7"]
    profile = compose_config(AppConfig, CONFIG_DIR, overrides).environment
    for variable in profile.variables:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("GPU_MAX_HW_QUEUES", "2")
    lines = environment.apply(profile)
    assert os.environ["GPU_MAX_HW_QUEUES"] == "2"
    assert os.environ["NCCL_SOCKET_IFNAME"] == "eth7"
    assert os.environ["HSA_NO_SCRATCH_RECLAIM"] == "1"
    assert "environment: amd_node would set GPU_MAX_HW_QUEUES=4; 2 of the environment stays" in lines
    assert "environment: amd_node sets HSA_NO_SCRATCH_RECLAIM=1" in lines
    for variable in profile.variables:
        monkeypatch.delenv(variable, raising=False)  # what apply set is undone with the rest


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="not a name of an environment variable"):
        validate(compose_config(AppConfig, CONFIG_DIR, ["+environment.variables={a-b: x}"]))
