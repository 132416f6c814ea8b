"""Bags of any size from shards to batches, ids expanded to bags, and negatives drawn anew in each epoch."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.config.app_config import validate_new_run
from app.config.data import DataConfig, MultiHotConfig, NegativesConfig, VerifyData
from app.data.batch import Batch
from app.data.split import SplitReader, verify_splits
from common.errors import UserError
from data_prep.dataset.format import Manifest, ShardArrays, Split, load_manifest, save_manifest, shard_path, write_shard
from data_prep.dataset.multi_hot import Distribution
from tests.app.conftest import composed
from tests.app.datasets import NUM_EMBEDDINGS, RAGGED_EMBEDDINGS, ragged_rows, write_dataset, write_ragged_dataset
from tests.error_lines import refused
from tests.once import made_once
from tests.reference import multi_hot_tables

CONFIG = DataConfig(shuffle_block_rows=37, shuffle_window_blocks=3)
ROWS = {"train": 400, "val": 101}


@pytest.fixture(scope="module")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ragged")
    write_ragged_dataset(root, ROWS)
    return root


def samples(batch: Batch) -> list[dict[str, list[int]]]:
    """The bags of each sample, by TorchRec's own reading of the batch."""
    bags = {name: jagged.to_dense() for name, jagged in batch.sparse_features.to_dict().items()}
    return [{name: bag[i].tolist() for name, bag in bags.items()} for i in range(len(batch.labels))]


def numbers(batch: Batch, rows: int) -> NDArray[np.int64]:
    return np.rint(batch.dense_features[: batch.num_valid, 0].numpy() * rows).astype(int)


@pytest.mark.parametrize("world_size", [1, 2])
def test_every_bag_stays_with_its_row(ragged: Path, world_size: int) -> None:
    manifest, truth = load_manifest(ragged), ragged_rows("train", ROWS["train"])
    arguments: dict[str, Any] = {"global_batch_size": 24, "seed": 5, "epoch": 1, "first": 0}
    row_numbers: list[int] = []
    for rank in range(world_size):
        split = SplitReader(ragged, manifest, "train", CONFIG, rank, world_size)
        for batch in split.train_batches(**arguments):
            rows = numbers(batch, ROWS["train"])
            assert samples(batch) == [truth[row] for row in rows]
            assert batch.sparse_features.keys() == list(RAGGED_EMBEDDINGS)
            assert batch.sparse_features.stride() == 24 // world_size
            assert batch.sparse_features.length_per_key() == batch.sparse_features.lengths().view(4, -1).sum(1).tolist()
            row_numbers += rows.tolist()
    assert len(row_numbers) == len(set(row_numbers)) == 400 // 24 * 24
    assert row_numbers != sorted(row_numbers)


@pytest.mark.parametrize(
    ("kind", "place", "value", "message"),
    [
        ("values", 11, 30, r"shard 00001, row \d+, tags, a table of 30 rows: an id of its bag is not in it"),
        ("values", 11, -1, "an id of its bag is not in it"),
        ("values", -1, 9, "row 69, genres, a table of 9 rows: an id of its bag is not in it"),
        ("offsets", 5, 10_000, "row 4, tags: its bag's offsets are not in order"),
        ("offsets", 0, -2, "row 0, tags: its bag's offsets are not in order"),
        ("offsets", -1, 7, r"00001\.values\.npy"),
    ],
)
def test_what_data_prep_would_not_write_is_named(
    tmp_path: Path, kind: str, place: int, value: int, message: str
) -> None:
    manifest = write_ragged_dataset(tmp_path, {"train": 140})
    array = np.load(shard_path(tmp_path, "train", "00001", kind), mmap_mode="r+")
    array[place] = value
    array.flush()
    with pytest.raises(UserError, match=message):
        list(SplitReader(tmp_path, manifest, "train", CONFIG, 0, 1).train_batches(10, 0, 0, 0))


@pytest.fixture
def expanded(tmp_path: Path) -> tuple[Path, DataConfig, Path]:
    """A dataset whose ids are expanded, its configuration, and the bags of cat_0, a table of 50 rows."""
    manifest = write_dataset(tmp_path, {"train": 40, "val": 9})
    config = DataConfig(multi_hot=MultiHotConfig(sizes=[3, 1, 2, 1]))
    SplitReader(tmp_path, manifest, "train", config, 0, 1)
    (path,) = tmp_path.glob("multi_hot/*/0.npy")
    return tmp_path, config, path


def set_bag(path: Path, place: int, value: int) -> None:
    bags = np.load(path, mmap_mode="r+")
    bags.reshape(-1)[place] = value
    bags.flush()


@pytest.mark.parametrize("verify", ["auto", "always"])
def test_altered_bags_are_named(expanded: tuple[Path, DataConfig, Path], verify: VerifyData) -> None:
    root, config, path = expanded
    config = replace(config, verify=verify)
    verify_splits(root, load_manifest(root), ["train"], config)
    set_bag(path, 4, (int(np.load(path).reshape(-1)[4]) + 1) % 50)
    refused(rf"{path}: sha256 is not that of sums.json", verify_splits, root, load_manifest(root), ["train"], config)
    verify_splits(root, load_manifest(root), ["train"], DataConfig())  # which reads no bags
    path.with_name("sums.json").unlink()
    verify_splits(root, load_manifest(root), ["train"], config)  # not there: they are drawn when opened


