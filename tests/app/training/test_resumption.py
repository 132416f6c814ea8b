"""The contract of resumption: a disturbed run ends with the bits of an undisturbed one, whatever features it has.

A feature that adds state to a run adds its overrides to FACTORS. Each case trains a combination of features, kills the
run at a drawn moment, stops it at a drawn step, and resumes it; every two features meet in some case.
"""

import functools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from app.checkpoint.files import checkpoint_name
from app.config.kinds import OptimizerName
from app.runtime.platform import Runtime
from app.training import session
from app.training.session import Session
from tests.app.conftest import SMALL
from tests.app.data.test_negatives import draw_pairs, write_positives
from tests.app.datasets import write_dataset, write_ragged_dataset
from tests.app.in_process import command_here, train_here, train_until
from tests.app.model.test_table_runs import KINDS
from tests.app.run_files import events, summary
from tests.app.training.test_number_labels import make_ratings
from tests.covering import Case, covering_cases, stable_choice
from tests.once import made_once

STEPS = 18
BASE = [f"train.max_steps={STEPS}", "train.epochs=50", "train.eval_every_steps=3", "checkpoint.every_steps=4"]
BASE += ["record.tensorboard=false"]
NEGATIVES = ["data.negatives.per_positive=3", "data.negatives.user=user", "data.negatives.item=item"]
CLIPPED = ["optimizer.max_grad_norm=1", "optimizer.clip_tables=true"]
LR, DECAY = "optimizer.lr=0.02", "schedule.decay_steps=12"
FACTORS = {
    "rows": {
        "clicks": [],
        "bags": [*KINDS, "model.interaction=dcn", "train.global_batch_size=24", "data.shuffle_block_rows=37"],
        "expanded": ["data.multi_hot.sizes=[2,1,3,1]", "train.global_batch_size=384"],
        "negatives": [*NEGATIVES, "eval.split=test"],
        "ratings": ["recipe=quickstart", "loss=mse", "train.monitor=rmse", "train.global_batch_size=96", LR],
    },
    "model": {
        "plain": [],
        "regularised": ["model.batch_norm=true", "model.dropout=0.3", *CLIPPED],
        "cat": ["model.interaction=cat", "train.drop_last=false"],
    },
    "course": {
        "constant": [],
        "plateau": ["schedule=plateau", "schedule.factor=0.5", "train.early_stop_patience=2"],
        "poly": ["schedule=warmup_poly", "schedule.warmup_steps=5", "schedule.decay_start_step=9", DECAY],
        "skipped steps": ["train.on_nan=skip"],
        "sum": ["train.monitor={auc:1,logloss:-0.5}", "schedule=plateau"],
    },
    "saving": {
        "asynchronous": ["checkpoint.keep=1", "train.log_every_steps=4"],
        "synchronous": ["checkpoint.asynchronous=false", "checkpoint.keep=100"],
    },
}
KILLS = (  # the moment, and the largest number of its occurrence
    ("in the step", 11),
    ("before the save", 3),
    ("in the save", 3),
    ("before the rename", 3),
    ("after the rename", 3),
    ("before the best", 1),
    ("in the beginning", 2),
)
FIGURES = ("step", "samples", "auc", "logloss", "ne", "calibration", "rmse")
SPOILED_STEPS = (2, 3, 7)  # of the course "skipped steps", from 0


def is_valid(case: Case) -> bool:
    """Leave out what the commands refuse."""
    if case["rows"] == "bags":
        return case["model"] == "plain"
    return case["rows"] != "ratings" or case["course"] != "sum"


CASES = covering_cases({factor: list(values) for factor, values in FACTORS.items()}, is_valid)
QUICK_CASES = 4


def write_rows(kind: str, root: Path) -> None:
    if kind == "bags":
        write_ragged_dataset(root / "data", {"train": 400, "val": 101, "test": 10})
    elif kind == "negatives":
        write_positives(root / "data", draw_pairs())
    elif kind == "ratings":
        make_ratings(root)
    else:
        write_dataset(root / "data", {"train": 700, "val": 201, "test": 50}, shard_rows=300)


