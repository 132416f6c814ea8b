"""Metrics of groups of rows (eval.group_by), from rows on disk to summary.json and app.evaluate."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.record.scores import read_scores
from data_prep.dataset.format import open_shard
from tests.app.conftest import Command, Refusal
from tests.app.datasets import write_dataset, write_ragged_dataset
from tests.oracles.ranks import ranked

MODEL = ["model.dense_arch=[8]", "model.over_arch=[8,1]", "model.embedding_dim=8", "train.global_batch_size=100"]
MODEL += ["eval.global_batch_size=64", "optimizer.lr=0.1", "train.log_every_steps=1", "baselines=false"]


def figures_of(run: Path) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((run / "summary.json").read_bytes())["eval"]
    return figures


def test_a_run_has_the_metrics_of_plain_loops(run_app: Command, refused: Refusal, tmp_path: Path) -> None:
    """On one process and on two, whose rows come in another order; the groups of a run are not changed later."""
    manifest = write_dataset(tmp_path / "data", {"train": 1_000, "val": 501, "test": 333})
    shards = [open_shard(tmp_path / "data", "test", shard, manifest) for shard in manifest.splits["test"].shards]
    ids = np.concatenate([shard.sparse for shard in shards])
    dense = np.concatenate([shard.dense for shard in shards])
    rows = np.unique(np.column_stack([ids, dense.view(np.int32)]), axis=0, return_inverse=True)[1].reshape(-1)
    keys = [*MODEL, "data.path=data", "eval.group_by=cat_0", "train.monitor=hr_at_10", "eval.keep_scores=1000"]
    for processes in (1, 2):
        run = tmp_path / f"runs/of_{processes}"
        process = run_app("train", *keys, "eval.split=test", f"run.name={run.name}", processes=processes)
        assert "HR@10" in process.stderr
        scores, figures = read_scores(run, "test"), figures_of(run)
        expected = ranked(scores.logits, scores.labels.astype(np.float32), ids[:, 0], rows)
        assert (figures["hr_at_10"], figures["ndcg_at_10"]) == pytest.approx(expected, abs=1e-12)
        assert figures["gauc_users"] > 0
        assert "HR@10" in (run / "report.html").read_text()
    keys[keys.index("eval.group_by=cat_0")] = "eval.group_by=cat_1"
    assert "eval.group_by" in refused("train", *keys, "eval.split=test", "run.name=of_1", "train.epochs=2")
    evaluation = run_app("evaluate", "run=runs/of_1", "split=test")
    assert json.loads(evaluation.stdout)["hr_at_10"] == figures_of(tmp_path / "runs/of_1")["hr_at_10"]


@pytest.mark.parametrize(
    ("column", "fault"),
    [
        ("genres", "eval.group_by=genres: has bags of ids; give one of user, item"),
        ("usr", "eval.group_by=usr: is not a categorical column of data; give one of user, item"),
    ],
)
def test_another_column_is_refused(run_app: Command, refused: Refusal, tmp_path: Path, column: str, fault: str) -> None:
    write_ragged_dataset(tmp_path / "data", {"train": 200, "val": 100})
    assert fault in refused("train", *MODEL, "data.path=data", f"eval.group_by={column}", "run.name=x")
    run_app("train", *MODEL, "data.path=data", "eval.group_by=user", "run.name=x")
