"""Figures of steps: phases, energy, traces; a run that is stopped and resumed has those of one that was not."""

import csv
import gzip
import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from app.metrics import timing
from app.metrics.timing import PHASES, EnergyMeter
from app.runtime.platform import Runtime
from app.training.checkpointer import StopCheck
from app.training.predictor import Predictor
from app.training.session import Session
from tests.app.conftest import SMALL, Command
from tests.app.in_process import train_here
from tests.app.run_files import events, summary


@pytest.mark.slow("processes")
def test_a_run_tells_them_and_leaves_the_traces_asked_for(run_app: Command, small: list[str], tmp_path: Path) -> None:
    keys = [*small, "run.name=a", "train.max_steps=24", "runtime.profile_steps=[12,13]"]
    keys += ["train.warmup_steps_excluded=5"]
    run_app("train", *keys, processes=2)
    run = tmp_path / "runs/a"
    summary = json.loads((run / "summary.json").read_bytes())
    phases = summary["phase_seconds"]
    assert all(phases[name] > 0 for name in (*PHASES, "communication")), phases
    traces = sorted((run / "tensorboard").glob("rank*.pt.trace.json.gz"))
    assert [path.name.split(".")[0] for path in traces] == ["rank0", "rank1"]
    names = {event.get("name") for event in json.loads(gzip.decompress(traces[0].read_bytes()))["traceEvents"]}
    assert "aten::addmm" in names


CPU = torch.device("cpu")


def zone(root: Path, name: str, kind: str, microjoules: int, most: int = 1_000_000_000) -> Path:
    directory = root / name
    directory.mkdir()
    for file, value in (("name", kind), ("energy_uj", microjoules), ("max_energy_range_uj", most)):
        (directory / file).write_text(f"{value}\n")
    return directory


def test_packages_are_summed_and_counters_may_begin_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000, most=10_000_000)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 0)
    zone(tmp_path, "intel-rapl:0:0", "core", 7_000_000)  # part of its package
    zone(tmp_path, "intel-rapl:2", "psys", 7_000_000)  # the whole platform, packages included
    clock = iter([0.0, 2.0, 4.0, 4.0])
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    meter = EnergyMeter(CPU, tmp_path)
    meter.start()
    (first / "energy_uj").write_text("9000000")
    (second / "energy_uj").write_text("2000000")
    assert meter.lap() == pytest.approx((4 + 2, 2))
    (first / "energy_uj").write_text("1000000")  # beyond 10 J it began again: 2 J more
    assert meter.lap() == pytest.approx((2, 2))
    assert meter.lap() is None  # no time passed
    assert "RAPL" in meter.source


STEPS, BATCH, STEP_SECONDS, EVAL_SECONDS, WATTS = 24, 64, 0.04, 0.1, 50.0
SHARES = {"forward": 0.75, "backward": 0.0, "optimizer": 0.25}  # shares of a step
Part = tuple[int, int, int | None]  # processes, max_steps, the step to stop after


@contextmanager
def faked(world_size: int, stop_at: int | None) -> Iterator[None]:
    """The clock and the counter of this process; and the stop."""
    now = [1000.0]

    def passing(seconds: float, call: Any) -> Any:
        def passed(*arguments: Any, **keywords: Any) -> Any:
            now[0] += seconds
            return call(*arguments, **keywords)

        return passed

    def begun(self: Session, step: int) -> float:
        step_of_optimizer = self.optimizer.step
        if not getattr(step_of_optimizer, "slowed", False):
            slow = passing(STEP_SECONDS / world_size * SHARES["optimizer"], step_of_optimizer)
            slow.slowed = True
            self.optimizer.step = slow
        return begin(self, step)

    def forward(self: Session, batch: Any) -> Any:
        now[0] += STEP_SECONDS / world_size * SHARES["forward"] if self.model.training else 0.0
        return score(self, batch)

    begin, score = Session.begin_step, Session.forward
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "perf_counter", lambda: now[0])
        patched.setattr(timing, "_find_counter", lambda device, rapl: ("a test's", lambda: WATTS * now[0]))
        patched.setattr(Session, "begin_step", begun)
        patched.setattr(Session, "forward", forward)
        patched.setattr(Predictor, "evaluate", passing(EVAL_SECONDS, Predictor.evaluate))
        patched.setattr(StopCheck, "requested", lambda _, step: step == stop_at)
        yield


