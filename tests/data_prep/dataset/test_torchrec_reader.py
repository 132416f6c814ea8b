"""TorchRec's own reader opens our shards as they are."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.data_prep.conftest import load_split, prepare, write_rows


@pytest.mark.medium
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # it maps files read-only
@pytest.mark.parametrize("mmap_mode", [False, True])
def test_batches_are_our_rows(tmp_path: Path, criteo: ModuleType, mmap_mode: bool) -> None:
    root = tmp_path / "out"
    manifest = prepare(*write_rows(tmp_path, 300, seed=6), "data.chunk_bytes=30000")
    shards = [f"{root}/train/{shard.name}" for shard in manifest.splits["train"].shards]
    assert len(shards) > 1
    paths = {f"{kind}_paths": [f"{shard}.{kind}.npy" for shard in shards] for kind in ("dense", "sparse", "labels")}
    hashes = [2**31 - 1] * 26  # TorchRec 1.4 cannot do without; no id is as large
    options = {"batch_size": 32, "rank": 0, "world_size": 1, "mmap_mode": mmap_mode, "hashes": hashes}
    batches = list(criteo.InMemoryBinaryCriteoIterDataPipe(stage="train", **paths, **options))
    labels, dense, sparse = load_split(root, "train")
    np.testing.assert_array_equal(np.concatenate([b.labels.numpy() for b in batches]), labels)
    np.testing.assert_array_equal(np.concatenate([b.dense_features.numpy() for b in batches]), dense)
    ids = [b.sparse_features.values().numpy().reshape(26, -1).T for b in batches]
    np.testing.assert_array_equal(np.concatenate(ids), sparse)
    assert batches[0].sparse_features.keys() == manifest.schema["sparse"]
