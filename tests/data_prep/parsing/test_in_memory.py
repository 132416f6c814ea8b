"""Values in memory of every library become one column, in which a missing value is null."""

import re
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from data_prep.parsing.convert import plain_value, to_column, to_list
from tests.error_lines import refused

NAN = float("nan")
TIME = datetime(2025, 5, 8, 6, 45)


CASES: list[tuple[Any, list[Any]]]
CASES = [([1.5, NAN, None, pd.NA, pd.NaT, np.float32("nan")], [1.5, *[None] * 5]), (iter([1, NAN]), [1, None])]
CASES += [((1, "a", True, Decimal("0.5")), [1, "a", True, Decimal("0.5")]), (range(3), [0, 1, 2]), ([], [])]
CASES += [(np.array([1.5, NAN], dtype), [1.5, None]) for dtype in (np.float64, np.float16, ">f8")]
CASES += [(np.array([1, 2], ">i4"), [1, 2]), (np.array([2**63, 3], np.uint64), [2**63, 3])]
CASES += [(np.array([True, False]), [True, False]), (np.array([1.5, NAN, 2.5])[::2], [1.5, 2.5])]
CASES += [(np.ma.MaskedArray([1, 2], [True, False]), [None, 2]), (np.array(["a", "nan"]), ["a", "nan"])]
CASES += [(np.array(["a", NAN, None, 3], object), ["a", None, None, 3])]
CASES += [(np.array([TIME, "NaT"], "M8[ns]"), [TIME, None]), (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]])]
CASES += [(pd.Series([1, None], dtype="Int64"), [1, None]), (pd.Series([TIME, None]), [TIME, None])]
CASES += [(pd.Series(["a", None], dtype="category"), ["a", None]), (pl.Series([1.5, NAN, None]), [1.5, None, None])]
CASES += [(pl.Series([[1, 2], [], None]), [[1, 2], [], None])]
CASES += [(pl.Series([date(2025, 5, 8), None]), [date(2025, 5, 8), None])]
CASES += [(pa.array([1.5, NAN, None], from_pandas=False), [1.5, None, None])]
CASES += [(pa.chunked_array([[1.5], [NAN]]), [1.5, None])]


@pytest.mark.parametrize(("values", "expected"), CASES)
def test_missing_values_of_every_library_are_null(values: Any, expected: list[Any]) -> None:
    column = to_column(values, "x")
    assert isinstance(column, list | pa.Array)
    assert to_list(column) == expected


SINGLE: dict[str, Any] = {"str": "Bern", "bytes": b"a", "int": 3, "ndarray": np.array(3), "NoneType": None}
SEVERAL: dict[str, Any] = {"dict": {"a": 1}, "set": {1, 2}, "DataFrame": pd.DataFrame({"a": [1]})}
SEVERAL["Table"] = pa.table({"a": [1]})


@pytest.mark.parametrize("kind", [*SINGLE, *SEVERAL])
def test_what_is_no_column_is_refused(kind: str) -> None:
    remedy = f"[{SINGLE[kind]!r}] for one value" if kind in SINGLE else "a list"
    line = f"x: {kind}, not a list or an array; give {remedy}"
    assert refused(re.escape(line), to_column, (SINGLE | SEVERAL)[kind], "x") == line


@pytest.mark.parametrize(
    ("value", "expected"),
    [(np.int64(3), 3), (np.datetime64(TIME, "ns"), TIME), (np.datetime64("NaT"), None), (np.array(["a"]), ["a"])],
)
def test_values_of_numpy_are_python_s(value: Any, expected: Any) -> None:
    assert plain_value(value) == expected
    assert type(plain_value(value)) is type(expected)
