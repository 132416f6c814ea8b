"""Bags of any size from shards to batches, and ids expanded to bags while they are read."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.config.data import DataConfig, MultiHotConfig, VerifyData
from app.data.batch import Batch
from app.data.split import SplitReader, verify_splits
from app.sharding.planner import multi_hot_features
from common.errors import UserError
from data_prep.dataset.format import MANIFEST_NAME, load_manifest, save_manifest, shard_path
from data_prep.dataset.multi_hot import Distribution
from data_prep.dataset.spelling import Bags, join, pack, unpack
from tests.app.conftest import SMALL, Command
from tests.app.datasets import NUM_EMBEDDINGS, RAGGED_EMBEDDINGS, ragged_rows, write_dataset, write_ragged_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import prepare
from tests.error_lines import refused
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


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_evaluation_pads_with_empty_bags(ragged: Path, world_size: int) -> None:
    manifest, truth = load_manifest(ragged), ragged_rows("val", ROWS["val"])
    row_numbers: list[int] = []
    for rank in range(world_size):
        for batch in SplitReader(ragged, manifest, "val", CONFIG, rank, world_size).eval_batches(48):
            bags = samples(batch)
            assert len(bags) == 48 // world_size
            assert bags[: batch.num_valid] == [truth[row] for row in numbers(batch, ROWS["val"])]
            assert all(row["tags"] == row["genres"] == [] for row in bags[batch.num_valid :])
            row_numbers += numbers(batch, ROWS["val"]).tolist()
    assert sorted(row_numbers) == list(range(ROWS["val"]))


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


def test_a_manifest_says_which_features_are_multi_hot(tmp_path: Path) -> None:
    manifest = write_ragged_dataset(tmp_path, {"train": 10})
    assert load_manifest(tmp_path).ragged == ["tags", "genres"]
    manifest.schema["ragged"] = ["genres", "tags"]
    (tmp_path / MANIFEST_NAME).unlink()
    save_manifest(tmp_path, manifest)
    refused(r"schema\.ragged", load_manifest, tmp_path)
    write_dataset(tmp_path / "one_hot", {"train": 10})
    assert "ragged" not in (tmp_path / "one_hot" / MANIFEST_NAME).read_text()


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


@pytest.mark.parametrize("verify", [VerifyData.auto, VerifyData.always])
def test_altered_bags_are_named(expanded: tuple[Path, DataConfig, Path], verify: VerifyData) -> None:
    root, config, path = expanded
    config = replace(config, verify=verify)
    verify_splits(root, load_manifest(root), ["train"], config)
    set_bag(path, 4, (int(np.load(path).reshape(-1)[4]) + 1) % 50)
    refused(rf"{path}: sha256 is not that of sums.json", verify_splits, root, load_manifest(root), ["train"], config)
    verify_splits(root, load_manifest(root), ["train"], DataConfig())  # which reads no bags
    path.with_name("tables.json").unlink()
    verify_splits(root, load_manifest(root), ["train"], config)  # not there: they are drawn when opened


@pytest.mark.parametrize("value", [50, 1_000_000, -1])
def test_ids_beyond_their_table_are_not_read_from_bags(expanded: tuple[Path, DataConfig, Path], value: int) -> None:
    root, config, path = expanded
    for row in range(50):
        set_bag(path, 3 * row + 2, value)
    with pytest.raises(UserError, match=rf"{path}: a bag holds an id beyond its table of 50 rows"):
        list(SplitReader(root, load_manifest(root), "train", config, 0, 1).train_batches(8, 0, 0, 0))


@pytest.mark.parametrize(("distribution", "seed"), [("uniform", None), ("pareto", 3)])
def test_ids_are_expanded_while_they_are_read(
    dataset: Path, tmp_path: Path, distribution: str, seed: int | None
) -> None:
    sizes = [3, 1, 40, 2]
    expansion = MultiHotConfig(sizes, Distribution(distribution), seed, str(tmp_path / "tables"))
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


def test_multi_hot_choices_that_cannot_be(dataset: Path, ragged: Path, tmp_path: Path) -> None:
    def split(root: Path, *choices: Any) -> None:
        SplitReader(root, load_manifest(root), "val", DataConfig(multi_hot=MultiHotConfig(*choices)), 0, 1)

    refused(r"2 given for 4 features", split, dataset, [1, 2])
    refused(r"2 given for 4 features", multi_hot_features, MultiHotConfig([1, 2]), load_manifest(dataset))
    refused("each at least 1", split, dataset, [1, 2, 0, 3])
    refused("has multi-hot columns of its own", split, ragged, [1, 2, 2, 3])


@pytest.mark.slow("processes")
def test_bags_on_disk_train_as_bags_made_while_reading(run_app: Command, tmp_path: Path) -> None:
    (tmp_path / "day.tsv").write_bytes(oracle.make_rows(600, seed=0))
    expansion = ["data.multi_hot.sizes=mlperf_v2", "data.multi_hot.distribution=pareto", "data.multi_hot.seed=3"]
    common = [f"data.raw={tmp_path}/day.tsv", "data.encoding=hash", "data.max_ind_range=40"]
    for name, more in (("one_hot", []), ("multi_hot", expansion)):
        prepare(*common, *more, f"data.path={tmp_path}/{name}")
    digests = []
    for name, more in (("one_hot", expansion), ("multi_hot", [])):
        run_app("train", *SMALL, f"data.path={name}", f"run.name={name}", "train.max_steps=5", *more)
        digests.append(json.loads((tmp_path / f"runs/{name}/summary.json").read_bytes())["digest"])
    assert digests[0] == digests[1]


LISTS = st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=12)


def bags_of(rows: list[list[int]]) -> Bags:
    return Bags(
        np.array([value for row in rows for value in row], np.int32), np.cumsum([0] + [len(row) for row in rows])
    )


def rows_of(bags: Bags) -> list[list[int]]:
    ends = zip(bags.offsets[:-1], bags.offsets[1:], strict=True)
    return [bags.values[start:stop].tolist() for start, stop in ends]


@given(rows=LISTS, more=LISTS, fixed=st.booleans(), data=st.data())
def test_bags_do_as_lists_do(rows: list[list[int]], more: list[list[int]], fixed: bool, data: st.DataObject) -> None:
    rows = [row + [7] * (4 - len(row)) for row in rows] if fixed else rows
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    order = data.draw(st.lists(st.integers(0, max(0, stop - start - 1)), max_size=20 if stop > start else 0))
    part = bags_of(rows).part(start, stop)
    assert rows_of(part) == rows[start:stop]
    assert rows_of(part.take(np.array(order, np.int64))) == [rows[start:stop][i] for i in order]
    assert rows_of(join([part, bags_of(more)])) == rows[start:stop] + more
    other = [[len(row)] for row in rows[start:stop]]
    values, offsets = pack([part, bags_of(other)])
    assert [rows_of(bags) for bags in unpack(values, offsets, 2)] == [rows[start:stop], other]
