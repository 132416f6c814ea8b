"""Metrics of clicks, of numbers and of groups of rows, and curves, against scikit-learn and plain loops."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    auc,
    mean_absolute_error,
    mean_squared_error,
    precision_recall_curve,
    roc_auc_score,
    roc_curve,
)

from app.config.kinds import OF_ROWS
from app.metrics import quality
from app.metrics.documents import EvaluationFigures
from common.documents import convert, plain_object
from tests.oracles.click_metrics import expected_figures
from tests.oracles.ranks import ranked
from tests.oracles.statistics import delong_by_pairs, delong_by_ranks

Case = tuple[np.ndarray, np.ndarray]  # logits and labels


def cases(least: int = 2) -> st.SearchStrategy[Case]:
    decimals = st.sampled_from([None, 0, 1])
    return st.builds(_case, st.integers(0, 10_000), st.integers(least, 400), decimals)


def _case(seed: int, size: int, decimals: int | None) -> Case:
    rng = np.random.default_rng(seed)
    logits = rng.normal(-1, 2, size)
    labels = (rng.random(size) < 1 / (1 + np.exp(-logits * 0.7))).astype(np.float32)
    labels[:2] = 0, 1
    return (logits if decimals is None else logits.round(decimals)).astype(np.float32), labels


@pytest.mark.medium
@given(cases(), st.booleans())
def test_equal_scikit_learn(case: Case, weighted: bool) -> None:
    logits, labels = case
    weights = np.random.default_rng(len(labels)).choice([0, 0.3, 1, 40], len(labels)).astype(np.float32)
    weights[:2] = 0.5
    expected = expected_figures(labels, logits, weights if weighted else None)
    figures = quality.click_metrics(logits, labels, weights=weights if weighted else None)
    assert {key: figures[key] for key in expected} == pytest.approx(expected, rel=1e-9)
    assert figures["auc_standard_error"] is None or not weighted


def in_two_parts(cut: int, *columns: np.ndarray) -> dict[str, Any]:
    """Metrics of histograms that are added up from two parts of the rows."""
    parts = [[column[part] for column in columns] for part in (slice(0, cut), slice(cut, None))]
    counts, sums = (
        np.sum([add(*part) for part in parts], axis=0) for add in (quality.score_counts, quality.click_sums)
    )
    return {**quality.histogram_metrics(counts, sums)}


@pytest.mark.medium
def test_histograms_of_weights_bound_the_auc() -> None:
    logits, labels = _case(0, 400, 1)
    weights = np.random.default_rng(0).choice([0, 0.3, 1, 40], 400).astype(np.float32)
    binned = in_two_parts(150, logits, labels, weights)
    exact = quality.click_metrics(logits, labels, weights=weights)
    assert abs(float(binned.pop("auc") or 0) - (exact["auc"] or 0)) <= float(binned["auc_error"] or 0) + 1e-12
    assert (binned["auc_standard_error"], binned["pr_auc"]) == (None, None)
    names = ("logloss", "ne", "accuracy", "ece", "calibration", "base_rate")
    assert [binned[name] for name in names] == pytest.approx([exact[name] for name in names], rel=1e-9)


def test_what_is_not_defined_is_none() -> None:
    only_negative = quality.click_metrics(np.array([0.5, -1], np.float32), np.zeros(2, np.float32))
    undefined = [key for key, value in only_negative.items() if value is None]
    assert undefined == ["auc", "auc_standard_error", "ne", "pr_auc", "calibration"]
    assert set(quality.click_metrics(np.empty(0, np.float32), np.empty(0, np.float32)).values()) == {None}


def test_extreme_logits_stay_finite() -> None:
    figures = quality.click_metrics(np.array([1e4, -1e4, 1e4, 1e4], np.float32), np.array([1, 0, 0, 1], np.float32))
    assert figures["logloss"] == pytest.approx(1e4 / 4)
    assert all(value is not None and np.isfinite(value) for value in figures.values())


@given(cases(least=4))
def test_the_standard_error_is_delongs(case: Case) -> None:
    logits, labels = case
    labels[2:4] = 0, 1
    auc, error = delong_by_pairs(logits, labels)
    figures = quality.click_metrics(logits, labels)
    assert (figures["auc"], figures["auc_standard_error"]) == pytest.approx((auc, error), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("size", [100_000, pytest.param(6_000_000, marks=pytest.mark.slow)])
def test_the_standard_error_is_of_all_rows_however_many(size: int) -> None:
    """The larger is beyond what curves are made of; a histogram's is of scores that are rounded to its bins."""
    logits, labels = _case(7, size, None)
    auc, error = delong_by_ranks(logits, labels)
    figures = quality.click_metrics(logits, labels)
    assert (figures["auc"], figures["auc_standard_error"]) == pytest.approx((auc, error), rel=1e-9)
    binned = quality.histogram_metrics(quality.score_counts(logits, labels), quality.click_sums(logits, labels))
    assert binned["auc_standard_error"] == pytest.approx(error, rel=1e-3)
    curves = quality.click_curves(logits, labels, convert({"samples": size, **figures}, EvaluationFigures))
    assert (curves.of, curves.auc_standard_error) == (size, figures["auc_standard_error"])


