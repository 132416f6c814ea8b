"""Negatives drawn anew in each epoch, against plain loops; the same for any processes, batches and resumptions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.config.app_config import validate_new_run
from app.config.data import DataConfig, NegativesConfig
from app.data.split import SplitReader
from common.errors import UserError
from data_prep.dataset.format import Manifest, ShardArrays, Split, load_manifest, save_manifest, write_shard
from tests.app.conftest import Refusal, composed
from tests.app.datasets import write_ragged_dataset
from tests.once import made_once

USERS, ITEMS, ROWS, DRAWN = 9, 13, 250, 3
CONFIG = DataConfig(
    shuffle_block_rows=37, shuffle_window_blocks=3, negatives=NegativesConfig(DRAWN, user="user", item="item")
)


def write_positives(root: Path, pairs: NDArray[np.int64], label: int = 1) -> None:
    """Pairs of user and item as the train split; a context beside them that has the row's number; and a test split."""
    rng = np.random.default_rng(1)
    splits = {}
    for name in ("train", "val", "test"):
        rows = len(pairs) if name == "train" else 120 if name == "test" else 0
        sparse = np.stack([np.arange(rows), rng.integers(0, USERS, rows), rng.integers(0, ITEMS, rows)], axis=1).astype(
            np.int32
        )
        labels = (rng.random((rows, 1)) < 0.2).astype(np.int32)
        if name == "train":
            sparse[:, 1:], labels[:] = pairs, label
        arrays = ShardArrays(labels, np.empty((rows, 0), np.float32), sparse)
        half = rows // 2
        parts = [arrays.part(0, half), arrays.part(half, rows)] if rows else []
        shards = [write_shard(root, name, f"{number:05d}", part) for number, part in enumerate(parts)]
        splits[name] = Split(rows, None, shards)
    schema: dict[str, Any] = {"label": "label", "dense": [], "sparse": ["row", "user", "item"]}
    tables = {"row": 300, "user": USERS, "item": ITEMS}
    save_manifest(root, Manifest(schema, {"name": "test"}, tables, splits, [], len(pairs) + 120, 1.0, "test"))


def draw_pairs() -> NDArray[np.int64]:
    """Pairs in the order of users, some of them twice, of items in different numbers; user 8 lacks one item alone."""
    rng = np.random.default_rng(0)
    users = np.sort(rng.integers(0, 6, ROWS - ITEMS + 1))
    items = np.minimum(rng.geometric(0.2, len(users)) - 1, 9)
    last = [(8, item) for item in range(ITEMS) if item != 5]
    return np.concatenate([np.stack([users, items], axis=1), last])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "positives", lambda directory: write_positives(directory, draw_pairs()))


