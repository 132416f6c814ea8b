"""Downloads of files from the first mirror that gives them whole: in parallel, resumable, retried and checked.

While NAME is downloaded, NAME.part holds its bytes, the downloading process holds .NAME.lock, and .NAME.origin.json
records the origin of the bytes. The file gets its name once its size and its checksum, if one is known, are right.
"""

import http.client
import io
import json
import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from http.client import HTTPException, HTTPResponse
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from common.disk_space import Need, require_room
from common.documents import decode
from common.errors import UserError
from common.files import digest_file, sync, write_atomically
from common.redact import redact, split_login
from common.sizes import in_words
from data_prep.config.keys import RemoteConfig
from data_prep.io.progress import Progress, Tally
from data_prep.sources.checksums import PUBLISHED
from data_prep.sources.discover import GZIP_MAGIC

PARALLEL_FILES = 4
SIZE_TIMEOUT = 10.0  # seconds; sizes are requested once, only to check the disk and to show progress
BLOCK_BYTES = 1 << 20
HEADERS = {"User-Agent": "clickwork"}  # some hosts reject urllib's own

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")


class WrongFile(Exception):
    """Raised if a mirror returns something other than the file; trying it again would not help."""


class DownloadStopped(Exception):
    """Raised if another file failed, or the job was interrupted."""


@dataclass(frozen=True)
class RemoteFile:
    """A file's name and its mirrors.

    Attributes:
        sha256: the checksum that it must have, if known; given_by: the key or file that gives it.
        otherwise: what a user can do if no mirror has the file.
    """

    name: str
    urls: tuple[str, ...]
    sha256: str | None = None
    given_by: str = PUBLISHED
    otherwise: str = "get the file yourself and name it in data.raw and leave out data.source"


@dataclass(frozen=True)
class Origin:
    """The file that a partial download belongs to: its URL, and the server's marks of its version.

    total: bytes of the whole file; None if the server does not say.
    """

    url: str
    etag: str | None = None
    last_modified: str | None = None
    total: int | None = None

    @property
    def validator(self) -> str | None:
        """Value for If-Range that means exactly these bytes: a strong ETag, else a time (RFC 9110, section 13.1.5)."""
        return self.etag if self._has_strong_etag else self.last_modified

    @property
    def _has_strong_etag(self) -> bool:
        return self.etag is not None and not self.etag.startswith("W/")

    def differs(self, other: "Origin") -> bool:
        """Return whether another reply of the same server is about another file.

        A server must give the ETag in every reply to If-Range (RFC 9110, section 15.3.7), but not the time.
        """
        if self._has_strong_etag and other.etag is None:
            return True
        pairs: list[tuple[Any, Any]] = [(self.total, other.total), (self.etag, other.etag)]
        pairs += [(self.last_modified, other.last_modified)]
        return any(a != b for a, b in pairs if a is not None and b is not None)


def find_origin(path: Path) -> Origin | None:
    """Return the origin of the file `path` or of its partial download, as noted beside it; None without a note."""
    try:
        return decode(_note_path(path).read_bytes(), Origin)
    except (FileNotFoundError, ValueError):
        return None


def _note_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.origin.json")


