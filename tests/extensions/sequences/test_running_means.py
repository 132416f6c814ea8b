"""Running means of a log of events, which a benchmark gives to trees."""

from typing import Any

import numpy as np
import pytest

from extensions.sequences.benchmarks.running_means import recent_means, running_means
from extensions.sequences.events import EventArrays, EventSchema


@pytest.mark.parametrize("seed", range(3))
def test_running_means_are_of_earlier_events_alone(seed: int) -> None:
    """Event by event, from lists of what came before it."""
    rng, sizes = np.random.default_rng(seed), [7, 1, 40, 0, 25]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    times = np.concatenate([np.sort(rng.integers(0, 60, size)) for size in sizes]).astype(np.uint32)
    count, attribute = len(times), rng.integers(0, 3, 10)
    items, flags = rng.integers(0, 10, count).astype(np.int32), rng.integers(64, 68, count).astype(np.uint8)
    schema = EventSchema("user", "item", "time", {"liked": {}, "seen": {}}, "liked")
    events = EventArrays(np.arange(5), offsets, items, times, flags, attribute[None].astype(np.int32))

    users = np.repeat(np.arange(5), sizes)
    bits = np.stack([flags & 1, flags >> 1 & 1], axis=1).astype(float)
    means, recent = [], []
    for event in range(count):
        earlier = [e for e in range(count) if (times[e], e) < (times[event], event)]
        user_events = [e for e in earlier if users[e] == users[event]]
        groups = [
            user_events,
            [e for e in earlier if items[e] == items[event]],
            [e for e in user_events if attribute[items[e]] == attribute[items[event]]],
        ]
        means.append([value for group in groups for value in (*mean(bits[group]), len(group))])
        seconds = float(times[event]) - float(times[user_events[-1]]) if user_events else np.nan
        recent.append([*mean(bits[user_events[-5:]]), *mean(bits[user_events[-20:]]), seconds])
    np.testing.assert_allclose(running_means(events, schema), means, atol=1e-12)
    np.testing.assert_allclose(recent_means(events, schema), recent, atol=1e-12)


def mean(rows: np.ndarray[Any, Any]) -> list[float]:
    return [float(value) for value in rows.mean(axis=0)] if len(rows) else [float("nan")] * rows.shape[1]
