"""A lasting drop of throughput within a run: whether there is one, after which step, and what happened there."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.metrics.documents import AnyEvent, Slowdown, TrainEvent

LEAST_DROP = 0.1  # share of the median rate
LEAST_WINDOWS = 5  # on either side of the drop
FALSE_ALARMS = 0.01  # chance of a false alarm in a run, if its windows were independent
MOST_WINDOWS = 200  # with more windows, neighbours are joined to at most this many groups
ACTIONS = {  # words for a kind of event: a run's first one, and others
    "resume": ("the run was resumed", "the run was resumed"),
    "checkpoint": ("the first checkpoint was saved", "a checkpoint was saved"),
    "eval": ("the first evaluation was made", "an evaluation was made"),
}


def find_slowdown(events: Sequence[AnyEvent]) -> Slowdown | None:
    """Return the largest lasting drop of throughput that a run's events show, None if there is none.

    The windows of training (except the first, which warms up) are cut in two where the sum of absolute deviations of
    their logarithmic rates from the medians of both parts is smallest. The cut is a drop if each part has at least five
    windows, the second part's median is at least 10 % lower, nine tenths of it lie below nine tenths of the first, and
    a one-sided Mann-Whitney test, corrected for the number of places to cut, gives p < 0.01.

    Args:
        events: of metrics.jsonl, in its order.

    Returns:
        `when` tells what was done between the last window before the drop and the first after it; None if nothing.
    """
    trained = [event for event in events if isinstance(event, TrainEvent)][1:]
    rated = [(event.step, event.samples_per_second or 0.0) for event in trained]
    windows = [(step, rate) for step, rate in rated if rate > 0]
    group = -(-len(windows) // MOST_WINDOWS)
    if not group or len(windows) // group < 2 * LEAST_WINDOWS:
        return None
    windows = windows[len(windows) % group :]
    rates = np.log([rate for _, rate in windows]).reshape(-1, group)
    cut = _cut(np.median(rates, axis=1))
    if cut is None:
        return None
    (last, _), (first, _) = windows[cut * group - 1], windows[cut * group]
    fraction = 1 - np.exp(np.median(rates[cut:]) - np.median(rates[:cut]))
    return Slowdown(after_step=last, fraction=float(fraction), when=_actions(events, last, first, first - last))


def _cut(rates: NDArray[np.float64]) -> int | None:
    """Return how many logarithmic rates [windows] come before the drop; None if there is no drop."""
    cuts = range(1, len(rates))
    cut = min(cuts, key=lambda cut: _deviation(rates[:cut]) + _deviation(rates[cut:]))
    before, after = rates[:cut], rates[cut:]
    separate = np.quantile(after, 0.9) < np.quantile(before, 0.1)
    if min(len(before), len(after)) < LEAST_WINDOWS or not separate:
        return None
    if np.median(after) - np.median(before) > np.log(1 - LEAST_DROP):
        return None
    # Imported lazily: this takes most of a second, and few runs come so far.
    from scipy import stats

    test = stats.mannwhitneyu(after, before, alternative="less")
    return cut if test.pvalue * (len(rates) - 2 * LEAST_WINDOWS + 1) < FALSE_ALARMS else None


def _deviation(values: NDArray[np.float64]) -> float:
    return float(np.abs(values - np.median(values)).sum())


def _actions(events: Sequence[AnyEvent], last: int, first: int, window: int) -> str | None:
    """Return what was done from the last window before a drop to the first after it, which end at these steps."""
    actions = []
    for kind, (first_of_all, another) in ACTIONS.items():
        steps = [event.step for event in events if event.event == kind]
        if any(last - window < step < first for step in steps):
            actions.append(first_of_all if min(steps) > last - window else another)
    return " and ".join(actions) or None


def slowdown_sentence(slowdown: Slowdown) -> str:
    """Return a drop as a sentence without a full stop."""
    cause = f", when {slowdown.when}" if slowdown.when else ""
    return f"Throughput fell by {slowdown.fraction:.0%} after step {slowdown.after_step:,}{cause}"
