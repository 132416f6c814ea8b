"""Histories of anchors, gathered from the log for each batch.

An anchor's history is made of the `scan_events` previous events of its user: the last `quota` of each kind, merged by
time, and cut to the last `max_history`. A kind is a mask of action bits. If the next anchor is a later event of the
same user, the history is extended instead of gathered again.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import OwnError
from common.jit import Int, jit
from extensions.sequences.event_arrays import EventArrays

XXH_1, XXH_2, XXH_3, XXH_4, XXH_5 = (
    np.uint64(each)
    for each in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)


class Histories(NamedTuple):
    """Histories of B anchors with L events in total, sample by sample, oldest event first.

    lengths [B] int32; ids [1 + A, L] int32 of item and attributes; times [L] int64; actions [L] uint8: bits of the
    events' actions.
    """

    lengths: NDArray[np.int32]
    ids: NDArray[np.int32]
    times: NDArray[np.int64]
    actions: NDArray[np.uint8]


class HistoryRule(NamedTuple):
    """Selection of a history's events: the last `quota` of each kind, a mask of `masks` [kinds] uint8.

    scan_events: number of last events to search. max_history: maximum over all kinds.
    """

    masks: NDArray[np.uint8]
    quota: int
    scan_events: int
    max_history: int


def gather_histories(
    events: EventArrays, anchors: NDArray[np.int64], users: NDArray[np.int64], rule: HistoryRule
) -> Histories:
    """Return the histories of anchors [B]; fastest if the anchors of a user follow each other in time.

    Args:
        users: [B] index of each anchor's user.
    """
    count, most = len(anchors), min(rule.max_history, rule.quota * len(rule.masks), rule.scan_events)
    before = (anchors - events.offsets[users]).sum() if count else 0
    room = int(min(count * most, before))
    histories = Histories(
        np.zeros(count, np.int32),
        np.empty((1 + len(events.attributes), room), np.int32),
        np.empty(room, np.int64),
        np.empty(room, np.uint8),
    )
    total = _gather(
        anchors,
        users,
        events.offsets,
        events.items,
        events.times,
        events.flags,
        events.attributes,
        *rule,
        np.bitwise_or.reduce(rule.masks),
        *histories,
    )
    if total < 0:
        raise wrong_item(int(-1 - total))
    return Histories(histories.lengths, histories.ids[:, :total], histories.times[:total], histories.actions[:total])


def wrong_item(event: int) -> OwnError:
    """Return the error for an event whose item is outside its table."""
    return OwnError(f"events/00000.items.npy: event {event}: the item is not in its table; preprocess again")


@jit
def _gather(
    anchors: NDArray[np.int64],
    users: NDArray[np.int64],
    offsets: NDArray[np.int64],
    items: NDArray[np.int32],
    times: NDArray[np.uint32],
    flags: NDArray[np.uint8],
    attributes: NDArray[np.int32],
    masks: NDArray[np.uint8],
    quota: int,
    scan: int,
    max_history: int,
    any_mask: int,
    lengths: NDArray[np.int32],
    ids: NDArray[np.int32],
    out_times: NDArray[np.int64],
    actions: NDArray[np.uint8],
) -> Int:
    """Write the histories; return the number of their events, or -1 - e for an event e with an unknown item.

    `history` holds the current anchor's events, oldest first; kind k has those from `lows[k]` on, `counts[k]` in total.
    """
    kinds, widths = len(masks), len(attributes)
    total: Int = 0
    room = quota * kinds + 1
    history, history_ids = np.empty(2 * room, np.int64), np.empty((1 + widths, 2 * room), np.int32)
    counts, lows = np.zeros(kinds, np.int64), np.zeros(kinds, np.int64)
    size: Int = 0
    user: Int = np.int64(-1)
    after: Int = np.int64(-1)  # the current history ends before this event
    for sample in range(len(anchors)):
        anchor = anchors[sample]
        bound = max(offsets[users[sample]], anchor - scan)
        if users[sample] != user or anchor < after or bound >= after:
            user = users[sample]
            size = _reach_back(anchor, bound, flags, masks, quota, any_mask, history, counts, lows)
            for i in range(size):
                if not _look_up(items[history[i]], attributes, history_ids[:, i]):
                    return -1 - history[i]
            after = anchor
        for event in range(after, anchor):
            bits = flags[event] & any_mask
            if bits:
                if size == len(history):
                    size = _compact(history, history_ids, size, bound, flags, masks, quota, counts, lows)
                if not _look_up(items[event], attributes, history_ids[:, size]):
                    return -1 - event
                history[size] = event
                size += 1
                for k in range(kinds):
                    counts[k] += (bits & masks[k]) != 0
        after = anchor
        size = _compact(history, history_ids, size, bound, flags, masks, quota, counts, lows)
        first = max(0, size - max_history)
        length = size - first
        for a in range(1 + widths):
            ids[a, total : total + length] = history_ids[a, first:size]
        for i in range(length):
            event = history[first + i]
            out_times[total + i] = times[event]
            actions[total + i] = flags[event] & any_mask
        lengths[sample] = length
        total += length
    return total


@jit
def longest_history(
    anchors: NDArray[np.int64],
    users: NDArray[np.int64],
    offsets: NDArray[np.int64],
    flags: NDArray[np.uint8],
    masks: NDArray[np.uint8],
    quota: int,
    scan: int,
    max_history: int,
    any_mask: int,
) -> Int:
    """Return the number of events in the longest history; skip anchors that cannot have a longer one."""
    kinds = len(masks)
    history = np.empty(2 * (quota * kinds + 1), np.int64)
    counts, lows = np.zeros(kinds, np.int64), np.zeros(kinds, np.int64)
    longest: Int = 0
    for sample in range(len(anchors)):
        anchor = anchors[sample]
        bound = max(offsets[users[sample]], anchor - scan)
        if min(anchor - bound, quota * kinds, max_history) > longest:
            size = _reach_back(anchor, bound, flags, masks, quota, any_mask, history, counts, lows)
            longest = max(longest, min(size, max_history))
    return longest


@jit
def _look_up(item: int, attributes: NDArray[np.int32], ids: NDArray[np.int32]) -> bool:
    """Write an item and its attributes to `ids`; return whether the item is in its table."""
    if not 0 <= item < attributes.shape[1]:
        return False
    ids[0] = item
    for a in range(len(attributes)):
        ids[1 + a] = attributes[a, item]
    return True


@jit
def _reach_back(
    anchor: Int,
    bound: Int,
    flags: NDArray[np.uint8],
    masks: NDArray[np.uint8],
    quota: int,
    any_mask: int,
    history: NDArray[np.int64],
    counts: NDArray[np.int64],
    lows: NDArray[np.int64],
) -> Int:
    """Write an anchor's events to `history`, `counts` and `lows`, newest first; return the number of events."""
    counts[:], lows[:] = 0, bound
    open_kinds, first, event = len(masks), len(history), anchor
    while event > bound and open_kinds:
        event -= 1
        bits = flags[event] & any_mask
        if bits:
            is_taken = False
            for k in range(len(masks)):
                if bits & masks[k] and counts[k] < quota:
                    is_taken = True
                    counts[k] += 1
                    if counts[k] == quota:
                        lows[k] = event
                        open_kinds -= 1
            if is_taken:
                first -= 1
                history[first] = event
    for i in range(first, len(history)):
        history[i - first] = history[i]
    return len(history) - first


