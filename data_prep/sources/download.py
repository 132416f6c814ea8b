"""Files from elsewhere, fetched once with their checksum.

While NAME is downloaded, NAME.part holds its bytes, the downloading process holds .NAME.lock, and .NAME.origin.json
records the origin of the bytes. The file gets its name once its size and its checksum, if one is known, are right.
"""

import io
import json
import os
import re
import tarfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from common.command import redact, split_login
from common.documents import decode
from common.errors import UserError
from common.files import Need, SummedFile, digest_file, format_bytes, require_room, sync, write_atomically
from data_prep.config import DataConfig, RemoteConfig
from data_prep.io import Progress, Tally
from data_prep.sources.files import (
    DAMAGE,
    GZIP_MAGIC,
    GZIP_RATIO,
    PUBLISHED,
    RAW_DIRECTORY,
    TEXT_ROW_BYTES,
    Source,
    finished_manifest,
    packing_of,
    recorded_sources,
    resolve_sources,
)

BLOCK_BYTES = 1 << 20  # read at once, of a reply or of an archive

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class RemoteFile:
    """A file's name and its mirrors. sha256: the checksum that it must have, if known."""

    name: str
    urls: tuple[str, ...]
    sha256: str | None = None


def read_origin(path: Path) -> dict[str, Any]:
    """Return the origin of the partial download of the file `path`, as noted beside it; {} without a note.

    url: its URL. etag, last_modified: the server's marks of its version. total: bytes of the whole file. The server may
    not give these, which are then None.
    """
    try:
        return decode(path.with_name(f".{path.name}.origin.json").read_bytes(), dict[str, Any])
    except (FileNotFoundError, ValueError):
        return {}


class PartialFile(AbstractContextManager["PartialFile"]):
    """The incomplete file `path`, locked for the duration of a `with` body."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partial = path.with_name(f"{path.name}.part")
        self._note = path.with_name(f".{path.name}.origin.json")
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

    def __exit__(self, *exception: object) -> None:
        """Remove an empty partial file and keep any other, to resume from; then release the lock."""
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

    def note(self, origin: dict[str, Any]) -> None:
        """Write the origin of the bytes beside them, where `read_origin` reads it."""
        write_atomically(self._note, json.dumps(origin).encode())

    def append(self, block: bytes) -> None:
        """Append bytes; a full disk leaves those that fit, from which the next command resumes."""
        rest = memoryview(block)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise UserError(f"{self.partial}: {error.strerror}; the same command resumes from there") from error

    def clear(self) -> None:
        """Discard the bytes downloaded so far, so that the download begins again."""
        self._file.truncate(0)

    def finish(self) -> None:
        """Sync the file and give it its name."""
        os.fsync(self._file.fileno())
        self.partial.replace(self.path)
        self._note.unlink(missing_ok=True)
        sync(self.path.parent)


def download_all(
    files: Sequence[RemoteFile],
    directory: Path,
    remote: RemoteConfig | None = None,
    needs: Callable[[int], list[Need]] = lambda size: [],
) -> list[Path]:
    """Download the files that are missing in `directory`; return the paths of all files, in their order.

    remote: tries, pauses and time limit for each mirror. needs: returns further needs of disk space, given the size of
    all files together.
    """
    directory.mkdir(parents=True, exist_ok=True)
    remote = remote or RemoteConfig()
    # An existing file is kept as it is: it may be the user's own, under the expected name.
    paths = [directory / file.name for file in files]
    missing = [file for file, path in zip(files, paths, strict=True) if not path.exists()]
    if not missing:
        return paths
    stop = threading.Event()

    # Before the first byte of any file, the disk must have room for all of them, as far as mirrors report sizes.
    partial = [_size_or_0(directory / f"{file.name}.part") for file in missing]
    sizes = _map_threaded(lambda file: _ask_size(file, directory, remote), missing, stop)
    reported_sizes = [size for size in sizes if size is not None]
    to_fetch = sum(size - have for size, have in zip(sizes, partial, strict=True) if size is not None and size > have)
    all_bytes = sum(reported_sizes) + sum(_size_or_0(path) for path in paths)
    remedy = "free some, or choose another data.path or data.remote.directory"
    require_room([Need(directory, to_fetch, "to fetch"), *needs(all_bytes)], remedy)

    total = sum(reported_sizes) if len(reported_sizes) == len(missing) else None
    with Progress("download", total, Tally(sum(partial))) as progress:
        amount = format_bytes(to_fetch) if total is not None else "of a size that no mirror reports"
        progress.say(f"{directory}: fetching {len(missing)} of {len(files)} files, {amount}")

        def download(file: RemoteFile) -> None:
            with PartialFile(directory / file.name) as part:
                _Download(file, part, remote, progress, stop).run()

        _map_threaded(download, missing, stop)
    return paths


def _map_threaded(function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT], stop: threading.Event) -> list[ResultT]:
    """Return function(task) for all tasks, a few at a time.

    The first failure or an interrupt sets `stop` and is raised, without waiting for the rest: the threads are daemons,
    so one that waits for a mirror's next byte does not keep the process alive.
    """
    with ThreadPool(min(4, len(tasks))) as threads:
        try:
            # Not `map`, which reports a failure only after all other tasks have ended.
            result_of = dict(threads.imap_unordered(lambda entry: (entry[0], function(entry[1])), enumerate(tasks)))
        except BaseException:
            stop.set()
            raise
    return [result_of[number] for number in range(len(tasks))]


def _size_or_0(path: Path) -> int:
    """Return a file's bytes; 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0