def splitmix64(state: int) -> int:
    """Vigna's, in Python's integers."""
    value = (state + 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


def plain_rows(pairs: NDArray[np.int64], seed: int, epoch: int) -> list[tuple[int, int, int, int]]:
    """Row, user, item and label of each row of an epoch, in the order of the rows."""
    state, rows = int(np.random.SeedSequence([seed, epoch, 3]).generate_state(1, np.uint64)[0]), []
    items_of = {user: {int(item) for other, item in pairs if other == user} for user in range(USERS)}
    for row, (user, item) in enumerate(pairs.tolist()):
        rows.append((row, user, item, 1))
        free = [other for other in range(ITEMS) if other not in items_of[user]]
        for draw in range(1, 1 + DRAWN):
            number = row * (1 + DRAWN) + draw
            rows.append((row, user, free[splitmix64(state + number * 0x9E3779B97F4A7C15) % len(free)], 0))
    return rows


def read(
    root: Path, seed: int, epoch: int, world_size: int = 1, batch: int = 60, first: int = 0, **changes: Any
) -> list[list[tuple[int, ...]]]:
    """The rows of each global batch, those of all processes one after the other."""
    config, parts = replace(CONFIG, **changes), []
    for rank in range(world_size):
        split = SplitReader(root, load_manifest(root), "train", config, rank, world_size, drop_last=False)
        batches = split.train_batches(batch, seed, epoch, first)
        parts.append([rows_of(each) for each in batches])
    return [[row for part in of_batch for row in part] for of_batch in zip(*parts, strict=True)]


def rows_of(batch: Any) -> list[tuple[int, ...]]:
    columns = [batch.sparse_features[name].values().tolist() for name in ("row", "user", "item")]
    return list(zip(*columns, batch.labels.int().tolist(), strict=True))[: batch.num_valid]


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (0, 1), (2**62 + 1, 7)])
def test_an_epoch_has_the_rows_of_plain_loops(root: Path, seed: int, epoch: int) -> None:
    batches = read(root, seed, epoch)
    assert len(batches) == -(-ROWS * (1 + DRAWN) // 60)
    rows = [row for batch in batches for row in batch]
    assert sorted(rows, key=repr) == sorted(plain_rows(draw_pairs(), seed, epoch), key=repr)
    assert rows != sorted(rows)
    assert all(item == 5 for _, user, item, label in rows if (user, label) == (8, 0))


def test_without_shuffling_rows_are_followed_by_their_negatives(root: Path) -> None:
    rows = [row for batch in read(root, 4, 2, shuffle=False) for row in batch]
    assert rows == plain_rows(draw_pairs(), 4, 2)


def test_what_is_drawn_depends_on_seed_and_epoch_alone(root: Path) -> None:
    batches = read(root, 3, 1)
    assert read(root, 3, 1) == batches
    assert read(root, 3, 1, world_size=2) == batches
    assert read(root, 3, 1, first=5) == batches[5:]
    of_others = [
        sorted((row for batch in read(root, 3, 1, batch=size, **changes) for row in batch), key=repr)
        for size, changes in ((60, {}), (17, {"shuffle_block_rows": 100}), (60, {"shuffle_lanes": 4}))
    ]
    assert of_others[0] == of_others[1] == of_others[2]
    samples = {each: sorted(row for batch in read(root, *each) for row in batch) for each in ((3, 1), (3, 2), (4, 1))}
    assert samples[3, 1] != samples[3, 2] != samples[4, 1] != samples[3, 1]


MODEL = ["model.dense_arch=[]", "model.interaction=cat", "model.over_arch=[8,1]", "model.embedding_dim=4"]
MODEL += ["runtime.num_threads=1", "train.global_batch_size=64", "train.log_every_steps=1", "train.drop_last=false"]
MODEL += ["train.epochs=2", "eval.split=test", "data.negatives.per_positive=3", "data.negatives.user=user"]
MODEL += ["data.negatives.item=item"]
STEPS = 2 * -(-ROWS * (1 + DRAWN) // 64)


def test_the_split_is_evaluated_with_the_negatives_of_the_first_epoch(root: Path) -> None:
    split = SplitReader(root, load_manifest(root), "train", CONFIG, 0, 1)
    rows = [row for batch in split.eval_batches(90) for row in rows_of(batch)]
    assert rows == plain_rows(draw_pairs(), 0, 0)
    assert SplitReader(root, load_manifest(root), "test", CONFIG, 0, 1).rows == 120


def test_rows_that_are_no_positives_are_refused(tmp_path: Path) -> None:
    write_positives(tmp_path, draw_pairs(), label=0)
    with pytest.raises(UserError, match=r"data.negatives.per_positive=3: row 0 of the train split has label 0"):
        SplitReader(tmp_path, load_manifest(tmp_path), "train", CONFIG, 0, 1)


def test_a_user_of_all_items_is_refused(tmp_path: Path) -> None:
    write_positives(tmp_path, np.array([(4, item) for item in range(ITEMS)]))
    with pytest.raises(UserError, match=r"data.negatives.item=item: the user with id 4 of user has all 13 rows"):
        SplitReader(tmp_path, load_manifest(tmp_path), "train", CONFIG, 0, 1)


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (["data.negatives.item=null"], "data.negatives.per_positive=3: needs two columns; give data.negatives.user="),
        (["data.negatives.item=user"], "data.negatives.per_positive=3: needs two columns; give data.negatives.user="),
        (["data.negatives.per_positive=0"], "data.negatives.per_positive=0: must be at least 1"),
        (["data.negatives.per_positive=null"], "data.negatives.user=user: has no effect with"),
    ],
)
def test_keys_that_cannot_work_are_refused(overrides: list[str], fault: str) -> None:
    with pytest.raises(UserError) as error:
        validate_new_run(composed(*MODEL, *overrides, "run.name=x"))
    assert str(error.value).startswith(fault)


@pytest.mark.parametrize(
    ("item", "fault"),
    [
        ("itm", "error: data.negatives.item=itm: is not a categorical column of data; give one of user, item"),
        ("tags", "error: data.negatives.item=tags: has bags of ids; give one of user, item"),
        ("item", "error: data.negatives.per_positive=3: row 1 of the train split has label 0"),
    ],
)
def test_columns_that_cannot_be_drawn_are_refused(
    refused_command: Refusal, tmp_path: Path, item: str, fault: str
) -> None:
    write_ragged_dataset(tmp_path / "data", {"train": 200, "val": 60, "test": 60})
    keys = [*MODEL, "model.dense_arch=[4]", "data.path=data", f"data.negatives.item={item}", "run.name=x"]
    assert fault in refused_command("train", *keys)


def test_columns_beside_user_and_item_are_named(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    SplitReader(root, load_manifest(root), "train", CONFIG, 0, 1)
    assert "data.negatives: drawn rows have their positive's values of row" in caplog.text
