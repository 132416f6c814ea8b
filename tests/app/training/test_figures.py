"""Figures of steps: phases, energy, traces; those of a run that is stopped and resumed are of all its parts."""

import csv
import gzip
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from app.metrics import timing
from app.metrics.timing import PHASES, EnergyMeter
from app.runtime.platform import Runtime
from tests.app.conftest import Command, Train
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


@pytest.mark.slow("processes")
def test_figures_of_a_stopped_run_are_the_sums_of_its_parts(
    runtime: Runtime, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    watts = 50.0
    monkeypatch.setattr(timing, "_find_counter", lambda device, rapl: ("a test's", lambda: watts * time.perf_counter()))
    keys = ["train.warmup_steps_excluded=0", "train.log_every_steps=5", "train.eval_every_steps=7"]
    train(*keys, "train.max_steps=24", fault="stop:8", status="interrupted")
    train(*keys, "train.max_steps=15")
    train(*keys, "train.max_steps=24")
    run = Path("runs/x")
    figures = summary(run)
    assert figures["covers"]["throughput"] == {"steps": 24}
    assert sum(json.loads((run / "step_times.json").read_bytes())["counts"]) == 24
    assert figures["power"]["mean_watts"] == pytest.approx(watts, rel=0.01)
    assert figures["power"]["joules"] > watts * figures["seconds"]["train"] * 0.9
    assert all(event["watts"] == pytest.approx(watts, rel=0.05) for event in events(run, "train"))
    (row,) = csv.DictReader((run / "results.csv").open())
    assert float(row["Recommendations/s (mean)"]) == figures["throughput"]["samples_per_second"]
