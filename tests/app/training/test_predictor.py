"""A predictor has the model of a checkpoint and no optimizer; metrics of groups of rows, and kept scores."""

import json
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn.functional import binary_cross_entropy_with_logits

from app import optimizer as optimizer_build
from app.checkpoint.files import whole_checkpoints
from app.checkpoint.saver import Saver
from app.record.documents import read_scores
from app.runtime.platform import Runtime
from app.training import checkpointer, predictor
from app.training.predictor import places_of_rows
from app.training.state import RunState
from data_prep.dataset.format import load_manifest, open_shard
from tests.app.conftest import SMALL, Command, Refusal, built
from tests.app.datasets import write_dataset
from tests.app.run_files import summary
from tests.oracles.ranks import ranked


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adagrad"])
def test_a_predictor_scores_as_its_session_and_has_no_optimizer(
    optimizer: str, runtime: Runtime, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    this = built(runtime, dataset, f"optimizer={optimizer}")
    for batch in this.predictor.split("train").train_batches(64, 0, 0, 8):
        binary_cross_entropy_with_logits(this.forward(batch), batch.labels).backward()
        this.optimizer.step()
    saver = Saver(tmp_path, keep=1, asynchronous=False, local_world_size=1)
    saver.save(1, this.model, this.optimizer, checkpointer.checkpoint_state(this, RunState(step=1), {}), best=False)
    expected = this.predictor.score(this.predictor.split("val").eval_batches(64)).logits
    assert this.model.fused_optimizer.state_dict()["state"]

    for owner, name in ((torch.optim.Optimizer, "__init__"), (optimizer_build, "make_optimizer")):
        monkeypatch.setattr(owner, name, Mock(side_effect=AssertionError("an optimizer was made")))
    (checkpoint,) = whole_checkpoints(tmp_path)
    loaded = predictor.load(checkpoint, this.config, runtime, dataset, load_manifest(dataset))
    scores = loaded.score(loaded.split("val").eval_batches(64)).logits
    np.testing.assert_array_equal(scores, expected)
    states = loaded.model.fused_optimizer.state_dict()["state"].values()  # of FBGEMM's views: SGD's have no tensors
    assert not [value for state in states for value in state.values()]


MODEL = ["model.dense_arch=[8]", "model.over_arch=[8,1]", "model.embedding_dim=8", "train.global_batch_size=100"]
MODEL += ["eval.global_batch_size=64", "optimizer.lr=0.1", "train.log_every_steps=1", "baselines=false"]


@pytest.mark.medium
def test_a_run_has_the_metrics_of_plain_loops(run_app: Command, refused_command: Refusal, tmp_path: Path) -> None:
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
        scores, figures = read_scores(run, "test"), summary(run)["eval"]
        expected = ranked(scores.logits, scores.labels.astype(np.float32), ids[:, 0], rows)
        assert (figures["hr_at_10"], figures["ndcg_at_10"]) == pytest.approx(expected, abs=1e-12)
        assert figures["gauc_users"] > 0
        assert "HR@10" in (run / "report.html").read_text()
    keys[keys.index("eval.group_by=cat_0")] = "eval.group_by=cat_1"
    assert "eval.group_by" in refused_command("train", *keys, "eval.split=test", "run.name=of_1", "train.epochs=2")
    evaluation = run_app("evaluate", "run=runs/of_1", "split=test")
    assert json.loads(evaluation.stdout)["hr_at_10"] == summary(tmp_path / "runs/of_1")["eval"]["hr_at_10"]


@pytest.mark.parametrize(("rows", "batch", "processes"), [(10, 4, 2), (1, 2, 2), (12, 6, 3), (501, 64, 4), (7, 7, 1)])
def test_the_order_of_rows_is_that_of_the_parts_of_batches(rows: int, batch: int, processes: int) -> None:
    local = batch // processes
    expected = sorted(range(rows), key=lambda row: (row % batch // local, row))  # by rank, and then by batch
    assert [expected[place] for place in places_of_rows(rows, batch, processes)] == list(range(rows))


@pytest.mark.slow("processes")
def test_kept_scores_are_those_of_the_served_model(run_app: Command, dataset: Path, tmp_path: Path) -> None:
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
    auc = roc_auc_score(scores["labels"], scores["logits"])
    assert auc == pytest.approx(json.loads(evaluated.stdout)["auc"], abs=1e-12)
    run_app("evaluate", "run=runs/x", "split=test", "keep_scores=100000", "runtime.num_threads=1", processes=2)
    second_scores = {name: np.load(run / f"scores/test.{name}.npy") for name in ("logits", "labels")}
    np.testing.assert_array_equal(second_scores["labels"], scores["labels"])
    np.testing.assert_allclose(second_scores["logits"], scores["logits"], atol=1e-5)
    few = run_app("evaluate", "run=runs/x", "split=test", "keep_scores=3")
    assert f"give keep_scores={about['rows']}" in few.stderr
