"""A run that is disturbed, repeated, extended or redirected ends with the bits of one that nothing happened to.

A feature that adds state to a run adds its overrides to FACTORS.
"""

import functools
import itertools
import json
import math
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from torch import Tensor

from app.checkpoint import files
from app.checkpoint.files import checkpoint_name
from app.config.kinds import OptimizerName
from app.metrics.documents import EvaluationFigures
from app.runtime.platform import Runtime
from app.training import session
from app.training.evaluator import Evaluator
from app.training.predictor import Evaluation, Predictor
from app.training.session import Session
from tests.app.conftest import SMALL, Train, ended, forked
from tests.app.data.test_bags import draw_pairs, write_positives
from tests.app.datasets import write_dataset, write_ragged_dataset
from tests.app.in_process import NOTHING_TO_DO, command_here, train_here, train_until
from tests.app.run_files import BY_AUC, contents, events, summary
from tests.app.training.test_number_labels import make_ratings
from tests.covering import Case, covering_cases, stable_choice
from tests.once import made_once

STEPS = 18
# user and item have one id a row, genres two, tags none to many
KINDS = ["+model.tables.overrides.user.kind=qr", "+model.tables.overrides.user.qr_operation=concat"]
KINDS += ["+model.tables.overrides.tags.kind=qr", "+model.tables.overrides.tags.pooling=mean"]
KINDS += ["+model.tables.overrides.item.kind=mixed_dimension", "model.tables.alpha=0.6"]
KINDS += ["+model.tables.overrides.item.storage=fp16", "+model.tables.overrides.genres.row_weights=learned"]
KINDS += ["train.global_batch_size=32"]
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


MOST_STEPS = 40
FAULTS = [*dict(KILLS), "stop", "stop"]
FAULTS.insert(6, "in the pruning")
Execute = Callable[[list[str], str, int], str]  # overrides, fault, processes: to a status, "killed" or "refused"


