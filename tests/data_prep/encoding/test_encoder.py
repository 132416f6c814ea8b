import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.encoding.dense import encode_dense, range_of
from data_prep.encoding.ids import encode_hash
from data_prep.parsing.criteo import MISSING_INTEGER


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


@pytest.mark.parametrize("dtype", [np.int32, np.float64])
@pytest.mark.parametrize(("rows", "width"), [(1, 13), (31, 2), (32, 13), (100, 1), (64, 0)])
def test_the_range_of_a_block(rows: int, width: int, dtype: Any) -> None:
    block = (1000 * np.random.default_rng(rows).standard_normal((rows, width))).astype(dtype)
    low, high = range_of(block)
    assert low.tolist() == block.min(axis=0).tolist()
    assert high.tolist() == block.max(axis=0).tolist()
    assert low.dtype == high.dtype == (np.int64 if dtype is np.int32 else np.float64)