def _ask_size(file: RemoteFile, directory: Path, remote: RemoteConfig) -> int | None:
    """Return a file's size by its partial download or the first mirror that reports it; None if none does."""
    total = read_origin(directory / file.name).get("total")
    if total and _size_or_0(directory / f"{file.name}.part"):
        return int(total)
    for url in file.urls:
        try:
            # Ten seconds are enough, as the size only serves to check the disk and to show progress.
            with open_url(url, min(remote.timeout, 10.0), method="HEAD") as response:
                length = response.headers.get("Content-Length", "")
                # A page of HTML is a login or an error, whose length is not the file's.
                if length.isdigit() and "text/html" not in response.headers.get("Content-Type", ""):
                    return int(length)
        except (OSError, HTTPException, ValueError):  # reported when the file itself is requested
            continue
    return None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects with the same method (urllib turns HEAD into GET), and keeps the login on the same host."""

    def redirect_request(self, req: urllib.request.Request, *reply: Any) -> urllib.request.Request | None:
        """Return the redirected request, with the method of the first and, on the same host, its login."""
        moved = super().redirect_request(req, *reply)
        if moved is not None:
            moved.method = req.get_method()
            # A mirror may redirect to a host of somebody else, which must not learn the login.
            if (moved.type, moved.host) == (req.type, req.host):
                moved.unredirected_hdrs.update(req.unredirected_hdrs)
        return moved


def open_url(url: str, timeout: float, headers: Mapping[str, str] = {}, method: str = "GET") -> Any:
    """Return the reply to a request after redirects; a login in the URL is sent only to its host."""
    bare, login = split_login(url)
    # Some hosts reject urllib's own name.
    request = urllib.request.Request(bare, headers={"User-Agent": "clickwork", **headers}, method=method)
    # Ordinary headers would go to the redirected request, too, wherever it leads.
    if login is not None:
        request.add_unredirected_header("Authorization", login)
    return urllib.request.build_opener(_Redirects).open(request, timeout=timeout)


@dataclass(frozen=True)
class _Download:
    """The download of one file from its mirrors (RFC 9110: Range, If-Range, Content-Range).

    Its methods raise ValueError if a mirror returns something other than the file, so that no further try helps.
    """

    file: RemoteFile
    part: PartialFile
    remote: RemoteConfig
    progress: Progress
    stop: threading.Event

    def run(self) -> None:
        """Download the file; raise UserError if every mirror failed."""
        if self.part.path.exists():
            return  # another job was faster
        faults = []
        for url in self.file.urls:
            fault = self._try_mirror(url)
            if fault is None:
                return
            # Messages of libraries may repeat the URL with its login.
            faults.append(f"{redact(url)}: {redact(fault)}")
        text = "; ".join(faults) or "none is configured in data.remote.mirrors"
        raise UserError(
            f"{self.file.name}: download failed from every mirror ({text}); try again later, or put it at "
            f"{self.part.path} yourself"
        )

    def _say(self, text: str) -> None:
        """Print a line on the file, without logins."""
        self.progress.say(redact(f"{self.file.name}: {text}"))

    def _discard(self) -> None:
        """Discard the partial file's bytes, and take them off the progress."""
        self.progress.counters.add(-self.part.size, 0)
        self.part.clear()

    def _try_mirror(self, url: str) -> str | None:
        """Download from one mirror, in several tries, and name the file; return the failure, or None after success."""
        tries, furthest = 0, self.part.size
        while True:
            try:
                is_confirmed = self._fetch(url)
                # Without a known checksum, the confirmed length is the only sign that the file is whole.
                if self.file.sha256 is not None:
                    self._say("comparing its checksum")
                    sha256 = digest_file(self.part.partial).sha256
                    if sha256 != self.file.sha256:
                        self._discard()
                        return f"SHA-256 {sha256} where {PUBLISHED.key} has {self.file.sha256}"
                elif not is_confirmed:
                    return "it reports no length, so it may be incomplete; give data.remote.sha256"
                self.part.finish()
                return None
            except ValueError as error:  # not the file, or not a URL
                return str(error)
            except urllib.error.HTTPError as error:
                fault = str(error)
                if error.code < 500 and error.code != 429:  # the file is not there, or we may not have it
                    return fault
            except (OSError, HTTPException, EOFError) as error:
                reason = error.reason if isinstance(error, urllib.error.URLError) else error
                fault = str(reason) or type(reason).__name__
            # A large file over a weak connection breaks off often; as long as it grows, it deserves more tries.
            tries = 1 if self.part.size > furthest else tries + 1
            furthest = max(furthest, self.part.size)
            if tries >= self.remote.tries:
                return fault
            pause = self.remote.pause * 2 ** (tries - 1)
            self._say(f"{fault}; trying again in {pause:g} s")
            self.stop.wait(pause)

    def _fetch(self, url: str) -> bool:
        """Download the missing bytes (everything, if the partial file cannot be resumed).

        Returns whether the server confirmed that these are all bytes. Raises EOFError: it broke off, or the bytes so
        far had to be discarded: worth another try. Raises RuntimeError: another file failed, or the job was
        interrupted.
        """
        if self.stop.is_set():
            raise RuntimeError("stopped")
        # Without bytes, a note is left from an earlier try and means nothing.
        origin = read_origin(self.part.path) if self.part.size else {}
        public_url = redact(split_login(url)[0])
        if origin.get("total") == self.part.size:
            return True  # a job was killed after all bytes had come
        # Only a mark of these exact bytes lets the server tell that its file is the one that was begun: a strong ETag,
        # else a time (RFC 9110, section 13.1.5).
        have, headers, etag = 0, {}, origin.get("etag")
        mark = etag if etag is not None and not etag.startswith("W/") else origin.get("last_modified")
        if mark is not None and origin.get("url") == public_url:
            have = self.part.size
            headers = {"Range": f"bytes={have}-", "If-Range": mark}
        self._say(f"fetching {public_url}" + (f" from byte {have:,}" if have else ""))
        with open_url(url, self.remote.timeout, headers) as response:
            total = self._begin(public_url, response, origin if have else {})
            if total is not None:
                require_room([Need(self.part.partial, total - self.part.size, "to fetch")])
            while block := response.read1(BLOCK_BYTES):  # returns whatever has arrived, so that a stall loses nothing
                self.part.append(block)
                self.progress.counters.add(len(block), 0)
                if self.stop.is_set():
                    raise RuntimeError("stopped")
            if total is None:
                return getattr(response, "chunked", False)  # then http.client has seen the last chunk
            if self.part.size != total:
                raise EOFError(f"broke off at byte {self.part.size:,} of {total:,}")
            return True

    def _begin(self, url: str, response: HTTPResponse, resumed: dict[str, Any]) -> int | None:
        """Compare a reply's headers with the partial file.

        A reply that begins anew replaces the partial file: its origin is noted, and its first bytes are written.

        resumed: origin of the partial file if the rest of it was requested, else {}. Returns bytes of the whole file;
        None if unknown.
        """
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdigit() else None
        # The Content-Length of a partial reply is the rest's; its Content-Range has the size of the whole file.
        if response.status == 206:
            content_range = response.headers.get("Content-Range", "").strip()
            match = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(?:(\d+)|\*)", content_range)
            first, size = match.groups() if match else (None, None)
            if first is None or int(first) != (self.part.size if resumed else 0):
                raise EOFError("the mirror resumed at another byte than asked")
            total = None if size is None else int(size)
        origin = {"url": url, "etag": response.headers.get("ETag"), "total": total}
        origin["last_modified"] = response.headers.get("Last-Modified")
        if response.status == 206 and resumed:
            pairs = [(resumed.get(key), origin[key]) for key in ("etag", "last_modified", "total")]
            if any(None not in pair and pair[0] != pair[1] for pair in pairs):
                self._discard()
                raise EOFError("the file is not the one that the partial download belongs to; starting anew")
            return resumed.get("total") if total is None else total
        # A mirror may send a page of HTML, with status 200, for a login or an error; it must not cost the bytes so far.
        if total == 0:
            raise ValueError("an empty file")
        head = response.read(len(GZIP_MAGIC))
        if head and self.file.name.endswith(".gz") and not GZIP_MAGIC.startswith(head):
            raise ValueError("not gzip, though its name says so")
        self._discard()
        self.part.note(origin)
        self.part.append(head)
        self.progress.counters.add(len(head), 0)
        return total


