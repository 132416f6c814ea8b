"""Transforms of integer features to the float32 values that a model reads."""

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
    """Smallest and largest value of each column [N]; a missing value counts as 0."""

    low: NDArray[np.int64]
    high: NDArray[np.int64]


@jit
def log1p_block(dense: NDArray[np.int32], table: NDArray[np.float32], result: NDArray[np.float32]) -> None:
    """Write float32(log(1 + max(x, 0))) to `result`. The table covers small x; other values are computed in float64."""
    for row in range(dense.shape[0]):
        for column in range(dense.shape[1]):
            value = max(dense[row, column], np.int32(0))
            if value < LOG1P_TABLE_SIZE:
                result[row, column] = table[value]
            else:
                result[row, column] = np.float32(math.log1p(np.float64(value)))


@cache
def log1p_table() -> NDArray[np.float32]:
    """Return float32(log(1 + x)) for x = 0, 1, …, LOG1P_TABLE_SIZE - 1."""
    return np.log1p(np.arange(LOG1P_TABLE_SIZE, dtype=np.float64)).astype(np.float32)


def encode_dense(dense: NDArray[np.int32], result: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Return log(1 + max(x, 0)) as float32, in `result` if given."""
    result = np.empty(dense.shape, np.float32) if result is None else result
    log1p_block(dense, log1p_table(), result)
    return result


def range_of(dense: NDArray[Any]) -> DenseRange:
    """Return the range of each column of a block with at least one row."""
    dtype = np.int64 if dense.dtype.kind == "i" else np.float64
    return DenseRange(_over_rows(np.minimum, dense).astype(dtype), _over_rows(np.maximum, dense).astype(dtype))


def _over_rows(of_two: np.ufunc, dense: NDArray[Any]) -> NDArray[Any]:
    """Reduce over the rows. Folds FOLDED_ROWS rows into one, because NumPy is slow on short rows."""
    folded = len(dense) // FOLDED_ROWS * FOLDED_ROWS
    if folded:
        wide = of_two.reduce(dense[:folded].reshape(len(dense) // FOLDED_ROWS, -1))
        dense = np.concatenate((wide.reshape(FOLDED_ROWS, -1), dense[folded:]))
    reduced: NDArray[Any] = of_two.reduce(dense)
    return reduced


def join_ranges(ranges: list[DenseRange]) -> DenseRange:
    """Return the range over all blocks."""
    lows, highs = np.stack([part.low for part in ranges]), np.stack([part.high for part in ranges])
    return DenseRange(lows.min(axis=0), highs.max(axis=0))


def max_input(transform: DenseTransform) -> float:
    """Return the largest absolute value whose transform is finite."""
    largest = float(np.finfo(np.float64).max)
    # minmax: the span must be finite, too.
    limits = {DenseTransform.raw: float(np.finfo(np.float32).max), DenseTransform.minmax: largest / 2}
    return limits.get(transform, largest)


def transform_into(dense: NDArray[Any], transform: DenseTransform, result: NDArray[Any]) -> None:
    """Apply a transform that needs no range; result [rows, N] is contiguous."""
    if transform is DenseTransform.log1p and dense.dtype == np.int32:
        encode_dense(dense, result)
    else:
        result[:] = transform_dense(dense, transform)


def transform_dense(
    dense: NDArray[Any], transform: DenseTransform, dense_range: DenseRange | None = None, wraps: bool = False
) -> NDArray[Any]:
    """Apply a transform; the result has the transform's dtype.

    Args:
        dense: [rows, N] int32, or float64 for a user's table; 0 if missing.
        dense_range: range of the rows' source for `torchrec`, of all rows for `minmax`.
        wraps: with `torchrec`, differences beyond int32 wrap around as in TorchRec.
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
    # These are the operations of scikit-learn's MinMaxScaler, in the same order.
    span = (dense_range.high - dense_range.low).astype(np.float64)
    scale = 1.0 / np.where(span < np.finfo(np.float64).tiny, 1.0, span)  # 1 / a smaller span would be infinite
    return (dense * scale + (0.0 - dense_range.low * scale)).astype(np.float32)