def scores(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < 0.25).astype(np.float32)
    logits = (rng.standard_normal(n) + labels - 1.5).astype(np.float32)
    return np.round(logits, 2), labels  # with ties


def plain_curves(logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    evaluation = convert({"samples": len(labels), **quality.click_metrics(logits, labels)}, EvaluationFigures)
    return plain_object(quality.click_curves(logits, labels, evaluation))


def farthest(points: np.ndarray, curve: np.ndarray) -> float:
    """How far the points [2, n] lie from the nearest of [2, m] at most."""
    return float(np.abs(points[:, :, None] - curve[:, None]).max(axis=0).min(axis=1).max())


def test_every_point_lies_on_the_curves_of_scikit_learn() -> None:
    logits, labels = scores(5000)
    figures = plain_curves(logits, labels)
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
    bins = plain_curves(logits, labels)["reliability"]
    assert [entry["samples"] for entry in bins] == [200] * 20
    np.testing.assert_allclose([entry["preds"] for entry in bins], mean, atol=2e-3)
    np.testing.assert_allclose([entry["labels"] for entry in bins], share, atol=6e-3)


@pytest.mark.parametrize("labels", [[0, 0, 0], [1, 1], []])
def test_one_label_alone_has_no_thresholds(labels: list[int]) -> None:
    figures = plain_curves(np.zeros(len(labels), np.float32), np.array(labels, np.float32))
    assert figures["roc"] is figures["pr"] is figures["auc_standard_error"] is None
    assert sum(entry["samples"] for entry in figures["reliability"]) == len(labels)


def test_a_large_split_is_thinned_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "MAX_SAMPLES", 1000)
    figures = plain_curves(*scores(2500))
    assert (figures["samples"], figures["of"]) == (834, 2500)
    assert figures["auc_standard_error"] == quality.click_metrics(*scores(2500))["auc_standard_error"]


