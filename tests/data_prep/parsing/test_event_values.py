"""Values of logs of events: times, ids, truth values and labels are read alike, whatever file they come from."""

import gzip
import json
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from common.errors import UserError
from data_prep.pipeline import preprocess
from tests.data_prep.conftest import config
from tests.event_logs import opened

START = 1_700_000_000
DAY, DAY_FIRST, HOUR, MINUTE = '"%Y%m%d"', '"%d%m%Y"', '"%y%m%d%H"', '"%Y%m%d%H%M"'
SCHEMA = "user: user\nitem: item\ntime: time\nactions: {bought: {event: buy}, seen: {event: view}}\nlabel: bought\n"


def in_file(path: Path, columns: dict[str, Any]) -> Path:
    """Write columns as text, JSON lines or Parquet, by the ending of the name."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
        return path
    rows = list(zip(*columns.values(), strict=True))
    if path.suffix == ".csv":
        lines = [",".join("" if value is None else str(value) for value in row) for row in rows]
        path.write_text("\n".join([",".join(columns), *lines]) + "\n")
    else:
        path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows))
    return path


def prepared(directory: Path, files: Sequence[Path], schema: str = SCHEMA, *overrides: str) -> Any:
    """The arrays of a log."""
    (directory / "log.yaml").write_text(schema)
    raw = ",".join(map(str, files))
    arguments = [f"data.raw=[{raw}]", f"data.schema={directory}/log.yaml", f"data.path={directory}/out"]
    preprocess(config("data=events", *arguments, "data.workers=1", *overrides))
    return opened(directory / "out")[1]


def columns_of(times: Any, **columns: Any) -> dict[str, Any]:
    """A log of one user, whose items count from 10 on, and whose events are bought and viewed in turn."""
    count = len(times)
    usual = {"user": [1] * count, "item": [10 + i for i in range(count)], "time": times}
    return {**usual, "event": ["buy", "view"] * (count // 2) + ["buy"] * (count % 2), **columns}


FORMS: dict[str, tuple[str | None, Any]] = {
    "epoch_ms": ("epoch_ms", lambda us: us // 1000),
    "epoch_us": ("epoch_us", lambda us: us),
    "fractions": (None, lambda us: us / 1e6),
    "iso": (None, lambda us: (datetime(1970, 1, 1) + timedelta(microseconds=us)).isoformat()),
    "iso with a zone": (
        None,
        lambda us: datetime.fromtimestamp(us // 1000 / 1000, timezone(timedelta(hours=5))).isoformat(),
    ),
    "strptime": (
        "'%d/%m/%Y %H.%M.%S.%f'",
        lambda us: datetime.fromtimestamp(us / 1e6, timezone.utc).strftime("%d/%m/%Y %H.%M.%S.%f"),
    ),
    "ms": (None, pa.timestamp("ms")),
    "us": (None, pa.timestamp("us")),
    "ns": (None, pa.timestamp("ns", "Asia/Tokyo")),
}


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        (name, suffix)
        for name, (_, spelling) in FORMS.items()
        for suffix in ([".parquet"] if isinstance(spelling, pa.DataType) else [".csv", ".jsonl", ".parquet"])
    ],
)
def test_events_of_one_second_are_in_the_order_of_their_times(tmp_path: Path, name: str, suffix: str) -> None:
    """Two files, each sorted, whose events alternate within a second."""
    form, spelling = FORMS[name]
    times = [START * 1_000_000 + 1000 * ms for ms in (100, 700, 60_000, 300, 60_500)]
    if isinstance(spelling, pa.DataType):
        values = pa.array(times, pa.timestamp("us", "UTC")).cast(spelling)
    else:
        values = list(map(spelling, times))
    schema = SCHEMA if form is None else SCHEMA.replace("time: time", f"time: {{column: time, format: {form}}}")
    files = [
        in_file(tmp_path / f"a{suffix}", columns_of(values[:3], item=[10, 12, 13], event=["view"] * 3)),
        in_file(tmp_path / f"b{suffix}", columns_of(values[3:], item=[11, 14], event=["buy"] * 2)),
    ]
    arrays = prepared(tmp_path, files, schema)
    assert (arrays.items + 9).tolist() == [10, 11, 12, 13, 14]
    assert arrays.times.tolist() == [START, START, START, START + 60, START + 60]


def test_an_echo_of_the_label_is_no_history(tmp_path: Path) -> None:
    """An event that repeats the label 300 ms later is after it, however the file is sorted."""
    rng, count = np.random.default_rng(0), 400
    labels = rng.integers(0, 2, count).astype(bool)
    times = START * 1000 + np.arange(count) * 60_000 + 100
    columns = {
        "user": [1] * 2 * count,
        "item": rng.integers(0, 9, 2 * count).tolist(),
        "time": np.concatenate([times, times + 300]).tolist(),
        "event": [*np.where(labels, "buy", "view").tolist(), *np.where(labels, "yes!", "no!").tolist()],
    }
    schema = SCHEMA.replace("time: time", "time: {column: time, format: epoch_ms}")
    schema = schema.replace("seen: {event: view}", "echo: {event: 'yes!'}") + "others: {event: [view, 'no!']}\n"
    schema += "anchors: {event: [buy, view]}\n"
    items: list[list[int]] = []
    for order in (np.argsort(columns["time"]), np.argsort(columns["time"])[::-1]):
        directory = tmp_path / str(len(items))
        directory.mkdir()
        rows = {name: [values[row] for row in order.tolist()] for name, values in columns.items()}
        arrays = prepared(directory, [in_file(directory / "log.csv", rows)], schema)
        items.append(arrays.items.tolist())
        before, bought = arrays.flags[:-1] & 2 > 0, arrays.flags[1:] & 1 > 0
        is_sample = arrays.flags[1:] & 64 > 0
        assert 0.4 < roc_auc_score(bought[is_sample], before[is_sample]) < 0.6
    assert items[0] == items[1]


def remedy(form: str) -> str:
    """Text that an error message suggests to write."""
    return f"`time: {{column: time, format: {form}}}`"


IN_1970 = f"{START} lies in the first days of 1970 as milliseconds; it looks like seconds; write {remedy('epoch')}"
BEFORE_2001 = "980000000000 lies in the future as seconds; it looks like milliseconds; write " + remedy("epoch_ms")
REFUSED_TIMES: list[tuple[str, str | None, Any, str]] = [
    (".csv", "epoch_ms", "2024-01-01T00:00:00", "'2024-01-01T00:00:00' is not a time of format epoch_ms"),
    (".csv", "epoch_ms", START, IN_1970),
    (".parquet", "epoch_ms", START, IN_1970),
    (".csv", "epoch", 980_000_000_000, BEFORE_2001),
    (".jsonl", None, START * 10**9, f"as seconds; it looks like nanoseconds; write {remedy('epoch_ns')}"),
    (".parquet", None, 20240115, f"may be a date, or seconds; write {remedy(DAY)}, or {remedy('epoch')}"),
    (".csv", None, 15012024, f"15012024 may be a date, or seconds; write {remedy(DAY_FIRST)}"),
    (".csv", None, 14102123, f"14102123 may be a date, or seconds; write {remedy(HOUR)}"),
    (".csv", None, 99999999, f"99999999 may be a date, or seconds; write {remedy('epoch')}"),
    (".jsonl", None, 202401151230, f"it looks like a date; write {remedy(MINUTE)}"),
    (".jsonl", None, True, "'True' is not a time (ISO 8601, or seconds)"),
    (".parquet", None, float("nan"), "no time"),
    (".parquet", None, float("inf"), "'inf' is not a time"),
    (".jsonl", None, None, "no time"),
    (".csv", "'%I:%M'", START, "key time, format %I:%M: %I counts hours to 12 and needs %p"),
    (".csv", "epoch_s", START, "key time, format epoch_s: is not known; give epoch, epoch_ms"),
]


@pytest.mark.parametrize(("suffix", "form", "value", "message"), REFUSED_TIMES)
def test_a_time_that_is_none_is_refused_with_the_remedy(
    tmp_path: Path, suffix: str, form: str | None, value: Any, message: str
) -> None:
    schema = SCHEMA if form is None else SCHEMA.replace("time: time", f"time: {{column: time, format: {form}}}")
    path = in_file(tmp_path / f"log{suffix}", columns_of([value] * 4))
    with pytest.raises(UserError) as error:
        prepared(tmp_path, [path], schema)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    if "; write `time: " in message:  # the remedy works
        (tmp_path / "log.yaml").unlink()
        entry = str(error.value).partition("; write `")[2].partition("`")[0]
        prepared(tmp_path, [path], SCHEMA.replace("time: time", entry))


def test_a_format_is_for_text_and_numbers(tmp_path: Path) -> None:
    """A timestamp needs none; where all files have timestamps a format is refused, as for tables."""
    stamps = pa.array([START * 1000 + 700], pa.timestamp("ms"))
    parquet = in_file(tmp_path / "a.parquet", columns_of(stamps))
    schema = SCHEMA.replace("time: time", "time: {column: time, format: epoch_ms}")
    with pytest.raises(
        UserError, match=r"a\.parquet, column time: time, but .* has format epoch_ms for it; leave it out"
    ):
        prepared(tmp_path, [parquet], schema)
    text = in_file(tmp_path / "b.csv", columns_of([START * 1000 + 300], item=[11], event=["view"]))
    arrays = prepared(tmp_path, [parquet, text], schema)
    assert arrays.items.tolist() == [2, 1]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_integers_have_a_strptime_format_too(tmp_path: Path, suffix: str) -> None:
    path = in_file(tmp_path / f"log{suffix}", columns_of([20240116, 20240115]))
    arrays = prepared(tmp_path, [path], SCHEMA.replace("time: time", 'time: {column: time, format: "%Y%m%d"}'))
    assert arrays.times.tolist() == [1705276800, 1705363200]


@pytest.mark.parametrize("number", [7, 12_345_678_901, 2**53 - 1])
def test_an_id_is_the_same_as_integer_float_and_text(tmp_path: Path, number: int) -> None:
    kinds = {
        "a.parquet": pa.array([number] * 2, pa.int64()),
        "b.parquet": pa.array([number] * 2, pa.float64()),
        "c.csv": [number] * 2,
        "d.jsonl": [number, float(number)],
        "e.jsonl": [float(number)] * 2,
        "f.parquet": [str(number)] * 2,
    }
    files = [
        in_file(tmp_path / name, columns_of([START, START + 1], user=values, item=values))
        for name, values in kinds.items()
    ]
    arrays = prepared(tmp_path, files)
    assert arrays.users.tolist() == [number]
    assert set(arrays.items.tolist()) == {1}


@pytest.mark.parametrize("column", ["user", "item"])
@pytest.mark.parametrize(
    ("suffix", "values", "message"),
    [
        (".parquet", [1.0, float("nan")], "no value"),
        (".parquet", pa.array([1.0, None]), "no value"),
        (".jsonl", ["a", None], "no value"),
        (".csv", ["a", ""], "no value"),
        (".parquet", [1.0, 2.0**53], r"is rounded, as a float64 from 2\^53 on; write ids as integers or text"),
        (".jsonl", ["a", 1e17], r"1e\+17 is rounded"),
    ],
)
def test_an_id_that_is_none_is_refused(tmp_path: Path, column: str, suffix: str, values: Any, message: str) -> None:
    path = in_file(tmp_path / f"log{suffix}", columns_of([START, START + 1], **{column: values}))
    row = 3 if suffix == ".csv" else 2
    with pytest.raises(UserError, match=rf"row {row}.*, column {column}: .*{message}"):
        prepared(tmp_path, [path])


@pytest.mark.parametrize("spelling", ["true", "'true'", "True", "yes", "1"])
def test_a_truth_value_has_one_meaning(tmp_path: Path, spelling: str) -> None:
    """In conditions on values, in rules on numbers and in flags."""
    files = []
    kinds: dict[str, Any] = {
        "a.parquet": pa.array([True, False]),
        "b.csv": ["True", "False"],
        "c.csv": ["TRUE", "no"],
        "d.jsonl": [True, False],
        "e.jsonl": [True, "false"],
        "f.csv": ["1", "0"],
        "g.parquet": pa.array([1, 0], pa.int8()),
    }
    for number, (name, values) in enumerate(kinds.items()):
        times = [START + 2 * number, START + 2 * number + 1]
        files.append(in_file(tmp_path / name, columns_of(times, is_click=values)))
    schema = (
        "user: user\nitem: item\ntime: time\n"
        f"actions: {{click: {{is_click: {spelling}}}, same: {{is_click: '== 1'}}}}\n"
        "others: {is_click: false}\nlabel: click\nflag: is_click\n"
    )
    arrays = prepared(tmp_path, files, schema)
    assert (arrays.flags & 131).tolist() == [131, 0] * len(files)


def test_a_log_of_one_class_is_refused_with_its_values(tmp_path: Path) -> None:
    """A misspelled value of an action, and a label that no sample can have."""
    path = in_file(tmp_path / "log.csv", columns_of(range(START, START + 30)))
    misspelled = SCHEMA.replace("{event: buy}", "{event: Buy}") + "others: {event: buy}\n"
    message = r"none of the 30 events that meet `anchors` is bought, the label.*of event: 'buy' \(15\), 'view' \(15\);"
    with pytest.raises(UserError, match=message):
        prepared(tmp_path, [path], misspelled)
    message = r"none of the 15 events .* their values of event: 'view' \(15\); correct `actions`, `label` or `anchors`"
    with pytest.raises(UserError, match=message):
        prepared(tmp_path, [path], SCHEMA + "anchors: {event: view}\n")
    with pytest.raises(UserError, match="each of the 15 events that meet"):
        prepared(tmp_path, [path], SCHEMA + "anchors: {event: buy}\n")
    arrays = prepared(tmp_path, [path], misspelled, "data.allow_degenerate=true")
    assert not (arrays.flags & 1).any()


def test_rows_of_an_attribute_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    path = in_file(tmp_path / "log.csv", columns_of([START, START + 1]))
    schema = SCHEMA + "attributes: {brand: {file: brands.csv, item: id, column: maker}}\n"
    brands = tmp_path / "brands.csv"
    brands.write_text("id,maker\n10,x\n11,y\n10,x\n99,a\n99,b\n11,z\n")
    message = (
        r"brands\.csv: row 7, column maker: id '11' has 'z', but 'y' in .*brands\.csv: row 3; keep one of these rows"
    )
    for chunk in ("", "data.chunk_bytes=8"):
        with pytest.raises(UserError, match=message):
            prepared(tmp_path, [path], schema, *([chunk] if chunk else []))
    brands.write_text(brands.read_text().replace("11,z", "11,y"))
    prepared(tmp_path, [path], schema)


def test_a_packed_copy_of_a_log_is_refused(tmp_path: Path) -> None:
    """Its events would count twice."""
    log = in_file(tmp_path / "a.csv", columns_of([START + 60 * minute for minute in range(20)]))
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(log.read_bytes()))
    with pytest.raises(UserError, match=r"b.csv.gz: the same rows as .*a.csv, so its rows would count twice"):
        prepared(tmp_path, [log, tmp_path / "b.csv.gz"])
