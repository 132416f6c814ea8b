"""Published days, from a server on this machine or as the user has them already, to a dataset."""

import gzip
import json
import os
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.cli import EXIT_STOPPED
from data_prep.config import DataConfig
from data_prep.job import find_sources
from data_prep.pipeline import preprocess
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import REPOSITORY, config
from tests.data_prep.mirror import Mirror, make_archive
from tests.error_lines import refused
from tests.forks import start_module

HASHED = ("data.encoding=hash", "data.max_ind_range=100")


def day_keys(mirror: Mirror, root: Path, *overrides: str, manner: str = "good") -> tuple[str, ...]:
    mirrors = ",".join(f"'{mirror.url(each)}/day_{{day}}.gz'" for each in (manner, "good"))
    remote = (f"data.remote.mirrors=[{mirrors}]", "data.remote.pause=0.01", "data.remote.tries=2")
    return "data.source=criteo_1tb", "data.days=[3,1,2]", f"data.path={root}", *HASHED, *remote, *overrides


def days(mirror: Mirror, root: Path, *overrides: str, manner: str = "good") -> DataConfig:
    return config(*day_keys(mirror, root, *overrides, manner=manner))


@pytest.fixture
def finished(mirror: Mirror, tmp_path: Path) -> Path:
    for day in (3, 1, 2):
        mirror.content[f"day_{day}.gz"] = gzip.compress(oracle.make_rows(40 + day, day), mtime=1)
    manifest = preprocess(days(mirror, tmp_path / "out", manner="dropping"))
    assert [source["rows"] for source in manifest.sources] == [43, 41, 42]
    mirror.requests.clear()
    return tmp_path / "out"


def test_days_from_the_web(mirror: Mirror, finished: Path) -> None:
    verify_dataset(finished)
    sums = json.loads((finished / "raw" / "sums.json").read_text())
    manifest = json.loads((finished / "manifest.json").read_text())
    assert sums == {each["name"]: {"bytes": each["bytes"], "sha256": each["sha256"]} for each in manifest["sources"]}
    preprocess(days(mirror, finished))
    shutil.rmtree(finished / "raw")  # nor are they wanted for anything
    preprocess(days(mirror, finished))
    refused("holds another dataset", preprocess, days(mirror, finished, "data.days=[4]"))
    assert mirror.requests == []


def test_a_sum_seen_once_holds(mirror: Mirror, finished: Path) -> None:
    data_config = days(mirror, finished, "data.overwrite=true")
    path = finished / "raw" / "day_1.gz"
    path.write_bytes(gzip.compress(oracle.make_rows(41, 1), mtime=2))
    refused(r"day_1\.gz: sha256 \w{64} where .*sums\.json has \w{64}; delete it", preprocess, data_config)
    path.write_bytes(b"another length")
    refused(r"day_1\.gz: 14 bytes where .*sums\.json has", preprocess, data_config)
    path.unlink()
    assert mirror.requests == []
    mirror.content["day_1.gz"] = gzip.compress(oracle.make_rows(41, 1), mtime=3)
    message = r"day_1\.gz: download failed .* sha256 \w{64} where .*sums\.json has \w{64}.* put it at .*raw/day_1\.gz"
    refused(message, preprocess, data_config)
    (finished / "raw" / "sums.json").unlink()
    preprocess(data_config)


def test_days_put_there_by_the_user_are_taken(mirror: Mirror, tmp_path: Path) -> None:
    raw = tmp_path / "out" / "raw"
    raw.mkdir(parents=True)
    for day in (3, 1, 2):
        (raw / f"day_{day}.gz").write_bytes(gzip.compress(oracle.make_rows(40 + day, day)))
    (tmp_path / "SHA256SUMS").write_text(f"{'b' * 64} *day_1.gz\n{'c' * 64}  day_9.gz\n")
    for letter, sums in (("a", f"{{day_1.gz:{'a' * 64}}}"), ("b", f"{tmp_path}/SHA256SUMS")):
        data = days(mirror, tmp_path / "out", f"data.remote.sha256={sums}")
        refused(rf"day_1\.gz: sha256 \w* where data\.remote\.sha256 has {letter}{{64}}", preprocess, data)
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert preprocess(days(mirror, tmp_path / "out")).rows == 126
    assert sorted(json.loads((raw / "sums.json").read_text())) == ["day_1.gz", "day_2.gz", "day_3.gz"]
    assert mirror.requests == []


