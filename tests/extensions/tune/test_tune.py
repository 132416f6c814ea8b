"""python -m app.tune: what is searched, the verdict against SciPy's paired test, a search that goes on after a stop."""

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from scipy import stats

from app.config.app_config import CONFIG_DIR
from common.compose import compose_config
from extensions.tune.command import Outcome, Range, Trial, TuneConfig, space_of, validate_tune
from tests.app.conftest import SMALL, Command, app_environment
from tests.app.run_files import summary
from tests.error_lines import refused
from tests.fast_python import fast_python
from tests.waits import wait_until


def searched(*arguments: str) -> TuneConfig:
    return compose_config(TuneConfig, CONFIG_DIR, arguments, "tune")


def test_two_numbers_with_a_fraction_are_a_range_and_all_else_are_choices() -> None:
    search = ["search.optimizer.lr=[1e-3,1e-1]", "search.model.dropout=[0,0.5]", "search.model.interaction=[dot,dcn]"]
    search += ["search.train.global_batch_size=[256,512]", "search.model.over_arch=[[64,1],[128,64,1]]"]
    search += ["search.optimizer.max_grad_norm=[null,1.0]"]
    space = space_of(searched(*search).search)
    assert space == {
        "optimizer.lr": Range(1e-3, 1e-1),
        "model.dropout": Range(0.0, 0.5),
        "model.interaction": ("dot", "dcn"),
        "train.global_batch_size": ("256", "512"),
        "model.over_arch": ("[64,1]", "[128,64,1]"),
        "optimizer.max_grad_norm": ("null", "1.0"),
    }
    assert (Range(1e-3, 1e-1).is_log, Range(0.0, 0.5).is_log, Range(0.1, 0.5).is_log) == (True, False, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], r"search: no key is searched; give for instance search\.optimizer\.lr=\[1e-3,1e-1\]"),
        (["search.optimizer.lr=[0.1]"], r"search\.optimizer\.lr=\[0\.1\]: must be a list of two or more different"),
        (["search.optimizer.lr=[0.1,1e-3]"], r"a range is \[low,high\]; write the lower number first"),
        (["search.train.seed=[1,2]"], r"search\.train\.seed: is not searched: finalists are compared over seeds=N"),
    ],
)
def test_refusals(arguments: list[str], message: str) -> None:
    refused(message, validate_tune, searched(*arguments))


def outcome(*scores: list[float], monitor: str = "auc") -> Outcome:
    finalists = [
        Trial(number, [f"optimizer.lr={number / 100}"], "completed", each[0], dict(enumerate(each, start=1)))
        for number, each in enumerate(scores)
    ]
    return Outcome(finalists, finalists, monitor)


def test_the_finalist_is_taken_that_scipy_s_paired_test_finds_better() -> None:
    draw = np.random.default_rng(0)
    for gain in np.linspace(0, 0.004, 40):
        base = draw.normal(0.75, 0.003, 4)
        first, second = base + draw.normal(gain, 0.001, 4), base + draw.normal(gain / 2, 0.001, 4)
        is_better = [
            stats.ttest_rel(other, base).pvalue < 0.05 / 2 and other.mean() > base.mean() for other in (first, second)
        ]
        means = [other.mean() if better else -1 for other, better in zip((first, second), is_better, strict=True)]
        expected = 1 + int(np.argmax(means)) if any(is_better) else 0
        assert outcome([*base], [*first], [*second]).place_to_take == expected


def test_the_verdict_names_the_difference() -> None:
    sentences = outcome([0.75, 0.752, 0.751], [0.76, 0.7622, 0.7611]).sentences()
    assert sentences[0].startswith(
        "Take trial 1, optimizer.lr=0.01: AUC of val 0.76110 instead of 0.75100 (95% interval"
    )
    (sentence,) = outcome([0.75, 0.752, 0.751], [0.751, 0.750, 0.7525]).sentences()
    assert sentence.startswith("No difference: trial 1, optimizer.lr=0.01: AUC of val 0.75117 instead of 0.75100")
    assert sentence.endswith("on 3 fresh seeds).")


SEARCH = ["search.optimizer.lr=[1e-3,1.0]", "search.model.interaction=[dot,cat]", "finalists=1", "seeds=2"]


@pytest.fixture
def arguments(dataset: Path) -> list[str]:
    few = ["train.max_steps=40", "train.epochs=50", "train.eval_every_steps=20", "checkpoint.every_steps=5"]
    return [*SMALL, *SEARCH, f"data.path={dataset}", *few, "train.deterministic=true"]


def started(directory: Path, *arguments: str) -> "subprocess.Popen[str]":
    words = [str(fast_python()), "-m", "app.tune", *arguments]
    return subprocess.Popen(words, cwd=directory, env=app_environment(), stdout=subprocess.PIPE, text=True)


def document(directory: Path) -> Any:
    return json.loads((directory / "runs/tune/tune.json").read_bytes())


@pytest.mark.slow("processes")
def test_a_stopped_search_goes_on_to_what_an_undisturbed_one_finds(
    run_app: Command, arguments: list[str], tmp_path: Path
) -> None:
    search = started(tmp_path, *arguments, "trials=2")
    lines = search.communicate(timeout=600)[0].splitlines()
    assert search.returncode == 0
    whole = document(tmp_path)
    assert re.fullmatch(r"2 of 6: runs/tune/trial_1: optimizer.lr=\S+ model.interaction=\S+", lines[1])
    assert lines[6:] == [*whole["verdict"], "runs/tune/tune.html"]
    assert [trial["trial"] for trial in whole["trials"]] == [0, 1]
    assert {trial["status"] for trial in whole["trials"]} <= {"completed", "pruned"}
    # A trial's value is the best AUC of val, and a finalist is the run of its settings and seed.
    assert summary(tmp_path / "runs/tune/trial_1")["eval"]["auc"] == whole["trials"][1]["value"]
    finalist = whole["finalists"][1]
    others = [word for word in arguments if word not in SEARCH]
    run_app("train", *others, *finalist["settings"], "run.name=f", "train.seed=2")
    alone = summary(tmp_path / "runs/f")
    assert alone["digest"] == summary(tmp_path / f"runs/tune/trial_{finalist['trial']}_seed_2")["digest"]
    assert alone["eval"]["auc"] == finalist["values"]["2"]

    shutil.move(tmp_path / "runs/tune", tmp_path / "whole")
    finalists = [f"trial_{number}_seed_{seed}" for number in (0, finalist["trial"]) for seed in (1, 2)]
    for done in ("trial_0", *finalists):
        shutil.copytree(tmp_path / "whole" / done, tmp_path / "runs/tune" / done)  # only trials are stopped
    process = started(tmp_path, *arguments, "trials=2")
    wait_until((tmp_path / "runs/tune/trial_1/checkpoints/latest").exists, lambda: process.poll() is None)
    process.send_signal(signal.SIGTERM)
    assert process.wait(240) == 75
    assert len(document(tmp_path)["trials"]) <= 1
    assert started(tmp_path, *arguments, "trials=2").wait(600) == 0
    assert document(tmp_path) == whole
    study = optuna.load_study(study_name="tune", storage=f"sqlite:///{tmp_path}/runs/tune/tune.db")
    assert len(study.trials) == 1
