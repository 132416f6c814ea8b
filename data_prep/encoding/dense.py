"""Transforms of integer features to the float32 values that a model reads."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.jit import jit
from data_prep.dataset.options import DenseTransform
from data_prep.dataset.table_spec import Table
from data_prep.dataset.transforms import ColumnTransform, largest_input, transform_columns

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


def dense_limits(transform: DenseTransform, table: Table) -> list[float]:
    """Return the largest absolute value of each dense feature of a user's own table."""
    own, usual = dict(table.transforms), max_input(transform)
    return [largest_input(own[feature]) if feature in own else usual for feature in table.dense]


def column_transforms(table: Table | None, fits: Mapping[str, Sequence[float]]) -> list[ColumnTransform]:
    """Return the transforms that a user's own table gives single dense features; fits: by feature."""
    if table is None:
        return []
    pairs = table.indexed_transforms
    return [ColumnTransform(index, name, tuple(fits.get(table.dense[index], ()))) for index, name in pairs]


def transform_into(
    dense: NDArray[Any], transform: DenseTransform, of_columns: Sequence[ColumnTransform], result: NDArray[Any]
) -> None:
    """Apply transforms that need no range or fit, as `transform_rows`; result [rows, N] is contiguous."""
    if transform is DenseTransform.log1p and dense.dtype == np.int32:
        encode_dense(dense, result)
    else:
        result[:] = transform_rows(dense, transform, of_columns)


def transform_rows(
    dense: NDArray[Any],
    transform: DenseTransform,
    of_columns: Sequence[ColumnTransform],
    dense_range: DenseRange | None = None,
    wraps: bool = False,
) -> NDArray[Any]:
    """Apply a transform to all columns but those of `of_columns`, which have their own. Arguments as below."""
    if not of_columns:
        return transform_dense(dense, transform, dense_range, wraps)
    with np.errstate(all="ignore"):  # numbers of the columns that follow may be too large
        result = transform_dense(dense, transform, dense_range, wraps)
    transform_columns(dense, of_columns, result)
    return result


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
