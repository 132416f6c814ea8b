"""Logs of events to datasets of events."""

from pathlib import Path

import numpy as np
import pytest

from data_prep.pipeline import preprocess
from data_prep.verify import verify_dataset
from tests.data_prep.conftest import config
from tests.event_logs import opened, reference, write_reference_log


@pytest.mark.parametrize("chunk_bytes", [2000, 1 << 20], ids=["in many runs", "in one"])
def test_the_store_equals_the_reference_s(tmp_path: Path, chunk_bytes: int) -> None:
    given = write_reference_log(tmp_path)
    manifest = preprocess(config(*given, f"data.path={tmp_path}/out", f"data.chunk_bytes={chunk_bytes}"))
    z, (_, events) = reference(), opened(tmp_path / "out")
    users = z["store_unique_uids"]
    assert events.users.tolist() == users.tolist()
    assert events.offsets.tolist() == [*z["store_user_start"][users], len(z["store_uid"])]
    assert events.items.tolist() == z["store_item_ids"].tolist()
    assert events.times.tolist() == z["store_timestamps"].tolist()
    expected = z["store_is_listen_plus"] | z["store_is_like"] << 1 | z["store_is_skip"] << 2
    expected |= (z["store_event_types"] == 0) << 6 | z["store_is_organic"] << 7
    assert events.flags.tolist() == expected.tolist()
    known = np.zeros((2, events.attributes.shape[1]), np.int32)
    known[:, z["meta_item_id"]] = z["meta_artist_id"], z["meta_album_id"]
    assert events.attributes.tolist() == known.tolist()
    assert manifest.extra["anchors"] == len(z["positions"])
    assert manifest.encoding["order"] == "user, time, place in the input"
    assert verify_dataset(tmp_path / "out").rows == len(z["store_uid"])
