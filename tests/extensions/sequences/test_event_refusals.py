"""Mistakes in logs of events: each is refused in one line, with its place and, where there is one, a remedy that works.

tests/extensions/sequences/test_time_oracle.py has which values times, ids and truth values of each type of file mean.
"""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from common.errors import UserError
from tests.data_prep.conftest import prepare
from tests.data_prep.tables import ALLOW, Content, write
from tests.error_lines import refused
from tests.extensions.sequences.event_logs import opened

START = 1_700_000_000
SCHEMA = "user: user\nitem: item\ntime: time\nactions: {bought: {event: buy}, seen: {event: view}}\nlabel: bought\n"
LOG = "user,time,item,event,score\n"
TEXT_SCHEMA = SCHEMA.replace("seen: {event: view}", 'liked: {score: ">= 4"}') + "others: {event: view}\n"
GOOD = ["ann,100,pen,buy,5", "bob,90,pen,view,", "ann,50,ink,view,3", "ann,100,ink,buy,1"]


def timed(form: str) -> str:
    return SCHEMA.replace("time: time", f"time: {{column: time, format: {form}}}")


def prepared(directory: Path, files: Sequence[Path], schema: str = SCHEMA, *overrides: str) -> Any:
    """The arrays of a log."""
    (directory / "log.yaml").write_text(schema)
    paths = [f"data.raw=[{','.join(map(str, files))}]", f"data.schema={directory}/log.yaml"]
    prepare(*paths, f"data.path={directory}/out", *overrides)
    return opened(directory / "out")[1]


