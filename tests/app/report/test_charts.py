"""Long lines are thinned without losing an extreme; single values do not flatten a chart."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from app.report.charts import Chart, Series, course_charts, thin_line, wilson
from app.report.page import step_parts
from app.report.read import read_run
from tests.app.report.runs import write_run


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
    x, ordinates = thin_line(range(200_000), y)
    assert len(x) <= 2000
    assert ordinates[x.index(123_456)] == 7.0


@settings(max_examples=50)
@given(samples=st.integers(1, 10**9), part=st.floats(0, 1))
def test_wilsons_interval_is_scipys(samples: int, part: float) -> None:
    positives = round(part * samples)
    interval = stats.binomtest(positives, samples).proportion_ci(method="wilson")
    assert wilson(positives / samples, samples) == pytest.approx((interval.low, interval.high), rel=1e-4, abs=1e-9)


@settings(max_examples=50)
@given(
    lines=st.lists(
        st.lists(st.floats(0.1, 0.3) | st.floats(-0.3, -0.1), min_size=4, max_size=60), min_size=1, max_size=4
    ),
    outlier=st.sampled_from([970.0, -970.0]),
    place=st.integers(0, 3),
)
def test_one_value_far_out_does_not_flatten_a_chart(lines: list[list[float]], outlier: float, place: int) -> None:
    """Of any line; the limits are those of all others, and the note says what they leave out."""
    inliers = [value for line in lines for value in line]
    lines[place % len(lines)][place] = outlier
    chart = Chart("x", "X", "step", "y", [Series(f"line {n}", [*range(len(y))], [*y]) for n, y in enumerate(lines)])
    rest = [value for line in lines for value in line if value != outlier]
    chart.cut_outliers()
    assert chart.limits == (min(rest), max(rest))
    assert max(map(abs, inliers)) < 1
    assert "One value is beyond the axis, the largest" in chart.note
    assert f"{outlier:.4g} at step {place}" in chart.note


@pytest.mark.parametrize(
    "values", [[970.0], [0.1, 970.0], [0.7, 0.6, 0.55, 0.5, 0.5, 0.5], [970.0, 960.0, 955.0, 950.0]]
)
def test_short_lines_and_usual_courses_are_drawn_whole(values: list[float]) -> None:
    chart = Chart("x", "X", "step", "y", [Series("line", [*range(len(values))], [*values])])
    chart.cut_outliers()
    assert (chart.limits, chart.note) == (None, "")


def test_the_parts_of_a_step_add_up_to_it(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", step_ms=20.0))
    parts = {part.name: part for part in step_parts(run)}
    assert run.summary is not None
    whole = 1e3 / (run.throughput.steps_per_second or 0)
    assert sum(part.milliseconds for part in parts.values()) == pytest.approx(whole)
    assert sum(part.share for part in parts.values()) == pytest.approx(1)
    assert list(parts) == ["input wait", "forward", "backward", "optimizer", "host"]
    assert parts["forward"].milliseconds == pytest.approx(0.3 * 20)
    assert parts["input wait"].milliseconds == pytest.approx(whole * (run.throughput.input_wait_fraction or 0))
    run.summary.phase_seconds = {**(run.summary.phase_seconds or {}), "communication": 0.004}
    exchanged = {part.name: part for part in step_parts(run)}
    assert exchanged["exchange"].milliseconds == pytest.approx(4)
    assert exchanged["forward"].milliseconds == pytest.approx(0.3 * 20 - 4 * 3 / 8)
    assert sum(part.milliseconds for part in exchanged.values()) == pytest.approx(whole)
    run.summary.phase_seconds = {"forward": None, "backward": None, "optimizer": None, "communication": None}
    assert step_parts(run) == []


def test_what_was_not_measured_says_why(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run"))
    (power,) = [chart for chart in course_charts(run) if chart.key == "power"]
    assert not power.measured()
    assert "RAPL" in power.absent
