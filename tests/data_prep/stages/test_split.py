"""Splits by chance and left-out negatives: the same rows in chunks of any size, others by another seed.

tests/oracles/test_preparation.py has which rows these may be, and what becomes of them.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from data_prep.dataset.manifest import Manifest
from data_prep.pipeline import preprocess
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import config, load_split

SPLITS = ("train", "val", "test")
ROWS = 1500


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


def row_numbers(parsed: tuple[NDArray[Any], ...], split: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]) -> list[int]:
    """Which of the parsed raw rows a split holds, told by their dense and sparse values."""
    labels, dense, sparse = parsed
    keys = {row.tobytes(): i for i, row in enumerate((sparse % (2**31 - 1)).astype(np.int32))}
    assert len(keys) == len(labels)
    numbers = [keys[row.tobytes()] for row in split[2]]
    np.testing.assert_array_equal(split[0], labels[numbers])
    np.testing.assert_array_equal(split[1], oracle.encode_dense(dense[numbers]))
    return numbers


@pytest.mark.parametrize(
    ("overrides", "seed"),
    [
        (["data.split.method=random", "data.split.held_out=0.3"], "split"),
        (["data.sampling.negative_drop_rate=0.875"], "sampling"),
    ],
)
def test_rows_by_seed(tmp_path: Path, overrides: list[str], seed: str) -> None:
    text = oracle.make_rows(ROWS, seed=11, values=5000)
    (tmp_path / "rows.tsv").write_bytes(text)
    parsed, numbers = oracle.parse(text), []
    for name, more in (("a", ["data.chunk_bytes=20000"]), ("b", []), ("c", [f"data.{seed}.seed=8"])):
        _, splits = make(tmp_path, name, *overrides, *more)
        numbers.append([row_numbers(parsed, splits[split]) for split in SPLITS])
    kept = sorted(number for rows in numbers[0] for number in rows)
    labels = parsed[0]
    if seed == "split":
        assert kept == list(range(ROWS))
        assert [len(rows) / ROWS for rows in numbers[0]] == pytest.approx([0.7, 0.15, 0.15], abs=0.04)
    else:
        assert set(np.flatnonzero(labels == 1)) <= set(kept)
        assert (len(kept) - labels.sum()) / (labels == 0).sum() == pytest.approx(0.125, abs=0.03)
    assert all(rows == sorted(rows) for rows in numbers[0])
    assert numbers[0] == numbers[1] != numbers[2]
