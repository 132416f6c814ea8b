"""Where training evaluates, what it reports, and how it ends: by numbers that are not finite, or by train.monitor."""

import json
import math
import random
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import nn

from app.config.kinds import ScheduleName
from app.config.model import Interaction, ModelConfig, Storage
from app.config.train import ScheduleConfig, TrainConfig
from app.metrics.documents import EvaluationFigures, Monitored, monitored_value
from app.model.dlrm import DLRM
from app.model.embeddings import TableInitRange, TableSpec, initial_rows
from app.optimizer import learning_rate
from app.report.charts import sentences
from app.report.read import read_run
from app.runtime.platform import Runtime
from app.training.session import FiniteChecks, TableMeter
from app.training.state import RunLength, RunState, early_stop, next_monitored, run_length
from tests.app.conftest import SMALL, Job, Train
from tests.app.in_process import NOTHING_TO_DO, command_here, train_here
from tests.app.loops import GivenVectors
from tests.app.run_files import events, summary

BATCH, DIM, NUM_SPARSE = 7, 4, 3


@pytest.mark.parametrize("interaction", get_args(Interaction))
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_vector_that_is_not_finite_shows_in_the_loss_or_a_gradient(interaction: Interaction, value: float) -> None:
    config = ModelConfig(interaction, embedding_dim=DIM, dense_arch=[6, DIM], over_arch=[5, 1])
    for seed in range(20):
        torch.manual_seed(seed)
        model = DLRM(config, 2, NUM_SPARSE, GivenVectors())
        checks = FiniteChecks(dict(model.named_parameters()))
        vectors = torch.randn(BATCH, NUM_SPARSE, DIM)
        for spoiled in (False, True):
            if spoiled:
                vectors[seed % BATCH, seed % NUM_SPARSE, seed % DIM] = value
            model.zero_grad()
            logits = model(torch.randn(BATCH, 2), vectors)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, (torch.rand(BATCH) < 0.5).float())
            loss.backward()
            assert bool(torch.isfinite(checks(loss)).all()) is not spoiled


def table(rows: int, dim: int = 4, storage: Storage = "fp32") -> TableSpec:
    return TableSpec("t_a", ("a",), rows, dim, TableInitRange(-0.5, 0.5), storage, False, False)


@pytest.mark.parametrize("storage", ["fp32", "fp16"])
@pytest.mark.parametrize("counts", [True, False])
def test_figures_are_those_of_the_whole_table(storage: Storage, counts: bool) -> None:
    rng = np.random.default_rng(0)
    spec = table(1000, storage=storage)
    values = initial_rows(7, spec, 0, 1000)
    if storage == "fp16":
        values = values.astype(np.float16).astype(np.float32)
    values[rng.choice(1000, 123, replace=False), rng.integers(0, 4, 123)] += 1
    meter = TableMeter([spec], 7, counts)
    passed = list(meter.watch([("t_a", values[:300]), ("t_a", values[300:]), ("dense", values[:2])]))
    assert np.array_equal(np.concatenate(passed), np.concatenate([values, values[:2]]))
    figures = meter.figures()["t_a"]
    norms = np.sqrt((values.astype(np.float64) ** 2).sum(axis=1))
    assert figures.pop("rows_touched") == (123 if counts else None)
    assert figures == pytest.approx({"rows": 1000, "mean_norm": norms.mean(), "largest_norm": norms.max()}, rel=1e-6)


def evaluations(length: RunLength) -> list[int]:
    steps, step = [], 0
    while step < length.total_steps:
        step = length.next_evaluation(step)
        steps.append(step)
    return steps


@pytest.mark.parametrize(
    ("steps", "share", "epochs"),
    [(33, "0.05", 3), (20, "0.05", 2), (7, "0.05", 1), (64, "1", 3), (10, "0.3", 3), (49_999, "0.001", 1)],
)
def test_a_share_of_an_epoch_evaluates_as_often_as_it_says(steps: int, share: str, epochs: int) -> None:
    split: Any = SimpleNamespace(rows=steps * 10, num_batches=lambda batch: steps)
    train = TrainConfig(global_batch_size=10, epochs=epochs, eval_every_fraction=float(share))
    distance = max(Fraction(1), Fraction(share) * steps)
    expected = {math.floor(number * distance) for number in range(1, math.floor(epochs * steps / distance) + 1)}
    assert evaluations(run_length(train, split, 1)) == sorted(expected | {epochs * steps})
    if steps >= 20 and share == "0.05":
        assert len(expected) == 20 * epochs


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


def test_keep_best_goes_by_the_monitor(train: Train) -> None:
    train(*STOPPING, "train.monitor=logloss", "train.max_steps=20", "checkpoint.keep=1")
    step, loss = min(((e["step"], e["logloss"]) for e in events(RUN, "eval")), key=lambda one: float(one[1]))
    best = summary(RUN)["best"]
    assert (best["step"], best["monitor"], best["value"]) == (step, "logloss", loss)
    assert (RUN / f"checkpoints/step_{step:08d}").is_dir()


PLACE = "step 40 (epoch 1, batch 8 of 31, counted from 0): "


@pytest.mark.medium
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("loss not finite:40", "first non-finite value: loss (nan)"),
        ("gradients not finite:40", "first non-finite value: gradient of dense_arch.0.bias"),
        ("table not finite:40", "first non-finite value: loss (nan)"),
    ],
)
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 50])
def test_what_is_not_finite_is_not_saved(fault: str, message: str, every: int, job: Job) -> None:
    assert PLACE + message in job.train(f"train.log_every_steps={every}", fault=fault, status=2).stderr
    assert (job.summary()["status"], job.last_checkpoint()) == ("failed", "step_00000036")
    if every == 1:
        job.train()
        job.assert_undisturbed()


@pytest.mark.medium
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_step_can_be_skipped(processes: int, job: Job) -> None:
    process = job.train("train.on_nan=skip", processes=processes, fault="loss not finite:40")
    assert PLACE + "the loss is not finite: skipped" in process.stderr
    figures = job.summary()
    assert (figures["steps"], figures["train"]["skipped_steps"]) == (60, 1)
    assert [event["loss"] for event in events(job.run, "train") if event["step"] == 40] == [None]
    assert figures["train"]["loss"] > 0


@pytest.mark.slow("examples")
def test_steps_are_not_skipped_for_ever_nor_are_gradients(job: Job) -> None:
    for fault, message in (
        ("losses not finite:20", "step 30: 11 steps in a row were skipped"),
        ("gradients not finite:40", "first non-finite value: gradient of"),
    ):
        assert message in job.train("train.on_nan=skip", f"run.name={fault[:6]}", fault=fault, status=2).stderr
