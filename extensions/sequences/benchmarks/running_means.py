"""What boosted trees are given of an event of a log: running means over earlier events, without a model.

An earlier event is one before it in the order of time, then of users, then of places in the input.
"""

import numpy as np
from numpy.typing import NDArray

from extensions.sequences.events import EventArrays, EventSchema

LAST = (5, 20)  # most earlier events of a mean: one mean for each number


def running_means(events: EventArrays, schema: EventSchema) -> NDArray[np.float64]:
    """Return [E, features]: for each event the means of the action bits over earlier events, and their number.

    Once for the earlier events of its user, once of its item, and once for each attribute of its item, of its user with
    the same attribute; NaN where there is no earlier event.
    """
    users, bits = _user_indices(events), _action_bits(events, schema)
    items = np.asarray(events.items).astype(np.int64)
    pairs = [users * (int(ids.max(initial=0)) + 1) + ids[items] for ids in events.attributes.astype(np.int64)]

    # Stable, so that events of one second are in the dataset's order
    order = np.argsort(np.asarray(events.times), kind="stable")
    return np.column_stack([_earlier_means(keys, bits, order) for keys in (users, items, *pairs)])


def recent_means(events: EventArrays, schema: EventSchema) -> NDArray[np.float64]:
    """Return [E, 2 * actions + 1]: means of the action bits over the user's last 5 and last 20 earlier events (LAST).

    Then the seconds since the user's previous event; NaN for the user's first.
    """
    first_of_user, bits = events.offsets[:-1][_user_indices(events)], _action_bits(events, schema)
    seconds = np.diff(np.asarray(events.times).astype(np.float64), prepend=0)
    seconds[np.arange(len(seconds)) == first_of_user] = np.nan
    return np.column_stack([*(_windowed_means(bits, first_of_user, count) for count in LAST), seconds])


def _user_indices(events: EventArrays) -> NDArray[np.int64]:
    """Return [E]: the index of each event's user."""
    return np.repeat(np.arange(len(events.users)), np.diff(events.offsets))


def _action_bits(events: EventArrays, schema: EventSchema) -> NDArray[np.float64]:
    """Return [E, actions]: 1 where an event has the action, else 0."""
    return (np.asarray(events.flags)[:, None] >> np.arange(len(schema.actions)) & 1).astype(np.float64)


def _earlier_means(keys: NDArray[np.int64], bits: NDArray[np.float64], order: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return [E, actions + 1]: means of the bits over earlier events with the same key, and their number.

    Args:
        keys: [E] int64. bits: [E, actions].
        order: numbers of the events by time.
    """
    grouped = order[np.argsort(keys[order], kind="stable")]
    values = np.column_stack([bits, np.ones(len(bits))])[grouped]
    begins = np.diff(keys[grouped], prepend=-1) != 0
    starts = np.maximum.accumulate(np.where(begins, np.arange(len(keys)), 0))
    # A running sum within the group counts earlier events alone, so no event sees its own label.
    before = np.cumsum(values, axis=0) - values
    sums = np.empty_like(before)
    sums[grouped] = before - before[starts]
    return np.column_stack([_divide_or_nan(sums[:, :-1], sums[:, -1]), sums[:, -1]])


def _windowed_means(bits: NDArray[np.float64], first_of_user: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Return [E, actions]: means of the bits over the user's last `count` earlier events; first_of_user: [E]."""
    places = np.arange(len(bits))
    low = np.maximum(places - count, first_of_user)
    sums = np.concatenate([np.zeros((1, bits.shape[1])), np.cumsum(bits, axis=0)])
    return _divide_or_nan(sums[places] - sums[low], (places - low).astype(np.float64))


def _divide_or_nan(sums: NDArray[np.float64], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the means [E, actions] of sums [E, actions] over counts [E]; NaN where the count is 0."""
    return sums / np.where(counts == 0, np.nan, counts)[:, None]
