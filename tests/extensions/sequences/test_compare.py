"""Runs on other samples of the same log are not compared."""

from pathlib import Path

import pytest

from app.report.compare import compare_auc, group
from app.report.read import read_run
from tests.app.report.runs import write_run


@pytest.mark.parametrize(
    ("key", "comparable"),
    [("eval_window=3", False), ("min_history=9", False), ("window_seconds=60", False), ("history_length=9", True)],
)
def test_other_samples_of_the_same_events_are_not_comparable(key: str, comparable: bool, tmp_path: Path) -> None:
    """A longer history of the same samples is another model of the same rows."""
    runs = [read_run(write_run(tmp_path / "a")), read_run(write_run(tmp_path / "b", f"sequences.{key}"))]
    auc = compare_auc(*group(runs))
    assert auc is not None
    assert (auc.difference is not None) == comparable