def overrides_of(case: Case, number: int, factory: pytest.TempPathFactory) -> list[str]:
    rows = case["rows"] if case["rows"] != "expanded" else "clicks"
    root = made_once(factory, f"resumption_{rows}", functools.partial(write_rows, rows)) / "data"
    fused = ["adagrad", "rowwise_adagrad", "sgd"]  # the optimizers of fp16 tables
    optimizers = fused if rows == "bags" else [name.value for name in OptimizerName]
    overrides = [f"data.path={root}", *SMALL, *BASE, f"optimizer={stable_choice(optimizers, number)}"]
    for factor, values in FACTORS.items():
        overrides += values[case[factor]]
    if rows in ("negatives", "ratings"):  # datasets without dense features
        overrides += ["model.dense_arch=[]", "model.interaction=cat"]
    return overrides


def result(run: Path, stop: int) -> dict[str, Any]:
    """Figures that no disturbance may change; a run that was stopped may have a checkpoint of step `stop` besides."""
    figures, directory = summary(run), run / "checkpoints"
    return {
        **{key: figures[key] for key in ("digest", "steps", "samples", "status", "best")},
        "early_stop": figures.get("early_stop"),
        "skipped": figures["train"]["skipped_steps"],
        "windows": [(event["step"], event["steps"], event["loss"], event["lr"]) for event in events(run, "train")],
        "evals": [{key: event.get(key) for key in FIGURES} for event in events(run, "eval")],
        "checkpoints": [path.name for path in sorted(directory.iterdir()) if path.name != checkpoint_name(stop)],
        "pointers": [(directory / name).read_text() for name in ("latest", "best")],
        "scores": {path.name: path.read_bytes() for path in (run / ".baselines").glob("scores/*")},
    }


def spoil(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the loss of SPOILED_STEPS NaN."""
    begin, make, now = Session.begin_step, vars(session)["make_loss"], [0]

    def begin_step(self: Session, step: int) -> float:
        now[0] = step
        return begin(self, step)

    def make_loss(*arguments: Any) -> Callable[[Tensor, Tensor], Tensor]:
        loss = make(*arguments)
        return lambda logits, labels: loss(logits, labels) * (float("nan") if now[0] in SPOILED_STEPS else 1.0)

    monkeypatch.setattr(Session, "begin_step", begin_step)
    monkeypatch.setattr(session, "make_loss", make_loss)


def disturb(
    number: int, course: str, overrides: list[str], runtime: Runtime, capsys: pytest.CaptureFixture[str]
) -> None:
    """Train undisturbed and disturbed in the working directory; assert that results are equal, and a replay's."""
    rng = random.Random(number)
    moment, most = KILLS[number % len(KILLS)]
    kill, stop = f"{moment}:{rng.randint(1, most)}", rng.randint(1, 5)
    print(course, kill, stop, *overrides)
    assert train_here(runtime, *overrides, "run.name=x", "run.dir=runs/whole") == "completed"
    parts = [*overrides, "run.name=x", "run.dir=runs/parts"]
    assert train_until(runtime, f"stop:{stop}", *parts) == "interrupted"
    assert train_until(runtime, kill, *parts) == "killed"
    assert train_here(runtime, *parts) == "completed"
    assert result(Path("runs/parts"), stop) == result(Path("runs/whole"), stop)
    if course in ("constant", "poly"):  # evaluations decide nothing there
        assert train_here(runtime, *overrides, "train.eval_every_steps=null", "run.name=x", "run.dir=runs/none")
        assert summary(Path("runs/none"))["digest"] == summary(Path("runs/whole"))["digest"]
    if number % 3 == 0 and course != "skipped steps":
        capsys.readouterr()
        status = command_here(runtime, "verify", "run=runs/parts")
        printed = capsys.readouterr().out
        assert (status, json.loads(printed)["verdict"]) == (0, "identical"), printed


@pytest.mark.medium
@pytest.mark.parametrize(
    "number", [pytest.param(k, marks=[pytest.mark.slow] if k >= QUICK_CASES else []) for k in range(len(CASES))]
)
def test_a_disturbed_run_has_the_bits_of_an_undisturbed_one(
    number: int,
    runtime: Runtime,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    course, overrides = CASES[number]["course"], overrides_of(CASES[number], number, tmp_path_factory)
    if course == "skipped steps":
        spoil(monkeypatch)
    disturb(number, course, overrides, runtime, capsys)
