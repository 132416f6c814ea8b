"""Logs of events to datasets of events."""

import gzip
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.compose import compose_config
from common.errors import UserError
from data_prep import interchange
from data_prep.config.compose import CONFIG_DIRECTORY
from data_prep.config.keys import PrepConfig, parse_size
from data_prep.dataset.events import text_key
from data_prep.dataset.format import load_manifest
from data_prep.parsing.event_yaml import load_event_schema, schema_path
from data_prep.pipeline import preprocess
from data_prep.traces.accesses import profile_accesses
from data_prep.verify import verify_dataset
from tests.data_prep.conftest import REPOSITORY, config, die_at_a_result, run, sums
from tests.data_prep.mirror import Mirror
from tests.event_logs import opened, reference, write_reference_log
from tests.forks import run_module


@pytest.mark.parametrize("chunk_bytes", [2000, 1 << 20], ids=["in many runs", "in one"])
def test_the_store_equals_the_reference_s(tmp_path: Path, chunk_bytes: int) -> None:
    overrides = write_reference_log(tmp_path)
    manifest = preprocess(config(*overrides, f"data.path={tmp_path}/out", f"data.chunk_bytes={chunk_bytes}"))
    z, (_, events) = reference(), opened(tmp_path / "out")
    users = z["store_unique_uids"]
    assert events.users.tolist() == users.tolist()
    assert events.offsets.tolist() == [*z["store_user_start"][users], len(z["store_uid"])]
    assert events.items.tolist() == z["store_item_ids"].tolist()
    assert events.times.tolist() == z["store_timestamps"].tolist()
    expected = z["store_is_listen_plus"] | z["store_is_like"] << 1 | z["store_is_skip"] << 2
    expected |= (z["store_event_types"] == 0) << 6 | z["store_is_organic"] << 7
    assert events.flags.tolist() == expected.tolist()
    attributes = np.zeros((2, events.attributes.shape[1]), np.int32)
    attributes[:, z["meta_item_id"]] = z["meta_artist_id"], z["meta_album_id"]
    assert events.attributes.tolist() == attributes.tolist()
    assert manifest.extra["anchors"] == len(z["positions"])
    assert manifest.encoding["order"] == "user, time, place in the input"
    assert verify_dataset(tmp_path / "out").rows == len(z["store_uid"])


LOG = "user,time,item,event,score\n"
SCHEMA = """
user: user
time: time
item: item
actions: {bought: {event: buy}, liked: {score: ">= 4"}}
others: {event: view}
label: bought
"""


def write_log(directory: Path, rows: str | list[str], schema: str = SCHEMA) -> list[str]:
    """A log in CSV with its schema; the arguments that name them."""
    (directory / "log.csv").write_text(LOG + (rows if isinstance(rows, str) else "\n".join(rows) + "\n"))
    (directory / "schema.yaml").write_text(schema)
    return [f"data.raw={directory}/log.csv", f"data.schema={directory}/schema.yaml", f"data.path={directory}/out"]


GOOD = "ann,100,pen,buy,5\nbob,90,pen,view,\nann,50,ink,view,3\nann,100,ink,buy,1\n"


def test_a_log_of_text(tmp_path: Path) -> None:
    """Users and items by name, in the order of their keys; ties in the order of the rows."""
    manifest = preprocess(config("data=events", *write_log(tmp_path, GOOD)))
    schema, events = opened(tmp_path / "out")
    assert events.users.tolist() == sorted(text_key(name) for name in ("ann", "bob"))
    ann = events.users.tolist().index(text_key("ann"))
    events_of_ann = slice(int(events.offsets[ann]), int(events.offsets[ann + 1]))
    items = {name: 1 + sorted(map(text_key, ("pen", "ink"))).index(text_key(name)) for name in ("pen", "ink")}
    assert events.items[events_of_ann].tolist() == [items["ink"], items["pen"], items["ink"]]
    assert events.times[events_of_ann].tolist() == [50, 100, 100]
    assert (events.flags[events_of_ann] & 3).tolist() == [0, 3, 1]
    assert manifest.num_embeddings == {"user": 3, "item": 3}
    assert manifest.label_rate == 0.5
    extra = manifest.extra
    assert (extra["users"], extra["short_users"], extra["anchors"], extra["repeated"]) == (2, 1, 2, 0)
    assert schema.columns == ("user", "item", "time", "event", "score")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (",100,pen,buy,5", "row 4, column user: no value"),
        ("ann,100,,buy,5", "row 4, column item: no value"),
        ("ann,,pen,buy,5", "row 4, column time: no time"),
        ("ann,soon,pen,buy,5", r"row 4, column time: 'soon' is not a time \(ISO 8601, or seconds\); .*format"),
        ("ann,99999999999,pen,buy,5", "row 4, column time: 99999999999 lies in the future as seconds"),
        (
            "ann,1700000000000,pen,buy,5",
            r"row 4, column time: .*milliseconds; write `time: \{column: time, format: epo",
        ),
        ("ann,4000000000,pen,buy,5", "row 4, column time: 4000000000 .*in the future"),
        ("ann,-5,pen,buy,5", "row 4, column time: -5 seconds lie before 1970"),
        ("ann,100,pen,buys,5", r"row 4, column event: unknown action 'buys'; known are \['buy', 'view'\]; name it in"),
        ("ann,100,pen,buy,five", "row 4, column score: 'five' is not a number"),
        ("ann,100,pen,buy,1_0", "row 4, column score: '1_0' is not a number"),
        ("ann,100,pen,buy", "row 4: 4 columns, but a row has 5"),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [10, 1 << 20])
