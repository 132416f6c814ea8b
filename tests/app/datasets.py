"""Small datasets on disk, written through the format alone, for tests that need no raw rows."""

from pathlib import Path

import numpy as np

from data_prep.codec.values import Bags
from data_prep.dataset.format import Manifest, ShardArrays, Split, save_manifest, write_shard

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
            arrays = ShardArrays(labels[:, None].astype(np.int32), dense.astype(np.float32), sparse.astype(np.int32))
            shards.append(write_shard(root, name, f"{number:05d}", arrays))
        splits[name] = Split(rows=count, label_rate=positives / count if count else None, shards=shards)
    schema = {"label": "label", "dense": [f"int_{i}" for i in range(NUM_DENSE)], "sparse": list(NUM_EMBEDDINGS)}
    num_rows = sum(split.rows for split in splits.values())
    manifest = Manifest(schema, {"name": "test"}, NUM_EMBEDDINGS, splits, [], num_rows, 0.5, "test")
    save_manifest(root, manifest)
    return manifest


RAGGED_EMBEDDINGS = {"user": 40, "tags": 30, "item": 60, "genres": 9}
RAGGED = ["tags", "genres"]  # genres: always two ids a row


def ragged_rows(split: str, rows: int, seed: int = 0) -> list[dict[str, list[int]]]:
    """The bags of each row of a split: tags none to many, genres two, user and item one."""
    rng = np.random.default_rng([seed, len(split)])
    sizes = {"user": 1, "item": 1, "genres": 2}

    def ids(name: str, limit: int) -> list[int]:
        return rng.integers(0, limit, sizes.get(name, int(rng.integers(0, 6)))).tolist()

    return [{name: ids(name, limit) for name, limit in RAGGED_EMBEDDINGS.items()} for _ in range(rows)]


def write_ragged_dataset(root: Path, rows: dict[str, int], shard_rows: int = 70, seed: int = 0) -> Manifest:
    """Splits of `ragged_rows`; label and dense_1 depend on the bags, row r of a split has dense_0 = r / rows."""
    splits = {}
    for name, count in rows.items():
        samples = ragged_rows(name, count, seed)
        labels = np.array([(sum(row["genres"]) + len(row["tags"]) + row["user"][0] % 5) % 3 == 0 for row in samples])
        shards = []
        for number, first in enumerate(range(0, count, shard_rows)):
            part = samples[first : first + shard_rows]
            dense = np.array([[(first + i) / count, len(row["tags"])] for i, row in enumerate(part)], np.float32)
            sparse = np.array([row["user"] + row["item"] for row in part], np.int32)
            by_feature = [[row[feature] for row in part] for feature in RAGGED]
            bags = tuple(
                Bags(np.concatenate(ids, dtype=np.int32, casting="unsafe"), np.cumsum([0, *map(len, ids)]))
                for ids in by_feature
            )
            arrays = ShardArrays(labels[first : first + shard_rows, None].astype(np.int32), dense, sparse, bags)
            shards.append(write_shard(root, name, f"{number:05d}", arrays))
        splits[name] = Split(count, float(labels.mean()) if count else None, shards)
    schema = {"label": "label", "dense": ["int_0", "int_1"], "sparse": list(RAGGED_EMBEDDINGS), "ragged": RAGGED}
    manifest = Manifest(schema, {"name": "test"}, RAGGED_EMBEDDINGS, splits, [], sum(rows.values()), 0.5, "test")
    save_manifest(root, manifest)
    return manifest