def remote_files(data: DataConfig, directory: Path) -> list[RemoteFile]:
    """Return the files to download, in the order of the days, with their checksums if known."""
    remote = data.remote
    if data.raw is not None:
        raise UserError(f"data.raw: these files are fetched; put your own into {directory}, or leave out data.source")
    if not remote.name:
        raise UserError("data.remote.name: not given; choose data.source=criteo_1tb or data.source=criteo_kaggle")
    if "{day}" in remote.name and data.days is None:
        raise UserError("data.days=null: name the days to fetch")
    for mirror in remote.mirrors if len(data.days or []) > 1 else []:
        if "{day}" not in mirror:
            raise UserError(f"data.remote.mirrors: {redact(mirror)}: the same file for every day; write {{day}} in it")
    urls_of = {
        remote.name.replace("{day}", str(day)): [mirror.replace("{day}", str(day)) for mirror in remote.mirrors]
        for day in data.days or [0]
    }
    urls_of |= remote.also or {}
    # A checksum of a file that is not fetched would silently be compared with nothing.
    sums = PUBLISHED.sums(remote.sha256)
    pattern = "|".join(map(re.escape, [remote.name, *urls_of])).replace(re.escape("{day}"), r"\d+")
    for name in sums:
        if not re.fullmatch(pattern, name) and name != remote.member:
            raise UserError(f"{PUBLISHED.key}: {name}: no such file is fetched; their name is {remote.name}")
    return [RemoteFile(name, tuple(urls), sums.get(name)) for name, urls in urls_of.items()]


