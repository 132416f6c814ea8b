"""Against a server on this machine that drops connections, lies, and serves wrong bytes."""

import hashlib
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_prep.config import RemoteConfig
from data_prep.sources import download
from data_prep.sources.download import PartialFile, RemoteFile, download_all, unpack_member
from tests.data_prep import oracle
from tests.data_prep.conftest import Capture
from tests.data_prep.mirror import CONTENT, OTHER, Mirror, make_archive
from tests.error_lines import refused

PATIENCE = RemoteConfig(tries=4, pause=0.01)
SUM = hashlib.sha256(CONTENT).hexdigest()


def fetch(
    mirror: Mirror, directory: Path, *manners: str, sha256: str | None = None, patience: RemoteConfig = PATIENCE
) -> Path:
    urls = tuple(mirror.url(f"{manner}/day_0.gz") for manner in manners)
    return download_all([RemoteFile("day_0.gz", urls, sha256)], directory, patience)[0]


# How many requests it takes to mirrors of these manners.
REQUESTS = {"good": 1, "missing good": 2, "busy": 3, "moved": 2, "stubborn": 2, "astray good": 5, "boasting good": 5}
REQUESTS |= {"lying good": 5, "endless good": 2, "cut good": 2, "chunked": 1, "torn": 2}


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


