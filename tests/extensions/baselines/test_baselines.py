"""Baselines against plain loops and scikit-learn's own pipelines; in a run, beside it, and where they cannot be."""

import importlib.util
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from app.config.kinds import DLRM, model_kinds
from app.report.charts import sentences
from app.report.read import read_run
from common.errors import UserError
from data_prep.dataset.format import load_manifest
from data_prep.dataset.kinds import ROWS
from data_prep.dataset.spelling import Bags
from extensions.baselines import command
from extensions.baselines.command import baselines_sentence
from extensions.baselines.fit import Baseline, BaselinesConfig, Rows, fit_baselines, label_rates, load_rows
from tests.app.conftest import SMALL, Command, Refusal, composed
from tests.app.data.test_bags import splitmix64
from tests.app.datasets import write_dataset
from tests.app.report.runs import write_run
from tests.app.training.test_number_labels import make_ratings
from tests.app.training.test_number_labels import train as train_on_ratings
from tests.data_prep.conftest import load_split
from tests.key_limits import BLOCKS, POSITIVE, check_limits

Loops = tuple[list[float], list[float]]


def run_of(directory: Path, dataset: Path, path: Path | str) -> Path:
    """A run that says that it was trained on a dataset, which it has at `path`."""
    digest = load_manifest(dataset).digest
    return write_run(directory, manifest={"dataset": {"path": str(path), "digest": digest}})


def rates_by_loops(
    train: list[list[int]], labels: list[int], others: list[list[int]], weights: list[float] | None = None
) -> Loops:
    """Out-of-fold rates of train's bags, and rates of the others', ten rows at the base rate added to each id."""
    weights = weights or [1.0] * len(train)
    folds, base = [splitmix64(row) % 5 for row in range(len(train))], float(np.average(labels, weights=weights))
    rows: dict[Any, float] = defaultdict(float)
    positives: dict[Any, float] = defaultdict(float)
    for bag, label, fold, weight in zip(train, labels, folds, weights, strict=True):
        for one in bag:
            for without in (set(range(5)) - {fold}) | {None}:
                rows[one, without] += weight
                positives[one, without] += weight * label

    def mean(bag: list[int], fold: int | None) -> float:
        rates = [(positives[one, fold] + 10 * base) / (rows[one, fold] + 10) for one in bag]
        return sum(rates) / len(rates) if rates else base

    return [mean(bag, fold) for bag, fold in zip(train, folds, strict=True)], [mean(bag, None) for bag in others]


def as_lists(bags: Bags) -> list[list[int]]:
    return [bags.values[a:b].tolist() for a, b in zip(bags.offsets[:-1], bags.offsets[1:], strict=True)]


@pytest.mark.parametrize("weighted", [False, True])
def test_rates_are_those_of_plain_loops(ragged: Path, weighted: bool) -> None:
    manifest = load_manifest(ragged)
    train, others = (load_rows(ragged, manifest, split, None) for split in ("train", "val"))
    weights = np.random.default_rng(0).random(len(train.labels)) if weighted else None
    for bags, other in zip(train.bags, others.bags, strict=True):
        rates = label_rates(bags, train.labels, other, weights)
        of_rows = None if weights is None else weights.tolist()
        expected = rates_by_loops(as_lists(bags), train.labels.astype(int).tolist(), as_lists(other), of_rows)
        np.testing.assert_allclose(rates.train, expected[0])
        np.testing.assert_allclose(rates.others, expected[1])
    assert any(not bag for bag in as_lists(train.bags[1]))


