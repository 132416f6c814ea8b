"""Rate and end of a run by train.monitor: against torch's scheduler, a few plain lines, and runs killed at any step."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app.config.kinds import ScheduleName
from app.config.train import ScheduleConfig, TrainConfig
from app.metrics.documents import Best, EvaluationFigures, Monitored, monitored_value
from app.optimizer import learning_rate
from app.report.charts import sentences
from app.report.read import read_run
from app.runtime.platform import Runtime
from app.training import evaluator
from app.training.state import RunLength, RunState, best_of, early_stop, next_monitored, score_of
from common.errors import UserError
from tests.app.conftest import SMALL, Command, Train, composed
from tests.app.datasets import write_dataset
from tests.app.in_process import NOTHING_TO_DO, command_here, train_here
from tests.app.run_files import events, summary

LAST, RUN = 60, Path("runs/x")
STOPPING = [*SMALL, "optimizer=adagrad", "optimizer.lr=1", "schedule=plateau", "schedule.factor=0.5"]
STOPPING += ["train.early_stop_patience=3", "train.eval_every_steps=3", f"train.max_steps={LAST}"]
STOPPING += ["checkpoint.every_steps=6", "record.tensorboard=false", "train.epochs=100"]


@pytest.mark.parametrize("monitor", ["auc", "logloss"])
@pytest.mark.parametrize("patience", [0, 1, 3])
def test_cuts_are_those_of_torchs_scheduler(monitor: str, patience: int) -> None:
    rng = np.random.default_rng(patience)
    config = ScheduleConfig(ScheduleName.plateau, factor=0.3, patience=patience, threshold=0.02, min_lr=1e-3)
    for _ in range(20):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
        mode, cuts = "max" if monitor == "auc" else "min", {"factor": 0.3, "patience": patience, "min_lr": 1e-3}
        plateau: Any = torch.optim.lr_scheduler.ReduceLROnPlateau
        scheduler = plateau(optimizer, mode, threshold=0.02, threshold_mode="abs", **cuts)
        state = Monitored()
        for value in rng.normal(0.6, 0.05, 25) + rng.normal(0, 0.01) * np.arange(25):
            state = next_monitored(state, float(value), monitor, config)
            scheduler.step(float(value))
            assert learning_rate(0.4, config, 7, state.cuts) == optimizer.param_groups[0]["lr"]


def test_a_rate_below_the_least_one_stays() -> None:
    config = ScheduleConfig(ScheduleName.plateau, min_lr=1e-3)
    assert learning_rate(1e-4, config, 0, cuts=3) == 1e-4


def plain_stop(values: list[float], patience: int, sign: int) -> int | None:
    """FuxiCTR's rule: the number of evaluations after which it ends."""
    best, misses = -float("inf"), 0
    for number, value in enumerate(values, start=1):
        misses = misses + 1 if sign * value < best + 1e-6 else 0
        best = best if misses else sign * value
        if misses >= patience:
            return number
    return None


@pytest.mark.parametrize(("monitor", "sign"), [("auc", 1), ("ne", -1), ({"auc": 1, "logloss": -1}, 1)])
def test_it_ends_where_fuxictr_does(monitor: Any, sign: int) -> None:
    rng, stopped = random.Random(1), 0
    for patience in (1, 2, 3):
        train = TrainConfig(monitor=monitor, early_stop_patience=patience)
        length = RunLength(10, 1_000, train)
        for _ in range(40):
            values = [round(rng.uniform(0.5, 0.6) + sign * 0.02 * number, 3) for number in range(15)]
            state, ended = RunState(), None
            for number, value in enumerate(values, start=1):
                state.step, state.evaluation = number, EvaluationFigures(step=number, auc=value)
                state.monitored = next_monitored(state.monitored, value, monitor, ScheduleConfig(ScheduleName.constant))
                if early_stop(state, length) is not None:
                    ended = number
                    break
            assert ended == plain_stop(values, patience, sign)
            stopped += ended is not None
    assert stopped > 20


def test_a_sum_is_weighted_and_undefined_with_any_of_its_parts() -> None:
    evaluation = EvaluationFigures(step=3, auc=0.7, rest={"logloss": 0.5, "ne": None})
    assert monitored_value(evaluation, {"auc": 2, "logloss": -1}) == pytest.approx(0.9)
    assert monitored_value(evaluation, {"auc": 1, "ne": -1}) is None
    before = Monitored(best=1.0, misses=1, since_cut=1, cuts=2)
    assert next_monitored(before, None, "ne", ScheduleConfig(ScheduleName.plateau)) == before


def test_a_split_of_one_class_says_that_the_monitor_cannot_act(caplog: pytest.LogCaptureFixture) -> None:
    for monitor, effect in ("auc", ", so train.early_stop_patience=3 and schedule=plateau cannot act"), ("logloss", ""):
        config = composed(*STOPPING, f"train.monitor={monitor}", "data.path=none", "run.name=x")
        result = EvaluationFigures(auc=None, split="val", samples=5, rest={"logloss": 0.3})
        evaluator.log_evaluation(3, result, config)
        assert caplog.records[-1].getMessage() == f"eval: split val has only one class; AUC is undefined{effect}"


