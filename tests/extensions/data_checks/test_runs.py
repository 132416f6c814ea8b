"""Data that mislead are named when a run trains on them, in its manifest and in its report."""

import json
from pathlib import Path

import pytest

from tests.app.conftest import SMALL, Command
from tests.data_prep.tables import paths
from tests.extensions.data_checks.test_search import SCHEMA, leaking, table


@pytest.mark.slow("processes")
def test_a_leak_is_named_once_in_training_and_in_the_report(run_app: Command, tmp_path: Path) -> None:
    """By data_prep where the run makes the dataset, by training where it was made before."""
    leaking(table(0)).to_csv(tmp_path / "rows.csv", index=False)
    data = paths(tmp_path, SCHEMA)
    for name in ("first", "second"):
        process = run_app("train", *SMALL, *data, "train.max_steps=3", f"run.name={name}")
        manifest = json.loads((tmp_path / f"runs/{name}/manifest.json").read_text())
        (sentence,) = manifest["dataset"]["misleading"]
        assert process.stderr.count(sentence) == 1
        assert f"{sentence[0].upper()}{sentence[1:]}." in (tmp_path / f"runs/{name}/report.html").read_text()
