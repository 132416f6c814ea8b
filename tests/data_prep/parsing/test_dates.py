"""Parts of dates: numbers in every unit, formats, and times that are none, in every form of file."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import UserError
from tests.data_prep.parsing.test_as_people_write import ids, make

SECONDS = [1_709_251_198, 946_703_167, -86_399]  # 2024-02-29T23:59:58, 2000-01-01T05:06:07, 1969-12-31T00:00:01
EXPECTED = [ids((2024, 23, 58)), ids((2000, 5, 7)), ids((1969, 0, 1)), ids(("", "", ""))]
UNITS = {"epoch": 1, "epoch_ms": 10**3, "epoch_us": 10**6, "epoch_ns": 10**9}


def parts_of(directory: Path, suffix: str, values: Any, form: str | None) -> list[list[int]]:
    """Ids of year, hour and second of a column, which is read six times."""
    entry = "" if form is None else f", format: {form}"
    parts = ", ".join(f"{{column: t, part: {part}{entry}}}" for part in ("year", "hour", "second"))
    count = 6 * len(values)
    columns = {"label": [i % 2 for i in range(count)]}
    content: bytes | str
    if suffix == "parquet":
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({**columns, "t": pa.concat_arrays([pa.array(values)] * 6)}), sink)
        content = sink.getvalue().to_pybytes()
    else:
        rows = list(zip(columns["label"], [*values] * 6, strict=True))
        if suffix == "csv":
            content = "label,t\n" + "".join(f"{label},{'' if value is None else value}\n" for label, value in rows)
        else:
            content = "".join(json.dumps({"label": label, "t": value}) + "\n" for label, value in rows)
    sparse = make(directory, content, f"label: label\nsparse: [{parts}]\n", name=f"rows.{suffix}")[2]
    return [row.tolist() for row in sparse[: len(values)]]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("form", UNITS)
def test_numbers_of_every_unit(tmp_path: Path, suffix: str, form: str) -> None:
    """As integers and, where there are fractions, with a point."""
    numbers = [each * UNITS[form] for each in SECONDS]
    assert parts_of(tmp_path, suffix, [*numbers, None], form) == EXPECTED
    if form in ("epoch", "epoch_ms"):
        (tmp_path / "fractions").mkdir()
        fractions = [number + 0.5 for number in numbers]
        assert parts_of(tmp_path / "fractions", suffix, [*fractions, None], form) == EXPECTED


@pytest.mark.parametrize("values", [[20240229, 20000101, 19691231], [20240229.0, 20000101.0, 19691231.0]])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_numbers_have_a_strptime_format(tmp_path: Path, suffix: str, values: list[float]) -> None:
    years = [row[0] for row in parts_of(tmp_path, suffix, values, '"%Y%m%d"')]
    assert years == ids((2024, 2000, 1969))


def test_fractions_of_seconds_in_text(tmp_path: Path) -> None:
    texts = ["2024-02-29 23:59:58.999999999", "2000-01-01T06:06:07.5+01:00", "1969-12-31T00:00:01.25Z", ""]
    assert parts_of(tmp_path, "csv", texts, None) == EXPECTED


@pytest.mark.parametrize(
    ("suffix", "form", "value", "message"),
    [
        (
            "csv",
            "epoch",
            980_000_000_000,
            r"lies in the future as seconds; it looks like milliseconds; write `\{column: t, ",
        ),
        (
            "parquet",
            "epoch",
            980_000_000_000,
            "looks like milliseconds; write `{column: t, part: year, format: epoch_ms}`",
        ),
        ("jsonl", "epoch_ms", 980_000_000, "in the first days of 1970 as milliseconds; it looks like seconds"),
        ("csv", "epoch", -3_000_000_000, "lies before 1900 as seconds; it looks like milliseconds"),
        ("csv", None, 1_709_251_198_000, "is not an ISO 8601 date or time; it looks like milliseconds; write"),
        ("parquet", None, 1_709_251_198, "integer, but .* has no format for it; numbers need one, e.g. format: epoch"),
        (
            "csv",
            "epoch_s",
            1_709_251_198,
            "format epoch_s: is not known; give epoch, epoch_ms, epoch_us, epoch_ns, or a",
        ),
        ("jsonl", "epoch", True, "'True' is not a time of format epoch"),
    ],
)
def test_an_implausible_time_is_refused(
    tmp_path: Path, suffix: str, form: str | None, value: Any, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        parts_of(tmp_path, suffix, [value] * 3, form)
