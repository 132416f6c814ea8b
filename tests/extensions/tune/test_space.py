"""search.KEY=VALUES: ranges, choices, refusals, and what Optuna draws of them."""

import math
from typing import Any

import optuna
import pytest

from app.config.app_config import CONFIG_DIR
from common.compose import compose_config
from extensions.tune.command import (
    Range,
    TuneConfig,
    draw_settings,
    overrides_of,
    space_of,
    validate_tune,
)
from tests.error_lines import refused


def composed(*arguments: str) -> TuneConfig:
    return compose_config(TuneConfig, CONFIG_DIR, arguments, "tune")


def test_two_numbers_with_a_fraction_are_a_range_and_all_else_are_choices() -> None:
    search = ["search.optimizer.lr=[1e-3,1e-1]", "search.model.dropout=[0,0.5]", "search.model.interaction=[dot,dcn]"]
    search += ["search.train.global_batch_size=[256,512]", "search.model.over_arch=[[64,1],[128,64,1]]"]
    search += ["search.optimizer.max_grad_norm=[null,1.0]"]
    space = space_of(composed(*search).search)
    assert space == {
        "optimizer.lr": Range(1e-3, 1e-1),
        "model.dropout": Range(0.0, 0.5),
        "model.interaction": ("dot", "dcn"),
        "train.global_batch_size": ("256", "512"),
        "model.over_arch": ("[64,1]", "[128,64,1]"),
        "optimizer.max_grad_norm": ("null", "1.0"),
    }
    assert (Range(1e-3, 1e-1).is_log, Range(0.0, 0.5).is_log, Range(0.1, 0.5).is_log) == (True, False, False)


def test_draws_lie_in_the_space_and_are_log_uniform_in_a_wide_range() -> None:
    space = space_of({"optimizer": {"lr": [1e-4, 1e-1]}, "model": {"interaction": ["dot", "dcn"]}})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn: list[dict[str, Any]] = []
    for _ in range(300):
        trial = study.ask()
        draw_settings(trial, space)
        drawn.append(dict(override.split("=") for override in overrides_of(trial.params)))
        study.tell(trial, 0.0)
    exponents = [math.log10(float(each["optimizer.lr"])) for each in drawn]
    assert -4 <= min(exponents) < -3.9
    assert -1.1 < max(exponents) <= -1
    assert sum(exponents) / 300 == pytest.approx(-2.5, abs=0.15)
    assert {each["model.interaction"] for each in drawn} == {"dot", "dcn"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], r"search: no key is searched; give for instance search\.optimizer\.lr=\[1e-3,1e-1\]"),
        (["search.optimizer.lr=[0.1]"], r"search\.optimizer\.lr=\[0\.1\]: must be a list of two or more different"),
        (["search.optimizer.lr=0.1"], r"search\.optimizer\.lr=0\.1: must be a list of two or more different values"),
        (["search.optimizer.lr=[0.1,1e-3]"], r"a range is \[low,high\]; write the lower number first"),
        (["search.train.seed=[1,2]"], r"search\.train\.seed: is not searched: finalists are compared over seeds=N"),
        (["search.data.frequency_threshold=[1,3]"], r"is not searched: all trials read one dataset"),
        (["search.optimizer.lr=[1e-3,1e-1]", "eval.split=test"], r"eval\.split=test: trials are judged on val"),
    ],
)
def test_refusals(arguments: list[str], message: str) -> None:
    refused(message, validate_tune, composed(*arguments))
