"""The order of rows: a function of seed, epoch and global batch; nothing lost, nothing twice."""

import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.data import DataConfig, VerifyData
from app.data.split import SplitReader, verify_splits
from common.errors import OwnError
from data_prep.dataset.format import MANIFEST_NAME, load_manifest, save_manifest, shard_path
from tests.app.datasets import write_dataset
from tests.error_lines import refused

CONFIG = DataConfig(shuffle_block_rows=97, shuffle_window_blocks=3)


def _rows(
    dataset: Path, name: str, batches: str, rank: int = 0, world_size: int = 1, lanes: int = 1, **arguments: int
) -> list[list[int]]:
    """The numbers of the rows in each batch, known from dense feature 0; padding left out."""
    manifest = load_manifest(dataset)
    split = SplitReader(dataset, manifest, name, replace(CONFIG, shuffle_lanes=lanes), rank, world_size)
    return [
        np.rint(batch.dense_features[: batch.num_valid, 0].numpy() * split.rows).astype(int).tolist()
        for batch in getattr(split, batches)(**arguments)
    ]


def _joined(batches: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(batches))


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("lanes", [1, 3, 8, 100])
def test_global_batches_do_not_depend_on_the_world(dataset: Path, world_size: int, lanes: int) -> None:
    arguments = {"global_batch_size": 64, "seed": 3, "epoch": 1, "first": 0, "lanes": lanes}
    alone = _rows(dataset, "train", "train_batches", **arguments)
    parts = [_rows(dataset, "train", "train_batches", rank, world_size, **arguments) for rank in range(world_size)]
    together = [_joined(batches) for batches in zip(*parts, strict=True)]
    assert together == alone
    row_numbers = _joined(alone)
    assert len(alone) == 2_000 // 64
    assert len(row_numbers) == len(set(row_numbers)) == 31 * 64


def test_the_order_is_the_one_of_earlier_runs(dataset: Path) -> None:
    """Recorded before processes read their own rows only."""
    rows = _rows(dataset, "train", "train_batches", global_batch_size=64, seed=3, epoch=1, first=0)
    assert hashlib.sha256(np.array(rows, np.int64).tobytes()).hexdigest()[:16] == "a1aa9f8b5b9bc883"


@pytest.mark.parametrize("lanes", [1, 8])
def test_a_process_reads_its_own_rows_only(tmp_path: Path, lanes: int) -> None:
    write_dataset(tmp_path, {"train": 700})
    arguments = {"global_batch_size": 70, "seed": 3, "epoch": 1, "first": 0, "lanes": lanes}
    batches = _rows(tmp_path, "train", "train_batches", 0, 2, **arguments)
    path = shard_path(tmp_path, "train", "00000", "dense")
    array = np.load(path)
    array[np.setdiff1d(np.arange(700), _joined(batches)), 1] = np.nan
    np.save(path, array)
    assert _rows(tmp_path, "train", "train_batches", 0, 2, **arguments) == batches
    with pytest.raises(OwnError, match=r"train: shard 00000, row \d+, int_1: is not a finite number"):
        _rows(tmp_path, "train", "train_batches", 1, 2, **arguments)


@pytest.mark.slow("examples")
@given(first=st.integers(0, 31), lanes=st.sampled_from([1, 8]))
def test_going_on_in_mid_epoch_gives_the_rest(dataset: Path, first: int, lanes: int) -> None:
    arguments = {"global_batch_size": 64, "seed": 3, "epoch": 0, "lanes": lanes}
    whole = _rows(dataset, "train", "train_batches", first=0, **arguments)
    assert _rows(dataset, "train", "train_batches", first=first, **arguments) == whole[first:]


def test_epochs_seeds_and_lanes_differ_and_repeat(dataset: Path) -> None:
    orders = [
        tuple(
            _joined(_rows(dataset, "train", "train_batches", lanes=n, global_batch_size=50, seed=s, epoch=e, first=0))
        )
        for s, e, n in [(0, 0, 1), (0, 1, 1), (1, 0, 1), (0, 0, 1), (0, 0, 8), (0, 1, 8)]
    ]
    assert orders[0] == orders[3]
    assert len(set(orders)) == 5
    assert all(sorted(order) == list(range(2_000)) for order in orders)
    position = np.empty(2_000)
    position[list(orders[0])] = np.arange(2_000)
    assert abs(np.corrcoef(position, np.arange(2_000))[0, 1]) < 0.5


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_evaluation_sees_every_row_once(dataset: Path, world_size: int) -> None:
    parts = [
        _joined(_rows(dataset, "val", "eval_batches", rank, world_size, global_batch_size=96))
        for rank in range(world_size)
    ]
    assert sorted(_joined(parts)) == list(range(501))
    assert parts[0][:5] == [0, 1, 2, 3, 4]


def test_batches_hold_what_the_shards_hold(dataset: Path) -> None:
    manifest = load_manifest(dataset)
    split = SplitReader(dataset, manifest, "val", CONFIG, rank=0, world_size=1)
    (batch,) = split.eval_batches(501)
    shards = manifest.splits["val"].shards
    on_disk = {
        kind: np.concatenate([np.load(shard_path(dataset, "val", shard.name, kind)) for shard in shards])
        for kind in ("labels", "dense", "sparse")
    }
    np.testing.assert_array_equal(batch.labels.numpy(), on_disk["labels"][:, 0])
    np.testing.assert_array_equal(batch.dense_features.numpy(), on_disk["dense"])
    for column, feature in enumerate(manifest.num_embeddings):
        np.testing.assert_array_equal(batch.sparse_features[feature].values().numpy(), on_disk["sparse"][:, column])


def test_a_changed_byte_is_named(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path, {"train": 100, "val": 50})
    verify_splits(tmp_path, manifest, ["train", "val"], DataConfig())
    path = shard_path(tmp_path, "val", "00000", "sparse")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    refused(r"val/00000\.sparse\.npy", verify_splits, tmp_path, manifest, ["train", "val"], DataConfig())
    verify_splits(tmp_path, manifest, ["train", "val"], DataConfig(verify=VerifyData.never))


def test_an_id_beyond_its_table_is_named(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path, {"train": 100})
    manifest.num_embeddings = {**manifest.num_embeddings, "cat_2": 100}
    (tmp_path / MANIFEST_NAME).unlink()
    save_manifest(tmp_path, manifest)
    arguments = {"global_batch_size": 10, "seed": 0, "epoch": 0, "first": 0}
    message = r"train: shard 00000, row \d+, cat_2, a table of 100 rows: the id is not in it"
    refused(message, _rows, tmp_path, "train", "train_batches", **arguments)


def test_a_split_that_is_not_there_is_named(dataset: Path) -> None:
    refused("no split 'tst'; it has train, val, test", _rows, dataset, "tst", "eval_batches", global_batch_size=10)
