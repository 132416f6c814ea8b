"""Metrics of a split and of labelled new rows, against scikit-learn; kept scores."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, log_loss, roc_auc_score

from app.config.app_config import AppConfig
from app.record.documents import read_scores
from app.runtime.platform import Runtime
from app.training.predictor import Predictor, places_of_rows
from data_prep.dataset.format import load_manifest, open_shard
from tests.app.conftest import SMALL, Command, Refusal
from tests.app.datasets import write_dataset
from tests.app.in_process import command_here
from tests.app.run_files import summary
from tests.changed import changed
from tests.clickwork.conftest import Trained, make_rows, train_on_table, write_csv
from tests.error_lines import refused
from tests.oracles.ranks import ranked


@pytest.mark.slow("processes")
def test_processes_and_histograms_agree(run_app: Command, small: list[str], tmp_path: Path) -> None:
    run_app("train", *small, "run.name=x", "train.max_steps=20", processes=2)
    assert json.loads((tmp_path / "runs/x/curves.json").read_bytes())["samples"] == 501

    def evaluated(*overrides: str, processes: int) -> dict[str, Any]:
        run_app("evaluate", "run=runs/x", "split=val", "out=x.json", *overrides, processes=processes)
        return json.loads((tmp_path / "x.json").read_bytes())

    alone, both = (evaluated(processes=processes) for processes in (1, 2))
    figures = ("auc", "pr_auc", "logloss", "ne", "accuracy", "ece", "calibration", "base_rate")
    assert {key: both[key] for key in figures} == pytest.approx({key: alone[key] for key in figures}, abs=1e-5)
    binned = evaluated("exact_rows=500", processes=2)
    assert (binned["samples"], binned["auc_method"], binned["pr_auc"]) == (501, "histogram", None)
    assert abs(binned["auc"] - both["auc"]) <= binned["auc_error"] + 1e-12
    assert binned["logloss"] == pytest.approx(both["logloss"], rel=1e-12)
    assert "auc_method" not in both


class _Scores(torch.nn.Module):
    """A model whose logits are the rows' dense_0, but NaN or infinite for some."""

    def __init__(self, value: float, above: float) -> None:
        super().__init__()
        self.value, self.above = value, above

    def forward(self, dense_features: torch.Tensor, sparse_features: Any) -> torch.Tensor:
        logits = dense_features[:, 0].clone()
        logits[logits > self.above] = self.value
        return logits


@pytest.mark.parametrize("exact_rows", [0, 1 << 28])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_end_it(runtime: Runtime, dataset: Path, value: float, exact_rows: int) -> None:
    config = changed(AppConfig(), {"eval.exact_rows": exact_rows})
    manifest = load_manifest(dataset)
    scored = Predictor(config, runtime, dataset, manifest, _Scores(value, 0.99))
    # dense_0 of row r is r / 501: those from 496 on are above 0.99.
    refused(r"split val: 5 of 501 logits are not finite", scored.evaluate, "val")
    assert Predictor(config, runtime, dataset, manifest, _Scores(value, 2)).evaluate("val").figures.auc is not None


TRAIN_ROWS = 772  # of the 900


@pytest.fixture(scope="module")
def trained(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train_on_table(runtime, tmp_path_factory.mktemp("trained"))


def evaluated(runtime: Runtime, run: Path, *overrides: str) -> dict[str, Any]:
    out = run.parent / "evaluation.json"
    assert command_here(runtime, "evaluate", f"run={run}", f"out={out}", *overrides) == 0
    figures: dict[str, Any] = json.loads(out.read_text())
    return figures


def recommended(runtime: Runtime, run: Path, file: Path, figure: str) -> np.ndarray:
    out = run.parent / "ranking.json"
    command_here(runtime, "recommend", f"run={run}", f"candidates={file}", f"out={out}", "top_k=null")
    ranking = json.loads(out.read_text())["ranking"]
    return np.array([each[figure] for each in sorted(ranking, key=lambda each: int(each["candidate"]))])


def test_metrics_are_those_of_scikit_learn(runtime: Runtime, trained: Trained, tmp_path: Path) -> None:
    rows = make_rows(500, seed=1)
    write_csv(tmp_path / "new.csv", rows)
    figures = evaluated(runtime, trained.run, f"data.raw={tmp_path}/new.csv")
    labels = np.array([row["stars"] >= 4 for row in rows])
    probabilities = recommended(runtime, trained.run, tmp_path / "new.csv", "probability")
    assert figures["split"] == "new rows"
    assert figures["raw"] == f"{tmp_path}/new.csv"
    assert figures["samples"] == 500
    assert figures["auc"] == pytest.approx(roc_auc_score(labels, probabilities), abs=1e-6)
    assert figures["logloss"] == pytest.approx(log_loss(labels, probabilities), abs=1e-6)
    assert figures["accuracy"] == pytest.approx(accuracy_score(labels, probabilities > 0.5), abs=1e-12)
    assert figures["pr_auc"] == pytest.approx(average_precision_score(labels, probabilities), abs=1e-4)
    assert figures["base_rate"] == pytest.approx(labels.mean(), abs=1e-12)


def test_unknown_values_are_shares_of_rows(runtime: Runtime, trained: Trained, tmp_path: Path) -> None:
    rows = make_rows(500, seed=1)
    rows[0]["genres"] = ["g0", "unheard"]
    write_csv(tmp_path / "new.csv", rows)
    figures = evaluated(runtime, trained.run, f"data.raw={tmp_path}/new.csv")
    known = {name: {row[name] for row in trained.rows[:TRAIN_ROWS]} for name in ("user", "item")}
    expected = {name: np.mean([row[name] not in values for row in rows]) for name, values in known.items()}
    assert figures["unknown"] == pytest.approx({**expected, "genres": 1 / 500})
    assert figures["unknown"]["user"] > 0.2


@pytest.mark.medium
def test_the_rows_of_a_split_are_evaluated_as_it_is(runtime: Runtime, trained: Trained, tmp_path: Path) -> None:
    own = evaluated(runtime, trained.run, "split=test")
    write_csv(tmp_path / "test.csv", trained.rows[-own["samples"] :])
    figures = evaluated(runtime, trained.run, f"data.raw={tmp_path}/test.csv")
    assert {name: value for name, value in figures["difference"].items() if value} == {}


@pytest.mark.slow("processes")
def test_several_processes_evaluate_new_rows_together(
    runtime: Runtime, run_app: Command, trained: Trained, tmp_path: Path
) -> None:
    write_csv(tmp_path / "new.csv", make_rows(301, seed=1))
    alone = evaluated(runtime, trained.run, f"data.raw={tmp_path}/new.csv", "global_batch_size=100")
    keys = ["data.raw=new.csv", "global_batch_size=100", "out=x.json"]
    run_app("evaluate", f"run={trained.run}", *keys, processes=3)
    together = json.loads((tmp_path / "x.json").read_text())
    assert together["samples"] == 301
    assert together["unknown"] == alone["unknown"]
    for name in alone["difference"]:
        assert together[name] == pytest.approx(alone[name], abs=1e-6)


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