def test_the_best_is_ranked_by_the_monitor() -> None:
    less_loss = EvaluationFigures(step=1, auc=0.6, rest={"logloss": 0.3})
    more_auc = EvaluationFigures(step=2, auc=0.8, rest={"logloss": 0.4})
    by_loss = [best_of(each, "logloss") for each in (less_loss, more_auc)]
    assert max((each for each in by_loss if each), key=lambda one: score_of(one, "logloss")).step == 1
    assert best_of(more_auc, "auc") == Best(step=2, auc=0.8, monitor=None, value=None)
    assert best_of(less_loss, "logloss") == Best(step=1, auc=0.6, monitor="logloss", value=0.3)


@pytest.fixture(scope="module")
def whole(runtime: Runtime, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended early."""
    run = tmp_path_factory.mktemp("whole")
    assert train_here(runtime, *STOPPING, f"data.path={dataset}", "run.name=whole", f"run.dir={run}") == "completed"
    return run


@pytest.mark.medium
def test_a_run_cuts_and_ends_as_its_evaluations_say(
    runtime: Runtime, dataset: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aucs = [(event["step"], event["auc"]) for event in events(whole, "eval")]
    ended = plain_stop([auc for _, auc in aucs], 3, 1)
    figures = summary(whole)
    assert (ended, figures["status"]) == (len(aucs), "completed")
    assert figures["steps"] == aucs[-1][0] < LAST
    best_step, best = max(aucs, key=lambda one: one[1])
    assert figures["early_stop"] == {"monitor": "auc", "misses": 3, "best_step": best_step, "best": best}
    rate, high, rates = 1.0, -1.0, {}
    for step in range(1, figures["steps"] + 1):
        rates[step] = rate
        auc = dict(aucs).get(step)
        if auc is not None:
            rate, high = (rate * 0.5, high) if auc < high + 1e-6 else (rate, auc)
    assert {event["step"]: event["lr"] for event in events(whole, "train")} == rates
    assert len(set(rates.values())) > 1
    ending = f"no gain of train.monitor=auc at 3 evaluations in a row; the best was {best:.5f} at step {best_step}"
    assert sentences(read_run(whole))[0][1].endswith(f"stopped early: {ending}.")
    again = [f"data.path={dataset}", "run.name=whole", f"run.dir={whole}"]
    assert train_here(runtime, *STOPPING, *again) == NOTHING_TO_DO
    assert command_here(runtime, "verify", f"run={whole}") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "identical"


@pytest.mark.slow("processes")
def test_two_processes_decide_the_same(run_app: Command, dataset: Path, tmp_path: Path) -> None:
    process = run_app("train", *STOPPING, f"data.path={dataset}", "run.name=two", processes=2)
    aucs = [event["auc"] for event in events(tmp_path / "runs/two", "eval")]
    assert plain_stop(aucs, 3, 1) == len(aucs)
    steps_done = summary(tmp_path / "runs/two")["steps"]
    assert steps_done == 3 * len(aucs)
    assert f"early stop: step {steps_done}: no gain of train.monitor=auc at 3 evaluations in a row" in process.stderr
    assert f"at most {LAST} steps of 64 samples" in process.stderr
    assert "no gain of train.monitor=auc, learning rate 1 to 0.5" in process.stderr


def test_keep_best_goes_by_the_monitor(train: Train) -> None:
    train(*STOPPING, "train.monitor=logloss", "train.max_steps=20", "checkpoint.keep=1")
    step, loss = min(((e["step"], e["logloss"]) for e in events(RUN, "eval")), key=lambda one: float(one[1]))
    best = summary(RUN)["best"]
    assert (best["step"], best["monitor"], best["value"]) == (step, "logloss", loss)
    assert (RUN / f"checkpoints/step_{step:08d}").is_dir()


@pytest.mark.slow("processes")
def test_a_sum_is_resumed_and_replayed(train: Train, runtime: Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = [*STOPPING, "train.monitor={auc:1,logloss:-0.5}"]
    for steps in (7, 12):
        train(*overrides, f"train.max_steps={steps}")
    values = {e["step"]: e["auc"] - 0.5 * e["logloss"] for e in events(RUN, "eval")}
    assert sorted(values) == [3, 6, 7, 9, 12]
    best = summary(RUN)["best"]
    assert (best["monitor"], best["step"]) == ("{auc:1,logloss:-0.5}", max(values, key=values.__getitem__))
    assert best["value"] == values[best["step"]]
    assert command_here(runtime, "verify", f"run={RUN}") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "identical"
    with pytest.raises(UserError, match=r"train.monitor=auc: the run at .* was started with"):
        train(*overrides, "train.monitor=auc", "train.max_steps=13")


def test_a_dataset_that_cannot_decide_is_refused(runtime: Runtime, dataset: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", {"train": 300, "test": 100})
    run = [*STOPPING, "run.name=x", f"run.dir={tmp_path}/run"]
    with pytest.raises(UserError, match=r"train.early_stop_patience=3: the dataset has no rows in split val; prepare"):
        train_here(runtime, *run, f"data.path={tmp_path}/data")
    with pytest.raises(UserError, match=r"train.monitor=pr_auc: pr_auc is not computed of the 501 rows of split val"):
        train_here(runtime, *run, f"data.path={dataset}", "train.monitor=pr_auc", "eval.exact_rows=500")
    assert not (tmp_path / "run/checkpoints").exists()
