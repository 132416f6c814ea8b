"""Parts of dates: numbers in every unit, formats and zones, in every form of file."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from data_prep.dataset.format import load_manifest
from data_prep.encoding import Encoder
from tests.data_prep.parsing.test_refusals import DATES
from tests.data_prep.tables import ids, make

SECONDS = [1_709_251_198, 946_703_167, -86_399]  # 2024-02-29T23:59:58, 2000-01-01T05:06:07, 1969-12-31T00:00:01
EXPECTED = [ids((2024, 23, 58)), ids((2000, 5, 7)), ids((1969, 0, 1)), ids(("", "", ""))]
UNITS = {"epoch": 1, "epoch_ms": 10**3, "epoch_us": 10**6, "epoch_ns": 10**9}
# The kinds of file, the format, values.
FORMS: list[tuple[str, str | None, list[Any]]] = [
    *(("csv jsonl parquet", form, [each * unit for each in SECONDS]) for form, unit in UNITS.items()),
    ("csv jsonl parquet", "epoch", [each + 0.5 for each in SECONDS]),
    ("csv jsonl parquet", "epoch_ms", [1000 * each + 0.5 for each in SECONDS]),
    ("csv", None, ["2024-02-29 23:59:58.999999999", "2000-01-01T06:06:07.5+01:00", "1969-12-31T00:00:01.25Z"]),
    ("jsonl parquet", '"%Y%m%d%H%M%S"', [20240229235958, 20000101050607, 19691231000001]),
    ("jsonl parquet", '"%Y%m%d%H%M%S"', [20240229235958.0, 20000101050607.0, 19691231000001.0]),
]


CASES = [(suffix, *rest) for suffixes, *rest in FORMS for suffix in suffixes.split()]


@pytest.mark.parametrize(("suffix", "form", "values"), CASES)
def test_parts(tmp_path: Path, suffix: str, form: str | None, values: list[Any]) -> None:
    entry = "" if form is None else f", format: {form}"
    parts = ", ".join(f"{{column: t, part: {part}{entry}}}" for part in ("year", "hour", "second"))
    columns = {"label": [0, 1] * 12, "t": [*values, None] * 6}
    sparse = make(tmp_path, columns, f"label: label\nsparse: [{parts}]\n", name=f"rows.{suffix}")[2]
    assert sparse.tolist() == EXPECTED * 6


TIMES: dict[str, tuple[Any, ...]] = {  # hour, timestamp, weekday (Monday 0), days since 1970, month; in UTC
    "2024-02-29 23:59:58": (23, 1709251198, 3, 19782, 2),
    "1969-12-31T00:00:01": (0, -86399, 2, -1, 12),
    "": (0, 0, "", "", ""),
    "2024-01-01": (0, 1704067200, 0, 19723, 1),
    "2024-06-01T12:00:00+02:00": (10, 1717236000, 5, 19875, 6),
    "2000-01-01T05:06:07Z": (5, 946703167, 5, 10957, 1),
}


def test_parts_of_dates_in_text_and_parquet_alike(tmp_path: Path) -> None:
    texts, columns = [*TIMES] * 3, {"label": [0, 1] * 9, "user": [f"u{i}" for i in range(18)]}
    stamps = pa.array([TIMES[text][1] if text else None for text in texts], pa.timestamp("s")).cast(pa.timestamp("ns"))
    forms = {"text.csv": texts, "text.parquet": texts, "stamps.parquet": stamps}
    forms["zoned.parquet"] = stamps.cast(pa.timestamp("us", "Europe/Berlin"))
    for name, times in forms.items():
        (tmp_path / name).mkdir()
        _, dense, sparse = make(tmp_path / name, {**columns, "t": times}, DATES, name=name)
        np.testing.assert_array_equal(dense, np.array([parts[:2] for parts in TIMES.values()] * 3, np.float32))
        assert sparse[:, 1:].tolist() == [ids(parts[2:]) for parts in TIMES.values()] * 3
        manifest = load_manifest(tmp_path / name / "out")
        assert manifest.schema["dense"] == ["t_hour", "t_timestamp"]
        assert manifest.schema["sparse"] == ["user", "t_weekday", "t_date", "t_month"]
        assert Encoder.load(tmp_path / name / "out").input_columns == ("t", "user")
