"""Files fetched from a server that drops connections, lies and serves wrong bytes; published days and archives."""

import gzip
import hashlib
import os
import re
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.cli import EXIT_STOPPED
from data_prep.config import DataConfig, RemoteConfig
from data_prep.job import find_sources
from data_prep.pipeline import preprocess
from data_prep.sources import download
from data_prep.sources.download import RemoteFile, download_all, unpack_member
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import REPOSITORY, Capture, config
from tests.data_prep.mirror import CONTENT, OTHER, Mirror, make_archive
from tests.error_lines import refused
from tests.forks import start_module

PATIENCE = RemoteConfig(tries=4, pause=0.01)
SUM = hashlib.sha256(CONTENT).hexdigest()


def fetch(
    mirror: Mirror, directory: Path, *manners: str, sha256: str | None = None, patience: RemoteConfig = PATIENCE
) -> Path:
    urls = tuple(mirror.url(f"{manner}/day_0.gz") for manner in manners)
    return download_all([RemoteFile("day_0.gz", urls, sha256)], directory, patience)[0]


# How many requests it takes to mirrors of these manners.
REQUESTS = {"missing good": 2, "busy": 3, "moved": 2, "stubborn": 2, "astray good": 5}
REQUESTS |= {"lying good": 5, "cut good": 2, "torn": 2}


@pytest.mark.parametrize("manners", REQUESTS)
def test_the_file_comes_whole(mirror: Mirror, tmp_path: Path, capsys: Capture, manners: str) -> None:
    path = fetch(mirror, tmp_path, *manners.split())
    assert re.search(r"download: 1\.0 MB( of 1\.0 MB)?, [\d.]+ [kM]?B/s, ", capsys.readouterr().err)
    assert path.read_bytes() == CONTENT
    assert len(mirror.requests) == REQUESTS[manners]
    assert [p.name for p in tmp_path.iterdir()] == ["day_0.gz"]


@pytest.mark.parametrize("manner", ["dropping", "dated"])
def test_a_dropped_connection_is_resumed_while_it_gets_further(mirror: Mirror, tmp_path: Path, manner: str) -> None:
    fetch(mirror, tmp_path, manner, "good")
    ranges = [range_header for path, range_header in mirror.requests[1:] if range_header and manner in path]
    starts = [int(range_header.removeprefix("bytes=").rstrip("-")) for range_header in ranges]
    assert starts[0] == len(CONTENT) // 2
    assert starts == sorted(starts)
    assert len(set(starts)) > PATIENCE.tries
    [condition] = set(mirror.conditions[1 : 1 + len(starts)])
    assert condition is not None
    assert ("a time" if manner == "dated" else '"') in condition
    assert not condition.startswith("W/")


@pytest.mark.parametrize("manner", ["weak", "nameless"])
def test_nothing_is_put_behind_bytes_that_nobody_says_belong_to_it(mirror: Mirror, tmp_path: Path, manner: str) -> None:
    assert fetch(mirror, tmp_path / "a", manner, "good").read_bytes() == CONTENT
    assert [range_header for _, range_header in mirror.requests] == [None] * 5


