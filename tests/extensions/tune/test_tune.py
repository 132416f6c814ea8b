"""python -m app.tune: a search that is stopped goes on to what an undisturbed one finds; refusals before trials."""

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import optuna
import pytest

from extensions.tune.command import STOPPED_BY_WATCH, TuneRun, train
from tests.app.conftest import SMALL, Command, Refusal, app_environment
from tests.app.run_files import summary
from tests.fast_python import fast_python
from tests.waits import wait_until

SEARCH = ["search.optimizer.lr=[1e-3,1.0]", "search.model.interaction=[dot,cat]", "finalists=1", "seeds=2"]


@pytest.fixture
def arguments(dataset: Path) -> list[str]:
    few = ["train.max_steps=40", "train.epochs=50", "train.eval_every_steps=20", "checkpoint.every_steps=5"]
    return [*SMALL, *SEARCH, f"data.path={dataset}", *few, "train.deterministic=true"]


def started(directory: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start a search, whose trials start fast, too."""
    words = [str(fast_python()), "-m", "app.tune", *arguments]
    return subprocess.Popen(words, cwd=directory, env=app_environment(), stdout=subprocess.PIPE, text=True)


def document(directory: Path) -> Any:
    return json.loads((directory / "runs/tune/tune.json").read_bytes())


@pytest.mark.slow("processes")
def test_a_stopped_search_goes_on_to_what_an_undisturbed_one_finds(
    run_app: Command, arguments: list[str], tmp_path: Path
) -> None:
    search = started(tmp_path, *arguments, "trials=3")
    lines = search.communicate(timeout=600)[0].splitlines()
    assert search.returncode == 0
    whole = document(tmp_path)
    assert re.fullmatch(
        r"2 of 7, about \d+ s to go: runs/tune/trial_1: optimizer.lr=\S+ model.interaction=\S+", lines[1]
    )
    assert [line.partition(" of 7")[0] for line in lines[:7]] == list("1234567")
    assert lines[7:] == [*whole["verdict"], "runs/tune/tune.html"]
    assert [trial["trial"] for trial in whole["trials"]] == [0, 1, 2]
    assert {trial["status"] for trial in whole["trials"]} <= {"completed", "pruned"}
    page = (tmp_path / "runs/tune/tune.html").read_text()
    assert all(setting in page for trial in whole["trials"] for setting in trial["settings"])
    assert whole["verdict"][0] in page.replace("<wbr>", "")

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
    process = started(tmp_path, *arguments, "trials=3")
    wait_until((tmp_path / "runs/tune/trial_1/checkpoints/latest").exists, lambda: process.poll() is None)
    process.send_signal(signal.SIGTERM)
    assert process.wait(240) == 75
    assert len(document(tmp_path)["trials"]) <= 2
    assert started(tmp_path, *arguments, "trials=3").wait(600) == 0
    assert document(tmp_path) == whole
    study = optuna.load_study(study_name="tune", storage=f"sqlite:///{tmp_path}/runs/tune/tune.db")
    assert len(study.trials) == 2


@pytest.mark.slow("processes")
def test_a_trial_that_is_watched_stops_after_the_evaluation(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*SMALL, f"data.path={dataset}", "train.epochs=1000", "train.max_steps=100000", "train.eval_every_steps=20"]
    seen: list[tuple[int, float]] = []

    def watch(step: int, score: float) -> bool:
        seen.append((step, score))
        return step >= 40

    run = TuneRun(1, 3, ["optimizer.lr=0.05"], tmp_path / "tune/trial_1")
    assert train(run, words, "logloss", watch) == STOPPED_BY_WATCH
    assert [step for step, _ in seen[:2]] == [20, 40]
    assert all(score < 0 for _, score in seen)
    assert summary(run.directory)["status"] == "interrupted"


@pytest.mark.medium
def test_other_arguments_and_invalid_values_are_refused_before_a_trial(
    refused_command: Refusal, arguments: list[str], tmp_path: Path
) -> None:
    line = refused_command("tune", *arguments, "search.model.interaction=[dot,dcnn]")
    assert "model.interaction=dcnn" in line
    line = refused_command("tune", *arguments, "search.optimizer.rate=[1e-3,1e-1]")
    assert "optimizer.rate" in line
    line = refused_command("tune", *arguments, "run.name=x")
    assert "run.name=x: not of a search: trials are named by their numbers; out=DIR says where they are" in line
    assert not (tmp_path / "runs").exists()