@jit
def _compact(
    history: NDArray[np.int64],
    history_ids: NDArray[np.int32],
    size: Int,
    bound: Int,
    flags: NDArray[np.uint8],
    masks: NDArray[np.uint8],
    quota: int,
    counts: NDArray[np.int64],
    lows: NDArray[np.int64],
) -> Int:
    """Drop events beyond a kind's quota, oldest first, and those before the bound; return the number left."""
    is_full = size > 0 and history[0] < bound
    for k in range(len(masks)):
        is_full |= counts[k] > quota
    if not is_full:
        return size
    new_size = 0
    for i in range(size):
        event = history[i]
        stays = False
        for k in range(len(masks)):
            if flags[event] & masks[k] and event >= lows[k]:
                if event < bound or counts[k] > quota:
                    counts[k] -= 1
                    lows[k] = event + 1
                else:
                    stays = True
        if stays:
            if new_size < i:
                history[new_size] = event
                for a in range(len(history_ids)):
                    history_ids[a, new_size] = history_ids[a, i]
            new_size += 1
    return new_size


@jit
def hash_rows(columns: NDArray[np.int64], rows: int, out: NDArray[np.int32]) -> None:
    """Write out[i] = xxh64 (seed 0) of column i of [n, B], as n little-endian int64s, modulo rows; n is below 4."""
    for i in range(columns.shape[1]):
        total = XXH_5 + np.uint64(8 * len(columns))
        for k in range(len(columns)):
            word = np.uint64(columns[k, i]) * XXH_2
            word = (word << np.uint64(31) | word >> np.uint64(33)) * XXH_1
            total ^= word
            total = (total << np.uint64(27) | total >> np.uint64(37)) * XXH_1 + XXH_4
        total ^= total >> np.uint64(33)
        total *= XXH_2
        total ^= total >> np.uint64(29)
        total *= XXH_3
        total ^= total >> np.uint64(32)
        out[i] = total % np.uint64(rows)
