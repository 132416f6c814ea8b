"""What a command refuses changes no file: neither of a run that is there, nor of a dataset, nor anything new."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.record.directory import RunDirectory
from app.runtime.platform import Runtime
from app.training import meta_build, stop
from common.errors import UserError
from tests.app.conftest import SMALL, composed
from tests.app.datasets import write_dataset
from tests.app.in_process import command_here, train_here
from tests.app.run_files import contents
from tests.once import made_once

BASE = [*SMALL, "record.tensorboard=false", "optimizer.lr=0.1"]
REFUSED = {
    "a shorter run": ["run.name=x", "train.max_steps=3"],
    "another split": ["run.name=x", "eval.split=test"],
    "another rate": ["run.name=x", "optimizer.lr=0.77"],
    "another dataset": ["run.name=x", "data.path=other"],
    "a start over": ["run.name=x", "checkpoint.resume=never"],
    "a start elsewhere": ["run.name=x", "checkpoint.resume=runs/y"],
    "an earlier start": ["run.name=x", "checkpoint.resume=runs/x/checkpoints/step_00000003"],
    "no space": [
        "run.name=x",
        "train.max_steps=1000000000000",
        "checkpoint.every_steps=1",
        "checkpoint.keep=1000000000000",
    ],
    "no space, over": [
        "run.name=x",
        "train.max_steps=1000000000000",
        "checkpoint.every_steps=1",
        "checkpoint.keep=1000000000000",
        "checkpoint.resume=never",
        "checkpoint.overwrite=true",
    ],
    "no space, back": [
        "run.name=x",
        "train.max_steps=1000000000000",
        "checkpoint.every_steps=1",
        "checkpoint.keep=1000000000000",
        "checkpoint.overwrite=true",
        "checkpoint.resume=runs/x/checkpoints/step_00000003",
    ],
    "a batch beyond the rows": ["run.name=x", "train.global_batch_size=5000"],
    "a batch beyond the rows, over": [
        "run.name=x",
        "train.global_batch_size=5000",
        "checkpoint.resume=never",
        "checkpoint.overwrite=true",
    ],
    "no such split": ["run.name=new", "eval.split=tomorrow"],
    "no such checkpoint": ["run.name=new", "checkpoint.resume=/no/checkpoint"],
    "no such checkpoint, and no data yet": [
        "run.name=new",
        "data.source=synthetic",
        "data.path=new",
        "checkpoint.resume=/no/checkpoint",
    ],
    "a foreign directory, and no data yet": ["run.name=x", "run.dir=data", "data.source=synthetic", "data.path=new"],
    "a foreign directory": ["run.name=x", "run.dir=data"],
    "a key that is wrong": ["run.name=new", "train.log_every_steps=0"],
    "tables that do not fit": ["run.name=new", "sharding.types=column_wise", "optimizer=rowwise_adagrad"],
}


@pytest.fixture(scope="module")
def place(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two datasets and three interrupted runs."""

    def make(root: Path) -> None:
        for seed, name in enumerate(("data", "other")):
            write_dataset(root / name, seed=seed)
        with pytest.MonkeyPatch.context() as patched:
            patched.chdir(root)
            patched.setattr(stop.StopCheck, "requested", lambda _, step: step == 5)
            for name, lr in (("x", 0.1), ("y", 0.1), ("z", 0.2)):
                arguments = ["data.path=data", f"run.name={name}", f"optimizer.lr={lr}", "train.max_steps=9"]
                arguments += ["train.eval_every_steps=3"]
                assert train_here(runtime, *BASE, *arguments) == "interrupted"

    return made_once(tmp_path_factory, "refusals", make)


FAST = (
    "a shorter run",
    "another rate",
    "a start elsewhere",
    "no space, back",
    "no such checkpoint, and no data yet",
    "a foreign directory",
    "evaluate another run's checkpoint",
    "verify on other data",
)


@pytest.fixture
def before(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The contents of a copy of the place, in which the test runs."""
    shutil.copytree(place, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    return contents(Path())


def _cases(of: Mapping[str, list[str]]) -> list[Any]:
    return [pytest.param(case, marks=() if case in FAST else pytest.mark.slow) for case in of]


@pytest.mark.parametrize("case", _cases(REFUSED))
def test_a_refusal_changes_nothing(case: str, runtime: Runtime, before: dict[str, str]) -> None:
    with pytest.raises(UserError):
        train_here(runtime, *BASE, "data.path=data", "train.max_steps=9", *REFUSED[case])
    assert contents(Path()) == before


def test_a_run_that_is_built_only_does_not_replace_a_trained_one(runtime: Runtime, before: dict[str, str]) -> None:
    config = composed("recipe=mlperf_v1", "run.name=x", "train.max_steps=0")
    assert meta_build.is_wanted(config)
    with pytest.raises(UserError, match="contains a trained run"):
        meta_build.write(config, runtime, RunDirectory(Path("runs/x"), 0), 0.0)
    assert contents(Path()) == before


COMMANDS = {
    "evaluate another run's checkpoint": ["evaluate", "run=runs/x", "checkpoint=runs/z/checkpoints/step_00000005"],
    "evaluate on other data": ["evaluate", "run=runs/x", "data.path=other", "out=x.json"],
    "evaluate no such split": ["evaluate", "run=runs/x", "split=tomorrow", "out=x.json"],
    "verify on other data": ["verify", "run=runs/x", "data.path=other"],
    "recommend nothing": ["recommend", "run=runs/x", "candidates=none.csv", "out=x.json"],
    "recommend to nowhere": ["recommend", "run=runs/x", "candidates=rows.csv", "out=no/such/place.json"],
}


@pytest.mark.parametrize("case", _cases(COMMANDS))
def test_a_refusal_of_another_command_changes_nothing(case: str, runtime: Runtime, before: dict[str, str]) -> None:
    with pytest.raises(UserError):
        command_here(runtime, *COMMANDS[case])
    assert contents(Path()) == before