@pytest.mark.medium
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_job_goes_on_where_it_stopped(mirror: Mirror, tmp_path: Path, how: signal.Signals) -> None:
    mirror.content["day_0.gz"] = gzip.compress(oracle.make_rows(400, 0))
    keys = ["data.days=[0]", "data.workers=1"]
    words = day_keys(mirror, tmp_path / "out", *keys, manner="dripping")
    process = start_module("data_prep", *words, cwd=REPOSITORY, out=tmp_path)
    part = tmp_path / "out" / "raw" / "day_0.gz.part"
    while process.is_alive() and not (part.exists() and part.stat().st_size):
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, how)
    process.join()
    assert process.exitcode == (-how if how == signal.SIGKILL else EXIT_STOPPED)
    assert 0 < part.stat().st_size < len(mirror.content["day_0.gz"])
    have = part.stat().st_size
    mirror.over.set()
    assert preprocess(days(mirror, tmp_path / "out", *keys, manner="dripping")).rows == 400
    assert mirror.requests == [("dripping/day_0.gz", None), ("dripping/day_0.gz", f"bytes={have}-")]


def test_a_file_cut_short_is_not_noted(mirror: Mirror, tmp_path: Path) -> None:
    """A mirror may tell less than the file's length."""
    content = gzip.compress(oracle.make_rows(40, 0))
    mirror.content["day_0.gz"] = content[:-100]
    refused("truncated gzip", preprocess, days(mirror, tmp_path / "out", "data.days=[0]"))
    (tmp_path / "out" / "raw" / "day_0.gz").unlink()
    mirror.content["day_0.gz"] = content
    assert preprocess(days(mirror, tmp_path / "out", "data.days=[0]")).rows == 40


def test_room_for_the_dataset_is_asked_first(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5_000_000))
    message = r"about \d+\.\d MB needed \(3\.1 MB to fetch, about .* for the dataset\), 5\.0 MB"
    refused(message, find_sources, days(mirror, tmp_path / "out"), tmp_path / "out", tmp_path / "work")
    assert mirror.requests == []


def kaggle(root: Path, *overrides: str) -> DataConfig:
    return config("data.source=criteo_kaggle", f"data.path={root}", *HASHED, *overrides)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    members = [("readme.txt", b"x"), ("dac/train.txt", oracle.make_rows(70, 0)), ("test.txt", b"y")]
    return make_archive(tmp_path / "mine.tar.gz", members)


def test_kaggle_from_the_web(mirror: Mirror, tmp_path: Path, archive: Path) -> None:
    root = tmp_path / "out"
    mirror.content["dac.tar.gz"] = archive.read_bytes()
    data = kaggle(root, f"data.remote.mirrors=['{mirror.url('good/dac.tar.gz')}']")
    manifest = preprocess(data)
    assert manifest.rows == 70
    assert manifest.sources[0]["name"] == "train.txt"
    assert sorted(json.loads((root / "raw" / "sums.json").read_text())) == ["dac.tar.gz", "train.txt"]
    mirror.requests.clear()
    for name in ("dac.tar.gz", "train.txt"):
        (root / "raw" / name).unlink()
        preprocess(data)
    assert mirror.requests == []


def test_kaggle_as_the_user_has_it(tmp_path: Path, archive: Path) -> None:
    """Without a mirror: the archive or its member, where fetched files are kept or named in data.raw."""
    sources = {}
    for name in ("a", "b"):
        (tmp_path / name / "raw").mkdir(parents=True)
    shutil.copy(archive, tmp_path / "a" / "raw" / "dac.tar.gz")
    (tmp_path / "b" / "raw" / "train.txt").write_bytes(oracle.make_rows(70, 0))
    for name, raw in (("a", None), ("b", None), ("c", archive), ("d", tmp_path / "b" / "raw" / "train.txt")):
        overrides = [] if raw is None else [f"data.raw={raw}"]
        data = kaggle(tmp_path / name, "data.remote.mirrors=[]", *overrides)
        for _ in range(2):
            [sources[name]] = find_sources(data, tmp_path / name, tmp_path / "work")
            assert sources[name].bytes == len(oracle.make_rows(70, 0))
    assert sources["c"].path == str(tmp_path / "c" / "raw" / "train.txt")
    assert sources["d"].path == sources["b"].path
    make_archive(archive, [("train.txt", b"another")])
    message = r"train\.txt: is there already, and not from .*mine\.tar\.gz as it is now"
    data = kaggle(tmp_path / "c", f"data.raw={archive}")
    refused(message, find_sources, data, tmp_path / "c", tmp_path / "work")
    message = r"mine\.tar\.gz: a tar archive, .* data.source=criteo_kaggle data\.raw=.*mine\.tar\.gz"
    data = config(f"data.raw={archive}", f"data.path={tmp_path}/e")
    refused(message, find_sources, data, tmp_path / "e", tmp_path / "work")
