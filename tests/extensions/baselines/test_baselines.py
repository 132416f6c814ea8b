"""Baselines against plain loops and scikit-learn's own pipelines; in a run, and beside it."""

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

from app.report.read import read_run
from data_prep.codec.values import Bags
from data_prep.dataset.format import load_manifest
from extensions.baselines.command import baselines_sentence
from extensions.baselines.fit import Baseline, Rows, fit_baselines, label_rates, load_rows
from tests.app.conftest import SMALL, Command, Refusal
from tests.app.data.test_bags import splitmix64
from tests.app.datasets import write_dataset
from tests.data_prep.conftest import load_split

Loops = tuple[list[float], list[float]]


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
        of_train, of_others = label_rates(bags, train.labels, other, weights)
        of_rows = None if weights is None else weights.tolist()
        expected = rates_by_loops(as_lists(bags), train.labels.astype(int).tolist(), as_lists(other), of_rows)
        np.testing.assert_allclose(of_train, expected[0])
        np.testing.assert_allclose(of_others, expected[1])
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