class PartialFile:
    """The incomplete file `path`, locked for the duration of a `with` body."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partial = path.with_name(f"{path.name}.part")
        self._note = _note_path(path)
        # A separate file, since some versions of filelock empty theirs.
        self._lock_path = path.with_name(f".{path.name}.lock")
        self._lock = FileLock(self._lock_path, blocking=False)
        try:
            self._lock.acquire()
        except Timeout as error:
            raise UserError(
                f"{path}: another job is downloading it; wait for it, or choose another data.remote.directory"
            ) from error
        self._file = io.FileIO(self.partial, "ab")

    def __enter__(self) -> "PartialFile":
        return self

    def __exit__(self, *exception: object) -> None:
        if self.partial.exists() and not self.size:
            self.partial.unlink()
            self._note.unlink(missing_ok=True)
        self._file.close()
        self._lock_path.unlink(missing_ok=True)
        self._lock.release()

    @property
    def size(self) -> int:
        """Bytes downloaded so far."""
        return os.fstat(self._file.fileno()).st_size

    @property
    def origin(self) -> Origin | None:
        """Origin of the bytes; None if there are no bytes, or their origin is unknown."""
        return find_origin(self.path) if self.size else None

    def note(self, origin: Origin) -> None:
        """Record the origin of the bytes."""
        write_atomically(self._note, json.dumps(asdict(origin)).encode())

    def append(self, block: bytes) -> None:
        """Append bytes."""
        rest = memoryview(block)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise UserError(f"{self.partial}: {error.strerror}; the same command resumes from there") from error

    def clear(self) -> None:
        """Discard all bytes."""
        self._file.truncate(0)

    def finish(self, origin: Origin | None = None) -> None:
        """Sync the file and give it its name; keep `origin` beside it."""
        os.fsync(self._file.fileno())
        if origin is not None:  # first, so that no kill leaves a file of unknown origin
            self.note(origin)
        self.partial.replace(self.path)
        if origin is None:
            self._note.unlink(missing_ok=True)
        sync(self.path.parent)


def download_all(
    files: Sequence[RemoteFile],
    directory: Path,
    remote: RemoteConfig | None = None,
    needs: Callable[[int], list[Need]] = lambda size: [],
) -> list[Path]:
    """Download the files that are missing in `directory`; keep existing ones as they are.

    Args:
        remote: tries, pauses and time limit for each mirror.
        needs: returns further needs of disk space, given the size of all files together.
    """
    directory.mkdir(parents=True, exist_ok=True)
    remote = remote or RemoteConfig()
    paths = [directory / file.name for file in files]
    missing = [file for file, path in zip(files, paths, strict=True) if not path.exists()]
    if not missing:
        return paths
    stop = threading.Event()
    sizes = _in_parallel(lambda file: _ask_size(file, directory, remote), missing, stop)
    reported_sizes = [size for size in sizes if size is not None]
    partial = [_size(directory / f"{file.name}.part") for file in missing]
    to_fetch = sum(size - have for size, have in zip(sizes, partial, strict=True) if size is not None and size > have)
    all_bytes = sum(reported_sizes) + sum(_size(path) for path in paths)
    remedy = "free some, or choose another data.path or data.remote.directory"
    require_room([Need(directory, to_fetch, "to fetch"), *needs(all_bytes)], remedy)
    total = sum(reported_sizes) if len(reported_sizes) == len(missing) else None
    with Progress("download", total, Tally(sum(partial))) as progress:
        amount = in_words(to_fetch) if total is not None else "of a size that no mirror reports"
        progress.say(f"{directory}: fetching {len(missing)} of {len(files)} files, {amount}")

        def download(file: RemoteFile) -> None:
            with PartialFile(directory / file.name) as part:
                _Download(file, part, remote, progress, stop).run()

        _in_parallel(download, missing, stop)
    return paths


def _in_parallel(function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT], stop: threading.Event) -> list[ResultT]:
    """Return function(task) for all tasks, a few at a time; the first failure or an interrupt stops waiting for all.

    The threads are daemons: one that waits for a mirror's next byte does not keep the process alive.
    """
    with ThreadPool(min(PARALLEL_FILES, len(tasks))) as threads:
        try:
            result_of = dict(threads.imap_unordered(lambda entry: (entry[0], function(entry[1])), enumerate(tasks)))
        except BaseException:
            stop.set()
            raise
    return [result_of[number] for number in range(len(tasks))]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _ask_size(file: RemoteFile, directory: Path, remote: RemoteConfig) -> int | None:
    """Return a file's size by its partial download or the first mirror that reports it; None if none does."""
    origin = find_origin(directory / file.name)
    if origin is not None and origin.total and _size(directory / f"{file.name}.part"):
        return origin.total
    for url in file.urls:
        try:
            with open_url(url, min(remote.timeout, SIZE_TIMEOUT), method="HEAD") as response:
                length = response.headers.get("Content-Length", "")
                if length.isdigit() and "text/html" not in response.headers.get("Content-Type", ""):
                    return int(length)
        except (OSError, HTTPException, ValueError):  # reported when the file itself is requested
            continue
    return None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects with the same method (urllib turns HEAD into GET), and keeps the login on the same host."""

    def redirect_request(self, req: urllib.request.Request, *reply: Any) -> urllib.request.Request | None:
        moved = super().redirect_request(req, *reply)
        if moved is not None:
            moved.method = req.get_method()
            if (moved.type, moved.host) == (req.type, req.host):
                moved.unredirected_hdrs.update(req.unredirected_hdrs)
        return moved


def open_url(url: str, timeout: float, headers: Mapping[str, str] = {}, method: str = "GET") -> Any:
    """Return the reply to a request after redirects; a login in the URL is sent only to its host."""
    bare, login = split_login(url)
    request = urllib.request.Request(bare, headers={**HEADERS, **headers}, method=method)
    if login is not None:
        request.add_unredirected_header("Authorization", login)
    return urllib.request.build_opener(_Redirects).open(request, timeout=timeout)


class _Download:
    """Downloads one file from its mirrors (RFC 9110: Range, If-Range, Content-Range)."""

    def __init__(
        self, file: RemoteFile, part: PartialFile, remote: RemoteConfig, progress: Progress, stop: threading.Event
    ) -> None:
        self._file = file
        self._part = part
        self._remote = remote
        self._progress = progress
        self._stop = stop

    def run(self) -> None:
        """Download the file.

        Raises:
            UserError: every mirror failed.
        """
        if self._part.path.exists():
            return  # another job was faster
        faults = []
        for url in self._file.urls:
            fault = self._try_mirror(url)
            if fault is None:
                return
            faults.append(f"{redact(url)}: {redact(fault)}")
        text = "; ".join(faults) or "none is configured in data.remote.mirrors"
        remedy = f"try again later, or {self._file.otherwise}"
        raise UserError(f"{self._file.name}: download failed from every mirror ({text}); {remedy}")

    def _say(self, text: str) -> None:
        self._progress.say(redact(f"{self._file.name}: {text}"))

    def _append(self, block: bytes) -> None:
        self._part.append(block)
        self._progress.counters.add(len(block), 0)

    def _discard(self) -> None:
        self._progress.counters.add(-self._part.size, 0)
        self._part.clear()

    def _try_mirror(self, url: str) -> str | None:
        """Download from one mirror, in several tries; return the failure, or None after success.

        A try that gets further than all tries before it restarts their count.
        """
        tries, furthest = 0, self._part.size
        while True:
            try:
                self._accept(self._fetch(url))
                return None
            except (WrongFile, ValueError) as error:  # not the file, or not a URL
                return str(error)
            except urllib.error.HTTPError as error:
                fault = str(error)
                if error.code < 500 and error.code != 429:  # the file is not there, or we may not have it
                    return fault
            except (OSError, http.client.HTTPException, EOFError) as error:
                reason = error.reason if isinstance(error, urllib.error.URLError) else error
                fault = str(reason) or type(reason).__name__
            tries = 1 if self._part.size > furthest else tries + 1
            furthest = max(furthest, self._part.size)
            if tries >= self._remote.tries:
                return fault
            pause = self._remote.pause * 2 ** (tries - 1)
            self._say(f"{fault}; trying again in {pause:g} s")
            self._stop.wait(pause)

    def _fetch(self, url: str) -> bool:
        """Download the missing bytes (everything, if the partial file cannot be resumed).

        Returns:
            whether the server confirmed that these are all bytes.

        Raises:
            EOFError: it broke off, or the bytes so far had to be discarded: worth another try.
            WrongFile, UserError, DownloadStopped, OSError, http.client.HTTPException
        """
        if self._stop.is_set():
            raise DownloadStopped
        origin, public_url = self._part.origin, redact(split_login(url)[0])
        if origin is not None and origin.total == self._part.size:
            return True  # a job was killed after all bytes had come
        have, headers = 0, {}
        if origin is not None and origin.url == public_url and origin.validator is not None:
            have = self._part.size
            headers = {"Range": f"bytes={have}-", "If-Range": origin.validator}
        self._say(f"fetching {public_url}" + (f" from byte {have:,}" if have else ""))
        try:
            response = open_url(url, self._remote.timeout, headers)
        except urllib.error.HTTPError as error:
            if error.code != 416 or not have:
                raise
            error.close()
            self._discard()
            raise EOFError("the partial download does not belong to this file; starting anew") from error
        with response:
            return self._receive(public_url, response, have)

    def _receive(self, url: str, response: HTTPResponse, have: int) -> bool:
        """Receive a reply; return whether the server confirmed that these are all bytes."""
        part, origin = self._part, self._part.origin
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdigit() else None
        if response.status == 206:
            start, total = _content_range(response.headers)
            if start != have:
                raise EOFError("the mirror resumed at another byte than asked")
        reply_origin = Origin(url, response.headers.get("ETag"), response.headers.get("Last-Modified"), total)
        if response.status != 206 or not have:
            self._begin(reply_origin, response)
        elif origin is None or origin.differs(reply_origin):
            self._discard()
            raise EOFError("the file is not the one that the partial download belongs to; starting anew")
        else:
            total = origin.total if total is None else total
        if total is not None:
            require_room([Need(part.partial, total - part.size, "to fetch")])
        while block := response.read1(BLOCK_BYTES):  # returns whatever has arrived, so that a stall loses nothing
            self._append(block)
            if self._stop.is_set():
                raise DownloadStopped
        if total is None:
            return getattr(response, "chunked", False)  # then http.client has seen the last chunk
        if part.size != total:
            raise EOFError(f"broke off at byte {part.size:,} of {total:,}")
        return True

    def _begin(self, origin: Origin, response: HTTPResponse) -> None:
        """Start anew, unless the first bytes are of another kind: a login page must not cost the bytes so far."""
        head = response.read(len(GZIP_MAGIC))
        if origin.total == 0:
            raise WrongFile("an empty file")
        if head and self._file.name.endswith(".gz") and not GZIP_MAGIC.startswith(head):
            raise WrongFile("not gzip, though its name says so")
        self._discard()
        self._part.note(origin)
        self._append(head)

    def _accept(self, is_confirmed: bool) -> None:
        """Check the downloaded bytes and give the file its name.

        Raises:
            WrongFile: the bytes are not the file's.
        """
        file = self._file
        if file.sha256 is not None:
            self._say("comparing its checksum")
            sha256 = digest_file(self._part.partial).sha256
            if sha256 != file.sha256:
                self._discard()
                raise WrongFile(f"sha256 {sha256} where {file.given_by} has {file.sha256}")
        elif not is_confirmed:
            raise WrongFile("it reports no length, so it may be incomplete; give data.remote.sha256")
        self._part.finish()


def _content_range(headers: Any) -> tuple[int | None, int | None]:
    """Return the first byte and the total size in a Content-Range, as far as it gives them."""
    match = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(?:(\d+)|\*)", headers.get("Content-Range", "").strip())
    first, size = match.groups() if match else (None, None)
    return None if first is None else int(first), None if size is None else int(size)
