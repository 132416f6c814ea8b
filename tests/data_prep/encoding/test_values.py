"""Encoded values, against hashlib and Python's integers and logarithm."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.dataset.spelling import remainders, text_key, text_values
from data_prep.lookup import column_range, encode_dense, encode_hash, text_buffers, texts_from_buffers
from data_prep.parsing.criteo import MISSING_INTEGER
from tests.data_prep import oracle

EDGES = ["", "0", "00", "01", "-1", "1.0", "٣", str(2**63 - 1), str(2**63), str(2**64), "9" * 20, "9" * 40, " 1", "Été"]


@pytest.mark.medium
@settings(max_examples=60, deadline=None)
@given(st.lists(st.text() | st.integers(0, 2**64 + 5).map(str) | st.sampled_from(EDGES), max_size=30))
def test_values_are_whole_numbers_or_hashes(texts: list[str]) -> None:
    texts = [text for text in texts if text.isprintable()]  # no lone surrogates, which no file of text has
    expected = [oracle.text_value(text) for text in texts]
    values = text_values(pa.array(texts, pa.string()))
    assert values.dtype == np.uint64
    assert values.tolist() == expected
    assert [text_key(text) % 2**64 for text in texts] == expected  # users and items of events, likewise


@pytest.mark.parametrize("modulus", [1, 2, 100, 1000, 2**31 - 1])
def test_the_remainder_of_64_bits_is_exact(modulus: int) -> None:
    values = np.random.default_rng(0).integers(0, 2**64, 20_000, dtype=np.uint64)
    values[:3] = 2**64 - 1, 2**63, 2**53 + 1
    ids = remainders(values, modulus)
    assert ids.dtype == np.int32
    assert ids.tolist() == [value % modulus for value in values.tolist()]


@pytest.mark.parametrize("texts", [[], [""], ["", ""], ["x", "", "é"]])
def test_texts_as_bytes_and_back(texts: list[str]) -> None:
    for array in (pa.array(texts, pa.string()), pa.array(["before", *texts], pa.large_string()).slice(1)):
        offsets, content = text_buffers(array)
        assert bytes(content) == "".join(texts).encode()
        assert offsets.tolist() == [len("".join(texts[:i]).encode()) for i in range(len(texts) + 1)]
        assert texts_from_buffers(offsets, content).to_pylist() == texts


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
    low, high = column_range(block)
    assert low.tolist() == block.min(axis=0).tolist()
    assert high.tolist() == block.max(axis=0).tolist()
    assert low.dtype == high.dtype == (np.int64 if dtype is np.int32 else np.float64)
