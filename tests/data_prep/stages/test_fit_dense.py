"""Fits of dense columns: exact sums and quantiles, beside fractions and NumPy."""

import math
import statistics
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from data_prep.dataset.transforms import FITS, transform_column
from data_prep.stages import fit as fit_dense
from data_prep.stages.fit import UNIT_EXPONENT, exact_sums

LIMIT = float(np.finfo(np.float64).max) / 2
NUMBERS = st.one_of(
    st.floats(-LIMIT, LIMIT),
    st.integers(-1000, 1000).map(float),
    st.sampled_from([0.0, -0.0, 5e-324, -5e-324, 2.3e-308, 1e300, -LIMIT, LIMIT, 0.1]),
)
COLUMNS = st.lists(NUMBERS, min_size=1, max_size=40).map(lambda values: np.array(values) + 0.0)


MANY = np.random.default_rng(0).lognormal(0, 30, 50_000) * np.where(np.arange(50_000) % 3, 1, -1)


@pytest.mark.medium
@given(COLUMNS)
@example(MANY)
def test_sums_are_exact(values: NDArray[np.float64]) -> None:
    total, square = exact_sums(values)
    assert Fraction(total, 1 << UNIT_EXPONENT) == sum(map(Fraction, values.tolist()))
    assert Fraction(square, 1 << 2 * UNIT_EXPONENT) == sum(Fraction(value) ** 2 for value in values.tolist())


@given(COLUMNS, st.integers(0, 40))
def test_mean_and_deviation(values: NDArray[np.float64], cut: int) -> None:
    parts = [part for part in (values[:cut], values[cut:]) if len(part)]
    mean, deviation = fit_dense._mean_and_deviation([(len(part), *exact_sums(part)) for part in parts])
    assert mean == float(statistics.mean(map(Fraction, values.tolist())))
    variance = statistics.pvariance(list(map(Fraction, values.tolist())))
    expected = float(math.isqrt(int(variance * (1 << 2400))) / Fraction(1 << 1200))
    assert deviation == pytest.approx(expected, rel=3e-16, abs=0)


@given(COLUMNS, st.lists(st.integers(0, 40), max_size=3))
def test_quantiles_are_values_of_rows(values: NDArray[np.float64], cuts: list[int]) -> None:
    parts = [np.sort(part) for part in np.split(values, sorted(min(cut, len(values)) for cut in cuts)) if len(part)]
    quantiles = fit_dense._quantiles(parts, values.min(), values.max())
    places = np.arange(FITS["quantile"]) / (FITS["quantile"] - 1)
    assert quantiles == np.quantile(values, places, method="lower").tolist()


def fit_of(values: NDArray[np.float64], name: str) -> list[float]:
    if name == "standard":
        return fit_dense._mean_and_deviation([(len(values), *exact_sums(values))])
    low, high = values.min(), values.max()
    return [low, high] if name == "minmax" else fit_dense._quantiles([np.sort(values)], low, high)


@given(COLUMNS, COLUMNS)
@example(np.array([1, 5e-324, -5e-324]), np.array([0.0]))
@pytest.mark.parametrize("name", FITS)
def test_every_fitted_transform_is_finite_and_keeps_the_order(name: str, fitted: Any, others: Any) -> None:
    fit, ordered = fit_of(fitted, name), np.sort(np.concatenate((fitted, others)))
    result = transform_column(ordered, name, fit)
    assert result.dtype == np.float32
    assert np.isfinite(result).all()
    assert (np.diff(result) >= 0).all()
    assert name != "quantile" or ((result >= 0) & (result <= 1)).all()


@pytest.mark.parametrize("name", ["raw", "log1p", "signed_log1p"])
@given(COLUMNS)
def test_every_other_transform_is_finite(name: str, values: Any) -> None:
    assert np.isfinite(transform_column(values, name)).all()


def test_quantiles_of_a_normal_column_are_uniform() -> None:
    values = np.random.default_rng(1).standard_normal(20_000)
    ranks = transform_column(values, "quantile", fit_of(values, "quantile"))
    expected = np.argsort(np.argsort(values)) / (len(values) - 1)
    assert np.abs(ranks - expected).max() < 1 / 256


def test_quantiles_of_tiny_numbers_are_those_in_another_unit() -> None:
    tiny = np.random.default_rng(3).normal(0, 1e-310, 5000)
    scaled = tiny * 2.0**100  # exact
    places = np.arange(257) / 256
    fit, scaled_fit = (np.quantile(values, places, method="lower") for values in (tiny, scaled))
    expected = np.interp(scaled, scaled_fit, places)
    assert np.abs(transform_column(tiny, "quantile", fit.tolist()) - expected).max() < 1e-7


def test_a_frequent_value_has_the_mean_rank_of_its_rows() -> None:
    values = np.array([0.0] * 600 + list(range(1, 401)))
    ranks = transform_column(np.array([0.0, 400.0, -5.0, 1e9]), "quantile", fit_of(values, "quantile"))
    assert ranks[0] == pytest.approx(0.3, abs=0.003)
    assert ranks[1:].tolist() == [1, ranks[0], 1]
