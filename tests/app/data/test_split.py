"""The order of rows and their way to a device: a function of seed, epoch and global batch; nothing lost or twice."""

from pathlib import Path

import numpy as np
import pytest
import torch

from app.config.data import DataConfig
from app.data.batch import BatchBuilder, RowArrays
from app.data.split import SplitReader
from common.errors import OwnError
from data_prep.codec.values import Bags
from data_prep.dataset.format import load_manifest, shard_path
from tests.app.datasets import write_dataset

CONFIG = DataConfig(shuffle_block_rows=97, shuffle_window_blocks=3)


def read_rows(root: Path, rank: int, processes: int, batch: int, seed: int, epoch: int) -> list[int]:
    """The numbers of the rows of an epoch in their order, known from dense feature 0."""
    split = SplitReader(root, load_manifest(root), "train", CONFIG, rank, processes)
    numbers = [each.dense_features[: each.num_valid, 0] for each in split.train_batches(batch, seed, epoch, 0)]
    return np.rint(torch.cat(numbers).numpy() * split.rows).astype(int).tolist()


def test_a_process_reads_its_own_rows_only(tmp_path: Path) -> None:
    write_dataset(tmp_path, {"train": 700})
    rows = read_rows(tmp_path, 0, 2, 70, 3, 1)
    path = shard_path(tmp_path, "train", "00000", "dense")
    array = np.load(path)
    array[np.setdiff1d(np.arange(700), rows), 1] = np.nan
    np.save(path, array)
    assert read_rows(tmp_path, 0, 2, 70, 3, 1) == rows
    with pytest.raises(OwnError, match=r"train: shard 00000, row \d+, int_1: is not a finite number"):
        read_rows(tmp_path, 1, 2, 70, 3, 1)


def test_epochs_and_seeds_differ_and_repeat(dataset: Path) -> None:
    cases = [(0, 0), (0, 1), (1, 0), (0, 0)]  # seed, epoch
    orders = [tuple(read_rows(dataset, 0, 1, 50, seed, epoch)) for seed, epoch in cases]
    assert orders[0] == orders[3]
    assert len(set(orders)) == 3
    assert all(sorted(order) == list(range(2_000)) for order in orders)
    position = np.empty(2_000)
    position[list(orders[0])] = np.arange(2_000)
    assert abs(np.corrcoef(position, np.arange(2_000))[0, 1]) < 0.5


def test_rows_of_the_same_features_have_the_same_number() -> None:
    sparse = np.array([[1], [1], [1], [1], [2], [1], [1], [1], [1]], np.int32)
    dense = np.array([[0.5, 1]] * 8 + [[1, 0.5]], np.float32)
    of_a = [[3, 4], [4, 3], [3], [3, 3], [3, 4], [], [3], [3, 4], [3, 4]]
    of_b = [[], [], [4], [4], [], [3, 4], [4], [], []]
    bags = tuple(
        Bags(np.array([each for row in rows for each in row], np.int32), np.cumsum([0, *map(len, rows)]))
        for rows in (of_a, of_b)
    )
    rows = RowArrays(np.zeros(9, np.float32), dense, sparse, bags)
    keys = BatchBuilder(["one", "a", "b"], 9, ["a", "b"], None).batch(rows).row_keys()
    assert keys.dtype == np.int64
    expected = list(zip(dense.tolist(), sparse[:, 0].tolist(), map(sorted, of_a), map(sorted, of_b), strict=True))
    for first in range(9):
        for second in range(9):
            assert (keys[first] == keys[second]) == (expected[first] == expected[second])
