"""Figures of the steps of every run: phases, FLOPs and bytes, exchanges between processes, energy; and traces."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from app.metrics import timing as power
from app.metrics.timing import PHASES, EnergyMeter, StepTimer
from tests.app.conftest import Command


def test_phases_are_timed_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    meter = StepTimer(torch.device("cpu"))
    meter.start()
    for _ in range(3):
        now[0] += 0.02  # waiting for input is none of them
        meter.step_begins()
        for phase, seconds in zip(PHASES, (0.01, 0.03, 0.0), strict=True):
            now[0] += seconds
            meter.phase_done(phase)
        meter.step_done(input_wait=0.02)
    timing = meter.take()
    assert timing.phase_steps == 3
    assert timing.phases == pytest.approx({"forward": 0.03, "backward": 0.09, "optimizer": 0.0})
    assert sum(timing.phases.values()) == pytest.approx(timing.seconds.sum() - timing.input_wait)
    assert meter.take()[1:] == (0.0, 0, {})


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
    monkeypatch.setattr(power, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    meter = EnergyMeter(CPU, tmp_path)
    meter.start()
    (first / "energy_uj").write_text("9000000")
    (second / "energy_uj").write_text("2000000")
    assert meter.lap() == pytest.approx((4 + 2, 2))
    (first / "energy_uj").write_text("1000000")  # beyond 10 J it began again: 2 J more
    assert meter.lap() == pytest.approx((2, 2))
    assert meter.lap() is None  # no time passed
    assert "RAPL" in meter.source


@pytest.mark.parametrize("is_there", [True, False])
def test_without_a_counter_or_when_it_goes_away_there_is_no_figure(tmp_path: Path, is_there: bool) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000) if is_there else tmp_path
    meter = EnergyMeter(CPU, tmp_path)
    meter.start()
    (package / "energy_uj").unlink(missing_ok=not is_there)
    assert meter.lap() is None


@pytest.mark.parametrize("error", [Exception("NVML: GPU is lost"), OSError(5, "I/O")])
def test_no_error_of_a_counter_ends_training(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVMLError and AmdSmiException derive from Exception alone."""
    monkeypatch.setattr(power, "_find_counter", lambda device, rapl: ("test", Mock(side_effect=[1.0, error])))
    meter = EnergyMeter(CPU, tmp_path)
    meter.start()
    assert meter.lap() is None
