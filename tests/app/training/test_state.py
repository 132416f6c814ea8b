"""Where a run evaluates, against fractions; when an evaluation is called a collapse; how throughput varies."""

import math
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.config.train import TrainConfig
from app.metrics.documents import EvaluationFigures
from app.record.documents import read_config
from app.runtime.platform import Runtime
from app.training.evaluator import is_collapsed
from app.training.recorder import throughput_spread
from app.training.state import RunLength, run_length
from tests.app.conftest import SMALL
from tests.app.in_process import train_here
from tests.app.run_files import events


def evaluations(length: RunLength) -> list[int]:
    steps, step = [], 0
    while step < length.total_steps:
        step = length.next_evaluation(step)
        steps.append(step)
    return steps


@pytest.mark.parametrize(
    ("steps", "share", "epochs"),
    [
        *((steps, "0.05", epochs) for steps, epochs in ((33, 1), (33, 3), (20, 2), (7, 1), (3_219, 1))),
        *((31, "0.25", 2), (64, "1", 3), (10, "0.3", 3), (49_999, "0.001", 1)),
    ],
)
def test_a_share_of_an_epoch_evaluates_as_often_as_it_says(steps: int, share: str, epochs: int) -> None:
    split: Any = SimpleNamespace(rows=steps * 10, num_batches=lambda batch: steps)
    train = TrainConfig(global_batch_size=10, epochs=epochs, eval_every_fraction=float(share))
    distance = max(Fraction(1), Fraction(share) * steps)
    expected = {math.floor(number * distance) for number in range(1, math.floor(epochs * steps / distance) + 1)}
    assert evaluations(run_length(train, split, 1)) == sorted(expected | {epochs * steps})
    if steps >= 20 and share == "0.05":
        assert len(expected) == 20 * epochs


def test_an_interval_in_steps_is_even() -> None:
    split: Any = SimpleNamespace(rows=310, num_batches=lambda batch: 31)
    train = TrainConfig(global_batch_size=10, max_steps=20, eval_every_steps=6)
    assert evaluations(run_length(train, split, 1)) == [6, 12, 18, 20]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("override", "recorded", "expected"),
    [
        ("train.epochs=1", 9, [9, 18, 27, 31]),  # the default: of the epoch's 31 steps 0.3
        ("train.epochs=2", 9, [9, 18, 27, 36, 45, 54, 62]),
        ("train.eval_every_steps=20", 20, [20, 31]),
        ("train.eval_every_steps=null", None, [31]),
        ("train.eval_every_fraction=0.5", None, [15, 31]),
    ],
)
def test_by_default_an_epochs_length_decides(
    runtime: Runtime, dataset: Path, tmp_path: Path, override: str, recorded: int | None, expected: list[int]
) -> None:
    run = tmp_path / "x"
    paths = [f"data.path={dataset}", "run.name=x", f"run.dir={run}"]
    keys = [key for key in SMALL if not key.startswith("train.eval_every_steps=")]
    assert train_here(runtime, *keys, *paths, "record.tensorboard=false", override) == "completed"
    assert read_config(run)["train"]["eval_every_steps"] == recorded
    assert [event["step"] for event in events(run, "eval")] == expected


@pytest.mark.parametrize(
    ("auc", "ne", "collapsed"),
    [
        *((0.5, 1.0, True), (0.503, 1.2, True), (0.497, 1.0, True)),
        *((0.52, 1.0, False), (0.501, 0.99, False), (None, None, False)),
    ],
)
def test_collapse_is_chance_and_no_knowledge(auc: float | None, ne: float | None, collapsed: bool) -> None:
    assert is_collapsed(EvaluationFigures(auc=auc, rest={"ne": ne})) == collapsed


@pytest.mark.parametrize(
    ("seconds", "rates"), [([1, 3, 4, 4], [0.5, 0.25]), ([1, 1, 1, 1, 9], [1, 1]), ([1, 1, 1], [])]
)
def test_the_spread_of_throughput_is_that_of_whole_windows(seconds: list[float], rates: list[float]) -> None:
    """Windows of two steps; a window that is not full does not count, and one alone has no spread."""
    state: Any = SimpleNamespace(all_step_seconds=lambda: np.array(seconds))
    expected = pytest.approx(np.std(rates) / np.mean(rates)) if rates else None
    assert throughput_spread(state, window=2) == expected
