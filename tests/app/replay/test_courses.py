"""Runs of any course replay: stopped at a moment, killed, extended by another schedule, begun with another's steps."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from app.runtime.platform import Runtime
from app.training import stop
from app.training.session import Session
from tests.app.conftest import SMALL
from tests.app.in_process import Killed, command_here, train_here

Train = Callable[..., str]


def stopped(train: Train, step: int, *overrides: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stop.StopCheck, "requested", lambda _, now: now == step)
        assert train(*overrides) == "interrupted"


def killed(train: Train, step: int, *overrides: str) -> None:
    begin = Session.begin_step

    def begun(self: Session, now: int) -> float:
        if now == step:
            raise Killed
        return begin(self, now)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Session, "begin_step", begun)
        with pytest.raises(Killed):
            train(*overrides)


def stopped_beside_an_evaluation(train: Train) -> None:
    stopped(train, 10, "train.max_steps=14")


def stopped_and_resumed_beside_an_evaluation(train: Train) -> None:
    stopped(train, 10, "train.max_steps=14")
    assert train("train.max_steps=14") == "completed"


def killed_for_good(train: Train) -> None:
    killed(train, 12, "train.max_steps=14", "checkpoint.every_steps=3")


def killed_and_resumed(train: Train) -> None:
    for step in (5, 11, 12):
        killed(train, step, "train.max_steps=14", "checkpoint.every_steps=4")
    assert train("train.max_steps=14", "checkpoint.every_steps=4") == "completed"


def extended_by_another_schedule(train: Train) -> None:
    assert train("train.max_steps=7") == "completed"
    keys = ["train.eval_every_steps=3", "train.log_every_steps=2", "eval.train_split=true"]
    stopped(train, 9, "train.max_steps=14", *keys)
    assert train("train.max_steps=14", *keys) == "completed"


def target_reached(train: Train) -> None:
    assert train("train.max_steps=14", "train.target_auc=0.01") == "target_reached"


def without_evaluations(train: Train) -> None:
    assert train("train.max_steps=9", "train.eval_every_steps=null", "checkpoint.keep_best=false") == "completed"


def of_fractions(train: Train) -> None:
    keys = ["train.eval_every_steps=null", "train.eval_every_fraction=0.3", "train.max_steps=40"]
    assert train(*keys, "schedule=plateau", "train.early_stop_patience=9") == "completed"


def begun_with_anothers_steps(train: Train) -> None:
    assert train("train.max_steps=6", "run.name=y", "run.dir=y") == "completed"
    assert train("train.max_steps=14", "checkpoint.resume=y") == "completed"


COURSES = [
    stopped_beside_an_evaluation,
    killed_and_resumed,
    extended_by_another_schedule,
    begun_with_anothers_steps,
    *(
        pytest.param(course, marks=pytest.mark.slow)
        for course in (
            stopped_and_resumed_beside_an_evaluation,
            killed_for_good,
            target_reached,
            without_evaluations,
            of_fractions,
        )
    ),
]


@pytest.mark.parametrize("course", COURSES)
def test_a_run_of_any_course_replays(
    course: Callable[[Train], None],
    runtime: Runtime,
    dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    base = [*SMALL, f"data.path={dataset}", "record.tensorboard=false", "run.name=x", "run.dir=x"]
    base += ["train.log_every_steps=4", "train.eval_every_steps=5"]
    course(lambda *overrides: train_here(runtime, *base, *overrides))
    capsys.readouterr()
    assert command_here(runtime, "verify", "run=x") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["figures"]) == ("identical", [])
