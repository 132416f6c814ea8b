"""A run that becomes slower says so, at its end and in its report."""

import json
from pathlib import Path

import pytest

from tests.app.conftest import SMALL, ended, forked


@pytest.mark.slow("processes")
def test_a_planted_slowdown_is_named(dataset: Path, tmp_path: Path) -> None:
    settings = [*SMALL, f"data.path={dataset}", "train.max_steps=56", "train.log_every_steps=2", "run.name=slowed"]
    settings += ["checkpoint.every_steps=28", "train.eval_every_steps=null"]
    process = ended(forked("train", *settings, cwd=tmp_path, fault="steps slowed:28"), tmp_path)
    assert process.returncode == 0
    slowdown = json.loads((tmp_path / "runs/slowed/summary.json").read_text())["throughput"]["slowdown"]
    assert (slowdown["after_step"], slowdown["when"]) == (28, "the first checkpoint was saved")
    sentence = f"Throughput fell by {slowdown['fraction']:.0%} after step 28, when the first checkpoint was saved"
    assert sentence in process.stderr
    assert sentence in (tmp_path / "runs/slowed/report.html").read_text()