def run_part(runtime: Runtime, base: Sequence[str], name: str, part: Part) -> None:
    _, max_steps, stop_at = part
    with faked(runtime.world_size, stop_at):
        train_here(runtime, *base, f"run.name={name}", f"train.max_steps={max_steps}")


def parts_of(rng: random.Random, most_processes: int) -> list[Part]:
    """A few stops and extensions on the way to the last step."""
    ends = sorted(rng.sample(range(1, STEPS), 3))
    stopped = [rng.random() < 0.7 for _ in ends]
    parts: list[Part] = [
        (rng.randint(1, most_processes), STEPS if stop else end, end if stop else None)
        for end, stop in zip(ends, stopped, strict=True)
    ]
    return [*parts, (rng.randint(1, most_processes), STEPS, None)]


def assert_true(run: Path, ran: list[Part]) -> None:
    """The figures by hand, and that they are the sums of the events."""
    figures = summary(run)
    assert figures["covers"]["throughput"] == {"steps": STEPS}
    assert figures["throughput"]["samples_per_second_per_device"] == pytest.approx(BATCH / STEP_SECONDS, rel=1e-5)
    assert figures["power"]["source"] == "a test's"
    measured = [event["measured"] for kind in ("train", "eval") for event in events(run, kind)]
    assert sum(one["steps"] for one in measured) == STEPS
    device_seconds = sum(one["device_seconds"] for one in measured)
    assert device_seconds == pytest.approx(STEPS * STEP_SECONDS, rel=1e-5)
    rate = STEPS * BATCH / sum(one["seconds"] for one in measured)
    assert rate == pytest.approx(figures["throughput"]["samples_per_second"], rel=1e-5)
    assert sum(one["joules"] for one in measured) == pytest.approx(figures["power"]["joules"], rel=1e-6)
    evaluations = len(events(run, "eval"))
    assert figures["seconds"]["eval"] == pytest.approx(evaluations * EVAL_SECONDS, rel=1e-6)
    if all(processes == 1 for processes, *_ in ran):
        joules = WATTS * (STEPS * STEP_SECONDS + evaluations * EVAL_SECONDS)
        assert figures["power"]["joules"] == pytest.approx(joules, rel=1e-5)
        for name, share in SHARES.items():
            mean = figures["phase_seconds"][name] or 0.0
            assert mean == pytest.approx(share * STEP_SECONDS, rel=1e-5, abs=1e-9)
    (row,) = csv.DictReader((run / "results.csv").open())
    assert float(row["Recommendations/s (mean)"]) == figures["throughput"]["samples_per_second"]


@pytest.fixture
def base(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    keys = ["train.warmup_steps_excluded=0", "train.log_every_steps=5", "train.eval_every_steps=7"]
    return [*SMALL, f"data.path={dataset}", "record.tensorboard=false", *keys, "checkpoint.every_steps=4"]


@pytest.mark.slow("processes")
@pytest.mark.parametrize("seed", range(2))
def test_stops_change_no_figure(seed: int, runtime: Runtime, base: list[str]) -> None:
    parts = parts_of(random.Random(seed), most_processes=1)
    run_part(runtime, base, "whole", (1, STEPS, None))
    for part in parts:
        run_part(runtime, base, "parts", part)
    assert_true(Path("runs/whole"), [])
    assert_true(Path("runs/parts"), parts)
    whole, resumed = (summary(Path("runs") / name)["throughput"] for name in ("whole", "parts"))
    assert resumed == pytest.approx(whole, rel=1e-6)
