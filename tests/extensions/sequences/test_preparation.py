"""Logs of events to datasets: Yambda by name, and kills."""

import random
import shutil
from pathlib import Path

import pytest

from common.errors import UserError
from data_prep.parsing.table import schema_path
from extensions.sequences import preparation
from extensions.sequences.events import load_event_schema
from tests.data_prep.conftest import config, prepare
from tests.data_prep.mirror import Mirror
from tests.data_prep.tables import paths, write
from tests.data_prep.test_jobs import Kind, kill_again_and_again
from tests.extensions.sequences.event_logs import opened, reference, write_reference_log


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_conditions_tell_integers_beyond_float64_apart(tmp_path: Path, form: str) -> None:
    scores = [(1 << 53) + more for more in range(3)]
    columns = {"user": ["a"] * 3, "time": [1, 2, 3], "item": ["x"] * 3, "score": scores}
    schema = f"user: user\ntime: time\nitem: item\nactions: {{high: {{score: '>= {scores[1]}'}}}}\nlabel: high\n"
    write(tmp_path / f"rows.{form}", columns)
    prepare(*paths(tmp_path, schema, f"rows.{form}"))
    assert (opened(tmp_path / "out")[1].flags & 1).tolist() == [0, 1, 1]


def test_yambda_by_name(tmp_path: Path, mirror: Mirror) -> None:
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
    arguments = ["data.source=yambda_50m", f"data.path={tmp_path}/out", f"data.schema={tmp_path}/own.yaml"]
    arguments += ["data.remote.pause=0.01", f"data.remote.mirrors={urls['multi_event']}"]
    arguments += [f"data.remote.also={{{also}}}", "data.remote.rows=811"]
    manifest = prepare(*arguments)
    assert manifest.extra["anchors"] == len(reference()["positions"])
    assert [source["name"] for source in manifest.sources] == [f"{name}.parquet" for name in names.values()]
    requests = len(mirror.requests)
    shutil.rmtree(tmp_path / "out/raw")
    assert prepare(*arguments).digest == manifest.digest
    assert len(mirror.requests) == requests
    other = [f"data.remote.sha256={{artist_item_mapping.parquet:{'0' * 64}}}", f"data.path={tmp_path}/other"]
    with pytest.raises(UserError, match=r"artist_item_mapping\.parquet: .*SHA-256.* data\.remote\.sha256"):
        prepare(*(each.replace("dropping", "good") for each in (*arguments, *other)))


@pytest.mark.parametrize("name", ["yambda_50m", "yambda_500m", "yambda_5b"])
def test_yambda_s_schema_is_mlperf_s(name: str) -> None:
    data = config(f"data.source={name}")
    schema = load_event_schema(schema_path(str(data.schema)))
    rows = schema.rows | {cross: entry.rows for cross, entry in schema.crosses.items()}
    assert sum(rows[table] for table in schema.tables) == 293_051_712
    assert (schema.min_history, schema.window_seconds, schema.drop_last_seconds) == (4086, 86400, 86400 + 1800)
    assert f"flat/{name.removeprefix('yambda_')}/" in data.remote.mirrors[0]


def write_events(directory: Path) -> None:
    draw = random.Random(1)
    columns = {name: [draw.randint(0, size) for _ in range(3000)] for name, size in (("user", 60), ("item", 40))}
    columns |= {"time": [draw.randint(0, 300) for _ in range(3000)], "score": [draw.randint(0, 5) for _ in range(3000)]}
    write(directory / "log.parquet", columns, row_group_size=200)
    actions = "actions: {liked: {score: '>= 4'}, seen: {score: '< 4'}}\nlabel: liked\n"
    (directory / "schema.yaml").write_text(f"user: user\ntime: time\nitem: item\n{actions}")


@pytest.mark.slow("examples")
def test_killed_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror: Mirror) -> None:
    kind = Kind(write_events, "data.raw={0}/log.parquet data.schema={0}/schema.yaml data.chunk_bytes=20000")
    kill_again_and_again("events", kind, preparation.__name__, tmp_path, monkeypatch, mirror)