@pytest.mark.parametrize(("distribution", "seed"), [("uniform", None), ("pareto", 3)])
def test_ids_are_expanded_while_they_are_read(
    dataset: Path, tmp_path: Path, distribution: Distribution, seed: int | None
) -> None:
    sizes = [3, 1, 40, 2]
    expansion = MultiHotConfig(sizes, distribution, seed, str(tmp_path / "tables"))
    manifest = load_manifest(dataset)
    tables = multi_hot_tables(list(NUM_EMBEDDINGS.values()), sizes, distribution, seed or 0)
    config = DataConfig(shuffle_block_rows=97, multi_hot=expansion)
    one_hot, multi_hot = (SplitReader(dataset, manifest, "val", c, 0, 1) for c in (CONFIG, config))
    for one, many in zip(one_hot.eval_batches(200), multi_hot.eval_batches(200), strict=True):
        assert one.num_valid == many.num_valid
        expected = [
            {
                name: tables[f][bag[name][0]].tolist() if row < one.num_valid or sizes[f] == 1 else []
                for f, name in enumerate(NUM_EMBEDDINGS)
            }
            for row, bag in enumerate(samples(one))
        ]
        assert samples(many) == expected


USERS, ITEMS, POSITIVES, DRAWN = 9, 13, 250, 3
DRAWING = DataConfig(
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
    users = np.sort(rng.integers(0, 6, POSITIVES - ITEMS + 1))
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
    config, parts = replace(DRAWING, **changes), []
    for rank in range(world_size):
        split = SplitReader(root, load_manifest(root), "train", config, rank, world_size, drop_last=False)
        batches = split.train_batches(batch, seed, epoch, first)
        parts.append([rows_in(each) for each in batches])
    return [[row for part in of_batch for row in part] for of_batch in zip(*parts, strict=True)]


def rows_in(batch: Any) -> list[tuple[int, ...]]:
    columns = [batch.sparse_features[name].values().tolist() for name in ("row", "user", "item")]
    return list(zip(*columns, batch.labels.int().tolist(), strict=True))[: batch.num_valid]


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (0, 1), (2**62 + 1, 7)])
def test_an_epoch_has_the_rows_of_plain_loops(root: Path, seed: int, epoch: int) -> None:
    batches = read(root, seed, epoch)
    assert len(batches) == -(-POSITIVES * (1 + DRAWN) // 60)
    rows = [row for batch in batches for row in batch]
    assert sorted(rows, key=repr) == sorted(plain_rows(draw_pairs(), seed, epoch), key=repr)
    assert rows != sorted(rows)
    assert all(item == 5 for _, user, item, label in rows if (user, label) == (8, 0))


def test_what_is_drawn_depends_on_seed_and_epoch_alone(root: Path) -> None:
    batches = read(root, 3, 1)
    assert read(root, 3, 1) == batches
    assert read(root, 3, 1, world_size=2) == batches
    assert read(root, 3, 1, first=5) == batches[5:]
    of_others = [
        sorted((row for batch in read(root, 3, 1, batch=size, **changes) for row in batch), key=repr)
        for size, changes in ((60, {}), (17, {"shuffle_block_rows": 100}))
    ]
    assert of_others[0] == of_others[1]
    samples = {each: sorted(row for batch in read(root, *each) for row in batch) for each in ((3, 1), (3, 2), (4, 1))}
    assert samples[3, 1] != samples[3, 2] != samples[4, 1] != samples[3, 1]


MODEL = ["model.dense_arch=[]", "model.interaction=cat", "model.over_arch=[8,1]", "model.embedding_dim=4"]
MODEL += ["runtime.num_threads=1", "train.global_batch_size=64", "train.log_every_steps=1", "train.drop_last=false"]
MODEL += ["train.epochs=2", "eval.split=test", "data.negatives.per_positive=3", "data.negatives.user=user"]
MODEL += ["data.negatives.item=item"]


def test_the_split_is_evaluated_with_the_negatives_of_the_first_epoch(root: Path) -> None:
    split = SplitReader(root, load_manifest(root), "train", DRAWING, 0, 1)
    rows = [row for batch in split.eval_batches(90) for row in rows_in(batch)]
    assert rows == plain_rows(draw_pairs(), 0, 0)
    assert SplitReader(root, load_manifest(root), "test", DRAWING, 0, 1).rows == 120


def test_rows_that_are_no_positives_are_refused(tmp_path: Path) -> None:
    write_positives(tmp_path, draw_pairs(), label=0)
    with pytest.raises(UserError, match=r"data.negatives.per_positive=3: row 0 of the train split has label 0"):
        SplitReader(tmp_path, load_manifest(tmp_path), "train", DRAWING, 0, 1)


def test_a_user_of_all_items_is_refused(tmp_path: Path) -> None:
    write_positives(tmp_path, np.array([(4, item) for item in range(ITEMS)]))
    with pytest.raises(UserError, match=r"data.negatives.item=item: the user with id 4 of user has all 13 rows"):
        SplitReader(tmp_path, load_manifest(tmp_path), "train", DRAWING, 0, 1)


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
