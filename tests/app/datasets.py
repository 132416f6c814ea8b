"""Small datasets on disk, written through the format alone, for tests that need no raw rows."""

from pathlib import Path

import numpy as np

from data_prep.format import Manifest, ShardArrays, Split, save_manifest, write_shard

NUM_EMBEDDINGS = {"cat_0": 50, "cat_1": 7, "cat_2": 300, "cat_3": 4}
NUM_DENSE = 5


def write_dataset(root: Path, rows: dict[str, int] | None = None, shard_rows: int = 700, seed: int = 0) -> Manifest:
    """Splits of the given rows whose labels depend on features; row r of a split has dense_0 = r."""
    rng = np.random.default_rng(seed)
    effects = [rng.normal(size=count) for count in NUM_EMBEDDINGS.values()]
    splits = {}
    for name, count in (rows or {"train": 2_000, "val": 501, "test": 333}).items():
        shards, positives = [], 0
        for number, first in enumerate(range(0, count, shard_rows)):
            size = min(shard_rows, count - first)
            sparse = np.stack([rng.integers(0, n, size) for n in NUM_EMBEDDINGS.values()], axis=1)
            dense = rng.normal(size=(size, NUM_DENSE))
            logits = sum(effect[sparse[:, i]] for i, effect in enumerate(effects)) + dense[:, 1]
            labels = rng.random(size) < 1 / (1 + np.exp(-logits))
            dense[:, 0] = np.arange(first, first + size) / count
            positives += int(labels.sum())
            arrays = ShardArrays(labels[:, None], dense, sparse)
            shards.append(write_shard(root, name, f"{number:05d}", arrays))
        splits[name] = Split(rows=count, label_rate=positives / count if count else None, shards=shards)
    manifest = Manifest(
        schema={
            "label": "label",
            "dense": [f"int_{i}" for i in range(NUM_DENSE)],
            "sparse": list(NUM_EMBEDDINGS),
        },
        encoding={"name": "test"},
        num_embeddings=NUM_EMBEDDINGS,
        splits=splits,
        sources=[],
        rows=sum(split.rows for split in splits.values()),
        label_rate=0.5,
        tool_version="test",
    )
    save_manifest(root, manifest)
    return manifest