class Walk:
    """Two runs, x and y, under ./runs, and what must be true of them."""

    def __init__(self, base: list[str], execute: Execute, rng: random.Random, most_processes: int) -> None:
        self.base, self.execute, self.rng, self.most_processes = base, execute, rng, most_processes
        self.lengths = {"x": 6, "y": 6}  # the steps last asked for
        self.best: dict[str, float] = {}  # the AUC of the best after the last part that was not killed
        assert execute([*base, "run.name=whole", f"train.max_steps={MOST_STEPS}"], "", 1) == "completed"
        self.losses = self.losses_of("whole")

    def directory(self, name: str) -> Path:
        return Path("runs") / name

    def saved(self, name: str) -> list[Path]:
        return files.whole_checkpoints(self.directory(name) / files.CHECKPOINTS)

    def losses_of(self, name: str) -> np.ndarray:
        return files.read(self.saved(name)[-1])[1]["losses"]

    def saved_steps(self, name: str) -> list[int]:
        return [int(path.name.removeprefix("step_")) for path in self.saved(name)]

    def evaluations(self, name: str) -> dict[int, float]:
        return {event["step"]: event["auc"] for event in events(self.directory(name), "eval")}

    def part(self) -> None:
        """One command, at random, on one of the runs."""
        name = self.rng.choice("xy")
        saved, other = self.saved_steps(name), "y" if name == "x" else "x"
        kinds = ["extend"] * 3 + ["repeat", "over"]
        if saved:
            kinds += ["shorten", "back", "another split", "never"]
        if self.saved_steps(other):
            kinds += ["redirect"]
        kind = self.rng.choice(kinds)
        start, overrides = self._start(kind, saved, other)
        steps = self._length(kind, name, start)
        fault = ""
        if kind not in ("shorten", "another split", "never") and self.rng.random() < 0.7:
            name_of_fault = self.rng.choice(FAULTS)
            first = start if name_of_fault == "stop" else 0
            fault = f"{name_of_fault}:{first + self.rng.randint(1, 5)}"
        settings = [f"run.name={name}", f"train.max_steps={steps}", *overrides, *self._settings()]
        processes = self.rng.randint(1, self.most_processes)
        print(kind, *settings, fault, "on", processes)
        before, earlier_aucs = contents(Path("runs")), self._known(name, kind, start, saved)
        status = self.execute([*self.base, *settings], fault, processes)
        self._check_refusals(kind, name, status, before)
        if status in ("completed", "interrupted"):
            self.lengths[name] = steps
            self._check(name, start, earlier_aucs, kind)
        elif status == "killed" and kind in ("over", "redirect", "back"):
            self.best.pop(name, None)

    def _start(self, kind: str, saved: list[int], other: str) -> tuple[int, list[str]]:
        """The step that this part starts from, and the overrides that say so."""
        checkpoints = Path("runs") / ("x" if other == "y" else "y") / files.CHECKPOINTS
        if kind == "back":
            step = self.rng.choice(saved)
            path = checkpoints / files.checkpoint_name(step)
            return step, [f"checkpoint.resume={path}", "checkpoint.overwrite=true"]
        if kind == "redirect":
            return self.saved_steps(other)[-1], [f"checkpoint.resume=runs/{other}", "checkpoint.overwrite=true"]
        if kind == "over":
            return 0, ["checkpoint.resume=never", "checkpoint.overwrite=true"]
        overrides = {"never": ["checkpoint.resume=never"], "another split": ["eval.split=test"]}
        return max(saved, default=0), overrides.get(kind, [])

    def _length(self, kind: str, name: str, start: int) -> int:
        if kind == "shorten":
            return self.rng.randint(1, max(1, start - 1))
        if kind == "repeat" and self.lengths[name] >= start:
            return self.lengths[name]
        return min(MOST_STEPS, start + self.rng.randint(0 if start and self.rng.random() < 0.2 else 1, 8))

    def _settings(self) -> list[str]:
        values: dict[str, list[object]] = {"checkpoint.keep": [1, 2], "checkpoint.every_steps": ["null", 2, 5]}
        values |= {"train.eval_every_steps": [2, 3, "null"], "train.log_every_steps": [1, 4]}
        values |= {"sharding.types": ["table_wise", "row_wise"], "checkpoint.asynchronous": ["true", "false"]}
        return [f"{key}={self.rng.choice(of_key)}" for key, of_key in values.items()]

    def _known(self, name: str, kind: str, start: int, saved: list[int]) -> dict[int, float]:
        """Evaluations that count at the start: of this run's steps up to it that have checkpoints."""
        if kind in ("over", "redirect") or not (self.directory(name) / "metrics.jsonl").exists():
            return {}
        return {step: auc for step, auc in self.evaluations(name).items() if step <= start and step in saved}

    def _check_refusals(self, kind: str, name: str, status: str, before: dict[str, str]) -> None:
        """Check that exactly the forbidden changes were refused, and that refusals and idle runs changed no byte."""
        refusals = {"never": (), "shorten": (NOTHING_TO_DO, "completed"), "another split": ("completed",)}
        if kind in refusals:
            assert status in ("refused", *refusals[kind])
        else:
            assert status != "refused"
        if status in ("refused", NOTHING_TO_DO):
            assert contents(Path("runs")) == before

    def _check(self, name: str, start: int, earlier_aucs: dict[int, float], kind: str) -> None:
        run, figures = self.directory(name), summary(self.directory(name))
        saved, aucs = self.saved_steps(name), self.evaluations(name)
        assert figures["steps"] == saved[-1]
        new = {step: auc for step, auc in aucs.items() if step > start or step not in earlier_aucs}
        new = {step: auc for step, auc in new.items() if step >= start}
        candidate_aucs = {**earlier_aucs, **new}
        expected = max(candidate_aucs, key=lambda step: candidate_aucs[step], default=None)
        pointer = files.pointed_to(run / files.CHECKPOINTS, files.BEST)
        if expected is None:
            assert (figures["best"], pointer) == (None, None)
            self.best.pop(name, None)
        else:
            assert figures["best"] == {"step": expected, "auc": candidate_aucs[expected], **BY_AUC}
            assert pointer is not None
            assert pointer.name == files.checkpoint_name(expected)
            files.verify(pointer)
            assert (figures["eval"]["step"], figures["eval"]["auc"]) == (expected, candidate_aucs[expected])
            if kind not in ("over", "redirect", "back"):
                assert candidate_aucs[expected] >= self.best.get(name, -math.inf)
            self.best[name] = candidate_aucs[expected]
        evaluated = [event["step"] for event in events(run, "eval")]
        assert evaluated == sorted(set(evaluated))
        if figures["status"] == "completed":
            assert figures["last"]["step"] == figures["steps"]
        windows = [(event["step"] - event["steps"], event["step"]) for event in events(run, "train")]
        assert all(a[1] == b[0] for a, b in itertools.pairwise(windows)), windows
        np.testing.assert_allclose(self.losses_of(name), self.losses[: saved[-1]], rtol=1e-5)


