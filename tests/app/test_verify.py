"""`python -m app.verify` tells a run that replays from one that does not, and where."""

import json
from pathlib import Path

import pytest
import yaml

from tests.app.conftest import SMALL, Command
from tests.app.datasets import write_dataset


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_replays_to_the_same_bits(processes: int, run_app: Command, dataset: Path) -> None:
    """Though it was stopped half-way, was evaluated and kept checkpoints."""
    overrides = [
        *SMALL,
        f"data.path={dataset}",
        "run.name=run",
        "train.eval_every_steps=15",
        "checkpoint.every_steps=9",
    ]
    for steps in (20, 40):
        done = run_app("train", *overrides, f"train.max_steps={steps}", processes=processes)
        assert done.returncode == 0, done.stderr
    told = run_app("verify", "run=runs/run", processes=processes)
    assert told.returncode == 0, told.stderr
    report = json.loads(told.stdout)
    assert report["verdict"] == "identical"
    assert report["steps"] == 40
    assert report["losses"] == {"first": None, "largest": 0.0}
    assert report["parameters"] == {}


def test_another_learning_rate_is_found_out(run_app: Command, dataset: Path, tmp_path: Path) -> None:
    assert run_app("train", *SMALL, f"data.path={dataset}", "run.name=run", "train.max_steps=20").returncode == 0
    path = tmp_path / "runs/run/config.yaml"
    config = yaml.safe_load(path.read_text())
    config["optimizer"]["lr"] *= 1.5
    path.write_text(yaml.safe_dump(config))
    told = run_app("verify", "run=runs/run")
    assert told.returncode == 1, told.stderr
    report = json.loads(told.stdout)
    assert report["verdict"] == "different"
    assert report["losses"]["first"] == 1  # the first loss comes before the first update
    assert "losses differ from step 2 on" in told.stderr
    assert set(report["parameters"]) >= {"t_cat_0", "over_arch.0.weight"}


def test_another_number_of_processes_is_within_tolerance(run_app: Command, dataset: Path) -> None:
    overrides = [*SMALL, f"data.path={dataset}", "run.name=run", "train.max_steps=20", "optimizer=sgd"]
    assert run_app("train", *overrides, processes=2).returncode == 0
    told = run_app("verify", "run=runs/run")
    assert told.returncode == 0, told.stderr
    report = json.loads(told.stdout)
    assert report["verdict"] == "equal within tolerance"
    assert 0 < report["largest_difference"] < 1e-4


def test_another_dataset_is_refused_before_anything_is_replayed(
    run_app: Command, dataset: Path, tmp_path: Path
) -> None:
    assert run_app("train", *SMALL, f"data.path={dataset}", "run.name=run", "train.max_steps=3").returncode == 0
    write_dataset(tmp_path / "other", seed=5)
    told = run_app("verify", "run=runs/run", "data_path=other")
    assert told.returncode == 2
    assert "other: not the dataset that" in told.stderr
    assert told.stderr.count("\n") == 1
