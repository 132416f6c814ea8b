"""Against a server on this machine that drops connections, lies, and serves wrong bytes."""

import gzip
import hashlib
import io
import tarfile
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from common.errors import UserError
from data_prep.download import Patience, RemoteFile, download_all, unpack_member
from data_prep.pipeline import preprocess
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import config

CONTENT = b"\x1f\x8b" + bytes(range(256)) * 4000
PATIENCE = Patience(tries=4, pause=0.01, timeout=60.0)


class Mirror(ThreadingHTTPServer):
    """Serves `content` at any path, misbehaving as the path's first part says."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = {None: CONTENT}
        self.over = threading.Event()
        self.requests: list[tuple[str, str | None]] = []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def url(self, path):
        return f"http://127.0.0.1:{self.server_port}/{path}"

    def handle_error(self, request, client_address):
        """The client hangs up when it is done with us: expected."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        """Be quiet."""

    def do_GET(self):
        manner, _, name = self.path.strip("/").partition("/")
        asked = self.headers.get("Range")
        self.server.requests.append((self.path.strip("/"), asked))
        content = self.server.content.get(name, CONTENT)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and manner not in ("stubborn", "lying") else 0
        times = sum(path == self.path.strip("/") for path, _ in self.server.requests)
        if manner == "missing" or (manner == "busy" and times < 3):
            self.send_response(404 if manner == "missing" else 503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if manner == "wrong":
            content = content[:-1] + b"?"
        elif manner == "page":
            content = b"<html>Please log in</html>"
        elif manner == "astray" and start:
            start += 1
        body = content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(body) + (1000 if manner in ("boasting", "lying") else 0)))
        self.end_headers()
        while manner == "dripping" and len(body) > 9 and not self.server.over.wait(0.01):
            self.wfile.write(body[:9])
            body = body[9:]
        broken = manner in ("dropping", "stalling") or (manner in ("stubborn", "astray") and times == 1)
        self.wfile.write(body[: len(body) // 2] if broken else body)
        self.wfile.flush()
        if manner == "stalling":
            self.server.over.wait(60)
        if broken or manner in ("boasting", "lying"):
            self.close_connection = True


@pytest.fixture
def mirror():
    server = Mirror()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()


def fetch(mirror, directory, *manners, sha256=None, patience=PATIENCE):
    urls = tuple(mirror.url(f"{manner}/day_0.gz") for manner in manners)
    return download_all([RemoteFile("day_0.gz", urls, sha256)], directory, patience)[0]


@pytest.mark.parametrize(
    ("manners", "requests"),
    [
        (["good"], 1),
        (["missing", "good"], 2),
        (["busy"], 3),
        (["stubborn"], 2),
        (["astray", "good"], 5),
        (["dropping", "good"], 5),
        (["boasting"], 2),  # it promised more than there is, but says so when asked for the rest
        (["lying", "good"], 5),
    ],
)
def test_the_file_comes_whole(mirror, tmp_path, manners, requests):
    path = fetch(mirror, tmp_path, *manners)
    assert path.read_bytes() == CONTENT
    assert len(mirror.requests) == requests
    assert sorted(p.name for p in tmp_path.iterdir()) == ["day_0.gz", "sums.json"]


def test_a_dropped_connection_is_resumed(mirror, tmp_path):
    fetch(mirror, tmp_path, "dropping", "good")
    starts = [int(asked.removeprefix("bytes=").rstrip("-")) for _, asked in mirror.requests[1:]]
    assert starts == sorted(set(starts))
    assert starts[0] == len(CONTENT) // 2


def test_a_mirror_that_falls_silent_is_left(mirror, tmp_path, monkeypatch):
    open_url = urllib.request.urlopen

    def hurried(asked, timeout):  # the good one has all the time that a busy machine takes
        return open_url(asked, timeout=1 if "stalling" in asked.full_url else timeout)

    monkeypatch.setattr(urllib.request, "urlopen", hurried)
    patience = Patience(tries=1, pause=0.01)
    assert fetch(mirror, tmp_path, "stalling", "good", patience=patience).read_bytes() == CONTENT
    assert mirror.requests[1] == ("good/day_0.gz", f"bytes={len(CONTENT) // 2}-")


def test_a_part_at_hand_is_used(mirror, tmp_path):
    (tmp_path / "day_0.gz.part").write_bytes(CONTENT[:5000])
    assert fetch(mirror, tmp_path, "good").read_bytes() == CONTENT
    assert mirror.requests == [("good/day_0.gz", "bytes=5000-")]


@pytest.mark.parametrize("extra", [b"", b"more than there is"])
def test_a_part_that_is_whole_or_too_long(mirror, tmp_path, extra):
    (tmp_path / "day_0.gz.part").write_bytes(CONTENT + extra)
    assert fetch(mirror, tmp_path, "good").read_bytes() == CONTENT


def test_wrong_bytes_are_not_accepted(mirror, tmp_path):
    right = hashlib.sha256(CONTENT).hexdigest()
    assert fetch(mirror, tmp_path / "a", "wrong", "good", sha256=right).read_bytes() == CONTENT
    with pytest.raises(UserError, match=r"day_0\.gz: cannot be had \(http.*sha256 .* data\.raw with data=local"):
        fetch(mirror, tmp_path / "b", "wrong", sha256=right)
    assert not list((tmp_path / "b").iterdir())


def test_a_sum_seen_once_holds(mirror, tmp_path):
    fetch(mirror, tmp_path, "good")
    mirror.requests.clear()
    fetch(mirror, tmp_path, "good")
    assert mirror.requests == []
    (tmp_path / "day_0.gz").unlink()
    with pytest.raises(UserError, match="sha256"):
        fetch(mirror, tmp_path, "wrong")
    assert fetch(mirror, tmp_path, "wrong", "good").read_bytes() == CONTENT


@pytest.mark.parametrize("manner", ["missing", "lying", "dropping-port"])
def test_a_dead_mirror_says_how_to_go_on(mirror, tmp_path, manner):
    if manner == "dropping-port":
        mirror.shutdown()
        mirror.server_close()
    with pytest.raises(UserError, match=r"cannot be had .* name it in data\.raw") as error:
        fetch(mirror, tmp_path, manner)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "day_0.gz").exists()


def test_a_page_instead_of_the_file_is_not_noted_as_the_file(mirror, tmp_path):
    assert fetch(mirror, tmp_path, "page", "good").read_bytes() == CONTENT
    with pytest.raises(UserError, match="not gzip, though its name says so"):
        fetch(mirror, tmp_path / "b", "page")
    assert fetch(mirror, tmp_path / "b", "good").read_bytes() == CONTENT


def test_a_mirror_that_is_no_url_is_left(mirror, tmp_path):
    file = RemoteFile("day_0.gz", ("mirror.local/day_0.gz", mirror.url("good/day_0.gz")))
    assert download_all([file], tmp_path, PATIENCE)[0].read_bytes() == CONTENT


def test_a_file_that_cannot_be_had_ends_the_fetching_of_others(mirror, tmp_path):
    """As an interrupt does: a day takes hours."""
    manners = {"day_0.gz": "dripping", "day_1.gz": "missing"}
    with pytest.raises(UserError, match=r"day_1\.gz: cannot be had"):
        download_all([RemoteFile(n, (mirror.url(f"{m}/{n}"),)) for n, m in manners.items()], tmp_path, PATIENCE)
    assert not (tmp_path / "day_0.gz").exists()


def test_no_room(mirror, tmp_path, monkeypatch):
    import shutil
    from types import SimpleNamespace

    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(UserError, match="GB needed"):
        fetch(mirror, tmp_path, "good")


def make_archive(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_unpacking_never_leaves_the_directory(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    archive = make_archive(inside / "a.tar.gz", [("../../evil.txt", b"evil"), ("dac/../../train.txt", b"rows")])
    assert unpack_member(archive, "train.txt", inside) == inside / "train.txt"
    assert (inside / "train.txt").read_bytes() == b"rows"
    assert sorted(p.name for p in tmp_path.rglob("*.txt")) == ["train.txt"]


def test_archives_that_are_not_what_they_should_be(tmp_path):
    archive = make_archive(tmp_path / "a.tar.gz", [("readme.txt", b"x")])
    with pytest.raises(UserError, match=r"has no file train\.txt"):
        unpack_member(archive, "train.txt", tmp_path)
    whole = make_archive(tmp_path / "b.tar.gz", [("train.txt", oracle.make_rows(200, 0))]).read_bytes()
    (tmp_path / "b.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="not readable as a tar archive"):
        unpack_member(tmp_path / "b.tar.gz", "train.txt", tmp_path)
    assert not (tmp_path / "train.txt").exists()
    assert not (tmp_path / "train.txt.part").exists()


def test_days_from_the_web(mirror, tmp_path):
    for day in (3, 1, 2):
        mirror.content[f"day_{day}.gz"] = gzip.compress(oracle.make_rows(40 + day, day))
    overrides = [
        "data=criteo_1tb",
        "data.days=[3,1,2]",
        f"data.path={tmp_path}/out",
        f"data.remote.mirrors=['{mirror.url('dropping')}/day_{{day}}.gz','{mirror.url('good')}/day_{{day}}.gz']",
        "data.remote.pause=0.01",
        "data.remote.tries=2",
    ]
    manifest = preprocess(config(*overrides))
    assert [source["rows"] for source in manifest.sources] == [43, 41, 42]
    verify_dataset(tmp_path / "out")
    mirror.requests.clear()
    preprocess(config(*overrides))
    assert mirror.requests == []


def test_kaggle_from_the_web(mirror, tmp_path):
    archive = make_archive(tmp_path / "dac.tar.gz", [("readme.txt", b"x"), ("train.txt", oracle.make_rows(70, 0))])
    mirror.content["dac.tar.gz"] = archive.read_bytes()
    url = mirror.url("good/dac.tar.gz")
    manifest = preprocess(config("data=criteo_kaggle", f"data.path={tmp_path}/out", f"data.remote.mirrors=['{url}']"))
    assert manifest.rows == 70
    assert manifest.sources[0]["name"] == "train.txt"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data=criteo_1tb", "data.days=[0,0]"], "data.days"),
        (["data=criteo_1tb", "data.days=null"], "data.days"),
        (["data=criteo_kaggle", "data.days=[0]"], "data.days"),
        (["data.raw=x", "data.days=[0]"], "data.days"),
        (["data=criteo_1tb", "data.raw=x"], "data=local"),
    ],
)
def test_days_that_make_no_sense(tmp_path, overrides, message):
    with pytest.raises(UserError, match=message):
        preprocess(config(*overrides, f"data.path={tmp_path}/out"))
