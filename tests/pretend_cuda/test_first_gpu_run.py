"""`python -m benchmarks.first_gpu_run --pretend`: a mistake in it must not cost the first minutes on a GPU."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.first_gpu_run import SHARES, FirstRun
from tests.pretend_cuda.machine import REPOSITORY, Machine

pytestmark = pytest.mark.slow


def first_gpu_run(out: Path, minutes: int) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "benchmarks.first_gpu_run", "--out", str(out), "--minutes", str(minutes)]
    return subprocess.run([*command, "--pretend"], cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_every_stage_succeeds(machine: Machine, tmp_path: Path) -> None:
    process = first_gpu_run(tmp_path, 15)
    assert process.returncode == 0, process.stdout + process.stderr + (tmp_path / "log.txt").read_text()[-5_000:]
    stages = json.loads((tmp_path / "results.json").read_bytes())["stages"]
    assert {stage["status"] for stage in stages.values()} == {"done"}
    assert stages["quickstart"]["replayed"] == "identical"
    assert stages["steps"]["32 bf16"]["step/train"]["median_ms"] > 0
    assert stages["graphs"]["32 bf16"]["step/train"]["median_ms"] > 0
    assert stages["graphs"]["same_digests"]
    assert set(stages["peers"]["samples_per_second"]) == {"clickwork", "torchrec_dlrm"}
    assert stages["tests"]["passed"] == 5


def test_a_slow_stage_costs_those_after_it_nothing(machine: Machine, tmp_path: Path) -> None:
    """22 s of which the second stage uses up its share; the others have theirs, and doctor runs for real."""
    run = FirstRun(tmp_path, 22.0, pretend=True)
    shares: dict[str, float] = {}

    def stage(name: str) -> dict[str, str]:
        shares[name] = run._until - time.monotonic()
        if name == "steps":
            run._python("time_out", statuses=())
        return {}

    run._stages = {name: lambda name=name: stage(name) for name in SHARES}  # type: ignore[misc]
    (tmp_path / "work/time_out.py").write_text("import time; time.sleep(100)")
    assert not run.run()
    stages = json.loads((tmp_path / "results.json").read_bytes())["stages"]
    assert [name for name, stage in stages.items() if stage["status"] == "failed"] == ["steps"]
    assert shares["doctor"] == pytest.approx(1, abs=0.2)
    assert shares["steps"] == pytest.approx(6, rel=0.2)
    assert shares["trace"] > 2


def test_what_was_done_is_left_where_time_runs_out(machine: Machine, tmp_path: Path) -> None:
    assert first_gpu_run(tmp_path, 0).returncode == 1
    stages = json.loads((tmp_path / "results.json").read_bytes())["stages"]
    assert {stage["status"] for stage in stages.values()} == {"failed"}
    assert "TimeoutExpired" in stages["doctor"]["reason"]
