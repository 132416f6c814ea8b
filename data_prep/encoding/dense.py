"""Integers to what the model reads: float32, by one of several transforms."""

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.jit import jit
from data_prep.dataset.options import DenseTransform

LOG1P_TABLE_SIZE = 1 << 16
FOLDED_ROWS = 32


class DenseRange(NamedTuple):
    """Smallest and largest value of each column [N], a missing one counting as 0."""

    low: NDArray[np.int64]
    high: NDArray[np.int64]


@jit
def log1p_block(dense: NDArray[np.int32], table: NDArray[np.float32], result: NDArray[np.float32]) -> None:
    """result = float32(log(1 + max(x, 0))): small x from a table, the others one by one in float64."""
    for row in range(dense.shape[0]):
        for column in range(dense.shape[1]):
            value = max(dense[row, column], np.int32(0))
            if value < LOG1P_TABLE_SIZE:
                result[row, column] = table[value]
            else:
                result[row, column] = np.float32(math.log1p(np.float64(value)))


@cache
def log1p_table() -> NDArray[np.float32]:
    """float32(log(1 + x)) of x = 0, 1, …, LOG1P_TABLE_SIZE - 1."""
    return np.log1p(np.arange(LOG1P_TABLE_SIZE, dtype=np.float64)).astype(np.float32)


def encode_dense(dense: NDArray[np.int32], result: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """log(1 + max(x, 0)) as float32, in `result` if given; a missing integer becomes 0."""
    result = np.empty(dense.shape, np.float32) if result is None else result
    log1p_block(dense, log1p_table(), result)
    return result


def range_of(dense: NDArray[Any]) -> DenseRange:
    """Smallest and largest value of each column of a block that has rows."""
    dtype = np.int64 if dense.dtype.kind == "i" else np.float64
    return DenseRange(_over_rows(np.minimum, dense).astype(dtype), _over_rows(np.maximum, dense).astype(dtype))


def _over_rows(of_two: np.ufunc, dense: NDArray[Any]) -> NDArray[Any]:
    """Reduce over the rows, FOLDED_ROWS of them side by side: NumPy is slow on short rows."""
    folded = len(dense) // FOLDED_ROWS * FOLDED_ROWS
    if folded:
        wide = of_two.reduce(dense[:folded].reshape(len(dense) // FOLDED_ROWS, -1))
        dense = np.concatenate((wide.reshape(FOLDED_ROWS, -1), dense[folded:]))
    reduced: NDArray[Any] = of_two.reduce(dense)
    return reduced


def join_ranges(ranges: list[DenseRange]) -> DenseRange:
    """The range over several blocks."""
    return DenseRange(np.min([part.low for part in ranges], axis=0), np.max([part.high for part in ranges], axis=0))


def max_input(transform: DenseTransform) -> float:
    """The largest number, without its sign, of which a transform makes a finite one."""
    largest = float(np.finfo(np.float64).max)
    # of the numbers that minmax takes, the span is finite, too
    limits = {DenseTransform.raw: float(np.finfo(np.float32).max), DenseTransform.minmax: largest / 2}
    return limits.get(transform, largest)


def transform_into(dense: NDArray[Any], transform: DenseTransform, result: NDArray[Any]) -> None:
    """Apply a transform that needs to know of no other rows; result [rows, N] is contiguous."""
    if transform is DenseTransform.log1p and dense.dtype == np.int32:
        encode_dense(dense, result)
    else:
        result[:] = transform_dense(dense, transform)


def transform_dense(
    dense: NDArray[Any], transform: DenseTransform, dense_range: DenseRange | None = None, wraps: bool = False
) -> NDArray[Any]:
    """Apply a transform; the result is of its dtype.

    Args:
        dense: [rows, N] int32, or float64 of a user's table; 0 where missing.
        dense_range: for `torchrec` the range of the source the rows are of, for `minmax` that of all rows.
        wraps: for `torchrec`: differences beyond int32 wrap around, as they do in TorchRec.
    """
    if transform is DenseTransform.log1p:
        return encode_dense(dense) if dense.dtype == np.int32 else np.log1p(np.maximum(dense, 0)).astype(np.float32)
    if transform is DenseTransform.signed_log1p:
        return np.copysign(np.log1p(np.abs(dense.astype(np.float64))), dense).astype(np.float32)
    if transform is DenseTransform.log_float32:
        return np.log(np.maximum(dense, 0).astype(np.float32) + np.float32(1))
    if transform in (DenseTransform.raw, DenseTransform.integers):
        return dense.astype(transform.dtype)
    assert dense_range is not None
    if transform is DenseTransform.torchrec:
        shifted = dense.astype(np.int64) - (dense_range.low.min() - 2)
        if wraps:
            shifted = shifted.astype(np.int32)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.log(shifted.astype(np.float32))
    # the operations of scikit-learn's MinMaxScaler, in their order
    span = (dense_range.high - dense_range.low).astype(np.float64)
    scale = 1.0 / np.where(span < np.finfo(np.float64).tiny, 1.0, span)  # of less, 1 / span is infinite
    return (dense * scale + (0.0 - dense_range.low * scale)).astype(np.float32)
