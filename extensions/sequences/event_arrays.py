"""The on-disk contract of a dataset of events (manifest kind `events`): users one by one, their events in time order.

    <root>/events/00000.users.npy    [U] int64    key of each user: a number, or a hash of a text (see `text_key`)
    <root>/events/00000.offsets.npy  [U + 1] int64 user u has events offsets[u] to offsets[u + 1]
    <root>/events/00000.items.npy    [E] int32    ids
    <root>/events/00000.times.npy    [E] uint32   seconds, rounded down
    <root>/events/00000.flags.npy    [E] uint8    see extensions/sequences/event_schema.py
    <root>/vocab/<attribute>.npy     [items] int32 the attribute's id of each item
    <root>/vocab/item.npy            [items - 1] int64 key of item i + 1, if items are renumbered

A user's events are ordered by time in microseconds, which these files do not keep. Events at one time are in the order
of the input.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.dataset.format import REMEDY, Manifest, shard_path, verify_shard
from data_prep.dataset.kinds import kind_of
from data_prep.io.arrays import open_array
from extensions.sequences.event_schema import EVENTS, ITEM, EventSchema

EVENT_DTYPES = {"users": np.int64, "offsets": np.int64, "items": np.int32, "times": np.uint32, "flags": np.uint8}
SHARD_NAME = "00000"
VOCABULARY = "vocab"


class EventArrays(NamedTuple):
    """Arrays of a dataset of events, memory-mapped except for users, offsets and attributes [A, items] int32."""

    users: NDArray[np.int64]
    offsets: NDArray[np.int64]
    items: NDArray[np.int32]
    times: NDArray[np.uint32]
    flags: NDArray[np.uint8]
    attributes: NDArray[np.int32]


def event_schema(root: Path, manifest: Manifest) -> EventSchema:
    """Return the schema of a dataset of events."""
    manifest.require_kind(root, kind_of(EVENTS))
    return EventSchema.from_manifest(manifest.encoding["raw_schema"])


def open_events(root: Path, manifest: Manifest) -> EventArrays:
    """Map the arrays, and check their shapes and what readers rely on (not their checksums)."""
    schema = event_schema(root, manifest)
    [shard] = manifest.splits[EVENTS].shards
    opened = {
        kind: _open(shard_path(root, EVENTS, shard.name, kind), np.dtype(EVENT_DTYPES[kind])) for kind in EVENT_DTYPES
    }
    users, offsets = np.array(opened["users"]), np.array(opened["offsets"])
    rises = len(offsets) == len(users) + 1 and (np.diff(offsets) >= 0).all()
    lengths = {len(opened[kind]) for kind in ("items", "times", "flags")}
    if not rises or offsets[0] != 0 or lengths != {shard.rows} or offsets[-1] != shard.rows:
        raise UserError(f"{root / EVENTS}: its arrays do not fit each other; {REMEDY}")
    items = manifest.num_embeddings["item"]
    attributes = np.zeros((len(schema.attributes), items), np.int32)
    for row, name in zip(attributes, schema.attributes, strict=True):
        table = _open(attribute_path(root, name), np.dtype(np.int32))
        if len(table) != items:
            raise UserError(f"{attribute_path(root, name)}: {len(table)} items of {items}; {REMEDY}")
        row[:] = table
    return EventArrays(users, offsets, opened["items"], opened["times"], opened["flags"], attributes)


def known_items(root: Path, manifest: Manifest, events: EventArrays) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the keys (see `text_key`) of the log's items, ascending, and their ids; may read all events."""
    if event_schema(root, manifest).renumber:
        keys = np.array(_open(attribute_path(root, ITEM), np.dtype(np.int64)))
        return keys, np.arange(1, len(keys) + 1)
    is_known, block = np.zeros(manifest.num_embeddings[ITEM], np.bool_), 1 << 24
    for start in range(0, len(events.items), block):
        is_known[events.items[start : start + block]] = True
    ids = np.flatnonzero(is_known)
    return ids, ids


def attribute_path(root: Path, name: str) -> Path:
    """Return the path of an attribute's ids or, for `item`, of the items' keys."""
    return root / VOCABULARY / f"{name}.npy"


def _open(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        array = open_array(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: file not readable ({error}); {REMEDY}") from error
    if array.dtype != dtype or array.ndim != 1:
        raise UserError(f"{path}: {array.dtype} {array.shape}, but it is {dtype} of one dimension; {REMEDY}")
    return array


def verify_events(root: Path, manifest: Manifest) -> None:
    """Compare the arrays with their checksums, and check the values that readers rely on."""
    [shard] = manifest.splits[EVENTS].shards
    verify_shard(root, EVENTS, shard)
    arrays, limit, block = open_events(root, manifest), manifest.num_embeddings["item"], 1 << 22
    for start in range(0, shard.rows, block):
        items = np.asarray(arrays.items[start : start + block])
        times = np.asarray(arrays.times[start : start + block + 1]).astype(np.int64)
        first = np.searchsorted(arrays.offsets, np.arange(start + 1, start + len(times)))
        begins = arrays.offsets[first] == np.arange(start + 1, start + len(times))
        for kind, bad in (("items", (items < 0) | (items >= limit)), ("times", (np.diff(times) < 0) & ~begins)):
            if bad.any():
                path, event = shard_path(root, EVENTS, shard.name, kind), start + int(bad.argmax())
                raise UserError(f"{path}: event {event}: out of order or range; preprocess again")