def test_a_bad_row_is_named(tmp_path: Path, row: str, message: str, chunk_bytes: int) -> None:
    rows = GOOD.splitlines()
    overrides = write_log(tmp_path, [*rows[:2], row, *rows[2:]])
    with pytest.raises(UserError, match=f"log.csv: (?:{message})"):
        preprocess(config("data=events", *overrides, f"data.chunk_bytes={chunk_bytes}"))
    assert not (tmp_path / "out/manifest.json").exists()


def test_the_remedy_for_milliseconds_works(tmp_path: Path) -> None:
    rows = (
        GOOD.replace(",100,", ",1700000000500,").replace(",90,", ",1600000000000,").replace(",50,", ",1500000000999,")
    )
    schema = SCHEMA.replace("time: time", "time: {column: time, format: epoch_ms}")
    preprocess(config("data=events", *write_log(tmp_path, rows, schema)))
    assert sorted(opened(tmp_path / "out")[1].times.tolist()) == [1500000000, 1600000000, 1700000000, 1700000000]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (SCHEMA.replace("label: bought", "label: sold"), "key label: sold is none of the actions"),
        (SCHEMA.replace("label: bought", ""), "key 'label' is missing"),
        (SCHEMA + "lable: x\n", "key 'lable' is unknown"),
        (SCHEMA.replace("item: item", "item: thing"), "log.csv: row 1: no column thing, which .*schema.yaml names"),
        (SCHEMA + "crosses: {a: {of: [user, day], rows: 5}}\n", r"key crosses: a: of \['day'\]; known are"),
        (SCHEMA + "renumber: false\n", "row 2, column user: ann is not an id .* set `renumber: true` in the schema"),
        (SCHEMA + "rows: {item: 5}\n", "key rows: has no effect with renumber: true"),
        (SCHEMA + "anchors: {event: sell}\n", "none of 4 events meets `anchors`"),
        (SCHEMA + "drop_last_seconds: 60\n", "`drop_last_seconds: 60` of data.schema leave none of its events"),
        (SCHEMA + "drop_last_seconds: 5\nkeep_seconds: 4\n", "`keep_seconds: 4` and `drop_last_seconds: 5` of"),
        (SCHEMA + "attributes: {brand: {file: no.csv, item: item, column: b}}\n", "no.csv: no such file"),
        (SCHEMA.replace("{event: buy}", "buy"), r"key actions\.bought: give columns and what they hold"),
    ],
)
def test_a_bad_schema_is_named(tmp_path: Path, schema: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        preprocess(config("data=events", *write_log(tmp_path, GOOD, schema)))


def test_short_users_and_unsorted_events_are_those_of_their_names(tmp_path: Path) -> None:
    """A user of long history and no anchor is not short; each event after a later one counts, however they lie."""
    rows = [f"ann,{time},pen,view,{score}" for time, score in ((90, 5), (10, 1), (20, 1), (95, 1), (80, 1))]
    rows += [f"bob,{time},ink,view," for time in (3, 1, 2)] + ["cy,5,ink,buy,"]
    arguments = write_log(tmp_path, rows, SCHEMA + "anchors: {event: buy}\nmin_history: 0\n")
    extra = preprocess(config(*arguments, "data.allow_degenerate=true")).extra  # the one sample is bought
    assert (extra["users"], extra["anchors"], extra["short_users"], extra["unsorted"]) == (3, 1, 0, 5)


def test_what_is_odd_is_counted_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Repeated and unsorted events, short histories, items without attributes, times outside of what is kept."""
    rows = GOOD + "ann,100,pen,buy,5\nann,20,cup,view,\ncy,95,pen,buy,\ndan,1,pen,buy,\n"
    (tmp_path / "brands.csv").write_text("item,brand\npen,x\nink,y\npen,x\nhat,x\n")
    extra = "min_history: 2\ndrop_last_seconds: 0\nkeep_seconds: 90\n"
    extra += "attributes: {brand: {file: brands.csv, item: item, column: brand}}\n"
    counts = preprocess(config("data=events", *write_log(tmp_path, rows, SCHEMA + extra))).extra
    # ann's are 20 (cup), 50 (ink), 100 (pen), 100 (ink), 100 (pen): the third has two before it
    assert counts["anchors"] == 3
    assert (counts["users"], counts["short_users"]) == (3, 2)
    assert (counts["repeated"], counts["dropped"], counts["unsorted"]) == (1, 1, 2)
    assert counts["without_attribute"] == {"brand": 1}
    result = capsys.readouterr().err
    assert "2 users have too short histories for a sample" in result
    assert "1 events have an item that brand's table does not have; their brand is 0" in result
    schema, events = opened(tmp_path / "out")
    keys = sorted(map(text_key, ("pen", "ink", "cup")))
    brands = {name: int(events.attributes[0, 1 + keys.index(text_key(name))]) for name in ("pen", "ink", "cup")}
    assert brands["cup"] == 0
    assert {brands["pen"], brands["ink"]} == {1, 2}
    assert tuple(schema.attributes) == ("brand",)


@pytest.mark.parametrize("key", ["data.encoding=hash", "data.frequency_threshold=3", "data.split.seed=1"])
def test_keys_of_rows_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(UserError, match="has no effect on a log of events"):
        preprocess(config("data=events", *write_log(tmp_path, GOOD), key, "data.max_ind_range=9"))


def random_log(directory: Path, num_events: int, seed: int) -> None:
    """A log of many ties in two Parquet files and one of CSV, gzipped."""
    rng = np.random.default_rng(seed)
    for part in range(3):
        columns = {
            "user": rng.integers(0, 60, num_events),
            "time": rng.integers(0, 300, num_events),
            "item": rng.integers(0, 40, num_events),
            "event": rng.choice(["buy", "view"], num_events),
            "score": rng.integers(0, 6, num_events),
        }
        if part < 2:
            pq.write_table(pa.table(columns), directory / f"{part}.parquet", row_group_size=int(rng.integers(30, 300)))
            continue
        rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        with gzip.open(directory / "2.csv.gz", "wt") as file:
            file.write(LOG + "\n".join(rows) + "\n")
    (directory / "schema.yaml").write_text(SCHEMA)


def given_log(directory: Path) -> list[str]:
    files = ",".join(f"{directory}/{name}" for name in ("0.parquet", "1.parquet", "2.csv.gz"))
    return ["data=events", f"data.raw=[{files}]", f"data.schema={directory}/schema.yaml", "data.chunk_bytes=20000"]


@settings(max_examples=4)
@given(num_events=st.integers(1, 200), seed=st.integers(0, 99), chunk_bytes=st.sampled_from([1000, 5000, 1 << 20]))
def test_sorted_by_user_time_and_place(num_events: int, seed: int, chunk_bytes: int) -> None:
    """Against a plain stable sort of everything, whatever the sizes of files and runs."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        random_log(directory, num_events, seed)
        arguments = [*given_log(directory)[:-1], f"data.chunk_bytes={chunk_bytes}", f"data.path={directory}/out"]
        preprocess(config(*arguments))
        tables = [pq.read_table(directory / f"{part}.parquet") for part in range(2)]
        tables.append(pyarrow.csv.read_csv(directory / "2.csv.gz"))
        columns = {key: np.concatenate([table[key].to_numpy() for table in tables]) for key in LOG.strip().split(",")}
        order = np.lexsort((columns["time"], columns["user"]))
        _, events = opened(directory / "out")
        users, counts = np.unique(columns["user"], return_counts=True)
        assert events.users.tolist() == users.tolist()
        assert np.diff(events.offsets).tolist() == counts.tolist()
        assert events.times.tolist() == columns["time"][order].tolist()
        distinct = np.unique(columns["item"])
        assert events.items.tolist() == (np.searchsorted(distinct, columns["item"][order]) + 1).tolist()
        flags = (columns["event"] == "buy") * 1 + (columns["score"] >= 4) * 2 + 64
        assert events.flags.tolist() == flags[order].tolist()


@pytest.mark.slow
def test_bytes_do_not_depend_on_workers_nor_on_kills(tmp_path: Path) -> None:
    random_log(tmp_path, 3000, 1)
    preprocess(config(*given_log(tmp_path), f"data.path={tmp_path}/one"))
    arguments = [*given_log(tmp_path), f"data.path={tmp_path}/two", "data.workers=2"]
    for number in (1, 4, 9):
        killed = run_module("data_prep", *arguments, cwd=REPOSITORY, prepare=partial(die_at_a_result, number))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert not (tmp_path / "two/manifest.json").exists()
    final = run(*arguments)
    assert final.returncode == 0, final.stderr
    assert "resuming where the last job stopped" in final.stderr
    assert sums(tmp_path / "two") == sums(tmp_path / "one")
    assert load_manifest(tmp_path / "two").digest == load_manifest(tmp_path / "one").digest
    assert not (tmp_path / "two/.work").exists()
    verify_dataset(tmp_path / "two")
    repeat = run(*arguments)
    assert "already done" in repeat.stderr


def test_damage_is_found(tmp_path: Path) -> None:
    preprocess(config("data=events", *write_log(tmp_path, GOOD)))
    for name in ("events/00000.items.npy", "events/00000.users.npy", "vocab/item.npy"):
        path = tmp_path / "out" / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(UserError, match=f"{name}: .*preprocess again"):
            verify_dataset(tmp_path / "out")
        path.write_bytes(whole)
    verify_dataset(tmp_path / "out")


def test_yambda_by_name(tmp_path: Path, mirror: Mirror) -> None:
    """From a server, resumed and hashed as Criteo's days; not wanted any more once the dataset is there."""
    write_reference_log(tmp_path)
    names = {"multi_event": "multi_event", "artists": "artist_item_mapping", "albums": "album_item_mapping"}
    for table_name, source_name in names.items():
        mirror.content[f"{source_name}.parquet"] = (tmp_path / f"{table_name}.parquet").read_bytes()
    schema = (tmp_path / "schema.yaml").read_text()
    for kind in ("artist", "album"):
        schema = schema.replace(f"{kind}s.parquet", f"{kind}_item_mapping.parquet")
    (tmp_path / "own.yaml").write_text(schema)
    urls = {name: f"['{mirror.url('dropping')}/{name}.parquet']" for name in names.values()}
    also = ",".join(f"{name}.parquet:{urls[name]}" for name in names.values() if name != "multi_event")
    arguments = [
        "data=yambda_50m",
        f"data.path={tmp_path}/out",
        f"data.schema={tmp_path}/own.yaml",
        "data.remote.pause=0.01",
        f"data.remote.mirrors={urls['multi_event']}",
        f"data.remote.also={{{also}}}",
        "data.remote.rows=811",
    ]
    manifest = preprocess(config(*arguments))
    assert manifest.extra["anchors"] == len(reference()["positions"])
    assert [source["name"] for source in manifest.sources] == [f"{name}.parquet" for name in names.values()]
    noted = json.loads((tmp_path / "out/raw/sums.json").read_text())
    assert {name: each["sha256"] for name, each in noted.items()} == {
        source["name"]: source["sha256"] for source in manifest.sources
    }
    requests = len(mirror.requests)
    shutil.rmtree(tmp_path / "out/raw")
    assert preprocess(config(*arguments)).digest == manifest.digest
    assert len(mirror.requests) == requests
    other = [f"data.remote.sha256={{artist_item_mapping.parquet:{'0' * 64}}}", f"data.path={tmp_path}/other"]
    with pytest.raises(UserError, match=r"artist_item_mapping\.parquet: .*sha256.* data\.remote\.sha256"):
        preprocess(config(*(each.replace("dropping", "good") for each in (*arguments, *other))))


@pytest.mark.parametrize("name", ["yambda_50m", "yambda_500m", "yambda_5b"])
def test_yambda_s_schema_is_mlperf_s(name: str) -> None:
    data = config(f"data={name}")
    schema = load_event_schema(schema_path(str(data.schema)))
    rows = schema.rows | {cross: entry.rows for cross, entry in schema.crosses.items()}
    assert sum(rows[table] for table in schema.tables) == 293_051_712
    assert (schema.min_history, schema.window_seconds, schema.drop_last_seconds) == (4086, 86400, 86400 + 1800)
    assert f"flat/{name.removeprefix('yambda_')}/" in data.remote.mirrors[0]


def test_commands_of_rows_refuse_events(tmp_path: Path) -> None:
    preprocess(config("data=events", *write_log(tmp_path, GOOD)))
    with pytest.raises(UserError, match="holds events, not rows"):
        profile_accesses(str(tmp_path / "out"), "train", 1)
    arguments = [f"exchange.to={tmp_path}/x", f"data.path={tmp_path}/out"]
    with pytest.raises(UserError, match="holds events, not rows"):
        interchange.main(compose_config(PrepConfig, CONFIG_DIRECTORY, arguments))


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "workers"), [("512MiB", 1), ("1536MiB", 2)])
def test_memory_stays_within_the_budget(tmp_path: Path, budget: str, workers: int) -> None:
    """Four million events in order of time, so that every run has every user, with a million items' brands."""
    rng, rows = np.random.default_rng(0), 4_000_000
    columns = {
        "user": rng.integers(0, 5_000, rows),
        "time": np.sort(rng.integers(0, 10**7, rows)),
        "item": rng.integers(0, 10**6, rows),
        "event": rng.choice(["buy", "view"], rows),
        "score": rng.integers(0, 6, rows, np.int8),
    }
    pq.write_table(pa.table(columns), tmp_path / "log.parquet", row_group_size=1 << 18)
    pq.write_table(pa.table({"item": np.arange(10**6), "brand": np.arange(10**6) % 999}), tmp_path / "brands.parquet")
    (tmp_path / "schema.yaml").write_text(
        SCHEMA + "attributes: {brand: {file: brands.parquet, item: item, column: brand}}"
    )
    arguments = ["data=events", f"data.raw={tmp_path}/log.parquet", f"data.schema={tmp_path}/schema.yaml"]
    arguments += [f"data.path={tmp_path}/out", f"data.memory_budget={budget}", f"data.workers={workers}"]
    process = subprocess.run(
        [sys.executable, "-m", "data_prep", *arguments], cwd=REPOSITORY, check=False, text=True, capture_output=True
    )
    assert process.returncode == 0, process.stderr
    extra = load_manifest(tmp_path / "out").extra
    assert extra["workers"] == workers
    assert extra["peak_memory_bytes"] <= parse_size(budget, "budget")
    assert sum(path.stat().st_size for path in (tmp_path / "out/events").iterdir()) / rows < 9.1


