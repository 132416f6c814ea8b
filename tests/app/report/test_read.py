"""What a report takes a run's figures from."""

import json
from pathlib import Path

import pytest

from app.report.read import read_run
from tests.app.report.runs import write_run

BEST = {"event": "eval", "step": 50, "split": "val", "samples": 4000, "auc": 0.91, "logloss": 0.4, "eval_seconds": 0.1}


@pytest.mark.parametrize("keep_best", [True, False])
def test_an_older_runs_figures_are_of_the_checkpoint_that_evaluate_takes(tmp_path: Path, keep_best: bool) -> None:
    """Its summary has the last evaluation alone, and the step of the best."""
    override = f"checkpoint.keep_best={str(keep_best).lower()}"
    directory = write_run(tmp_path / "run", override, best={"step": 50, "auc": 0.91})
    summary = json.loads((directory / "summary.json").read_text())
    last = summary["eval"]["auc"]
    summary.pop("last", None)
    (directory / "summary.json").write_text(json.dumps({**summary, "version": 1}))
    with (directory / "metrics.jsonl").open("a") as events:
        events.write(json.dumps(BEST) + "\n")
    run = read_run(directory)
    assert run.evaluation.auc == (0.91 if keep_best else last)
    assert run.last_evaluation.auc == last
