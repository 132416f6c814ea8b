"""Tests of significance and intervals, against SciPy and by simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from app.report.statistics import batch_means, delong, paired, seeds_needed, speed_ratio, spread, welch
from tests.oracles.statistics import delong_of_two, t_test

values = st.lists(st.floats(0.6, 0.9).map(lambda x: round(x, 6)), min_size=2, max_size=8)


@pytest.mark.filterwarnings("ignore:Precision loss occurred")  # SciPy's, of values that hardly differ
@given(values, values)
def test_welch_is_scipys(first: list[float], second: list[float]) -> None:
    difference = welch(first, second)
    if np.ptp(first) == np.ptp(second) == 0:
        assert difference.p == (1.0 if first[0] == second[0] else 0.0)
        return
    scipy_test = stats.ttest_ind(second, first, equal_var=False)
    interval = scipy_test.confidence_interval(0.95)
    assert difference.p == pytest.approx(scipy_test.pvalue, rel=1e-5, abs=1e-9)
    assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high), rel=1e-4, abs=1e-9)


def test_one_value_on_a_side_has_no_test() -> None:
    difference = welch([0.7], [0.71, 0.72])
    assert difference.mean == pytest.approx(0.015)
    assert difference[1:] == (None, None, None)
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
    interval = stats.ttest_ind(first / first.mean(), second / second.mean(), equal_var=False).confidence_interval(0.95)
    ratio = first.mean() / second.mean()
    expected = (ratio, ratio * np.exp(interval.low), ratio * np.exp(interval.high))
    assert tuple(speed_ratio(first, second)) == pytest.approx(expected, rel=1e-9)


@given(st.lists(st.tuples(st.floats(0.6, 0.9), st.floats(0.6, 0.9)), min_size=2, max_size=8))
def test_paired_is_scipys(pairs: list[tuple[float, float]]) -> None:
    first, second = ([round(pair[side], 6) for pair in pairs] for side in (0, 1))
    difference = paired(first, second)
    differences = np.subtract(second, first)
    if np.ptp(differences) < 1e-9:
        return
    scipy_test = stats.ttest_rel(second, first)
    interval = scipy_test.confidence_interval(0.95)
    assert difference.p == pytest.approx(scipy_test.pvalue, rel=1e-5, abs=1e-9)
    assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high), rel=1e-4, abs=1e-9)


@given(values)
def test_the_spread_of_values_is_scipys(sample: list[float]) -> None:
    mean, std, low, high = spread(sample)
    assert mean == pytest.approx(np.mean(sample))
    assert std == pytest.approx(np.std(sample, ddof=1), abs=1e-12)
    if np.ptp(sample) > 1e-9:
        assert (low, high) == pytest.approx(
            stats.t.interval(0.95, len(sample) - 1, loc=np.mean(sample), scale=stats.sem(sample)), rel=1e-9
        )
    assert spread(sample[:1]) == (sample[0], None, None, None)


@pytest.mark.parametrize(("size", "rate", "digits"), [(12, 0.5, 0), (60, 0.3, 1), (400, 0.1, 1), (700, 0.25, 9)])
@pytest.mark.parametrize("gain", [0.0, 0.4])
def test_delongs_test_is_that_of_all_pairs(size: int, rate: float, digits: int, gain: float) -> None:
    """Of scores that depend on each other, with ties where they are rounded."""
    rng = np.random.default_rng(size)
    labels = rng.random(size) < rate
    labels[:4] = [True, True, False, False]
    common = rng.normal(size=size) + labels
    first, second = (np.round(common + rng.normal(size=size) + g * labels, digits) for g in (0.0, gain))
    difference = delong(labels, first, second)
    mean, error = delong_of_two(labels, first, second)
    expected = stats.norm.interval(0.95, mean, error)
    assert tuple(difference) == pytest.approx(
        (mean, *expected, 2 * stats.norm.sf(abs(mean / error))), rel=1e-9, abs=1e-12
    )


def test_delongs_test_of_equal_and_of_too_few_rows() -> None:
    labels, scores = np.array([True, False, True, False]), np.array([0.1, 0.4, 0.3, 0.2])
    assert delong(labels, scores, 2 * scores) == (0.0, 0.0, 0.0, 1.0)
    difference = delong(labels[:3], scores[:3], np.array([0.5, 0.4, 0.3]))
    assert tuple(difference) == (0.5, None, None, None)
    with pytest.raises(ValueError, match="one label"):
        delong(np.ones(4, bool), scores, scores)


@pytest.mark.parametrize("deviations", [(1.0,), (1.0, 1.0), (0.5, 2.0)])
@pytest.mark.parametrize("mean", [-3.0, 2.0, 0.7, 0.1])
def test_as_many_seeds_as_the_power_takes(mean: float, deviations: tuple[float, ...]) -> None:
    """The number found has a power of 0.8 by SciPy's noncentral t, and one fewer has not."""
    parts = np.square(deviations)

    def power(seeds: int) -> float:
        df = (seeds - 1) * parts.sum() ** 2 / np.square(parts).sum()
        shift, limit = abs(mean) / np.sqrt(parts.sum() / seeds), stats.t.ppf(0.975, df)
        return float(stats.nct.sf(limit, df, shift) + stats.nct.cdf(-limit, df, shift))

    seeds = seeds_needed(mean, *deviations)
    assert seeds is not None
    assert power(seeds) >= 0.8 - 1e-4
    assert seeds == 2 or power(seeds - 1) < 0.8


def test_the_power_is_that_of_drawn_samples() -> None:
    seeds = seeds_needed(0.9, 1.0)
    assert seeds is not None
    samples = np.random.default_rng(0).normal(0.9, 1.0, (20_000, seeds))
    assert np.mean(stats.ttest_1samp(samples, 0, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.03)


def test_no_number_of_seeds_shows_no_difference() -> None:
    assert seeds_needed(0.0, 1.0) is None
    assert seeds_needed(1e-6, 1.0) is None
    assert seeds_needed(0.1, 0.0) == 2
