"""Metrics of a split, whatever the number of processes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.app.conftest import SMALL, Command


@pytest.mark.slow
def test_processes_and_histograms_agree(run_app: Command, dataset: Path, tmp_path: Path) -> None:
    """One process, two, and two that add up histograms; the curves of rank 0 are of all rows."""
    trained = run_app("train", *SMALL, f"data.path={dataset}", "run.name=x", "train.max_steps=20", processes=2)
    assert trained.returncode == 0, trained.stderr
    assert json.loads((tmp_path / "runs/x/curves.json").read_bytes())["samples"] == 501

    def evaluated(*overrides: str, processes: int) -> dict[str, Any]:
        done = run_app("evaluate", "run=runs/x", "split=val", "out=x.json", *overrides, processes=processes)
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / "x.json").read_bytes())

    alone, both = (evaluated(processes=processes) for processes in (1, 2))
    figures = ("auc", "pr_auc", "logloss", "ne", "accuracy", "ece", "calibration", "base_rate")
    assert {key: both[key] for key in figures} == pytest.approx({key: alone[key] for key in figures}, abs=1e-5)
    added = evaluated("exact_rows=500", processes=2)
    assert (added["samples"], added["auc_method"], added["pr_auc"]) == (501, "histogram", None)
    assert abs(added["auc"] - both["auc"]) <= added["auc_error"] + 1e-12
    assert added["logloss"] == pytest.approx(both["logloss"], rel=1e-12)
    assert "auc_method" not in both