def raw_directory(data: DataConfig, root: Path) -> Path:
    """Return the directory of downloaded files: data.remote.directory, or one in the dataset's directory `root`."""
    return Path(data.remote.directory) if data.remote.directory else root / RAW_DIRECTORY


def find_or_download(data: DataConfig, root: Path, dataset_bytes: Callable[[float], int]) -> list[Source]:
    """Find the raw files where the user put them, or download them.

    If there is a finished dataset at `root`, its manifest describes files that no longer exist, as they are not needed.

    dataset_bytes: returns the disk space for this number of rows until the dataset is made.
    """
    remote, directory, manifest = data.remote, raw_directory(data, root), finished_manifest(data, root)
    files = remote_files(data, directory)
    paths = [directory / name for name in ([file.name for file in files] if remote.member is None else [remote.member])]
    if manifest is not None:
        # A file that the manifest lacks makes the comparison with the dataset fail, which names the difference.
        recorded = {source.name: source for source in recorded_sources(directory, manifest)}
        gone = {path.name: Source(str(path), path.name, 0, 0, compressed=False) for path in paths} | recorded
        found = (resolve_sources(str(path)) if path.exists() else [gone[path.name]] for path in paths)
        return [source for sources in found for source in sources]

    def needs(size: int) -> list[Need]:
        """Return the disk space for unpacking and for the dataset after downloads of `size` bytes."""
        rows = remote.rows or size * GZIP_RATIO / TEXT_ROW_BYTES
        unpacked = [Need(directory, int(rows * TEXT_ROW_BYTES), "to unpack", about=True)] if remote.member else []
        return [*unpacked, Need(root, dataset_bytes(rows), "for the dataset", about=True)]

    # A member that was unpacked, or put there by the user, serves without its archive.
    if remote.member is None or not paths[0].exists():
        fetched = download_all(files, directory, remote, needs)
        if remote.member is not None:
            unpack_member(fetched[0], remote.member, directory, files[0].sha256)
    return resolve_sources(list(map(str, paths)))


