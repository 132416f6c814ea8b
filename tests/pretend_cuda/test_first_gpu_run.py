"""`benchmarks.first_gpu_run --pretend`: a mistake in it must not cost the first minutes on a GPU."""

import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import first_gpu_run
from benchmarks.first_gpu_run import SHARES, FirstRun
from tests.fast_python import fast_python
from tests.pretend_cuda import device

pytestmark = [pytest.mark.slow("tool"), pytest.mark.usefixtures("machine")]


def main(out: Path, minutes: int, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "executable", str(fast_python(PYTHONPATH=device.PYTHON_PATH)))
    stages = ["--stages", *reversed(SHARES)]  # none relies on one that is before it by default
    monkeypatch.setattr(sys, "argv", ["", "--out", str(out), "--minutes", str(minutes), "--pretend", *stages])
    return first_gpu_run.main()


@pytest.mark.medium
def test_every_stage_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(tmp_path, 15, monkeypatch) == 0, (tmp_path / "log.txt").read_text()[-5_000:]
    stages = json.loads((tmp_path / "results.json").read_bytes())["stages"]
    assert {stage["status"] for stage in stages.values()} == {"done"}
    assert stages["quickstart"]["first_losses_differ_by"][0] < 1e-4
    assert (stages["kill"]["replayed"], stages["kill"]["same_digests"]) == ("identical", True)
    assert stages["hstu"]["bucketed"]["last_loss"] > 0
    assert stages["node"] == {"status": "done", "gpus": 0, "seconds": stages["node"]["seconds"]}
    assert (stages["layout"]["gpus"], stages["layout"]["replayed"]) == (1, "identical")
    assert stages["steps"]["small bf16"]["step/train"]["median_ms"] > 0
    assert stages["graphs"]["small bf16"]["step/train"]["median_ms"] > 0
    assert stages["graphs"]["same_digests"]
    assert set(stages["peers"]["samples_per_second"]) == {"clickwork", "clickwork_plain", "torchrec_dlrm"}
    assert stages["tests"]["passed"] == 1


@pytest.mark.medium
def test_a_slow_stage_costs_those_after_it_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stage takes no time, which the others share; `steps` is cut short when its share is used up."""
    now = [0.0]
    monkeypatch.setattr(first_gpu_run, "time", SimpleNamespace(monotonic=lambda: now[0]))
    run = FirstRun(tmp_path, sum(SHARES.values()), pretend=True)
    shares: dict[str, float] = {}

    def stage(name: str, figures: dict[str, Any]) -> None:
        shares[name] = run._until - now[0]
        figures["began"] = True
        now[0] = now[0] if name == "doctor" else run._until
        if name == "steps":
            run._python("time_out", statuses=())

    run._stages = {name: partial(stage, name) for name in SHARES}
    waits = "import subprocess; subprocess.run(['sleep', '100'])"  # a child that keeps the pipe open
    (tmp_path / "work/time_out.py").write_text(waits)
    assert not run.run()
    stages = json.loads((tmp_path / "results.json").read_bytes())["stages"]
    assert [name for name, stage in stages.items() if stage["status"] == "failed"] == ["steps"]
    assert stages["steps"]["began"]
    doctor, total = SHARES["doctor"], sum(SHARES.values())
    more = total / (total - doctor)
    assert shares == pytest.approx({name: share * more for name, share in SHARES.items()} | {"doctor": doctor})


@pytest.mark.medium
def test_what_was_done_is_left_where_time_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(tmp_path, 0, monkeypatch) == 1
    stages = json.loads((tmp_path / "results.json").read_bytes())["stages"]
    assert {stage["status"] for name, stage in stages.items() if name != "node"} == {"failed"}
    assert "TimeoutExpired" in stages["doctor"]["reason"]
