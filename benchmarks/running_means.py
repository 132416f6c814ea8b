"""What boosted trees are given of a sample of an event log: running means over earlier events, without a model.

For each event, of the events before it (in the order of time, then of users, then of places in the input): the means of
all action bits and the number of events of its user, of its item, and of its user with each attribute of its item; the
means of the bits over its user's last 5 and last 20 events; and the seconds since its user's last event.
"""

import numpy as np
from numpy.typing import NDArray

from data_prep.dataset.event_schema import EventSchema
from data_prep.dataset.events import EventArrays

LAST = (5, 20)  # events of a user whose means are taken apart


def running_means(events: EventArrays, schema: EventSchema) -> NDArray[np.float64]:
    """[E, features] float64, NaN where there is no earlier event."""
    users = np.repeat(np.arange(len(events.users)), np.diff(events.offsets))
    items, times = np.asarray(events.items).astype(np.int64), np.asarray(events.times).astype(np.int64)
    bits = (np.asarray(events.flags)[:, None] >> np.arange(len(schema.actions)) & 1).astype(np.float64)
    pairs = [users * (int(ids.max(initial=0)) + 1) + ids[items] for ids in events.attributes.astype(np.int64)]

    # Stable, so that events of one second are in the dataset's order
    order = np.argsort(times, kind="stable")
    columns = [_earlier(keys, bits, order) for keys in (users, items, *pairs)]
    first = events.offsets[:-1][users]
    columns += [_last(bits, first, count) for count in LAST]
    seconds = np.diff(times, prepend=0).astype(np.float64)
    seconds[np.arange(len(times)) == first] = np.nan
    return np.column_stack([*columns, seconds])


def _earlier(keys: NDArray[np.int64], bits: NDArray[np.float64], order: NDArray[np.int64]) -> NDArray[np.float64]:
    """[E, bits + 1]: means of the bits over earlier events with the same key, and their number."""
    grouped = order[np.argsort(keys[order], kind="stable")]
    values = np.column_stack([bits, np.ones(len(bits))])[grouped]
    begins = np.diff(keys[grouped], prepend=-1) != 0
    starts = np.maximum.accumulate(np.where(begins, np.arange(len(keys)), 0))
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
