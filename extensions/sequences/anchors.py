"""Anchors of a dataset of events, which are the samples to train and evaluate on, by windows of time.

An anchor is an event with ANCHOR_BIT and at least `min_history` earlier events of its user. Window w holds the anchors
of `window_seconds` seconds from `origin` + w * window_seconds on; `origin` is the time of the first anchor. Anchors of
a window are ordered by user, then time, as on disk. All this is a pure function of the dataset, min_history and
window_seconds; nothing is stored.
"""

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from common.jit import Int, jit
from extensions.sequences.event_arrays import EventArrays
from extensions.sequences.event_schema import ANCHOR_BIT, MAX_ACTIONS


class Anchors:
    """Anchors by window.

    Attributes:
        origin: time of the first anchor, in the dataset's seconds.
        counts: [windows] int64 anchors; the last window has some, others may have none.
        positives: [windows, MAX_ACTIONS] int64 anchors with each action's bit.
        users: number of users with an anchor.
    """

    def __init__(self, events: EventArrays, min_history: int, window_seconds: int) -> None:
        """Count the anchors in one pass over times and flags, 5 bytes per event."""
        self._events, self._min_history, self._seconds = events, min_history, window_seconds
        first, last, self.users = _span(events.offsets, events.times, events.flags, min_history)
        if not self.users:
            longest = int(np.diff(events.offsets).max(initial=0))
            raise UserError(
                f"sequences.min_history={min_history}: no sample has that many events of its user before it; "
                f"no user has more than {longest}; set sequences.min_history={min(longest // 2, min_history - 1)}"
            )
        self.origin = int(first)
        self.counts = np.zeros((int(last) - self.origin) // window_seconds + 1, np.int64)
        self.positives = np.zeros((len(self.counts), MAX_ACTIONS), np.int64)
        _count(
            events.offsets,
            events.times,
            events.flags,
            min_history,
            self.origin,
            window_seconds,
            self.counts,
            self.positives,
        )

    def window(self, number: int) -> NDArray[np.int64]:
        """Return the positions [counts[number]] of a window's anchors among all events, by user, then time."""
        positions = np.empty(int(self.counts[number]), np.int64)
        begin = self.origin + number * self._seconds
        events = self._events
        count = _collect(
            events.offsets, events.times, events.flags, self._min_history, begin, begin + self._seconds, positions
        )
        assert count == len(positions)
        return positions

    def users_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of each event's user."""
        return np.searchsorted(self._events.offsets, positions, "right") - 1


@jit
def _span(
    offsets: NDArray[np.int64], times: NDArray[np.uint32], flags: NDArray[np.uint8], min_history: int
) -> tuple[Int, Int, Int]:
    """Return the times of the first and last anchor, and the number of users with one."""
    first, last, users = np.int64(1) << 62, np.int64(-1), 0
    for user in range(len(offsets) - 1):
        is_open = False
        for event in range(offsets[user] + min_history, offsets[user + 1]):
            if flags[event] & ANCHOR_BIT:
                first = min(first, np.int64(times[event])) if not is_open else first
                last = max(last, np.int64(times[event]))
                is_open = True
        users += is_open
    return first, last, users


@jit
def _count(
    offsets: NDArray[np.int64],
    times: NDArray[np.uint32],
    flags: NDArray[np.uint8],
    min_history: int,
    origin: int,
    seconds: int,
    counts: NDArray[np.int64],
    positives: NDArray[np.int64],
) -> None:
    for user in range(len(offsets) - 1):
        for event in range(offsets[user] + min_history, offsets[user + 1]):
            if flags[event] & ANCHOR_BIT:
                window = (np.int64(times[event]) - origin) // seconds
                counts[window] += 1
                for bit in range(positives.shape[1]):
                    positives[window, bit] += flags[event] >> bit & 1


@jit
def _collect(
    offsets: NDArray[np.int64],
    times: NDArray[np.uint32],
    flags: NDArray[np.uint8],
    min_history: int,
    begin: int,
    end: int,
    positions: NDArray[np.int64],
) -> Int:
    """Write the positions of the anchors with begin <= time < end, and return their number."""
    count = 0
    for user in range(len(offsets) - 1):
        low, high = offsets[user] + min_history, offsets[user + 1]
        stop = high
        while low < stop:  # binary search for the first event at `begin` or later
            middle = (low + stop) >> 1
            if np.int64(times[middle]) < begin:
                low = middle + 1
            else:
                stop = middle
        while low < high and np.int64(times[low]) < end:
            if flags[low] & ANCHOR_BIT:
                positions[count] = low
                count += 1
            low += 1
    return count
