"""Values in memory of every library become one column, in which a missing value is null."""

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from common.errors import UserError
from data_prep.parsing.convert import to_list
from data_prep.parsing.in_memory import plain_value, to_column

NAN = float("nan")
TIME = datetime(2025, 5, 8, 6, 45)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.5, NAN, None, pd.NA, pd.NaT, np.float32("nan")], [1.5, *[None] * 5]),
        ((1, "a", True, Decimal("0.5")), [1, "a", True, Decimal("0.5")]),
        (range(3), [0, 1, 2]),
        (np.array([1.5, NAN]), [1.5, None]),
        (np.array([1.5, NAN], np.float16), [1.5, None]),
        (np.array([1.5, NAN], ">f8"), [1.5, None]),
        (np.array([1, 2], ">i4"), [1, 2]),
        (np.array([2**63, 3], np.uint64), [2**63, 3]),
        (np.array([True, False]), [True, False]),
        (np.array([1.5, NAN, 2.5])[::2], [1.5, 2.5]),
        (np.ma.MaskedArray([1, 2], [True, False]), [None, 2]),
        (np.array(["a", "nan"]), ["a", "nan"]),
        (np.array(["a", NAN, None, 3], object), ["a", None, None, 3]),
        (np.array([TIME, "NaT"], "M8[ns]"), [TIME, None]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (pd.Series([1, None], dtype="Int64"), [1, None]),
        (pd.Series(["a", None], dtype="category"), ["a", None]),
        (pd.Series([TIME, None]), [TIME, None]),
        (pl.Series([1.5, NAN, None]), [1.5, None, None]),
        (pl.Series([[1, 2], [], None]), [[1, 2], [], None]),
        (pl.Series([date(2025, 5, 8), None]), [date(2025, 5, 8), None]),
        (pa.array([1.5, NAN, None], from_pandas=False), [1.5, None, None]),
        (pa.chunked_array([[1.5], [NAN]]), [1.5, None]),
        (iter([1, NAN]), [1, None]),
        ([], []),
    ],
)
def test_missing_values_of_every_library_are_null(values: Any, expected: list[Any]) -> None:
    column = to_column(values, "x")
    assert isinstance(column, list | pa.Array)
    assert to_list(column) == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("Bern", "x: str, not a list or an array; give ['Bern'] for one value"),
        (b"a", "x: bytes, not a list or an array; give [b'a'] for one value"),
        (3, "x: int, not a list or an array; give [3] for one value"),
        (np.array(3), "x: ndarray, not a list or an array; give [array(3)] for one value"),
        (None, "x: NoneType, not a list or an array; give [None] for one value"),
        ({"a": 1}, "x: dict, not a list or an array; give a list"),
        ({1, 2}, "x: set, not a list or an array; give a list"),
        (pd.DataFrame({"a": [1]}), "x: DataFrame, not a list or an array; give a list"),
        (pa.table({"a": [1]}), "x: Table, not a list or an array; give a list"),
    ],
)
def test_what_is_no_column_is_refused(values: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        to_column(values, "x")
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("value", "expected"),
    [(np.int64(3), 3), (np.datetime64(TIME, "ns"), TIME), (np.datetime64("NaT"), None), (np.array(["a"]), ["a"])],
)
def test_values_of_numpy_are_python_s(value: Any, expected: Any) -> None:
    assert plain_value(value) == expected
    assert type(plain_value(value)) is type(expected)
