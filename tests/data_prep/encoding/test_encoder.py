import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import UserError
from data_prep.encoding.dense import encode_dense, range_of
from data_prep.encoding.encoder import Encoder
from data_prep.encoding.ids import encode_hash
from data_prep.parsing.criteo import MISSING_INTEGER, parse_bytes
from data_prep.pipeline import preprocess
from tests.data_prep import oracle
from tests.data_prep.conftest import config

TEXT = oracle.make_rows(200, seed=2)


@pytest.fixture
def dataset(tmp_path: Path) -> Callable[..., Any]:
    (tmp_path / "rows.tsv").write_bytes(TEXT)

    def make(*overrides: str) -> Path:
        preprocess(config(f"data.raw={tmp_path}/rows.tsv", f"data.path={tmp_path}/out", *overrides))
        return tmp_path / "out"

    return make


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(65_530, 65_540), min_size=1, max_size=20))
def test_dense_is_the_double_precision_logarithm_rounded_once(values: list[int]) -> None:
    dense = encode_dense(np.array(values, np.int32)[:, None])
    assert dense.dtype == np.float32
    assert dense[:, 0].tolist() == [np.float32(math.log1p(max(value, 0))) for value in values]
    assert encode_dense(np.array([[MISSING_INTEGER]])).item() == 0.0


@pytest.mark.parametrize("modulus", [1, 2, 1000, 2**31 - 1])
def test_hash_is_the_remainder(modulus: int) -> None:
    values = np.random.default_rng(0).integers(0, 2**32, (50, 26), dtype=np.uint32)
    values[0] = 2**32 - 1
    np.testing.assert_array_equal(encode_hash(values, modulus), values.astype(np.int64) % modulus)


@pytest.mark.parametrize(
    ("overrides", "threshold", "cap"), [([], 1, None), (["data.frequency_threshold=3", "data.max_ind_range=9"], 3, 9)]
)
def test_new_rows_are_encoded_as_the_dataset(
    dataset: Callable[..., Any], overrides: list[str], threshold: int, cap: int | None
) -> None:
    new = oracle.make_rows(120, seed=9, values=70)
    encoded = Encoder.load(dataset(*overrides)).encode(parse_bytes(new, "candidates"))
    labels, dense, sparse = oracle.parse(new)
    _, _, fitted = oracle.parse(TEXT)
    train_rows = oracle.seventh(200)[0]
    expected = oracle.encode_vocabulary(np.concatenate([fitted, sparse]), train_rows, threshold, cap)[200:]
    np.testing.assert_array_equal(encoded.sparse, expected)
    np.testing.assert_array_equal(encoded.labels, labels)
    np.testing.assert_array_equal(encoded.dense, oracle.encode_dense(dense))
    np.testing.assert_array_equal(encoded.out_of_vocabulary, (expected == 0).sum(axis=0))
    assert encoded.sparse.dtype == np.int32
    assert encoded.out_of_vocabulary.sum() > 0


def test_new_rows_by_hash(dataset: Callable[..., Any]) -> None:
    root = dataset("data.encoding=hash", "data.max_ind_range=77")
    encoded = Encoder.load(root).encode(parse_bytes(TEXT, "candidates"))
    np.testing.assert_array_equal(encoded.sparse, oracle.parse(TEXT)[2] % 77)
    assert encoded.out_of_vocabulary.tolist() == [0] * 26


def test_a_changed_vocabulary_is_refused(dataset: Callable[..., Any]) -> None:
    root = dataset()
    path = root / "vocab" / "cat_3.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"cat_3\.npy: sha256 .* the file changed"):
        Encoder.load(root)
    path.unlink()
    with pytest.raises(UserError, match=r"cat_3\.npy: file not readable"):
        Encoder.load(root)


def test_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no dataset here"):
        Encoder.load(tmp_path)


@pytest.mark.parametrize("dtype", [np.int32, np.float64])
@pytest.mark.parametrize(("rows", "width"), [(1, 13), (31, 2), (32, 13), (100, 1), (64, 0)])
def test_the_range_of_a_block(rows: int, width: int, dtype: Any) -> None:
    block = (1000 * np.random.default_rng(rows).standard_normal((rows, width))).astype(dtype)
    low, high = range_of(block)
    assert low.tolist() == block.min(axis=0).tolist()
    assert high.tolist() == block.max(axis=0).tolist()
    assert low.dtype == high.dtype == (np.int64 if dtype is np.int32 else np.float64)
