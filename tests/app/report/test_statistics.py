"""Tests of significance and intervals, against SciPy and by simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from app.report.statistics import batch_means, paired, speed_ratio, welch
from tests.oracles.statistics import t_test

values = st.lists(st.floats(0.6, 0.9).map(lambda x: round(x, 6)), min_size=2, max_size=8)


@pytest.mark.filterwarnings("ignore:Precision loss occurred")  # SciPy's, of values that hardly differ
@given(values, values)
def test_welch_is_scipys(first: list[float], second: list[float]) -> None:
    ours = welch(first, second)
    if np.ptp(first) == np.ptp(second) == 0:
        assert ours.p == (1.0 if first[0] == second[0] else 0.0)
        return
    theirs = stats.ttest_ind(second, first, equal_var=False)
    interval = theirs.confidence_interval(0.95)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-5, abs=1e-9)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high), rel=1e-4, abs=1e-9)


def test_one_value_on_a_side_has_no_test() -> None:
    found = welch([0.7], [0.71, 0.72])
    assert found.mean == pytest.approx(0.015)
    assert found[1:] == (None, None, None)
    assert speed_ratio([2.0], [1.0, 1.0]) == (2.0, None, None)


def test_the_interval_of_a_speed_ratio_covers_it() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        first, second = 2.0 * rng.normal(1, 0.05, 5), rng.normal(1, 0.15, 8)
        ratio = speed_ratio(first, second)
        assert ratio.low is not None
        assert ratio.high is not None
        covered += ratio.low <= 2.0 <= ratio.high
    assert 0.92 <= covered / 400 <= 0.98


def test_batch_means_keep_the_total_and_are_few() -> None:
    seconds, samples = np.arange(1.0, 101), np.full(100, 10.0)
    means = batch_means(seconds, samples)
    assert len(means) == 20
    assert means.mean() == pytest.approx(seconds.sum() / samples.sum())
    assert len(batch_means(seconds[:3], samples[:3])) == 1


@pytest.mark.parametrize("size", [2, 3, 10, 1_000, 100_000])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_drawn_samples_are_tested_as_defined(size: int, scale: float) -> None:
    rng = np.random.default_rng(size)
    first, second = scale * rng.normal(0, 1, size), scale * rng.normal(0.1, 2, size)
    assert tuple(paired(first, second)) == pytest.approx(t_test(first, second, is_paired=True), rel=1e-9)
    more = np.append(second, scale)
    assert tuple(welch(first, more)) == pytest.approx(t_test(first, more, is_paired=False), rel=1e-9)


@pytest.mark.parametrize("sizes", [(2, 2), (3, 9), (1_000, 50_000)])
@pytest.mark.parametrize("scale", [1e-9, 1.0])
def test_the_interval_of_drawn_speeds_is_welchs_of_their_logarithm(sizes: tuple[int, int], scale: float) -> None:
    """By the delta method a mean divided by the sample's mean has the logarithm's variance."""
    rng = np.random.default_rng(sizes[1])
    first, second = scale * rng.uniform(1, 1.3, sizes[0]), scale * rng.uniform(0.4, 0.7, sizes[1])
    theirs = stats.ttest_ind(first / first.mean(), second / second.mean(), equal_var=False).confidence_interval(0.95)
    ratio = first.mean() / second.mean()
    expected = (ratio, ratio * np.exp(theirs.low), ratio * np.exp(theirs.high))
    assert tuple(speed_ratio(first, second)) == pytest.approx(expected, rel=1e-9)


@given(st.lists(st.tuples(st.floats(0.6, 0.9), st.floats(0.6, 0.9)), min_size=2, max_size=8))
def test_paired_is_scipys(pairs: list[tuple[float, float]]) -> None:
    first, second = ([round(pair[side], 6) for pair in pairs] for side in (0, 1))
    ours = paired(first, second)
    differences = np.subtract(second, first)
    if np.ptp(differences) < 1e-9:
        return
    theirs = stats.ttest_rel(second, first)
    interval = theirs.confidence_interval(0.95)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-5, abs=1e-9)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high), rel=1e-4, abs=1e-9)
