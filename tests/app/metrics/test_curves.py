"""Curves of an evaluation, against scikit-learn and against the definition by pairs."""

from typing import Any

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import auc, precision_recall_curve, roc_auc_score, roc_curve

from app.metrics import quality
from app.metrics.documents import EvaluationFigures
from app.metrics.quality import click_curves as curves_of
from app.metrics.quality import click_metrics
from common.documents import convert, plain_object


def scores(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < 0.25).astype(np.float32)
    logits = (rng.standard_normal(n) + labels - 1.5).astype(np.float32)
    return np.round(logits, 2), labels  # with ties


def click_curves(logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    evaluation = convert({"samples": len(labels), **click_metrics(logits, labels)}, EvaluationFigures)
    return plain_object(curves_of(logits, labels, evaluation))


def farthest(points: np.ndarray, curve: np.ndarray) -> float:
    """How far the points [2, n] lie from the nearest of [2, m] at most."""
    return float(np.abs(points[:, :, None] - curve[:, None]).max(axis=0).min(axis=1).max())


def test_every_point_lies_on_the_curves_of_scikit_learn() -> None:
    logits, labels = scores(5000)
    figures = click_curves(logits, labels)
    fpr, tpr, _ = roc_curve(labels, logits, drop_intermediate=False)
    points = np.array([figures["roc"]["fpr"], figures["roc"]["tpr"]])
    assert farthest(points, np.array([fpr, tpr])) < 1e-6
    assert points[:, [0, -1]].T.tolist() == [[0, 0], [1, 1]]
    assert auc(*points) == pytest.approx(roc_auc_score(labels, logits), abs=1e-4)
    precision, recall, _ = precision_recall_curve(labels, logits)
    points = np.array([figures["pr"]["recall"], figures["pr"]["precision"]])
    assert farthest(points, np.array([recall, precision])) < 1e-6


def test_reliability_is_scikit_learns_by_quantiles() -> None:
    rng = np.random.default_rng(1)
    logits = rng.standard_normal(4000).astype(np.float32)
    labels = (rng.random(4000) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    share, mean = calibration_curve(labels, 1 / (1 + np.exp(-logits)), n_bins=20, strategy="quantile")
    bins = click_curves(logits, labels)["reliability"]
    assert [entry["samples"] for entry in bins] == [200] * 20
    np.testing.assert_allclose([entry["preds"] for entry in bins], mean, atol=2e-3)
    np.testing.assert_allclose([entry["labels"] for entry in bins], share, atol=6e-3)


@pytest.mark.medium
def test_the_standard_error_is_the_spread_over_samples() -> None:
    estimates = [roc_auc_score(labels, logits) for logits, labels in (scores(500, seed) for seed in range(200))]
    logits, labels = scores(500, 999)
    estimate = click_curves(logits, labels)["auc_standard_error"]
    assert estimate == pytest.approx(np.std(estimates), rel=0.2)


def test_score_counts_are_whole() -> None:
    logits, labels = scores(1000)
    counts = click_curves(logits, labels)["scores"]
    assert sum(counts["positive"]) == labels.sum()
    assert sum(counts["positive"]) + sum(counts["negative"]) == 1000
    assert len(counts["edges"]) == len(counts["positive"]) + 1


@pytest.mark.parametrize("labels", [[0, 0, 0], [1, 1], []])
def test_one_label_alone_has_no_thresholds(labels: list[int]) -> None:
    figures = click_curves(np.zeros(len(labels), np.float32), np.array(labels, np.float32))
    assert figures["roc"] is figures["pr"] is figures["auc_standard_error"] is None
    assert sum(entry["samples"] for entry in figures["reliability"]) == len(labels)


def test_a_large_split_is_thinned_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "MAX_SAMPLES", 1000)
    figures = click_curves(*scores(2500))
    assert (figures["samples"], figures["of"]) == (834, 2500)
    assert figures["auc_standard_error"] == click_metrics(*scores(2500))["auc_standard_error"]