def expected_errors(preds: Any, labels: Any, weights: Any = None) -> dict[str, float]:
    exact, weights = labels.astype(np.float64), np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    mean = np.full(len(labels), np.average(exact, weights=weights))
    return {
        "rmse": np.sqrt(mean_squared_error(exact, preds.astype(np.float64), sample_weight=weights)),
        "mae": mean_absolute_error(exact, preds.astype(np.float64), sample_weight=weights),
        "label_deviation": np.sqrt(mean_squared_error(exact, mean, sample_weight=weights)),
    }


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_they_are_scikit_learns_of_a_whole_and_of_its_parts(offset: float) -> None:
    rng = np.random.default_rng(0)
    labels = (offset + rng.normal(size=3_000)).astype(np.float32)
    preds = (labels + rng.normal(size=3_000)).astype(np.float32)
    weights = rng.gamma(1, 2, 3_000).astype(np.float32)
    weighted, figures = expected_errors(preds, labels, weights), quality.number_metrics(preds, labels, weights=weights)
    assert {name: figures[name] for name in weighted} == pytest.approx(weighted, rel=1e-6)
    expected, whole = expected_errors(preds, labels), quality.number_metrics(preds, labels)
    assert {name: whole[name] for name in expected} == pytest.approx(expected, rel=1e-12)
    assert all(whole[name] is None for name in OF_ROWS)
    parts = [slice(0, 1_000), slice(1_000, 1_000), slice(1_000, 3_000)]
    sums: list[NDArray[np.float64]] = []  # of each part: samples, squares, absolute errors, labels

    def collect(of_part: NDArray[np.float64]) -> NDArray[np.float64]:
        if len(of_part) == 4:
            sums.append(of_part)
        return of_part

    for part in parts:
        quality.number_metrics(preds[part], labels[part], collect)
    first = np.sum(sums, axis=0)
    mean = first[3] / first[0]
    deviations = [np.square(labels[part].astype(np.float64) - mean).sum(keepdims=True) for part in parts]
    for part in parts:
        totals = iter([first, np.sum(deviations, axis=0)])
        of_part = quality.number_metrics(preds[part], labels[part], lambda _, totals=totals: next(totals))  # type: ignore[misc]
        assert {name: of_part[name] for name in expected} == pytest.approx(expected, rel=1e-12)


GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.mark.parametrize("seed", range(2))
def test_ranks_are_those_of_plain_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 40, 50)
    groups = np.repeat(rng.permutation(50), lengths).astype(np.int32)
    rows = rng.integers(0, 60, len(groups)) + 1000 * groups
    score_of = {row: np.float32(rng.integers(-9, 9) if seed % 2 else rng.normal()) for row in np.unique(rows)}
    logits = np.array([score_of[row] for row in rows], np.float32)
    labels = (rng.random(len(groups)) < 0.1).astype(np.float32)
    labels[groups == 3], labels[groups == 4] = 0, 1
    mixed = rng.permutation(len(groups))
    values = quality.group_metrics(logits[mixed], labels[mixed], groups[mixed], rows[mixed])
    expected = ranked(logits, labels, groups, rows)
    assert (values["hr_at_10"], values["ndcg_at_10"]) == pytest.approx(expected, abs=1e-12)
    assert 0 < expected[1] < expected[0] < 1
    assert values["gauc"] == quality.grouped_auc(logits, labels, groups)["gauc"]


@pytest.mark.parametrize("size", [0, 3])
def test_groups_of_one_label_have_no_ranks(size: int) -> None:
    scores, places = np.arange(size, dtype=np.float32), np.arange(size)
    values = quality.group_metrics(scores, np.ones(size, np.float32), places, places)
    assert values == {"gauc": None, "gauc_users": 0, "hr_at_10": None, "ndcg_at_10": None}


@pytest.mark.parametrize(("model", "hr", "ndcg"), [("gmf", 0.6368, 0.3691), ("mlp", 0.6710, 0.3963)])
def test_the_published_weights_of_ncf_have_the_published_figures(model: str, hr: float, ndcg: float) -> None:
    counts = json.loads((GOLDEN / "ncf_places.json").read_text())[model]
    places = np.repeat(np.arange(100), counts)
    logits = np.tile(np.arange(100, dtype=np.float32), (len(places), 1))
    logits[:, 0] = 99.5 - places  # the positive, above all but as many negatives
    labels = np.zeros_like(logits)
    labels[:, 0] = 1
    groups = np.repeat(np.arange(len(places)), 100)
    values = quality.group_metrics(logits.reshape(-1), labels.reshape(-1), groups, np.tile(np.arange(100), len(places)))
    assert (round(values["hr_at_10"] or 0, 4), round(values["ndcg_at_10"] or 0, 4)) == (hr, ndcg)
