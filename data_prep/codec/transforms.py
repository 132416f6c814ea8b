"""Transforms of single dense columns of a user's own table: `transform` of a column in its schema.

The fit of a transform is a list of numbers, made from train's rows alone (data_prep/stages/fit.py):

    standard    mean, standard deviation
    minmax      lowest, highest
    quantile    values at 257 evenly spaced ranks, ascending

The others, raw, log1p and signed_log1p, need none. An exported encoder (extensions/export) runs a copy of this module.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FITS = {"standard": 2, "minmax": 2, "quantile": 257}  # how many numbers each fit has
LARGEST, LARGEST_FLOAT32 = float(np.finfo(np.float64).max), float(np.finfo(np.float32).max)


class ColumnTransform(NamedTuple):
    """Transform of one dense column, given by its number; the fit is empty for transforms that need none."""

    column: int
    name: str
    fit: Sequence[float] = ()


def transform_numbers(
    dense: NDArray[Any], name: str, low: NDArray[Any], high: NDArray[Any], wraps: bool = False
) -> NDArray[Any]:
    """Transform numbers [rows, N] of all dense columns by data.dense_transform; return float32, of `raw` float64.

    low, high: lowest and highest numbers [N] of train, for torchrec and minmax. wraps: with torchrec, differences
    beyond int32 wrap around, as TorchRec's do.
    """
    if name == "log1p":
        return np.log1p(np.maximum(dense, 0)).astype(np.float32)
    if name == "signed_log1p":
        return np.copysign(np.log1p(np.abs(dense.astype(np.float64))), dense).astype(np.float32)
    if name == "log_float32":
        return np.log(np.maximum(dense, 0).astype(np.float32) + np.float32(1))
    if name == "torchrec":
        shifted = dense.astype(np.int64) - (low.min() - 2)
        # TorchRec subtracts in int32, whose overflow then gives NaN.
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.log((shifted.astype(np.int32) if wraps else shifted).astype(np.float32))
    if name == "minmax":
        # These are the operations of scikit-learn's MinMaxScaler, in the same order.
        span = (high - low).astype(np.float64)
        scale = 1.0 / np.where(span < np.finfo(np.float64).tiny, 1.0, span)  # 1 / a smaller span would be infinite
        return (dense * scale + (0.0 - low * scale)).astype(np.float32)
    return dense  # raw, integers


def largest_input(name: str) -> float:
    """Return the largest absolute value of a number whose transform by `transform_column` is finite."""
    if name == "raw":
        return LARGEST_FLOAT32
    return LARGEST / 2 if name in FITS else LARGEST  # differences of two values must be finite, too


def transform_columns(dense: NDArray[Any], transforms: Sequence[ColumnTransform], result: NDArray[np.float32]) -> None:
    """Overwrite the transformed columns of `result` [rows, N] by those of `dense` [rows, N] float64."""
    for column, name, fit in transforms:
        result[:, column] = transform_column(dense[:, column], name, fit)


def transform_column(numbers: NDArray[np.float64], name: str, fit: Sequence[float] = ()) -> NDArray[np.float32]:
    """Transform numbers [rows]; fit: as in the module's docstring.

    A result beyond float32, which values of val and new rows may have, becomes float32's largest number.
    """
    with np.errstate(over="ignore"):
        result = numbers  # raw
        if name == "log1p":
            result = np.log1p(np.maximum(numbers, 0))
        elif name == "signed_log1p":
            result = np.copysign(np.log1p(np.abs(numbers)), numbers)
        elif name == "standard":
            mean, deviation = fit
            # A column of one value has no deviation; it becomes 0 instead of NaN.
            result = (numbers - mean) / (deviation or 1.0)
        elif name == "minmax":
            low, high = fit
            result = (numbers - low) / ((high - low) or 1.0)
        elif name == "quantile":
            result = _quantile_ranks(numbers, np.array(fit))
    return np.clip(result, -LARGEST_FLOAT32, LARGEST_FLOAT32).astype(np.float32)


def _quantile_ranks(numbers: NDArray[np.float64], quantiles: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each number's rank among train's, from 0 to 1, interpolated between quantiles.

    A number that is several quantiles has their mean rank.
    """
    values, first, counts = np.unique(quantiles, return_index=True, return_counts=True)
    ranks = (first + (counts - 1) / 2) / (len(quantiles) - 1)
    # Train has no ranks beyond its ends.
    numbers = np.clip(numbers, values[0], values[-1])
    lower = np.searchsorted(values, numbers, "right") - 1  # index of the quantile at or below each number
    # A share of the gap, unlike the slope of np.interp, is finite for two values that differ by less than 1e-310.
    share = (numbers - values[lower]) / np.diff(values, append=np.inf)[lower]
    result: NDArray[np.float64] = ranks[lower] + share * np.diff(ranks, append=1)[lower]
    return result