def test_rows_without_weight_count_nowhere() -> None:
    parts = []
    for rows, seed in ((2_000, 0), (500, 1)):
        ids = np.random.default_rng(seed).integers(0, 8, rows).astype(np.int32)
        labels = np.where(np.arange(rows) % 2 == 0, ids < 4, ids >= 4)
        weights = np.where(np.arange(rows) % 2 == 0, 2.0, 0.0)
        bags = Bags(ids, np.arange(rows + 1))
        dense = ids[:, None].astype(np.float32)
        parts.append(Rows(labels, dense, [bags], rows, weights / weights.mean()))
    figures, preds = fit_baselines(parts[0], parts[1], ["number", "category"], None)
    assert preds["base_rate"][0] == pytest.approx(np.average(parts[0].labels, weights=parts[0].weights))
    for name in ("columns", "trees", "lr"):
        baseline = getattr(figures, name)
        by_weight = {"sample_weight": parts[1].weights}
        assert baseline.auc == pytest.approx(roc_auc_score(parts[1].labels, preds[name], **by_weight))
        assert baseline.auc > 0.95
        assert baseline.ne < 0.9


@pytest.mark.medium
def test_figures_are_those_of_scikit_learn_s_own_pipelines(dataset: Path) -> None:
    manifest = load_manifest(dataset)
    names = [*manifest.schema["dense"], *manifest.schema["sparse"]]
    train, val = (load_rows(dataset, manifest, split, None) for split in ("train", "val"))
    figures, by_name = fit_baselines(train, val, names, None)
    assert list(by_name) == ["base_rate", "columns", "trees", "lr"]
    assert figures.missing == {}
    labels, dense, sparse = load_split(dataset, "train")
    val_labels, val_dense, val_sparse = load_split(dataset, "val")
    base = val_labels.mean()
    entropy = -base * np.log(base) - (1 - base) * np.log(1 - base)

    def check(baseline: Baseline | None, preds: NDArray[Any], auc: float, ne: float) -> None:
        assert baseline is not None
        assert baseline.auc == pytest.approx(roc_auc_score(val_labels, preds), abs=auc)
        assert baseline.ne == pytest.approx(log_loss(val_labels, preds) / entropy, rel=ne)
        assert baseline.rows == len(labels)

    check(figures.base_rate, np.full(len(val_labels), labels.mean()), 0, 1e-9)

    # Columns and trees, by rates of plain loops.
    rates = [
        rates_by_loops([[one] for one in column.tolist()], labels.tolist(), [[one] for one in other.tolist()])
        for column, other in zip(sparse.T, val_sparse.T, strict=True)
    ]
    assert figures.columns is not None
    each = figures.columns.rest["auc_of_each"]
    assert isinstance(each, dict)
    assert list(each) == names
    for name, (_, scored) in zip(manifest.schema["sparse"], rates, strict=True):
        assert each[name] == pytest.approx(roc_auc_score(val_labels, scored))
    trees = HistGradientBoostingClassifier(early_stopping=False, random_state=0)
    trees.fit(np.column_stack([dense, *(one for one, _ in rates)]), labels)
    check(
        figures.trees, trees.predict_proba(np.column_stack([val_dense, *(one for _, one in rates)]))[:, 1], 1e-9, 1e-9
    )

    # Logistic regression, by scikit-learn's encoders; the strength is the best on a fold of train.
    encoder, scaler = (
        OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(sparse),
        StandardScaler().fit(dense),
    )
    columns = np.column_stack([scaler.transform(dense), encoder.transform(sparse)])
    holdout = np.array([splitmix64(row) % 5 == 0 for row in range(len(labels))])
    losses = {}
    for strength in (0.01, 0.1, 1.0):
        model = LogisticRegression(C=strength, max_iter=1000).fit(columns[~holdout], labels[~holdout])
        losses[strength] = log_loss(labels[holdout], model.predict_proba(columns[holdout]))
    model = LogisticRegression(C=min(losses, key=lambda one: losses[one]), max_iter=1000).fit(columns, labels)
    columns = np.column_stack([scaler.transform(val_dense), encoder.transform(val_sparse)])
    check(figures.lr, model.predict_proba(columns)[:, 1], 1e-3, 1e-3)