def test_an_empty_field_meets_no_rule_and_flags_are_words_too(tmp_path: Path) -> None:
    """Of numbers: in anchors and in labels, != as well."""
    log = "user,time,item,event,score,ad\n"
    rows = [
        ("a", "4", "1.0"),
        ("a", "", "yes"),
        ("a", "0", "False"),
        ("a", "5", "true"),
        ("a", "0", "NO"),
        ("a", "", "0"),
    ]
    text = "".join(f"{user},{100 + i},i{i % 2},buy,{score},{ad}\n" for i, (user, score, ad) in enumerate(rows))
    schema = "user: user\ntime: time\nitem: item\nactions: {other: {score: '!= 0'}, zero: {score: '== 0'}}\n"
    (tmp_path / "log.csv").write_text(log + text)
    (tmp_path / "schema.yaml").write_text(schema + "label: other\nanchors: {score: '!= 4'}\nflag: ad\n")
    overrides = [f"data.raw={tmp_path}/log.csv", f"data.schema={tmp_path}/schema.yaml", f"data.path={tmp_path}/out"]
    preprocess(config(*overrides))
    flags = opened(tmp_path / "out")[1].flags
    numbers = [float(score) if score else None for _, score, _ in rows]
    assert [bool(flag & 1) for flag in flags] == [number not in (None, 0) for number in numbers]
    assert [bool(flag & 2) for flag in flags] == [number == 0 for number in numbers]
    assert [bool(flag & 64) for flag in flags] == [number not in (None, 4) for number in numbers]
    assert [bool(flag & 128) for flag in flags] == [True, True, False, True, False, False]