@pytest.mark.parametrize("manner", ["dropping", "dated", "careless", "mute"])
def test_a_file_that_has_changed_is_fetched_anew(mirror: Mirror, tmp_path: Path, manner: str) -> None:
    """`careless` sends the rest all the same, of a file of the same size; `mute` does not even say of which."""
    refused("download failed", fetch, mirror, tmp_path, manner, patience=RemoteConfig(tries=1))
    assert (tmp_path / "day_0.gz.part").read_bytes() == CONTENT[: len(CONTENT) // 2]
    mirror.content["day_0.gz"] = OTHER
    assert fetch(mirror, tmp_path, manner, "good").read_bytes() == OTHER


def test_another_mirror_begins_anew(mirror: Mirror, tmp_path: Path) -> None:
    mirror.content["other.gz"] = OTHER + b"longer"
    urls = (mirror.url("dropping/other.gz"), mirror.url("good/day_0.gz"))
    [path] = download_all([RemoteFile("day_0.gz", urls, SUM)], tmp_path, RemoteConfig(tries=1))
    assert path.read_bytes() == CONTENT
    assert mirror.requests[1] == ("good/day_0.gz", None)


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
    message = r"day_0\.gz: download failed from every mirror \(http.*sha256 .* data\.raw and leave out data.source"
    refused(message, fetch, mirror, tmp_path / "b", "wrong", sha256=SUM)
    assert not list((tmp_path / "b").iterdir())


def test_a_file_without_a_length_is_not_taken_unseen(mirror: Mirror, tmp_path: Path) -> None:
    url, message = mirror.url("endless/train.txt"), r"it reports no length, .* give data\.remote\.sha256"
    refused(message, download_all, [RemoteFile("train.txt", (url,))], tmp_path, PATIENCE)
    assert download_all([RemoteFile("train.txt", (url,), SUM)], tmp_path, PATIENCE)[0].read_bytes() == CONTENT


def test_what_is_there_is_not_fetched(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "day_0.gz").write_bytes(b"as the user put it there")
    assert fetch(mirror, tmp_path, "good").read_bytes() == b"as the user put it there"
    assert mirror.requests == []


def test_two_jobs_do_not_fetch_one_file(mirror: Mirror, tmp_path: Path) -> None:
    with PartialFile(tmp_path / "day_0.gz"):
        refused(r"day_0\.gz: another job is downloading it", fetch, mirror, tmp_path, "good")
    assert fetch(mirror, tmp_path, "good").read_bytes() == CONTENT


def test_a_dead_mirror_says_how_to_go_on(mirror: Mirror, tmp_path: Path) -> None:
    mirror.shutdown()
    mirror.server_close()
    refused(r"download failed from every mirror .* name it in data\.raw", fetch, mirror, tmp_path, "good")
    assert not (tmp_path / "day_0.gz").exists()


def test_every_mirror_s_fault_is_told(mirror: Mirror, tmp_path: Path) -> None:
    missing, page = (re.escape(mirror.url(f"{manner}/day_0.gz")) for manner in ("missing", "page"))
    faults = rf"\({missing}: HTTP Error 404: Not Found; {page}: not gzip, though its name says so\)"
    message = rf"day_0\.gz: download failed from every mirror {faults}; try again later, or get the file yourself"
    refused(message, fetch, mirror, tmp_path, "missing", "page")


def test_a_page_costs_nothing_that_is_at_hand(mirror: Mirror, tmp_path: Path) -> None:
    refused("download failed", fetch, mirror, tmp_path, "dropping", "page", patience=RemoteConfig(tries=1))
    assert (tmp_path / "day_0.gz.part").read_bytes() == CONTENT[: len(CONTENT) // 2]
    assert fetch(mirror, tmp_path, "dropping", "good").read_bytes() == CONTENT
    assert mirror.requests[2] == ("dropping/day_0.gz", f"bytes={len(CONTENT) // 2}-")


def test_a_mirror_that_is_no_url_is_left(mirror: Mirror, tmp_path: Path) -> None:
    file = RemoteFile("day_0.gz", ("mirror.local/day_0.gz", mirror.url("good/day_0.gz")))
    assert download_all([file], tmp_path, PATIENCE)[0].read_bytes() == CONTENT


def test_a_file_that_cannot_be_had_ends_the_fetching_of_others(mirror: Mirror, tmp_path: Path) -> None:
    """As an interrupt does: a day takes hours."""
    manners = {"day_0.gz": "dripping", "day_1.gz": "missing"}
    files = [RemoteFile(name, (mirror.url(f"{manner}/{name}"),)) for name, manner in manners.items()]
    refused(r"day_1\.gz: download failed from every mirror", download_all, files, tmp_path, PATIENCE)
    assert not (tmp_path / "day_0.gz").exists()


def test_no_room_for_all_files_together(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fetched, though there is room for one of them."""
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
    digest = unpack_member(archive, "train.txt", inside)
    assert digest.sha256 == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert (inside / "train.txt").read_bytes() == b"rows"
    assert sorted(p.name for p in tmp_path.rglob("*.txt")) == ["train.txt"]


def test_archives_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "a.tar.gz", [("readme.txt", b"x")])
    refused(r"has no file train\.txt", unpack_member, archive, "train.txt", tmp_path)
    whole = make_archive(tmp_path / "b.tar.gz", [("train.txt", oracle.make_rows(200, 0))]).read_bytes()
    (tmp_path / "b.tar.gz").write_bytes(whole[: len(whole) // 2])
    refused("not readable as a tar archive", unpack_member, tmp_path / "b.tar.gz", "train.txt", tmp_path)
    assert not (tmp_path / "train.txt").exists()
    assert not (tmp_path / "train.txt.part").exists()


@pytest.mark.parametrize("manner", ["private", "private-moved", "private-away"])
def test_a_login_in_a_mirror_s_url(mirror: Mirror, tmp_path: Path, capsys: Capture, manner: str) -> None:
    """It is sent to its own host, through redirects there, and neither shown nor written."""
    url = mirror.url(f"{manner}/day_0.gz").replace("//", "//user:MIRRORPW%2F1@")
    path = download_all([RemoteFile("day_0.gz", (mirror.url("dropping/day_0.gz"), url), SUM)], tmp_path, PATIENCE)[0]
    assert path.read_bytes() == CONTENT
    assert {login for host, _, login in mirror.logins if host == "localhost"} <= {None}
    assert "MIRRORPW" not in capsys.readouterr().err
    assert not any(b"MIRRORPW" in file.read_bytes() for file in tmp_path.iterdir())


def test_a_wrong_login_is_never_shown(mirror: Mirror, tmp_path: Path, capsys: Capture) -> None:
    private, dropping = (mirror.url(f"{manner}/day_0.gz") for manner in ("private", "dropping"))
    urls = tuple(url.replace("//", "//user:MIRRORPW@") for url in (private, dropping))
    line = refused("401", download_all, [RemoteFile("day_0.gz", urls)], tmp_path, RemoteConfig(tries=1))
    assert "MIRRORPW" not in line + capsys.readouterr().err
    assert f"//***@127.0.0.1:{mirror.server_port}" in line
    (file,) = [path for path in tmp_path.iterdir() if path.suffix == ".part"]
    assert b"MIRRORPW" not in file.read_bytes()
