"""Errors of predicted numbers against scikit-learn's, of whole splits and of parts."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import mean_absolute_error, mean_squared_error

from app.config.kinds import OF_ROWS
from app.metrics.quality import number_metrics


def expected_figures(preds: Any, labels: Any, weights: Any = None) -> dict[str, float]:
    exact, weights = labels.astype(np.float64), np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    mean = np.full(len(labels), np.average(exact, weights=weights))
    return {
        "rmse": np.sqrt(mean_squared_error(exact, preds.astype(np.float64), sample_weight=weights)),
        "mae": mean_absolute_error(exact, preds.astype(np.float64), sample_weight=weights),
        "label_deviation": np.sqrt(mean_squared_error(exact, mean, sample_weight=weights)),
    }


def test_with_weights_they_are_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    preds, labels, weights = (rng.gamma(1, 2, 300).astype(np.float32) for _ in range(3))
    expected, figures = expected_figures(preds, labels, weights), number_metrics(preds, labels, weights=weights)
    assert {name: figures[name] for name in expected} == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_they_are_scikit_learns_of_a_whole_and_of_its_parts(offset: float) -> None:
    rng = np.random.default_rng(0)
    labels = (offset + rng.normal(size=3_000)).astype(np.float32)
    preds = (labels + rng.normal(size=3_000)).astype(np.float32)
    expected, whole = expected_figures(preds, labels), number_metrics(preds, labels)
    assert {name: whole[name] for name in expected} == pytest.approx(expected, rel=1e-12)
    assert all(whole[name] is None for name in OF_ROWS)
    parts = [slice(0, 1_000), slice(1_000, 1_000), slice(1_000, 3_000)]
    sums: list[NDArray[np.float64]] = []  # of each part: samples, squares, absolute errors, labels

    def collect(of_part: NDArray[np.float64]) -> NDArray[np.float64]:
        if len(of_part) == 4:
            sums.append(of_part)
        return of_part

    for part in parts:
        number_metrics(preds[part], labels[part], collect)
    first = np.sum(sums, axis=0)
    mean = first[3] / first[0]
    deviations = [np.square(labels[part].astype(np.float64) - mean).sum(keepdims=True) for part in parts]
    for part in parts:
        totals = iter([first, np.sum(deviations, axis=0)])
        of_part = number_metrics(preds[part], labels[part], lambda _, totals=totals: next(totals))  # type: ignore[misc]
        assert {name: of_part[name] for name in expected} == pytest.approx(expected, rel=1e-12)


def test_without_samples_they_are_none() -> None:
    nothing = np.zeros(0, np.float32)
    assert set(number_metrics(nothing, nothing).values()) == {None}
