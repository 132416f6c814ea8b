"""What boosted trees are given of an event of a log: running means over earlier events, without a model.

An earlier event is one before it in the order of time, then of users, then of places in the input.
"""

import numpy as np
from numpy.typing import NDArray

from extensions.sequences.events import EventArrays, EventSchema

LAST = (5, 20)  # events of a user whose means are taken apart


def running_means(events: EventArrays, schema: EventSchema) -> NDArray[np.float64]:
    """[E, features] of the earlier events of its user, of its item, and of its user with each attribute of its item.

    Of each of these the means of all action bits, NaN where there are none, and their number.
    """
    users, bits = _users(events), _bits(events, schema)
    items = np.asarray(events.items).astype(np.int64)
    pairs = [users * (int(ids.max(initial=0)) + 1) + ids[items] for ids in events.attributes.astype(np.int64)]

    # Stable, so that events of one second are in the dataset's order
    order = np.argsort(np.asarray(events.times), kind="stable")
    return np.column_stack([_earlier(keys, bits, order) for keys in (users, items, *pairs)])


def recent_means(events: EventArrays, schema: EventSchema) -> NDArray[np.float64]:
    """[E, features]: the bits' means over its user's last 5 and last 20 events, and the seconds since the last one."""
    first, bits = events.offsets[:-1][_users(events)], _bits(events, schema)
    seconds = np.diff(np.asarray(events.times).astype(np.float64), prepend=0)
    seconds[np.arange(len(seconds)) == first] = np.nan
    return np.column_stack([*(_last(bits, first, count) for count in LAST), seconds])


def _users(events: EventArrays) -> NDArray[np.int64]:
    """[E] the index of each event's user."""
    return np.repeat(np.arange(len(events.users)), np.diff(events.offsets))


def _bits(events: EventArrays, schema: EventSchema) -> NDArray[np.float64]:
    """[E, actions]."""
    return (np.asarray(events.flags)[:, None] >> np.arange(len(schema.actions)) & 1).astype(np.float64)


def _earlier(keys: NDArray[np.int64], bits: NDArray[np.float64], order: NDArray[np.int64]) -> NDArray[np.float64]:
    """[E, bits + 1]: means of the bits over earlier events with the same key, and their number."""
    grouped = order[np.argsort(keys[order], kind="stable")]
    values = np.column_stack([bits, np.ones(len(bits))])[grouped]
    begins = np.diff(keys[grouped], prepend=-1) != 0
    starts = np.maximum.accumulate(np.where(begins, np.arange(len(keys)), 0))
    # A running sum within the group counts earlier events alone, so no event sees its own label.
    before = np.cumsum(values, axis=0) - values
    sums = np.empty_like(before)
    sums[grouped] = before - before[starts]
    return np.column_stack([_divided(sums[:, :-1], sums[:, -1]), sums[:, -1]])


def _last(bits: NDArray[np.float64], first: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """[E, bits]: means over the `count` events before, of those from the user's `first` on."""
    places = np.arange(len(bits))
    low = np.maximum(places - count, first)
    sums = np.concatenate([np.zeros((1, bits.shape[1])), np.cumsum(bits, axis=0)])
    return _divided(sums[places] - sums[low], (places - low).astype(np.float64))


def _divided(sums: NDArray[np.float64], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    return sums / np.where(counts == 0, np.nan, counts)[:, None]
