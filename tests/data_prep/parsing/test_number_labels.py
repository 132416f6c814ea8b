"""Labels that are numbers: stored as they are, from each form of file."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import UserError
from data_prep.dataset.format import load_manifest, open_shard, shard_path
from data_prep.verify import verify_dataset
from tests.data_prep.tables import make

VOCABULARY = "data.encoding=vocabulary"
SCHEMA = "label: {column: rating, kind: number}\nsparse: [user, item]\n"


def ratings(rows: int) -> dict[str, list[Any]]:
    rng = np.random.default_rng(0)
    return {
        "user": rng.integers(0, 20, rows).astype(str).tolist(),
        "item": rng.integers(0, 30, rows).astype(str).tolist(),
        "rating": (rng.integers(-20, 50, rows) / 8).tolist(),
    }


def test_rows_that_move_keep_their_labels(tmp_path: Path) -> None:
    """A row's label is a function of its user and item, so wherever it goes the three must fit."""
    pairs = [(user, item) for user in range(1, 30) for item in range(1, 20)]
    columns = {
        "user": [str(user) for user, _ in pairs],
        "item": [str(item) for _, item in pairs],
        "rating": [user + item / 32 for user, item in pairs],
    }
    orders = ["data.vocabulary_order=value", "data.split.method=random", "data.chunk_bytes=3000"]
    make(tmp_path, columns, SCHEMA, *orders)
    manifest = load_manifest(tmp_path / "out")
    for name, split in manifest.splits.items():
        for shard in split.shards:
            arrays = open_shard(tmp_path / "out", name, shard, manifest)
            users, items = np.array(arrays.sparse).T
            is_known = (users > 0) & (items > 0)
            labels = np.array(arrays.labels)[:, 0]
            assert is_known.any()
            np.testing.assert_array_equal(labels[is_known], (users + items / np.float32(32))[is_known])


def test_a_label_that_is_not_finite_is_found_in_shards(tmp_path: Path) -> None:
    make(tmp_path, ratings(140), SCHEMA, VOCABULARY)
    manifest = load_manifest(tmp_path / "out")
    [shard] = manifest.splits["train"].shards
    path = shard_path(tmp_path / "out", "train", shard.name, "labels")
    labels = np.load(path)
    labels[3] = np.nan
    np.save(path, labels)
    document = json.loads((tmp_path / "out/manifest.json").read_text())
    files = document["splits"]["train"]["shards"][0]["files"]
    files["labels"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "out/manifest.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match=r"labels\.npy: row 4, column rating: value out of range"):
        verify_dataset(tmp_path / "out")
