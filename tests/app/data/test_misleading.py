"""Data that mislead are named when a run trains on them, in its manifest and in its report."""

import json
from pathlib import Path

import pytest

from data_prep.dataset.misleading import misleading_sentences
from tests.app.conftest import SMALL, Command
from tests.data_prep.stages.test_misleading import leaking, prepared, table


@pytest.mark.slow
def test_a_leak_is_named_in_training_and_in_the_report(run_app: Command, tmp_path: Path) -> None:
    (sentence,) = misleading_sentences(prepared(tmp_path, leaking(table(0))).extra)
    process = run_app("train", *SMALL, "data.path=out", "train.max_steps=3", "run.name=x")
    assert f"out: {sentence}" in process.stderr
    manifest = json.loads((tmp_path / "runs/x/manifest.json").read_text())
    assert manifest["dataset"]["misleading"] == [sentence]
    assert f"{sentence[0].upper()}{sentence[1:]}." in (tmp_path / "runs/x/report.html").read_text()