def in_process(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Execute:
    """Commands in this process, with evaluations that go up and down."""
    measured, evaluate, now = Predictor.evaluate, Evaluator.evaluate, [0]

    def at_step(self: Evaluator, step: int) -> EvaluationFigures:
        now[0] = step
        return evaluate(self, step)

    def with_auc(self: Predictor, *arguments: Any) -> Evaluation:
        result = measured(self, *arguments)
        return result._replace(figures=structs.replace(result.figures, auc=now[0] * 0.618 % 1))

    monkeypatch.setattr(Evaluator, "evaluate", at_step)
    monkeypatch.setattr(Predictor, "evaluate", with_auc)
    return lambda overrides, fault, processes: train_until(runtime, fault, *overrides)


def in_forks(directory: Path) -> Execute:
    """Commands in processes of their own, killed as by kill -9."""

    def execute(overrides: list[str], fault: str, processes: int) -> str:
        process = ended(forked("train", *overrides, cwd=directory, processes=processes, fault=fault), directory)
        if process.returncode == 0 and "nothing to do" in process.stderr:
            return NOTHING_TO_DO
        statuses = {0: "completed", 75: "interrupted", 2: "refused", -signal.SIGKILL: "killed"}
        assert process.returncode in statuses, process.stderr
        return statuses[process.returncode]

    return execute


@pytest.mark.slow("processes")
@pytest.mark.parametrize(("seed", "parts", "processes"), [(10, 3, 1), (1, 30, 1), (0, 12, 2)])
def test_a_random_walk(
    seed: int,
    parts: int,
    processes: int,
    runtime: Runtime,
    small: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    execute = in_process(runtime, monkeypatch) if processes == 1 else in_forks(tmp_path)
    walk = Walk([*small, "record.tensorboard=false"], execute, random.Random(seed), processes)
    for _ in range(parts):
        walk.part()


RUN = Path("runs/x")


def set_aucs(monkeypatch: pytest.MonkeyPatch, *aucs: float) -> None:
    """Let evaluations have these AUCs, in turn."""
    measured, queue = Predictor.evaluate, iter(aucs)

    def evaluated(self: Predictor, *arguments: Any) -> Evaluation:
        result = measured(self, *arguments)
        return result._replace(figures=structs.replace(result.figures, auc=next(queue)))

    monkeypatch.setattr(Predictor, "evaluate", evaluated)


@pytest.mark.medium
def test_the_summary_is_of_the_served_model(train: Train, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures are the ones that evaluate finds, which takes the best too; the rest is the newest's."""
    with monkeypatch.context() as measured:
        set_aucs(measured, 0.6, 0.7, 0.65)
        train("train.max_steps=9", "train.eval_every_steps=3")
    figures, recorded = summary(RUN), {event["step"]: event for event in events(RUN, "eval")}
    assert (figures["steps"], figures["eval"]["step"], figures["last"]["step"]) == (9, 6, 9)
    for part in ("eval", "last"):
        evaluation = recorded[figures[part]["step"]]
        assert figures[part] == {key: evaluation[key] for key in figures[part] if key != "samples"} | {"samples": 501}
    assert recorded[6]["logloss"] != recorded[9]["logloss"]
    for overrides, step in (([], 6), (["checkpoint=last"], 9)):
        command_here(runtime, "evaluate", "run=runs/x", "split=val", "out=x.json", *overrides)
        scored = json.loads(Path("x.json").read_bytes())
        assert (scored["step"], scored["logloss"]) == (step, pytest.approx(recorded[step]["logloss"], rel=1e-12))
