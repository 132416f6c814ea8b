"""Metrics against scikit-learn and torchmetrics."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.classification import binary_calibration_error

from app.metrics import quality
from app.metrics.documents import EvaluationFigures
from app.metrics.quality import (
    CALIBRATION_BINS,
    click_curves,
    click_metrics,
    click_sums,
    histogram_metrics,
    score_counts,
)
from common.documents import convert
from tests.oracles.click_metrics import expected_figures
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
    figures = click_metrics(logits, labels, weights=weights if weighted else None)
    assert {key: figures[key] for key in expected} == pytest.approx(expected, rel=1e-9)
    assert figures["auc_standard_error"] is None or not weighted


def in_two_parts(cut: int, *columns: np.ndarray) -> dict[str, Any]:
    """Metrics of histograms that are added up from two parts of the rows."""
    parts = [[column[part] for column in columns] for part in (slice(0, cut), slice(cut, None))]
    counts, sums = (np.sum([add(*part) for part in parts], axis=0) for add in (score_counts, click_sums))
    return {**histogram_metrics(counts, sums)}


@pytest.mark.medium
def test_histograms_of_weights_bound_the_auc() -> None:
    logits, labels = _case(0, 400, 1)
    weights = np.random.default_rng(0).choice([0, 0.3, 1, 40], 400).astype(np.float32)
    binned = in_two_parts(150, logits, labels, weights)
    exact = click_metrics(logits, labels, weights=weights)
    assert abs(float(binned.pop("auc") or 0) - (exact["auc"] or 0)) <= float(binned["auc_error"] or 0) + 1e-12
    assert (binned["auc_standard_error"], binned["pr_auc"]) == (None, None)
    names = ("logloss", "ne", "accuracy", "ece", "calibration", "base_rate")
    assert [binned[name] for name in names] == pytest.approx([exact[name] for name in names], rel=1e-9)


@given(seed=st.integers(0, 10_000))
def test_a_weight_counts_as_so_many_rows(seed: int) -> None:
    logits, labels = _case(seed, 50, 1)
    weights = np.random.default_rng(seed).integers(0, 4, 50)
    weights[:2] = 1
    repeated = click_metrics(np.repeat(logits, weights), np.repeat(labels, weights))
    figures = click_metrics(logits, labels, weights=weights.astype(np.float32))
    assert {**figures, "auc_standard_error": 0} == pytest.approx({**repeated, "auc_standard_error": 0}, abs=1e-12)


def test_without_any_weight_nothing_is_defined() -> None:
    logits, labels = _case(0, 20, None)
    assert set(click_metrics(logits, labels, weights=np.zeros(20, np.float32)).values()) == {None}


@pytest.mark.slow("examples")
@pytest.mark.parametrize("decimals", [None, 1])
def test_of_millions_of_rows_equal_scikit_learn(decimals: int | None) -> None:
    logits, labels = _case(11, 3_000_000, decimals)
    expected, figures = expected_figures(labels, logits), click_metrics(logits, labels)
    assert {key: figures[key] for key in expected} == pytest.approx(expected, rel=1e-9)


def test_calibration_error_equals_torchmetrics() -> None:
    logits, labels = _case(3, 5_000, None)
    preds = torch.sigmoid(torch.from_numpy(logits))
    expected = binary_calibration_error(preds, torch.from_numpy(labels).int(), n_bins=CALIBRATION_BINS)
    assert click_metrics(logits, labels)["ece"] == pytest.approx(float(expected), abs=1e-6)


def test_what_is_not_defined_is_none() -> None:
    only_negative = click_metrics(np.array([0.5, -1], np.float32), np.zeros(2, np.float32))
    undefined = [key for key, value in only_negative.items() if value is None]
    assert undefined == ["auc", "auc_standard_error", "ne", "pr_auc", "calibration"]
    assert set(click_metrics(np.empty(0, np.float32), np.empty(0, np.float32)).values()) == {None}


def test_extreme_logits_stay_finite() -> None:
    figures = click_metrics(np.array([1e4, -1e4, 1e4, 1e4], np.float32), np.array([1, 0, 0, 1], np.float32))
    assert figures["logloss"] == pytest.approx(1e4 / 4)
    assert all(value is not None and np.isfinite(value) for value in figures.values())


@pytest.mark.slow("examples")
@settings(max_examples=15)  # each fills 8 million counts
@given(cases())
def test_a_histogram_added_up_from_parts_is_within_its_bound(case: Case) -> None:
    logits, labels = case
    logits[0] = -0.0
    figures: dict[str, Any] = in_two_parts(len(labels) // 3, logits, labels)
    expected: dict[str, Any] = click_metrics(logits, labels)
    assert figures["auc_method"] == "histogram"
    assert abs(figures["auc"] - expected["auc"]) <= figures["auc_error"] + 1e-15
    for name in set(expected) - {"auc", "auc_standard_error", "pr_auc"}:
        assert figures[name] == pytest.approx(expected[name], rel=1e-9)


@given(cases(least=4))
def test_the_standard_error_is_delongs(case: Case) -> None:
    logits, labels = case
    labels[2:4] = 0, 1
    auc, error = delong_by_pairs(logits, labels)
    figures = click_metrics(logits, labels)
    assert (figures["auc"], figures["auc_standard_error"]) == pytest.approx((auc, error), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("size", [100_000, pytest.param(6_000_000, marks=pytest.mark.slow)])
def test_the_standard_error_is_of_all_rows_however_many(size: int) -> None:
    """The larger is beyond what curves are made of; a histogram's is of scores that are rounded to its bins."""
    logits, labels = _case(7, size, None)
    auc, error = delong_by_ranks(logits, labels)
    figures = click_metrics(logits, labels)
    assert (figures["auc"], figures["auc_standard_error"]) == pytest.approx((auc, error), rel=1e-9)
    binned = histogram_metrics(score_counts(logits, labels), click_sums(logits, labels))
    assert binned["auc_standard_error"] == pytest.approx(error, rel=1e-3)
    curves = click_curves(logits, labels, convert({"samples": size, **figures}, EvaluationFigures))
    assert (curves.of, curves.auc_standard_error) == (size, figures["auc_standard_error"])


def test_blocks_of_rows_give_the_bits_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = _case(1, 3_000, None)
    whole = click_metrics(logits, labels)
    counts = score_counts(logits, labels)
    monkeypatch.setattr(quality, "BLOCK_ROWS", 700)
    parts = click_metrics(logits, labels)
    assert {key for key in whole if parts[key] != whole[key]} <= {"ece"}
    assert parts["ece"] == pytest.approx(whole["ece"], rel=1e-12)
    np.testing.assert_array_equal(score_counts(logits, labels), counts)
