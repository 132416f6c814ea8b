"""Logs of events for tests: the reference's few hundred in Yambda's columns, and random ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_prep.dataset.format import load_manifest
from extensions.sequences.events import EventArrays, EventSchema, event_schema, open_events

REFERENCE = Path(__file__).parents[2] / "golden/reference/yambda_tiny.npz"
EVENT_TYPES = np.array(["listen", "like", "dislike", "unlike", "undislike"])
# As extensions/sequences/conf_data/events/yambda.yaml, but for the sizes and times of the reference's tiny run.
TINY_SCHEMA = """
user: uid
item: item_id
time: timestamp
actions:
  listen_plus: {event_type: listen, played_ratio_pct: ">= 50"}
  like: {event_type: like}
  skip: {event_type: listen, played_ratio_pct: "< 50"}
others: {event_type: [dislike, unlike, undislike]}
anchors: {event_type: listen}
label: listen_plus
flag: is_organic
attributes:
  artist: {file: artists.parquet, item: item_id, column: artist_id}
  album: {file: albums.parquet, item: item_id, column: album_id}
crosses:
  user_x_artist: {of: [user, artist], rows: %d}
  user_x_album: {of: [user, album], rows: %d}
  user_x_hour: {of: [user, hour], rows: %d}
  item_x_hour: {of: [item, hour], rows: %d}
  artist_x_hour: {of: [artist, hour], rows: %d}
  user_x_is_organic: {of: [user, is_organic], rows: %d}
  user_x_artist_x_hour: {of: [user, artist, hour], rows: %d}
renumber: false
min_history: 4
drop_last_seconds: 88200
keep_seconds: 259200
"""


def reference() -> dict[str, NDArray[Any]]:
    """The reference's arrays, which tests/golden/reference/README.md describes."""
    with np.load(REFERENCE) as file:
        return dict(file)


def write_reference_log(directory: Path) -> list[str]:
    """Write the reference's raw events as Parquet with their schema; the arguments that name them."""
    z = reference()
    raw = {key.removeprefix("raw_"): values for key, values in z.items() if key.startswith("raw_")}
    ratio = raw["played_ratio_pct"]
    columns = {
        "uid": pa.array(raw["uid"], pa.uint32()),
        "timestamp": pa.array(raw["timestamp"], pa.uint32()),
        "item_id": pa.array(raw["item_id"], pa.uint32()),
        "is_organic": pa.array(raw["is_organic"], pa.uint8()),
        "played_ratio_pct": pa.array(np.maximum(ratio, 0), pa.uint16(), mask=ratio < 0),
        "event_type": pa.array(EVENT_TYPES[raw["event_type"]]).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), directory / "multi_event.parquet", row_group_size=100)
    for kind in ("artist", "album"):
        table = pa.table({"item_id": z["meta_item_id"], f"{kind}_id": z[f"meta_{kind}_id"]})
        pq.write_table(table, directory / f"{kind}s.parquet")
    (directory / "schema.yaml").write_text(TINY_SCHEMA % tuple(z["cross_sizes"]))
    return [f"data.raw={directory}/multi_event.parquet", f"data.schema={directory}/schema.yaml"]


def opened(root: Path) -> tuple[EventSchema, EventArrays]:
    """A finished dataset's schema and arrays."""
    manifest = load_manifest(root)
    return event_schema(root, manifest), open_events(root, manifest)
