"""Histories against a plain reading of their definition, however anchors follow each other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extensions.sequences.event_log import HistoryRule, gather_histories, hash_rows
from extensions.sequences.events import EventArrays


def random_events(rng: np.random.Generator, users: int, length: int, kinds: int) -> EventArrays:
    counts = rng.integers(0, length + 1, users)
    offsets = np.append(0, np.cumsum(counts))
    total = int(offsets[-1])
    times = np.concatenate([np.sort(rng.integers(0, 90, count)) for count in counts]).astype(np.uint32)
    flags = rng.integers(0, 1 << kinds, total) | rng.integers(0, 2, total) << 6
    items = rng.integers(0, 20, total).astype(np.int32)
    attributes = rng.integers(0, 9, (2, 20)).astype(np.int32)
    return EventArrays(np.arange(users), offsets, items, times, flags.astype(np.uint8), attributes)


def by_definition(
    events: EventArrays, anchor: int, start: int, masks: list[int], quota: int, scan: int, most: int
) -> list[int]:
    """Positions: the last `quota` of each kind among the `scan` events before the anchor, merged, the last `most`."""
    past = range(max(start, anchor - scan), anchor)
    positions = {event for mask in masks for event in [each for each in past if events.flags[each] & mask][-quota:]}
    return sorted(positions)[-most:]


@pytest.mark.medium
@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    kinds=st.integers(1, 6),
    quota=st.integers(1, 6),
    scan=st.integers(1, 30),
    most=st.integers(1, 40),
    joined=st.booleans(),
    order=st.sampled_from(["user", "shuffled", "backwards"]),
)
def test_histories(seed: int, kinds: int, quota: int, scan: int, most: int, joined: bool, order: str) -> None:
    rng = np.random.default_rng(seed)
    events = random_events(rng, 6, 40, kinds)
    masks = [(1 << kinds) - 1] if joined else [1 << bit for bit in range(kinds)]
    anchors = np.flatnonzero(events.flags & 64)
    anchors = {"user": anchors, "shuffled": rng.permutation(anchors), "backwards": anchors[::-1]}[order]
    users = np.searchsorted(events.offsets, anchors, "right") - 1
    histories = gather_histories(events, anchors, users, HistoryRule(np.array(masks, np.uint8), quota, scan, most))
    expected = [
        by_definition(events, int(anchor), int(events.offsets[user]), masks, quota, scan, most)
        for anchor, user in zip(anchors, users, strict=True)
    ]
    assert histories.lengths.tolist() == [len(each) for each in expected]
    positions = np.concatenate([np.zeros(0, np.int64), *map(np.array, expected)]).astype(np.int64)
    items = events.items[positions]
    assert histories.ids.tolist() == [items.tolist(), *events.attributes[:, items].tolist()]
    assert histories.times.tolist() == events.times[positions].tolist()
    assert histories.actions.tolist() == (events.flags[positions] & ((1 << kinds) - 1)).tolist()


def test_hashes_are_xxh64() -> None:
    """Against the published digests of eight bytes; of two and three ids the reference's samples say it."""
    for word, digest in ((0, 0x34C96ACDCADB1BBB), (1, 0x9F29CB17A2A49995)):
        out = np.empty(1, np.int32)
        hash_rows(np.array([[word]]), 2**31 - 1, out)
        assert out[0] == digest % (2**31 - 1)
