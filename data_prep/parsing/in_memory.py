"""Values in memory, as NumPy, pandas, polars, Arrow or Python holds them, to a column that `convert` takes.

NaN, None, and NA and NaT of pandas mean a missing value.
An exported encoder (extensions/export) runs a copy of this module, so that it needs NumPy and pyarrow alone.
"""

from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np
import pyarrow as pa

from common.errors import UserError
from data_prep.parsing.convert import without_nan

MISSING = ("NAType", "NaTType")  # types of pandas' missing values, which need not be there


def to_column(values: Any, name: str) -> Any:
    """Return values as an Arrow array or a list of Python values; null or None for a missing one.

    name: of the values in errors.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return without_nan(values)
    is_other = isinstance(values, Mapping | Set) or hasattr(values, "columns")
    is_one = isinstance(values, str | bytes) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0
    if is_other or is_one:
        remedy = "give a list" if is_other else f"give [{values!r:.40}] for one value"
        raise UserError(f"{name}: {type(values).__name__}, not a list or an array; {remedy}")
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "biuf":
        numbers = values.astype(np.float64) if values.dtype.kind == "f" else values
        return pa.array(numbers.astype(numbers.dtype.newbyteorder("="), copy=False), from_pandas=True)
    series = values.to_list() if hasattr(values, "to_list") else values  # polars' yields its lists as series
    return [plain_value(value) for value in series]


def plain_value(value: Any) -> Any:
    """Return a value of NumPy or pandas as Python's; None for a missing one."""
    if hasattr(value, "tolist"):
        is_time = isinstance(value, np.generic | np.ndarray) and value.dtype.kind == "M"
        value = (value.astype("datetime64[us]") if is_time else value).tolist()
    is_missing = type(value).__name__ in MISSING or (isinstance(value, float) and value != value)
    return None if is_missing else value