def source_sums(data: DataConfig, sources: Sequence[Source]) -> tuple[str | None, ...]:
    """Return the SHA-256 published for each file; None if none is."""
    sums = PUBLISHED.sums(data.remote.sha256)
    return tuple(sums.get(source.name) for source in sources)


def unpack_member(archive: Path, name: str, directory: Path, expected: str | None = None) -> None:
    """Copy the first plain file `name` of a tar archive, in whatever folder, to directory/name; write nothing else.

    expected: the SHA-256 that the archive must have; None: any.
    """
    packing, tally = packing_of(archive), Tally(0)
    with PartialFile(directory / name) as part:
        part.clear()  # a member is never resumed
        try:
            with SummedFile(archive) as summed, Progress("unpack", archive.stat().st_size, tally):
                content: Any = summed if packing is None else packing.open(summed)
                with tarfile.open(fileobj=content, mode="r|") as members:
                    # The member's own path is never used, so it cannot lead out of the directory.
                    member = next((each for each in members if each.isfile() and Path(each.name).name == name), None)
                    if member is None:
                        raise UserError(f"{archive}: has no file {name}; get the archive or the file again")
                    source = members.extractfile(member)
                    assert source is not None
                    require_room([Need(part.partial, member.size, f"to unpack {archive.name}")])
                    while block := source.read(BLOCK_BYTES):
                        part.append(block)
                        tally.bytes = summed.position
                # The checksum of gzip stands at the end, beyond the member.
                while content.read(BLOCK_BYTES):
                    tally.bytes = summed.position
                PUBLISHED.refuse_other([archive], [expected], [summed.digest().sha256])
        except (tarfile.TarError, EOFError, *DAMAGE) as error:
            raise UserError(f"{archive}: not readable as a tar archive ({error}); get it again") from error
        part.finish()
