"""`clickwork.Dataset`: schema, ids and values, NumPy's batches, and torch's in the order of training."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.utils.data import DataLoader

import clickwork
from app.data.batch import Batch
from app.runtime.platform import Runtime
from app.training import session
from tests.clickwork.conftest import ROWS, Trained, train_on_table
from tests.data_prep.conftest import prepare
from tests.data_prep.tables import HASHED, make

TRAIN_ROWS = 772


@pytest.fixture(scope="module")
def dataset(trained: Trained) -> clickwork.Dataset:
    return clickwork.Dataset(trained.directory / "data")


def prepared(directory: Path, trained: Trained, *keys: str) -> clickwork.Dataset:
    of_rows = [f"data.raw={trained.directory}/raw.csv", f"data.schema={trained.directory}/schema.yaml"]
    prepare(*of_rows, f"data.path={directory}/data", *keys)
    return clickwork.Dataset(directory / "data")


@pytest.fixture(scope="module")
def with_texts(tmp_path_factory: pytest.TempPathFactory, trained: Trained) -> clickwork.Dataset:
    keys = ["data.split.method=fraction", "data.keep_texts=true"]
    return prepared(tmp_path_factory.mktemp("texts"), trained, *keys)


def test_schema_and_splits(trained: Trained, dataset: clickwork.Dataset) -> None:
    assert dataset.schema.label == "stars"
    assert dataset.schema.dense == ("age", "price")
    assert dataset.schema.sparse == ("user", "item", "genres")
    assert dataset.schema.ragged == ("genres",)
    labels = np.array([row["stars"] >= 4 for row in trained.rows])
    assert {name: split.rows for name, split in dataset.splits.items()} == {"train": 772, "val": 64, "test": 64}
    assert dataset.splits["train"].label_rate == pytest.approx(labels[:TRAIN_ROWS].mean())
    assert dataset.splits["test"].label_rate == pytest.approx(labels[-64:].mean())
    assert repr(dataset).endswith("/data': train 772, val 64, test 64 rows)")


@pytest.mark.medium
@pytest.mark.parametrize("batch_size", [1, 100, 772, 5000])
def test_batches_are_the_rows_in_order(trained: Trained, dataset: clickwork.Dataset, batch_size: int) -> None:
    batches = list(dataset.batches("train", batch_size))
    assert [len(batch.labels) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    rows = trained.rows[:TRAIN_ROWS]
    joined = [np.concatenate([part[place] for part in batches]) for place in range(3)]
    assert joined[0].tolist() == [row["stars"] >= 4 for row in rows]
    ids_of_columns = [dataset.ids(name, [row[name] for row in rows]) for name in ("user", "item")]
    assert joined[2].tolist() == np.stack(ids_of_columns, axis=1).tolist()
    genres = iter(
        part.bags["genres"].values[start:stop].tolist()
        for part in batches
        for start, stop in zip(part.bags["genres"].offsets[:-1], part.bags["genres"].offsets[1:], strict=True)
    )
    for row, ids in zip(rows, genres, strict=True):
        assert ids == dataset.ids("genres", row["genres"]).tolist()
    assert joined[1].dtype == np.float32
    ages = np.array([row["age"] or 0 for row in rows])
    assert joined[1][:, 0] == pytest.approx(np.log1p(ages), rel=1e-6)


def test_values_and_ids_are_each_others_inverse(trained: Trained, with_texts: clickwork.Dataset) -> None:
    for name in ("user", "item"):
        values = sorted({str(row[name]) for row in trained.rows[:TRAIN_ROWS]})
        ids = with_texts.ids(name, values)
        assert sorted(ids.tolist()) == list(range(1, len(values) + 1))
        assert with_texts.values(name, ids) == values
        assert with_texts.values(name) == [None, *[values[place] for place in np.argsort(ids)]]
    assert with_texts.ids("item", [3, "3", 3.0, "new", None]).tolist()[3:] == [-1, -1]
    assert len(set(with_texts.ids("item", [3, "3", 3.0]).tolist())) == 1
    assert with_texts.values("user", [-1, 0, 10_000]) == [None, None, None]


def test_ids_that_are_hashes_have_no_values(tmp_path: Path, trained: Trained) -> None:
    dataset = prepared(tmp_path, trained, "data.encoding=hash", "data.max_ind_range=100")
    assert dataset.ids("item", [7, 123]).tolist() == [7, 23]
    with pytest.raises(clickwork.Error, match="an id of item has no value of its own; prepare it with data"):
        dataset.values("item", [7])


def equal(item: Any, batch: Batch) -> bool:
    dense, sparse, labels = item
    return (
        torch.equal(dense, batch.dense_features)
        and torch.equal(labels, batch.labels)
        and sparse.keys() == batch.sparse_features.keys()
        and torch.equal(sparse.values(), batch.sparse_features.values())
        and torch.equal(sparse.lengths(), batch.sparse_features.lengths())
    )


@pytest.fixture(scope="module")
def read(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, list[Batch]]:
    """A run of two epochs, and the batches that its loop has read."""
    read: list[Batch] = []
    batches = session.DataLoader.batches

    def recorded(self: session.DataLoader, epoch: int, first: int) -> Iterator[Batch]:
        for batch in batches(self, epoch, first):
            read.append(batch)
            yield batch

    keys = ["train.max_steps=null", "train.epochs=2", "train.seed=7", "train.drop_last=false"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session.DataLoader, "batches", recorded)
        trained = train_on_table(runtime, tmp_path_factory.mktemp("read"), *keys)
    return trained, read


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_torchs_batches_are_those_that_training_reads(read: tuple[Trained, list[Batch]], workers: int) -> None:
    trained, batches = read
    rows = clickwork.Dataset(trained.directory / "data").torch(run=trained.run)
    assert len(batches) == 2 * len(rows) == 2 * 13
    loader = DataLoader(rows, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    for epoch in range(2):
        rows.set_epoch(epoch)
        items = list(loader)
        assert [len(labels) for *_, labels in items] == [64] * 12 + [4]
        assert all(
            equal(item, batch) for item, batch in zip(items, batches[13 * epoch : 13 * (epoch + 1)], strict=True)
        )


def test_keywords_take_the_place_of_a_runs_values(read: tuple[Trained, list[Batch]]) -> None:
    trained, batches = read
    dataset = clickwork.Dataset(trained.directory / "data")
    other = dataset.torch(run=trained.run, seed=8, drop_last=True)
    assert len(other) == 12
    assert not any(equal(item, batch) for item, batch in zip(other, batches, strict=False))
    halves = [list(dataset.torch(run=trained.run, drop_last=True, rank=rank, world_size=2)) for rank in range(2)]
    for first, second, batch in zip(*halves, batches, strict=False):
        assert torch.equal(torch.cat([first[0], second[0]]), batch.dense_features)


@pytest.mark.parametrize("mode", [True, "layout"])
def test_processes_share_the_samples_without_padding(trained: Trained, tmp_path: Path, mode: Any) -> None:
    plain = yaml.safe_load((trained.run / "config.yaml").read_text())
    plain["train"].update(deterministic=mode, micro_batch_size=24 if mode == "layout" else None)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(plain))
    dataset = clickwork.Dataset(trained.directory / "data")
    shares = [
        list(dataset.torch(batch_size=100, run=tmp_path, drop_last=False, rank=r, world_size=3)) for r in range(3)
    ]
    whole = list(dataset.torch(batch_size=100, run=trained.run, drop_last=False))
    sizes = {tuple(len(labels) for *_, labels in items) for items in zip(*shares, strict=True)}
    assert sizes == ({(48, 48, 4), (24, 24, 24)} if mode == "layout" else {(34, 34, 32), (24, 24, 24)})
    for items, (dense, sparse, labels) in zip(zip(*shares, strict=True), whole, strict=True):
        assert torch.equal(torch.cat([item[0] for item in items]), dense)
        assert torch.equal(torch.cat([item[2] for item in items]), labels)
        for name in dataset.schema.sparse:
            bags = [bag.tolist() for item in items for bag in item[1][name].to_dense()]
            assert bags == [bag.tolist() for bag in sparse[name].to_dense()]


def test_other_splits_are_read_in_their_order(trained: Trained, dataset: clickwork.Dataset) -> None:
    items = list(dataset.torch("test", 50))
    assert torch.cat([labels for *_, labels in items]).tolist() == [row["stars"] >= 4 for row in trained.rows[-64:]]
    dense, sparse, _ = items[0]
    assert dense.shape == (50, 2)
    assert sparse["genres"].lengths().tolist() == [len(row["genres"]) for row in trained.rows[ROWS - 64 : ROWS - 14]]


def test_what_a_dataset_refuses(tmp_path: Path, dataset: clickwork.Dataset) -> None:
    def first_batch(size: int) -> None:
        next(dataset.batches("test", size))

    for call, message in (
        (lambda: clickwork.Dataset(tmp_path), "no dataset here"),
        (lambda: first_batch(0), "batch_size=0: must be at least 1"),
        (dataset.torch, "batch_size: give it, or run=RUN"),
        (lambda: dataset.torch("test", run=tmp_path), "not a run's directory"),
        (lambda: dataset.ids("age", [1]), "no sparse column 'age'; it has user, item, genres"),
        (lambda: dataset.ids("user", "u12"), r"values of user: str, not a list or an array; give \['u12'\] for one"),
        (lambda: dataset.values("item", ["a"]), "ids of item: not whole numbers; give a list or an array of them"),  # type: ignore[list-item]
    ):
        with pytest.raises(clickwork.Error, match=message):
            call()


def test_batches_have_the_sample_weights(tmp_path: Path) -> None:
    table = {"label": [0, 1] * 200, "price": [row / 8 for row in range(400)], "user": ["a", "a", "b", "b"] * 100}
    schema = "label: label\ndense: [price]\nsparse: [user]\nweight: weight\n"
    make(tmp_path, {**table, "weight": table["price"]}, schema, *HASHED)
    data = clickwork.Dataset(tmp_path / "out")
    for rows in data.batches("train", 100):
        assert rows.weights is not None
        np.testing.assert_array_equal(rows.weights, rows.dense[:, 0])
    for dense, _, labels, weights in data.torch("train", 70, drop_last=False):
        assert len(labels) == len(weights)
        np.testing.assert_array_equal(weights, dense[:, 0])
