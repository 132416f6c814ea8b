"""A lasting drop of throughput is named, and noise is not."""

from typing import Any

import numpy as np
import pytest

from app.metrics.documents import AnyEvent, OtherEvent, TrainEvent
from app.metrics.slowdown import MOST_WINDOWS, find_slowdown, slowdown_sentence

WINDOW, FIRST = 10, ", when the first checkpoint was saved"


def _events(rates: Any, *other_events: tuple[str, int]) -> list[AnyEvent]:
    """A window that warms up, windows of these rates, and other events by kind and step."""
    train = [
        TrainEvent(event="train", step=WINDOW * (number + 1), samples_per_second=float(rate))
        for number, rate in enumerate([1.0, *rates])
    ]
    return [*train, *(OtherEvent(event=kind, step=step) for kind, step in other_events)]


@pytest.mark.parametrize("windows", [10, 11, 25, 200, 5_000])
@pytest.mark.parametrize("drop", [0.12, 0.31])
def test_a_planted_drop_is_located(windows: int, drop: float) -> None:
    rng, cut = np.random.default_rng(windows), windows // 2
    rates = 30_000 * np.exp(rng.normal(0, 0.01, windows))
    rates[cut:] *= 1 - drop
    slowdown = find_slowdown(_events(rates))
    assert slowdown is not None
    assert abs(slowdown.after_step - WINDOW * (cut + 1)) < WINDOW * -(-windows // MOST_WINDOWS)
    assert slowdown.fraction == pytest.approx(drop, abs=0.02)
    assert slowdown.when is None


@pytest.mark.parametrize(
    ("other_events", "cause"),
    [
        ([("checkpoint", 100), ("checkpoint", 200)], FIRST),
        ([("checkpoint", 50), ("checkpoint", 100)], ", when a checkpoint was saved"),
        ([("checkpoint", 50), ("eval", 200), ("resume", 100)], ", when the run was resumed"),
        ([("checkpoint", 100), ("eval", 100)], f"{FIRST} and the first evaluation was made"),
        ([("checkpoint", 150)], ""),
    ],
)
def test_what_came_just_before_is_named(other_events: list[tuple[str, int]], cause: str) -> None:
    rates = [33_000.0, 32_000, 34_000] * 3 + [23_000.0, 22_800, 23_100] * 5
    slowdown = find_slowdown(_events(rates, *other_events))
    assert slowdown is not None
    assert slowdown_sentence(slowdown) == f"Throughput fell by 30% after step 100{cause}"


def test_what_does_not_last_or_matter_is_not_named() -> None:
    steady, brief = np.full(40, 30_000.0), np.full(40, 30_000.0)
    brief[10:20] *= 0.5
    changed = [(20, 0.92), (20, 1.5), (36, 0.5)]  # from a window on; the last four windows
    rates: list[Any] = [np.where(np.arange(40) < first, 1.0, factor) * steady for first, factor in changed]
    for each in (steady, brief, *rates, [], [0.0] * 30):
        assert find_slowdown(_events(each)) is None


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_noise_is_silent(correlation: float) -> None:
    """Windows with a coefficient of variation of 8 %, independent or following each other, as on a busy machine."""
    rng, alarms = np.random.default_rng(7), 0
    for _ in range(300):
        noise = rng.normal(0, 0.08, int(rng.integers(10, 120)))
        for k in range(1, len(noise)):
            noise[k] = correlation * noise[k - 1] + np.sqrt(1 - correlation**2) * noise[k]
        alarms += find_slowdown(_events(30_000 * np.exp(noise))) is not None
    assert alarms <= 3