@pytest.mark.parametrize("manner", ["dropping", "dated", "careless"])
def test_a_file_that_has_changed_is_fetched_anew(mirror: Mirror, tmp_path: Path, manner: str) -> None:
    """`careless` sends the rest all the same, of a file of the same size."""
    refused("download failed", fetch, mirror, tmp_path, manner, patience=RemoteConfig(tries=1))
    assert (tmp_path / "day_0.gz.part").read_bytes() == CONTENT[: len(CONTENT) // 2]
    mirror.content["day_0.gz"] = OTHER
    assert fetch(mirror, tmp_path, manner, "good").read_bytes() == OTHER


@pytest.mark.medium
def test_a_mirror_that_falls_silent_is_left(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_url = download.open_url

    def hurried(url: str, timeout: float, *rest: Any, **more: Any) -> Any:  # a busy machine's good one has all its time
        return open_url(url, 1 if "stalling" in url else timeout, *rest, **more)

    monkeypatch.setattr(download, "open_url", hurried)
    patience = RemoteConfig(tries=1, pause=0.01)
    assert fetch(mirror, tmp_path, "stalling", "good", sha256=SUM, patience=patience).read_bytes() == CONTENT
    assert [path for path, _ in mirror.requests] == ["stalling/day_0.gz", "good/day_0.gz"]


@pytest.mark.parametrize("sha256", [None, SUM])
@pytest.mark.parametrize("part", [CONTENT[:5000], CONTENT, CONTENT + b"more than there is", OTHER[:5000]])
def test_a_part_that_somebody_put_there(mirror: Mirror, tmp_path: Path, part: bytes, sha256: str | None) -> None:
    (tmp_path / "day_0.gz.part").write_bytes(part)
    assert fetch(mirror, tmp_path, "good", sha256=sha256).read_bytes() == CONTENT
    assert mirror.requests == [("good/day_0.gz", None)]


def test_wrong_bytes_are_not_accepted(mirror: Mirror, tmp_path: Path) -> None:
    assert fetch(mirror, tmp_path / "a", "wrong", "good", sha256=SUM).read_bytes() == CONTENT
    message = r"day_0\.gz: download failed from every mirror \(http.*SHA-256 .*or put it at .*day_0\.gz yourself"
    refused(message, fetch, mirror, tmp_path / "b", "wrong", sha256=SUM)
    assert not list((tmp_path / "b").iterdir())


def test_no_room_for_all_files_together(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = int(1.5 * len(CONTENT))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    files = [RemoteFile(name, (mirror.url(f"good/{name}"),)) for name in ("day_0.gz", "day_1.gz")]
    message = r"2\.1 MB needed to fetch, 1\.6 MB free; .* data\.remote\.directory"
    refused(message, download_all, files, tmp_path, PATIENCE)
    assert mirror.requests == []
    fetch(mirror, tmp_path, "good")
    download_all(files, tmp_path, PATIENCE)


def test_unpacking_never_leaves_the_directory(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    archive = make_archive(inside / "a.tar.gz", [("../../evil.txt", b"evil"), ("dac/../../train.txt", b"rows")])
    refused(r"a\.tar\.gz: SHA-256", unpack_member, archive, "train.txt", inside, "0" * 64)
    unpack_member(archive, "train.txt", inside, hashlib.sha256(archive.read_bytes()).hexdigest())
    assert (inside / "train.txt").read_bytes() == b"rows"
    assert sorted(p.name for p in tmp_path.rglob("*.txt")) == ["train.txt"]


@pytest.mark.parametrize("manner", ["private", "private-moved", "private-away"])
def test_a_login_in_a_mirror_s_url(mirror: Mirror, tmp_path: Path, capsys: Capture, manner: str) -> None:
    """It is sent to its own host, through redirects there, and neither shown nor written."""
    url = mirror.url(f"{manner}/day_0.gz").replace("//", "//user:MIRRORPW%2F1@")
    path = download_all([RemoteFile("day_0.gz", (mirror.url("dropping/day_0.gz"), url), SUM)], tmp_path, PATIENCE)[0]
    assert path.read_bytes() == CONTENT
    assert {login for host, _, login in mirror.logins if host == "localhost"} <= {None}
    assert "MIRRORPW" not in capsys.readouterr().err
    assert not any(b"MIRRORPW" in file.read_bytes() for file in tmp_path.iterdir())


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
    preprocess(days(mirror, finished))
    shutil.rmtree(finished / "raw")  # nor are they wanted for anything
    preprocess(days(mirror, finished))
    refused("holds another dataset", preprocess, days(mirror, finished, "data.days=[4]"))
    assert mirror.requests == []


def test_days_put_there_by_the_user_are_taken(mirror: Mirror, tmp_path: Path) -> None:
    raw = tmp_path / "out" / "raw"
    raw.mkdir(parents=True)
    for day in (3, 1, 2):
        (raw / f"day_{day}.gz").write_bytes(gzip.compress(oracle.make_rows(40 + day, day)))
    data = days(mirror, tmp_path / "out", f"data.remote.sha256={{day_1.gz:{'a' * 64}}}")
    refused(r"day_1\.gz: SHA-256 \w* where data\.remote\.sha256 has a{64}", preprocess, data)
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert preprocess(days(mirror, tmp_path / "out")).rows == 126
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


def kaggle(root: Path, *overrides: str) -> DataConfig:
    return config("data.source=criteo_kaggle", f"data.path={root}", *HASHED, *overrides)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    members = [("readme.txt", b"x"), ("dac/train.txt", oracle.make_rows(70, 0)), ("test.txt", b"y")]
    return make_archive(tmp_path / "mine.tar.gz", members)


def test_kaggle_as_the_user_has_it(tmp_path: Path, archive: Path) -> None:
    """Without a mirror: the archive or its member where fetched files are kept."""
    for name in ("a", "b"):
        (tmp_path / name / "raw").mkdir(parents=True)
    shutil.copy(archive, tmp_path / "a" / "raw" / "dac.tar.gz")
    (tmp_path / "b" / "raw" / "train.txt").write_bytes(oracle.make_rows(70, 0))
    for name in ("a", "b"):
        data = kaggle(tmp_path / name, "data.remote.mirrors=[]")
        for _ in range(2):
            [source] = find_sources(data, tmp_path / name, tmp_path / "work")
            assert Path(source.path).read_bytes() == oracle.make_rows(70, 0)
    data = kaggle(tmp_path / "c", f"data.raw={archive}")
    refused(r"data\.raw: .*put your own into .*c/raw", find_sources, data, tmp_path / "c", tmp_path / "work")
    data = config(f"data.raw={archive}", f"data.path={tmp_path}/e")
    refused(r"mine\.tar\.gz: a tar archive", find_sources, data, tmp_path / "e", tmp_path / "work")