def columns_of(times: Any, **columns: Any) -> dict[str, Any]:
    """A log of one user, whose items count from 10 on, and whose events are bought and viewed in turn."""
    count = len(times)
    usual = {"user": [1] * count, "item": [10 + i for i in range(count)], "time": times}
    return {**usual, "event": ["buy", "view"] * (count // 2) + ["buy"] * (count % 2), **columns}


def remedy(form: str) -> str:
    """Text that an error message suggests to write."""
    return rf"`time: \{{column: time, format: {form}\}}`"


IN_1970 = f"{START} lies in the first days of 1970 as milliseconds; it looks like seconds; write {remedy('epoch')}"
BEFORE_2001 = "980000000000 lies in the future as seconds; it looks like milliseconds; write " + remedy("epoch_ms")
DAY = '"%Y%m%d"'
# Of a log of four events at this time: the form of its file, its schema, the time, what the line says.
TIMES: list[tuple[str, str, Any, str]] = [
    ("csv", timed("epoch_ms"), "2024-01-01T00:00:00", "'2024-01-01T00:00:00' is not a time of format epoch_ms"),
    ("csv", timed("epoch_ms"), START, IN_1970),
    ("csv", timed("epoch"), 980_000_000_000, BEFORE_2001),
    ("jsonl", SCHEMA, START * 10**9, f"as seconds; it looks like nanoseconds; write {remedy('epoch_ns')}"),
    ("parquet", SCHEMA, 20240115, f"may be a date, or seconds; write {remedy(DAY)}, or {remedy('epoch')}"),
    ("jsonl", SCHEMA, True, r"'True' is not a time \(ISO 8601, or seconds\)"),
    ("parquet", SCHEMA, float("nan"), "no time"),
    ("jsonl", SCHEMA, None, "no time"),
    ("csv", timed("epoch_s"), START, "key time, format epoch_s: is not known; give epoch, epoch_ms"),
    ("parquet", timed("epoch_ms"), pa.scalar(START, pa.timestamp("s")), "time: time, .* has format epoch_ms for"),
]
ROUNDED = r"is rounded, as a float%d from 2\^%d on; write the column as int64 or text"
FRACTION = r"7\.5 is not an id: text or an integer"
TIMES += [("parquet", SCHEMA, pa.scalar(float(START), pa.float32()), ROUNDED % (32, 24))]
# Of a log of two events: the form of its file, the ids of users or items, what the line says.
IDS: list[tuple[str, Any, str]] = [
    ("parquet", [1.0, float("nan")], "no value"),
    ("jsonl", ["a", None], "no value"),
    ("csv", ["a", ""], "no value"),
    ("parquet", [1.0, 2.0**53], ROUNDED % (64, 53)),
    ("parquet", pa.array([1.0, 2.0**24], pa.float32()), ROUNDED % (32, 24)),
    ("parquet", [1.0, 7.5], FRACTION),
    ("jsonl", ["a", 7.5], FRACTION),
]
# The third row of a log of text, what the line says.
ROWS: list[tuple[str, str]] = [
    ("ann,99999999999,pen,buy,5", "row 4, column time: 99999999999 lies in the future as seconds"),
    ("ann,-5,pen,buy,5", "row 4, column time: -5 seconds lie before 1970"),
    ("ann,soon,pen,buy,5", r"row 4, column time: 'soon' is not a time \(ISO 8601, or seconds\); .*format"),
    ("ann,,pen,buy,5", "row 4, column time: no time"),
    ("ann,100,pen,buys,5", r"row 4, column event: unknown action 'buys'; known are \['buy', 'view'\]; name it in"),
    ("ann,100,pen,buy,five", "row 4, column score: 'five' is not a number"),
    ("ann,100,pen,buy", "row 4: 4 columns, but a row has 5"),
]
# The schema of a log of text, what the line says.
SCHEMAS: list[tuple[str, str]] = [
    (TEXT_SCHEMA.replace("label: bought", "label: sold"), "key label: sold is none of the actions"),
    (TEXT_SCHEMA.replace("label: bought", ""), "key 'label' is missing"),
    (TEXT_SCHEMA + "lable: x\n", "key 'lable' is unknown"),
    (TEXT_SCHEMA + "weight: score\n", "key 'weight' is unknown"),
    (TEXT_SCHEMA.replace("item: item", "item: thing"), "csv: row 1: no column thing, which .*log.yaml names"),
    (TEXT_SCHEMA + "crosses: {a: {of: [user, day], rows: 5}}\n", r"key crosses: a: of \['day'\]; known are"),
    (TEXT_SCHEMA + "renumber: false\n", "row 2, column user: ann is not an id .* set `renumber: true` in the schema"),
    (TEXT_SCHEMA + "rows: {item: 5}\n", "key rows: has no effect with renumber: true"),
    (TEXT_SCHEMA + "anchors: {event: sell}\n", "none of 4 events meets `anchors`"),
    (TEXT_SCHEMA + "drop_last_seconds: 60\n", "`drop_last_seconds: 60` of data.schema leave none of its events"),
    (TEXT_SCHEMA + "drop_last_seconds: 5\nkeep_seconds: 4\n", "`keep_seconds: 4` and `drop_last_seconds: 5` of"),
    (TEXT_SCHEMA + "attributes: {brand: {file: no.csv, item: item, column: b}}\n", "no.csv: no such file"),
    (TEXT_SCHEMA.replace("{event: buy}", "buy"), r"key actions\.bought: give columns and what they hold"),
]
CASES: list[tuple[str, Content, str, str]] = [
    *((form, columns_of([time] * 4), schema, message) for form, schema, time, message in TIMES),
    *(
        (form, columns_of([START, START + 1], **{column: values}), SCHEMA, f"row [23].*, column {column}: .*{message}")
        for form, values, message in IDS
        for column in ("user", "item")
    ),
    *(("csv", LOG + "\n".join([*GOOD[:2], row, *GOOD[2:]]) + "\n", TEXT_SCHEMA, message) for row, message in ROWS),
    *(("csv", LOG + "\n".join(GOOD) + "\n", schema, message) for schema, message in SCHEMAS),
]


@pytest.mark.medium
@pytest.mark.parametrize(("form", "content", "schema", "message"), CASES)
def test_refused_in_one_line(tmp_path: Path, form: str, content: Content, schema: str, message: str) -> None:
    if isinstance(content, dict) and isinstance(content["time"][0], pa.Scalar):
        content["time"] = pa.array([each.as_py() for each in content["time"]], content["time"][0].type)
    path = write(tmp_path / f"log.{form}", content)
    for chunk in ("data.chunk_bytes=10", "data.chunk_bytes=1MiB"):
        line = refused(message, prepared, tmp_path, [path], schema, chunk)
        assert not (tmp_path / "out/manifest.json").exists()
    if isinstance(content, dict) and "; write `time: " in line:  # the remedy works
        entry = line.partition("; write `")[2].partition("`")[0]
        prepared(tmp_path, [path], SCHEMA.replace("time: time", entry))


def test_a_format_is_for_text_and_numbers(tmp_path: Path) -> None:
    """A timestamp needs none; where not all files have timestamps a format is for the others."""
    stamps = pa.array([START * 1000 + 700], pa.timestamp("ms"))
    parquet = write(tmp_path / "a.parquet", columns_of(stamps))
    text = write(tmp_path / "b.csv", columns_of([START * 1000 + 300], item=[11], event=["view"]))
    assert prepared(tmp_path, [parquet, text], timed("epoch_ms")).items.tolist() == [2, 1]


def test_a_log_of_one_class_is_refused_with_its_values(tmp_path: Path) -> None:
    """A misspelled value of an action, and a label that no sample can have."""
    path = write(tmp_path / "log.csv", columns_of(range(START, START + 30)))
    misspelled = SCHEMA.replace("{event: buy}", "{event: Buy}") + "others: {event: buy}\n"
    of_all = r"none of the 30 events that meet `anchors` is bought, the label.*of event: 'buy' \(15\), 'view' \(15\);"
    of_views = r"none of the 15 events .* their values of event: 'view' \(15\); correct `actions`, `label` or `anchors`"
    for schema, message in (
        (misspelled, of_all),
        (SCHEMA + "anchors: {event: view}\n", of_views),
        (SCHEMA + "anchors: {event: buy}\n", "each of the 15 events that meet"),
    ):
        refused(message, prepared, tmp_path, [path], schema)
    assert not (prepared(tmp_path, [path], misspelled, ALLOW).flags & 1).any()


def test_rows_of_an_attribute_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", columns_of([START, START + 1]))
    schema = SCHEMA + "attributes: {brand: {file: brands.csv, item: id, column: maker}}\n"
    brands = tmp_path / "brands.csv"
    brands.write_text("id,maker\n10,x\n11,y\n10,x\n99,a\n99,b\n11,z\n")
    message = (
        r"brands\.csv: row 7, column maker: id '11' has 'z', but 'y' in .*brands\.csv: row 3; keep one of these rows"
    )
    for chunk in ("1MiB", "8"):
        refused(message, prepared, tmp_path, [path], schema, f"data.chunk_bytes={chunk}")
    brands.write_text(brands.read_text().replace("11,z", "11,y"))
    prepared(tmp_path, [path], schema)


def test_a_packed_copy_of_a_log_is_refused(tmp_path: Path) -> None:
    """Its events would count twice."""
    log = write(tmp_path / "a.csv", columns_of([START + 60 * minute for minute in range(20)]))
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(log.read_bytes()))
    with pytest.raises(UserError, match=r"b.csv.gz: the same rows as .*a.csv, so its rows would count twice"):
        prepared(tmp_path, [log, tmp_path / "b.csv.gz"])


@pytest.mark.parametrize("key", ["data.encoding=hash", "data.frequency_threshold=3", "data.split.seed=1"])
def test_keys_of_rows_are_refused(tmp_path: Path, key: str) -> None:
    log = write(tmp_path / "log.csv", columns_of([START, START + 1]))
    refused("has no effect on a log of events", prepared, tmp_path, [log], SCHEMA, key, "data.max_ind_range=9")
