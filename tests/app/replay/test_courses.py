"""Runs of any course replay: stopped at a moment, killed, extended by another schedule, begun with another's steps."""

import json

import pytest

from app.runtime.platform import Runtime
from tests.app.conftest import Train
from tests.app.in_process import command_here

TO_14, SAVED = "train.max_steps=14", "checkpoint.every_steps=4"
ANOTHER = f"{TO_14} train.eval_every_steps=3 train.log_every_steps=2 eval.train_split=true"
FRACTIONS = "train.eval_every_steps=null train.eval_every_fraction=0.3"
# Of each part of a run what ends it (a stop or a kill at a step, or its status), and its overrides.
QUICK = {
    "stopped beside an evaluation": [f"stop:10 {TO_14}"],
    "killed and resumed": [*(f"kill:{step} {TO_14} {SAVED}" for step in (5, 11, 12)), f"completed {TO_14} {SAVED}"],
    "extended by another schedule": ["completed train.max_steps=7", f"stop:9 {ANOTHER}", f"completed {ANOTHER}"],
    "begun with another's steps": [
        "completed train.max_steps=6 run.name=y run.dir=y",
        f"completed {TO_14} checkpoint.resume=y",
    ],
}
SLOW = {
    "stopped and resumed beside an evaluation": [f"stop:10 {TO_14}", f"completed {TO_14}"],
    "killed for good": [f"kill:12 {TO_14} checkpoint.every_steps=3"],
    "target reached": [f"target_reached {TO_14} train.target_auc=0.01"],
    "without evaluations": ["completed train.max_steps=9 train.eval_every_steps=null checkpoint.keep_best=false"],
    "of fractions": [f"completed {FRACTIONS} train.max_steps=40 schedule=plateau train.early_stop_patience=9"],
}


@pytest.mark.medium
@pytest.mark.parametrize("course", [*QUICK, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)])
def test_any_course_replays(course: str, train: Train, runtime: Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    for part in {**QUICK, **SLOW}[course]:
        end, *overrides = part.split()
        status = {"stop": "interrupted", "kill": "killed"}.get(end.partition(":")[0], end)
        base = ["run.dir=x", "train.log_every_steps=4", "train.eval_every_steps=5"]
        train(*base, *overrides, fault=end if ":" in end else "", status=status)
    capsys.readouterr()
    assert command_here(runtime, "verify", "run=x") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["figures"]) == ("identical", [])
