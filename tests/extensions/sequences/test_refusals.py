"""Keys, logs and choices that are refused, each in one line with its place and a remedy that works."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from app.config.app_config import AppConfig
from data_prep.dataset.format import load_manifest
from extensions.sequences.event_log import EventSplit, open_log, refuse_one_class
from tests.app.conftest import composed
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
    (directory / "log.yaml").write_text(schema)
    paths = [f"data.raw=[{','.join(map(str, files))}]", f"data.schema={directory}/log.yaml"]
    prepare(*paths, f"data.path={directory}/out", *overrides)
    return opened(directory / "out")[1]


def columns_of(times: Any, **columns: Any) -> dict[str, Any]:
    count = len(times)
    usual = {"user": [1] * count, "item": [10 + i for i in range(count)], "time": times}
    return {**usual, "event": ["buy", "view"] * (count // 2) + ["buy"] * (count % 2), **columns}


def remedy(form: str) -> str:
    return rf"`time: \{{column: time, format: {form}\}}`"


IN_1970 = f"{START} lies in the first days of 1970 as milliseconds; it looks like seconds; write {remedy('epoch')}"
DAY = '"%Y%m%d"'
# Of a log of four events at this time: the form of its file, its schema, the time, what the line says.
TIMES: list[tuple[str, str, Any, str]] = [
    ("csv", timed("epoch_ms"), "2024-01-01T00:00:00", "'2024-01-01T00:00:00' is not a time of format epoch_ms"),
    ("csv", timed("epoch_ms"), START, IN_1970),
    ("jsonl", SCHEMA, START * 10**9, f"as seconds; it looks like nanoseconds; write {remedy('epoch_ns')}"),
    ("parquet", SCHEMA, 20240115, f"may be a date, or seconds; write {remedy(DAY)}, or {remedy('epoch')}"),
    ("jsonl", SCHEMA, None, "no time"),
]
ROUNDED = r"is rounded, as a float%d from 2\^%d on; write the column as int64 or text"
FRACTION = r"7\.5 is not an id: text or an integer"
TIMES += [("parquet", SCHEMA, pa.scalar(float(START), pa.float32()), ROUNDED % (32, 24))]
# Of a log of two events: the form of its file, the ids of users or items, what the line says.
IDS: list[tuple[str, Any, str]] = [
    ("parquet", [1.0, float("nan")], "no value"),
    ("jsonl", ["a", None], "no value"),
    ("parquet", pa.array([1.0, 2.0**24], pa.float32()), ROUNDED % (32, 24)),
    ("parquet", [1.0, 7.5], FRACTION),
]
# The third row of a log of text, what the line says.
ROWS: list[tuple[str, str]] = [
    ("ann,99999999999,pen,buy,5", "row 4, column time: 99999999999 lies in the future as seconds"),
    ("ann,soon,pen,buy,5", r"row 4, column time: 'soon' is not a time \(ISO 8601, or seconds\); .*format"),
    ("ann,100,pen,buys,5", r"row 4, column event: unknown action 'buys'; known are \['buy', 'view'\]; name it in"),
    ("ann,100,pen,buy,five", "row 4, column score: 'five' is not a number"),
]
# The schema of a log of text, what the line says.
SCHEMAS: list[tuple[str, str]] = [
    (TEXT_SCHEMA.replace("label: bought", "label: sold"), "key label: sold is none of the actions"),
    (TEXT_SCHEMA + "lable: x\n", "key 'lable' is unknown"),
    (TEXT_SCHEMA + "crosses: {a: {of: [user, day], rows: 5}}\n", r"key crosses: a: of \['day'\]; known are"),
    (TEXT_SCHEMA + "renumber: false\n", "row 2, column user: ann is not an id .* set `renumber: true` in the schema"),
    (TEXT_SCHEMA + "anchors: {event: sell}\n", "none of 4 events meets `anchors`"),
    (TEXT_SCHEMA + "drop_last_seconds: 60\n", "`drop_last_seconds: 60` of data.schema leave none of its events"),
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


def test_a_log_of_one_class_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", columns_of(range(START, START + 30)))
    misspelled = SCHEMA.replace("{event: buy}", "{event: Buy}") + "others: {event: buy}\n"
    of_all = "none of the 30 events that meet `anchors` is bought, the label, so nothing can be learned; correct"
    of_views = r"none of the 15 events .*; correct `actions`, `label` or `anchors`"
    for schema, message in (
        (misspelled, of_all),
        (SCHEMA + "anchors: {event: view}\n", of_views),
        (SCHEMA + "anchors: {event: buy}\n", "each of the 15 events that meet"),
    ):
        refused(message, prepared, tmp_path, [path], schema)
    assert not (prepared(tmp_path, [path], misspelled, ALLOW).flags & 1).any()


def event_split(directory: Path, tasks: list[str], *keys: str) -> tuple[AppConfig, EventSplit]:
    """A configuration and the train split of a log of three windows, in which only views and buys are samples."""
    kinds = ["view", "buy", "like", "view"] * 3
    rows = "".join(f"1,{i % 5},{1000 * i},{kind}\n" for i, kind in enumerate(kinds))
    (directory / "log.csv").write_text(f"user,item,time,event\n{rows}")
    (directory / "log.yaml").write_text(
        "user: user\nitem: item\ntime: time\nlabel: bought\nanchors: {event: [view, buy]}\nwindow_seconds: 4000\n"
        "actions: {bought: {event: buy}, seen: {event: view}, liked: {event: like}}\n"
    )
    paths = [f"data.raw={directory}/log.csv", f"data.schema={directory}/log.yaml", f"data.path={directory}/out"]
    prepare(*paths)
    overrides = ["model=hstu", f"sequences.tasks={tasks}", *keys]
    app_config = composed(*overrides)
    return app_config, open_log(directory / "out", load_manifest(directory / "out"), app_config).split("train", 0, 1)


def test_samples_of_one_class_are_refused(tmp_path: Path) -> None:
    run_config, split = event_split(tmp_path, ["seen"])
    refuse_one_class(run_config, tmp_path, split)
    assert split.positives == {"bought": 2, "seen": 4, "liked": 0}
    run_config, split = event_split(tmp_path, ["seen", "liked"])
    message = (
        r"none of the 6 samples to train on is liked, .*: bought \(2\), seen \(4\), liked \(0\); "
        r"leave it out of sequences\.tasks, .* or set data\.allow_degenerate=true"
    )
    refused(message, refuse_one_class, run_config, tmp_path, split)
    run_config, split = event_split(tmp_path, ["liked"], "data.allow_degenerate=true")
    refuse_one_class(run_config, tmp_path, split)
