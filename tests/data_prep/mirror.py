"""A server on this machine that drops connections, lies, and serves wrong bytes."""

import base64
import gzip
import hashlib
import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

CONTENT = gzip.compress(np.random.default_rng(0).bytes(1 << 20), 1, mtime=0)
OTHER = gzip.compress(np.random.default_rng(1).bytes(1 << 20), 1, mtime=0)

NO_RANGES = ("stubborn", "lying", "cut", "torn")
NO_VALIDATOR = ("nameless", *NO_RANGES)
ONCE = ("stubborn", "astray", "cut", "torn")  # the first reply breaks off
ALWAYS = ("dropping", "stalling", "weak", "dated", "nameless", "careless")  # every reply does
LOGIN = "Basic " + base64.b64encode(b"user:MIRRORPW/1").decode()


class Mirror(ThreadingHTTPServer):
    """Serves `content` (by name, else CONTENT) at MANNER/NAME, misbehaving as the manner says."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content: dict[str, bytes] = {}
        self.over = threading.Event()
        self.requests: list[tuple[str, str | None]] = []  # GETs: path, Range
        self.conditions: list[str | None] = []  # their If-Range
        self.logins: list[tuple[str, str, str | None]] = []  # of all requests: Host, path, Authorization
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{path}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The client hangs up when it is done with us: expected."""


class Handler(BaseHTTPRequestHandler):
    server: "Mirror"

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        """Be quiet."""

    def do_HEAD(self) -> None:
        self.answer(is_head=True)

    def do_GET(self) -> None:
        self.server.requests.append((self.path.strip("/"), self.headers.get("Range")))
        self.server.conditions.append(self.headers.get("If-Range"))
        self.answer()

    def answer(self, is_head: Any = False) -> None:
        manner, _, name = self.path.strip("/").partition("/")
        content = self.server.content.get(name, CONTENT)
        times = sum(path == self.path.strip("/") for path, _ in self.server.requests)
        login, host = self.headers.get("Authorization"), self.headers["Host"].split(":")[0]
        self.server.logins.append((host, manner, login))
        if manner in ("private", "private-moved", "private-away") and login != LOGIN:
            self.refuse(401, **{"WWW-Authenticate": "Basic"})
        elif manner in ("moved", "private-moved"):
            self.refuse(302, Location=f"/{'good' if manner == 'moved' else 'private'}/{name}")
        elif manner == "private-away":
            self.refuse(302, Location=self.server.url(f"good/{name}").replace("127.0.0.1", "localhost"))
        elif manner == "missing" or (manner == "busy" and times < 3):
            self.refuse(404 if manner == "missing" else 503)
        elif self.start(manner, content) >= len(content):
            self.refuse(416, **{"Content-Range": f"bytes */{len(content)}"})
        else:
            self.send(manner, content, self.start(manner, content), times, is_head)

    def send(self, manner: Any, content: Any, start: Any, times: Any, is_head: Any) -> None:
        content = content[:-1] + b"?" if manner == "wrong" else content
        start += manner == "astray" and start > 0
        self.send_response(206 if start else 200)
        for header, value in self.validators(manner, content).items():
            self.send_header(header, value)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_body(manner, content[start:], is_head, manner in ALWAYS or (manner in ONCE and times == 1))

    def refuse(self, code: Any, **headers: Any) -> None:
        self.send_response(code)
        for header, value in {"Content-Length": "0", **headers}.items():
            self.send_header(header, value)
        self.end_headers()

    def validators(self, manner: Any, content: Any) -> Any:
        tag = hashlib.md5(content).hexdigest()
        if manner in NO_VALIDATOR:
            return {}
        date = {"Last-Modified": f"{tag}: a time, and nothing but compared"} if manner == "dated" else {}
        return {"ETag": f'W/"{tag}"' if manner in ("weak", "dated") else f'"{tag}"', **date}

    def start(self, manner: Any, content: Any) -> Any:
        range_header, only_if = self.headers.get("Range"), self.headers.get("If-Range")
        is_stale = only_if is not None and only_if not in self.validators(manner, content).values()
        if not range_header or manner in NO_RANGES or (is_stale and manner != "careless"):
            return 0
        return int(range_header.removeprefix("bytes=").rstrip("-"))

    def send_body(self, manner: str, body: bytes, is_head: bool, is_broken: bool) -> None:
        payload = body[: (len(body) + 1) // 2] if is_broken else body
        if manner == "torn":
            self.send_header("Transfer-Encoding", "chunked")
            payload = b"%x\r\n%b\r\n" % (len(body), payload) + (b"" if is_broken else b"0\r\n\r\n")
        elif manner != "cut":
            self.send_header("Content-Length", str(len(body) + (1000 if manner == "lying" else 0)))
        self.end_headers()
        if is_head:
            return
        while manner == "dripping" and len(payload) > 9 and not self.server.over.wait(0.01):
            self.wfile.write(payload[:9])
            payload = payload[9:]
        self.wfile.write(payload)
        self.wfile.flush()
        if manner == "stalling":
            self.server.over.wait(60)
        if is_broken or manner in ("lying", "cut"):
            self.close_connection = True


def make_archive(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path