@pytest.mark.slow("examples")
def test_without_time_what_is_not_done_is_null(dataset: Path, caplog: pytest.LogCaptureFixture) -> None:
    manifest = load_manifest(dataset)
    train, val = (load_rows(dataset, manifest, split, None) for split in ("train", "val"))
    names = [*manifest.schema["dense"], *manifest.schema["sparse"]]
    figures, preds = fit_baselines(train, val, names, 0.001)
    assert figures.trees is None
    assert "trees" not in preds
    assert isinstance(figures.missing, dict)
    assert figures.missing["trees"] == "not fitted within 0.001 s"
    assert not figures.is_whole
    assert "stopped after 0.001 s; give more seconds" in caplog.text


@pytest.mark.slow("processes")
def test_the_command_completes_a_run(run_app: Command, refused_command: Refusal, tmp_path: Path) -> None:
    write_dataset(tmp_path / "data")
    run_app("train", *SMALL, "data.path=data", "train.max_steps=20", "run.name=x")
    summary = tmp_path / "runs/x/summary.json"
    before = json.loads(summary.read_text())
    assert before["baselines"] is None
    process = run_app("baselines", "run=runs/x")
    after = json.loads(summary.read_text())
    assert after["baselines"] == json.loads(process.stdout)
    assert {**after, "baselines": None} == before
    assert after["baselines"]["split"] == "val"
    assert after["baselines"]["trees"]["auc"] > 0.6
    assert (after["baselines"]["rows"], after["baselines"]["eval_rows"]) == (2_000, 501)
    against = baselines_sentence(read_run(tmp_path / "runs/x"))
    assert against is not None
    assert "Boosted trees" in (tmp_path / "runs/x/report.html").read_text()

    # A second run on the same data finds them computed: the seconds are the same.
    run_app("train", *SMALL, "data.path=data", "train.max_steps=5", "run.name=y")
    second = json.loads(run_app("baselines", "run=runs/y").stdout)
    reason = second.pop("not_compared")
    assert {**second, "not_compared": 0} == {**after["baselines"], "not_compared": 0}

    # Neither run kept scores; both commands of the remedy, as they stand, compare them.
    for line in re.findall(r"python -m app\.(.*?)(?: keeps them| compares)", reason):
        last = run_app(*line.split())
    compared = json.loads(last.stdout)
    served = json.loads((tmp_path / "runs/y/summary.json").read_text())["eval"]["auc"]
    assert compared["compared_rows"] == 501
    assert compared["not_compared"] is None
    for name in ("base_rate", "columns", "lr", "trees"):
        assert compared[name]["difference"] == pytest.approx(served - compared[name]["auc"], abs=1e-12)

    # On another dataset they would mislead.
    write_dataset(tmp_path / "other", seed=1)
    assert "another dataset than the run's" in refused_command("baselines", "run=runs/y", "data.path=other")


@pytest.mark.slow("examples")
def test_a_summary_that_is_newer_is_not_overwritten(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path / "run", dataset, dataset)
    newer = {**json.loads((run / "summary.json").read_text()), "steps": 200}
    computed = command.find_or_fit

    def computed_while_the_run_is_resumed(*arguments: Any) -> command.ScoredBaselines:
        baselines = computed(*arguments)
        (run / "summary.json").write_text(json.dumps(newer))
        return baselines

    monkeypatch.setattr(command, "find_or_fit", computed_while_the_run_is_resumed)
    with pytest.raises(UserError, match="was trained further while its baselines were computed"):
        command.main(BaselinesConfig(run=str(run), seconds=0.001))
    assert json.loads((run / "summary.json").read_text()) == newer


