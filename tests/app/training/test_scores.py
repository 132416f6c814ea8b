"""eval.keep_scores: the served model's scores of the test split, in its order on any number of processes."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from app.training.predictor import places_of_rows
from data_prep.dataset.format import load_manifest
from tests.app.conftest import SMALL, Command
from tests.app.run_files import summary


@pytest.mark.parametrize(("rows", "batch", "processes"), [(10, 4, 2), (1, 2, 2), (12, 6, 3), (501, 64, 4), (7, 7, 1)])
def test_the_order_of_rows_is_that_of_the_parts_of_batches(rows: int, batch: int, processes: int) -> None:
    local = batch // processes
    expected = [
        row
        for rank in range(processes)
        for first in range(0, rows, batch)
        for row in range(first + rank * local, first + (rank + 1) * local)
        if row < rows
    ]
    assert [expected[place] for place in places_of_rows(rows, batch, processes)] == list(range(rows))


@pytest.mark.slow("processes")
def test_kept_scores_are_those_of_the_served_model(run_app: Command, dataset: Path, tmp_path: Path) -> None:
    """The best of a run that was evaluated after every 4 steps; again by evaluate, on two processes."""
    overrides = [*SMALL, f"data.path={dataset}", "train.max_steps=24", "train.eval_every_steps=4", "optimizer.lr=0.3"]
    overrides += ["eval.keep_scores=100000", "eval.global_batch_size=64"]
    run_app("train", *overrides, "run.name=x")
    run = tmp_path / "runs/x"
    assert summary(run)["best"]["step"] != 24
    about = json.loads((run / "scores/test.json").read_bytes())
    manifest = load_manifest(dataset)
    assert (about["step"], about["dataset"]) == (summary(run)["eval"]["step"], manifest.digest)
    assert about["rows"] == manifest.splits["test"].rows
    scores = {name: np.load(run / f"scores/test.{name}.npy") for name in ("logits", "labels")}
    files = sorted((dataset / "test").glob("*.labels.npy"))
    assert scores["labels"].tolist() == np.concatenate([np.load(path) for path in files]).reshape(-1).tolist()
    before = {path: path.stat().st_mtime_ns for path in (run / "scores").iterdir()}
    evaluated = run_app("evaluate", "run=runs/x", "split=test")
    assert {path: path.stat().st_mtime_ns for path in (run / "scores").iterdir()} == before
    assert roc_auc_score(scores["labels"], scores["logits"]) == pytest.approx(
        json.loads(evaluated.stdout)["auc"], abs=1e-12
    )
    run_app("evaluate", "run=runs/x", "split=test", "keep_scores=100000", "runtime.num_threads=1", processes=2)
    second_scores = {name: np.load(run / f"scores/test.{name}.npy") for name in ("logits", "labels")}
    np.testing.assert_array_equal(second_scores["labels"], scores["labels"])
    np.testing.assert_allclose(second_scores["logits"], scores["logits"], atol=1e-5)
    few = run_app("evaluate", "run=runs/x", "split=test", "keep_scores=3")
    assert f"give keep_scores={about['rows']}" in few.stderr
