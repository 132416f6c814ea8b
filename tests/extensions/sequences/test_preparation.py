"""Logs of events to datasets: Yambda by name, MLPerf's prepared events, kills and changed bytes."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from common.errors import UserError
from data_prep.parsing.table_yaml import schema_path
from extensions.sequences import preparation
from extensions.sequences.events import load_event_schema, main
from extensions.sequences.keys import ImportConfig, ImportKeys
from tests.data_prep.conftest import config, prepare
from tests.data_prep.mirror import Mirror
from tests.data_prep.tables import paths, write
from tests.data_prep.test_format import change_bytes
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
    noted = json.loads((tmp_path / "out/raw/sums.json").read_text())
    assert {name: each["sha256"] for name, each in noted.items()} == {
        source["name"]: source["sha256"] for source in manifest.sources
    }
    requests = len(mirror.requests)
    shutil.rmtree(tmp_path / "out/raw")
    assert prepare(*arguments).digest == manifest.digest
    assert len(mirror.requests) == requests
    other = [f"data.remote.sha256={{artist_item_mapping.parquet:{'0' * 64}}}", f"data.path={tmp_path}/other"]
    with pytest.raises(UserError, match=r"artist_item_mapping\.parquet: .*sha256.* data\.remote\.sha256"):
        prepare(*(each.replace("dropping", "good") for each in (*arguments, *other)))


@pytest.mark.parametrize("name", ["yambda_50m", "yambda_500m", "yambda_5b"])
def test_yambda_s_schema_is_mlperf_s(name: str) -> None:
    data = config(f"data.source={name}")
    schema = load_event_schema(schema_path(str(data.schema)))
    rows = schema.rows | {cross: entry.rows for cross, entry in schema.crosses.items()}
    assert sum(rows[table] for table in schema.tables) == 293_051_712
    assert (schema.min_history, schema.window_seconds, schema.drop_last_seconds) == (4086, 86400, 86400 + 1800)
    assert f"flat/{name.removeprefix('yambda_')}/" in data.remote.mirrors[0]


def test_one_changed_byte_of_any_file(tmp_path: Path) -> None:
    change_bytes(write_reference_log(tmp_path), tmp_path / "out", encodes=False)


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


# The reference's columns with the dtypes that `_FlatEventStore` gives them.
DTYPES: dict[str, Any] = {"uid": np.int64, "item_ids": np.int64, "timestamps": np.int64, "event_types": np.int64}
DTYPES |= {"played_ratio": np.float32, "is_listen_plus": np.bool_, "is_like": np.bool_, "is_skip": np.bool_}
DTYPES |= {"is_organic": np.int8}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The reference's own store of its tiny log, as its `save_mmap` writes it."""
    directory, z = tmp_path / "cache", reference()
    directory.mkdir()
    for name, dtype in DTYPES.items():
        np.save(directory / f"flat_{name}.npy", z[f"store_{name}"].astype(dtype))
    for name in ("user_start", "user_end", "unique_uids"):
        np.save(directory / f"{name}.npy", z[f"store_{name}"])
    counts = {"num_users": len(z["store_unique_uids"]), "total_events": len(z["store_uid"])}
    (directory / "store_meta.json").write_text(json.dumps(counts))
    (directory / "_READY").touch()
    return directory


def convert(cache: Path, out: Path) -> int:
    return main(ImportConfig(ImportKeys(str(cache), str(out))))


def test_the_dataset_is_that_of_the_published_log(cache: Path, tmp_path: Path) -> None:
    published = write_reference_log(tmp_path)
    assert convert(cache, tmp_path / "events.parquet") == 0
    schema = yaml.safe_load((tmp_path / "schema.yaml").read_text())
    for key in ("drop_last_seconds", "keep_seconds"):
        del schema[key]
    (tmp_path / "prepared.yaml").write_text(yaml.safe_dump(schema, sort_keys=False))
    prepared = [f"data.raw={tmp_path}/events.parquet", f"data.schema={tmp_path}/prepared.yaml"]
    prepare(*published, f"data.path={tmp_path}/one")
    prepare(*prepared, f"data.path={tmp_path}/other")
    one, other = (opened(tmp_path / name)[1] for name in ("one", "other"))
    assert one._fields == other._fields
    for name in one._fields:
        first, second = getattr(one, name), getattr(other, name)
        assert (first.dtype, first.tobytes()) == (second.dtype, second.tobytes()), name
    files = {path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.npy")}
    assert len(files) >= 5
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "other" / file).read_bytes(), file


def test_what_is_incomplete_or_damaged_is_refused(cache: Path, tmp_path: Path) -> None:
    items = (cache / "flat_item_ids.npy").read_bytes()

    def refused(message: str) -> None:
        with pytest.raises(UserError, match=message):
            convert(cache, tmp_path / "events.parquet")
        assert [path for path in tmp_path.iterdir() if "events" in path.name] == []

    (cache / "flat_item_ids.npy").write_bytes(items[:-8])
    refused("flat_item_ids.npy: not a NumPy array .*; download it again")
    np.save(cache / "flat_item_ids.npy", np.arange(3))
    refused(r"flat_item_ids.npy: shape \(3,\), but store_meta.json counts 536 events; download it again")
    (cache / "flat_item_ids.npy").write_bytes(items)
    np.save(cache / "flat_event_types.npy", np.full(536, 5))
    refused("flat_event_types.npy: rows from 0 on: .*; download it again")
    (cache / "_READY").unlink()
    refused("no _READY, the last file of MLPerf's prepared events; complete the download")