@pytest.mark.slow("processes")
def test_after_training_nothing_else_of_the_run_differs(run_app: Command, tmp_path: Path) -> None:
    write_dataset(tmp_path / "data")
    settings = [*SMALL, "data.path=data", "train.max_steps=30", "train.deterministic=true", "train.eval_every_steps=6"]
    settings += ["optimizer.lr=0.3", "eval.global_batch_size=64"]
    process = run_app("train", *settings, "run.name=with", "baselines=null", processes=2)
    run_app("train", *settings, "run.name=without", processes=2)
    both = {name: json.loads((tmp_path / f"runs/{name}/summary.json").read_text()) for name in ("with", "without")}
    assert both["with"]["digest"] == both["without"]["digest"]
    assert both["without"]["baselines"] is None
    served = both["with"]["eval"]["auc"]
    for name in ("base_rate", "columns", "lr", "trees"):
        figures = both["with"]["baselines"][name]
        assert figures["difference"] == pytest.approx(served - figures["auc"], abs=1e-12)
    assert both["with"]["baselines"]["compared_rows"] == 501
    assert not (tmp_path / "runs/without/.baselines").exists()
    assert process.stderr.count("baselines: ") == 2  # that they are fitted, and what came of them
    assert "Boosted trees" in (tmp_path / "runs/with/report.html").read_text()


@pytest.mark.slow("processes")
def test_a_split_of_one_class_is_one_line(run_app: Command, refused_command: Refusal, tmp_path: Path) -> None:
    write_dataset(tmp_path / "data")
    manifest = load_manifest(tmp_path / "data")
    for shard in manifest.splits["val"].shards:
        path = tmp_path / f"data/val/{shard.name}.labels.npy"
        np.save(path, np.zeros((shard.rows, 1), np.int32))
    settings = [*SMALL, "data.path=data", "data.verify=never", "train.max_steps=3", "run.name=x"]
    process = run_app("train", *settings, "baselines=null")
    _, line = [line for line in process.stderr.splitlines() if line.startswith("baselines: ")]
    assert "every label of val is 0" in line
    assert "every label of val is 0" in refused_command("baselines", "run=runs/x")


@pytest.mark.medium
def test_runs_of_no_directory_and_of_numbers_are_refused(
    run_app: Command, refused_command: Refusal, tmp_path: Path
) -> None:
    assert "run=nothing: not a run's directory" in refused_command("baselines", "run=nothing")
    make_ratings(tmp_path)
    train_on_ratings(run_app, tmp_path / "data", "x", "train.max_steps=2")
    assert "baselines are of clicks" in refused_command("baselines", "run=runs/x")
    assert json.loads((tmp_path / "runs/x/summary.json").read_text())["baselines"] is None


@pytest.mark.medium
def test_models_that_learn_from_other_than_rows_of_the_split_have_no_baselines() -> None:
    message = r"^baselines=true: baselines learn from rows of the split, which are positives"
    with pytest.raises(UserError, match=message):
        command.require_possible(composed("data.negatives.per_positive=3", "baselines=true"))
    for kind in model_kinds().values():
        config = composed(*([] if kind is DLRM else [f"model={kind.name}"]), "baselines=true")
        reason = command.obstacle(config) or ""
        assert (f"this model learns from {kind.learns_from.name}; give" in reason) == (kind.learns_from is not ROWS)


@pytest.mark.medium
def test_without_the_library_true_is_refused_and_the_default_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    words = "pip install scikit-learn"
    with pytest.raises(UserError, match=words):
        command.require_possible(composed("baselines=true"))
    for setting in ("null", "false"):
        command.require_possible(composed(f"baselines={setting}"))
    run = write_run(tmp_path / "run")
    caplog.set_level("INFO")
    command.add_baselines(composed(f"run.dir={run}"))
    (record,) = caplog.records
    assert words in record.message
    reason = json.loads((run / "summary.json").read_text())["no_baselines"]
    assert words in reason
    assert ("plain", f"Compared with no baselines: {reason}.") in sentences(read_run(run))
    assert words in (run / "report.html").read_text()
    command.add_baselines(composed(f"run.dir={run}", "baselines=false"))
    assert len(caplog.records) == 1


def test_every_key_has_its_limits_and_a_meaning() -> None:
    check_limits(BaselinesConfig, {"rows": BLOCKS, "seconds": POSITIVE})
