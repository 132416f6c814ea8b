"""Splits by chance and left-out negatives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from data_prep.dataset.manifest import Manifest
from data_prep.pipeline import preprocess
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import config, load_split

SPLITS = ("train", "val", "test")
ROWS = 3000


def make(
    directory: Path, name: str, *overrides: str, raw: str = "rows.tsv"
) -> tuple[Manifest, dict[str, tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]]:
    root = directory / name
    manifest = preprocess(
        config(
            f"data.raw={directory}/{raw}",
            f"data.path={root}",
            "data.encoding=hash",
            "data.max_ind_range=2147483647",
            *overrides,
        )
    )
    verify_dataset(root)
    return manifest, {split: load_split(root, split) for split in SPLITS}


def row_numbers(text: bytes, split: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]) -> list[int]:
    """Which raw rows a split holds, told by their dense and sparse values."""
    labels, dense, sparse = oracle.parse(text)
    keys = {row.tobytes(): i for i, row in enumerate((sparse % (2**31 - 1)).astype(np.int32))}
    assert len(keys) == len(labels)
    numbers = [keys[row.tobytes()] for row in split[2]]
    np.testing.assert_array_equal(split[0], labels[numbers])
    np.testing.assert_array_equal(split[1], oracle.encode_dense(dense[numbers]))
    return numbers


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("splits")
    (path / "rows.tsv").write_bytes(oracle.make_rows(ROWS, seed=11, values=5000))
    return path


@pytest.fixture(scope="module")
def text(directory: Path) -> bytes:
    return (directory / "rows.tsv").read_bytes()


@pytest.mark.slow
def test_random_by_seed(directory: Path, text: bytes) -> None:
    seven = ["data.split.method=random", "data.split.held_out=0.3", "data.split.seed=7"]
    _, splits = make(directory, "a", *seven, "data.chunk_bytes=40000")
    numbers = {split: row_numbers(text, splits[split]) for split in SPLITS}
    assert sorted(n for rows in numbers.values() for n in rows) == list(range(ROWS))
    assert all(rows == sorted(rows) for rows in numbers.values())
    assert abs(len(numbers["train"]) / ROWS - 0.7) < 0.04
    assert abs(len(numbers["val"]) / ROWS - 0.15) < 0.03
    _, whole = make(directory, "b", *seven)
    assert [row_numbers(text, whole[split]) for split in SPLITS] == list(numbers.values())
    _, other = make(directory, "c", *seven[:2], "data.split.seed=8")
    assert row_numbers(text, other["val"]) != numbers["val"]


def test_scikit_learn(directory: Path, text: bytes) -> None:
    overrides = ["data.split.method=scikit_learn", "data.split.held_out=0.25", "data.split.seed=5"]
    _, splits = make(directory, "d", *overrides)
    train, test = train_test_split(np.arange(ROWS), test_size=0.25, random_state=5)
    assert row_numbers(text, splits["train"]) == train.tolist()
    assert row_numbers(text, splits["test"]) == test.tolist()
    assert len(splits["val"][0]) == 0


@pytest.mark.slow
def test_negatives_left_out(directory: Path, text: bytes) -> None:
    overrides = ["data.sampling.negative_drop_rate=0.875", "data.sampling.seed=3"]
    manifest, splits = make(directory, "e", *overrides, "data.chunk_bytes=40000")
    labels = oracle.parse(text)[0]
    numbers = [number for split in SPLITS for number in row_numbers(text, splits[split])]
    assert numbers == sorted(numbers)
    assert set(np.flatnonzero(labels == 1)) <= set(numbers)
    negatives = len(numbers) - labels.sum()
    assert abs(negatives / (labels == 0).sum() - 0.125) < 0.03
    assert manifest.rows == len(numbers)
    assert manifest.label_rate == labels.sum() / len(numbers)
    assert manifest.splits["train"].rows == len(numbers) - len(numbers) // 7
    _, whole = make(directory, "f", *overrides)
    assert row_numbers(text, whole["train"]) == row_numbers(text, splits["train"])
    _, other = make(directory, "g", overrides[0], "data.sampling.seed=4")
    assert row_numbers(text, other["train"]) != row_numbers(text, splits["train"])


@pytest.mark.slow
def test_a_vocabulary_knows_only_the_train_rows_that_are_left(directory: Path, text: bytes) -> None:
    overrides = ["data.split.method=random", "data.sampling.negative_drop_rate=0.5", "data.frequency_threshold=2"]
    _, by_hash = make(directory, "h", *overrides[:2])
    numbers = {split: row_numbers(text, by_hash[split]) for split in SPLITS}
    for order in ("frequency", "first_appearance"):
        root = directory / order
        preprocess(
            config(
                f"data.raw={directory}/rows.tsv",
                f"data.path={root}",
                f"data.vocabulary_order={order}",
                "data.chunk_bytes=90000",
                "data.max_ind_range=30",
                *overrides,
            )
        )
        sparse = oracle.parse(text)[2]
        for column in (0, 13, 25):
            train = sparse[numbers["train"], column]
            ranked = oracle.vocabulary(train, threshold=2, cap=30)
            assert column == 13 or len(ranked) == 29
            if order == "first_appearance":
                ranked = [value for value in dict.fromkeys(train.tolist()) if value in set(ranked)]
            table = {value: i + 1 for i, value in enumerate(ranked)}
            for split in SPLITS:
                expected = [table.get(value, 0) for value in sparse[numbers[split], column].tolist()]
                assert load_split(root, split)[2][:, column].tolist() == expected


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        ("raw", lambda x: x.astype(np.float32)),
        ("log_float32", lambda x: np.log(np.maximum(x, 0).astype(np.float32) + np.float32(1))),
        ("torchrec", lambda x: np.log((x - (x.min() - 2)).astype(np.float32))),
        ("minmax", lambda x: ((x - x.min(axis=0)) / (x.max(axis=0) - x.min(axis=0))).astype(np.float32)),
    ],
)
def test_dense_transforms_with_any_encoding(
    directory: Path, text: bytes, transform: str, expected: Callable[..., Any]
) -> None:
    manifest, splits = make(directory, transform, f"data.dense_transform={transform}", "data.chunk_bytes=90000")
    dense = oracle.parse(text)[1].astype(np.int64)
    dense = expected(np.where(dense == oracle.MISSING, 0, dense))
    actual = np.concatenate([splits[split][1] for split in SPLITS])
    np.testing.assert_allclose(actual, dense, rtol=3e-7, atol=1e-12)
    assert manifest.encoding["dense_transform"] == transform
