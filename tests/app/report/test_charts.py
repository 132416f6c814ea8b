"""Long lines are thinned without losing an extreme."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from app.report.charts import thin_line, wilson


@settings(max_examples=30)
@given(st.integers(10, 5000), st.integers(10, 200), st.integers(0, 99))
def test_points_are_points_of_the_line_and_the_extremes_stay(length: int, most: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = np.arange(length).tolist(), rng.standard_normal(length).tolist()
    kept_x, kept_y = thin_line(x, y, most)
    assert len(kept_x) <= most or length <= most
    assert set(zip(kept_x, kept_y, strict=True)) <= set(zip(x, y, strict=True))
    assert kept_x == sorted(kept_x)
    assert (kept_x[0], kept_x[-1]) == (0, length - 1)
    assert {min(y), max(y)} <= set(kept_y)


def test_one_peak_among_200_000_stays() -> None:
    y = [0.5] * 200_000
    y[123_456] = 7.0
    x, kept = thin_line(range(200_000), y)
    assert len(x) <= 2000
    assert kept[x.index(123_456)] == 7.0


def test_what_was_not_measured_is_left_out_of_a_thinned_line_only() -> None:
    assert thin_line([1, 2], [None, 1.0]) == ([1, 2], [None, 1.0])
    x, y = thin_line(range(5000), [None] * 4000 + [1.0] * 1000)
    assert (x[0], y[0]) == (4000, 1.0)
    assert None not in y


@settings(max_examples=50)
@given(samples=st.integers(1, 10**9), part=st.floats(0, 1))
def test_wilsons_interval_is_scipys(samples: int, part: float) -> None:
    positives = round(part * samples)
    interval = stats.binomtest(positives, samples).proportion_ci(method="wilson")
    assert wilson(positives / samples, samples) == pytest.approx((interval.low, interval.high), rel=1e-4, abs=1e-9)
