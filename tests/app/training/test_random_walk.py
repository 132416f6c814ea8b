"""Runs that are extended, shortened, repeated, redirected, killed and re-sharded at random.

After each part `best` is the best evaluated, with its checkpoint there; every step was trained once; and what was
refused changed nothing. The truth is a run that nothing happened to, and a few lines that follow the records.
"""

import itertools
import math
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from app.checkpoint import files
from app.metrics.documents import EvaluationFigures
from app.runtime.platform import Runtime
from app.training.evaluator import Evaluator
from app.training.predictor import Evaluation, Predictor
from tests.app.conftest import ended, forked
from tests.app.in_process import NOTHING_TO_DO, train_until
from tests.app.run_files import contents, events, summary
from tests.app.summaries import BY_AUC
from tests.app.training.test_resumption import KILLS

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
        self.done: list[str] = []
        assert execute([*base, "run.name=whole", f"train.max_steps={MOST_STEPS}"], "", 1) == "completed"
        self.losses = self.losses_of("whole")

    def directory(self, name: str) -> Path:
        return Path("runs") / name

    def saved(self, name: str) -> list[Path]:
        return files.whole_checkpoints(self.directory(name) / files.CHECKPOINTS)

    def losses_of(self, name: str) -> np.ndarray:
        return files.read(self.saved(name)[-1]).arrays["losses"]

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
        self.done.append(f"{kind} {' '.join(settings)} {fault} on {processes}")
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


def walk(walked: Walk, parts: int) -> None:
    try:
        for _ in range(parts):
            walked.part()
    except BaseException:
        print("\n".join(walked.done))
        raise


@pytest.mark.slow("processes")
@pytest.mark.parametrize(("seed", "parts"), [(10, 3), (1, 30)])
def test_a_random_walk(
    seed: int, parts: int, runtime: Runtime, small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base = [*small, "record.tensorboard=false"]
    walk(Walk(base, in_process(runtime, monkeypatch), random.Random(seed), most_processes=1), parts)


@pytest.mark.slow("processes")
def test_a_random_walk_on_two_processes(small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = [*small, "record.tensorboard=false"]
    walk(Walk(base, in_forks(tmp_path), random.Random(0), most_processes=2), 12)
