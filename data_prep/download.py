"""Files from the first mirror that gives them whole: resumed, retried, checked.

A file being fetched is <name>.part; it becomes <name> when its size and sum are right. Sums that nobody publishes
are noted in sums.json beside the files on first sight, and hold from then on.
"""

import http.client
import json
import shutil
import sys
import tarfile
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path

from common.errors import UserError
from data_prep.format import FileDigest, digest_file, write_atomically
from data_prep.sources import is_gzip

BLOCK_BYTES = 1 << 20
PARALLEL_FILES = 4
SUMS_NAME = "sums.json"
OWN_FILES = "or get the file yourself and name it in data.raw with data=local"
_sums_lock = threading.Lock()


@dataclass(frozen=True)
class RemoteFile:
    """A file by its name, where it may be had, and its published sum, if there is one."""

    name: str
    urls: tuple[str, ...]
    sha256: str | None = None


@dataclass(frozen=True)
class Patience:
    """Tries per mirror, seconds before the second (doubled before each further one), seconds without a byte."""

    tries: int = 5
    pause: float = 2.0
    timeout: float = 60.0


@dataclass
class _Faults:
    """What went wrong, mirror by mirror."""

    lines: list[str] = field(default_factory=list)

    def note(self, url: str, error: object) -> None:
        self.lines.append(f"{url}: {error}")


class _WrongFile(Exception):
    """A mirror gave what is not the file; asking it again would not help."""


class _Stopped(Exception):
    """Another file cannot be had, or the job was interrupted."""


def download_all(files: Sequence[RemoteFile], directory: Path, patience: Patience | None = None) -> list[Path]:
    """Have all files in `directory`, several at a time.

    Raises:
        UserError: no mirror gives a file whole, or the disk has no room.
    """
    directory.mkdir(parents=True, exist_ok=True)
    patience = patience or Patience()
    stop = threading.Event()
    with ThreadPoolExecutor(min(PARALLEL_FILES, max(1, len(files)))) as executor:
        fetching = [executor.submit(_download, file, directory, patience, stop) for file in files]
        try:
            done, _ = wait(fetching, return_when=FIRST_EXCEPTION)
            return [one.result() for one in fetching if one in done]  # all, or else one of them raises
        finally:
            stop.set()
            for one in fetching:
                one.cancel()


def _download(file: RemoteFile, directory: Path, patience: Patience, stop: threading.Event) -> Path:
    """Have one file in `directory`; nothing is fetched if it is there and as noted."""
    path = directory / file.name
    known = _noted(directory, file)
    if path.exists() and known is not None and path.stat().st_size == known.bytes:
        return path
    faults = _Faults()
    for url in file.urls:
        for attempt in range(patience.tries):
            try:
                _fetch(url, path, patience, stop)
                _accept(file, path, known)
                return path
            except (_WrongFile, ValueError) as error:  # not the file, not a URL
                faults.note(url, error)
                break
            except urllib.error.HTTPError as error:
                faults.note(url, error)
                if error.code < 500 and error.code != 429:  # it is not there, or not for us
                    break
            except (OSError, http.client.HTTPException, EOFError) as error:
                faults.note(url, error)
            if attempt + 1 < patience.tries:
                stop.wait(patience.pause * 2**attempt)
    last = faults.lines[-1] if faults.lines else "no mirror is configured"
    raise UserError(f"{file.name}: cannot be had ({last}); try again later, {OWN_FILES}")


def _fetch(url: str, path: Path, patience: Patience, stop: threading.Event) -> None:
    """Fetch what is missing of <path>.part, all of it if the mirror cannot resume."""
    if stop.is_set():
        raise _Stopped
    part = path.with_name(path.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    print(f"{path.name}: fetching {url}" + (f" from byte {have:,}" if have else ""), file=sys.stderr, flush=True)
    try:
        response = urllib.request.urlopen(request, timeout=patience.timeout)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        error.close()
        if _size_after(error.headers.get("Content-Range")) == have:
            return  # it was whole already
        part.unlink()
        raise EOFError("the part at hand does not belong to this file; starting anew") from error
    with response:
        resumed = response.status == 206
        if resumed and not (response.headers.get("Content-Range") or "").startswith(f"bytes {have}-"):
            raise EOFError("the mirror resumed at another byte than asked")
        start = have if resumed else 0
        length = response.headers.get("Content-Length")
        expected = None if length is None else start + int(length)
        _check_room(path, (expected or 0) - have)
        with open(part, "ab" if resumed else "wb") as target:
            while block := response.read1(BLOCK_BYTES):  # what is there, so that a stall loses nothing
                target.write(block)
                if stop.is_set():
                    raise _Stopped
    size = part.stat().st_size
    if expected is not None and size != expected:
        raise EOFError(f"broke off at byte {size:,} of {expected:,}")


def _size_after(content_range: str | None) -> int | None:
    """The whole size that `bytes */SIZE` gives."""
    size = (content_range or "").rpartition("/")[2]
    return int(size) if size.isdigit() else None


def _check_room(path: Path, needed: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise UserError(f"{path}: {needed / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free; choose another place")


def _accept(file: RemoteFile, path: Path, known: FileDigest | None) -> None:
    """Check the fetched part and give it its name; note its sum on first sight."""
    part = path.with_name(path.name + ".part")
    found = digest_file(part)
    wanted = file.sha256 or (known.sha256 if known else None)
    if wanted is not None and found.sha256 != wanted:
        part.unlink()
        raise _WrongFile(f"sha256 {found.sha256[:12]}… where {wanted[:12]}… is right")
    if file.name.endswith(".gz") and not is_gzip(part):  # a page that says so, which must not be noted as the file
        part.unlink()
        raise _WrongFile("not gzip, though its name says so")
    part.replace(path)
    with _sums_lock:
        sums = _read_sums(path.parent)
        sums[file.name] = asdict(found)
        write_atomically(path.parent / SUMS_NAME, (json.dumps(sums, indent=1, sort_keys=True) + "\n").encode())


def _read_sums(directory: Path) -> dict[str, dict[str, str | int]]:
    path = directory / SUMS_NAME
    return json.loads(path.read_bytes()) if path.exists() else {}


def _noted(directory: Path, file: RemoteFile) -> FileDigest | None:
    """The size and sum noted when the file was first seen, unless a published sum says otherwise."""
    entry = _read_sums(directory).get(file.name)
    if entry is None or (file.sha256 is not None and entry["sha256"] != file.sha256):
        return None
    return FileDigest(int(entry["bytes"]), str(entry["sha256"]))


def unpack_member(archive: Path, name: str, directory: Path) -> Path:
    """Take one plain file out of a tar archive, wherever in it it lies; nothing else is written.

    Raises:
        UserError: the archive is damaged, or has no such file.
    """
    target = directory / name
    if target.exists() and target.stat().st_mtime_ns >= archive.stat().st_mtime_ns:
        return target
    part = directory / f"{name}.part"
    try:
        with tarfile.open(archive, "r|*") as members:
            for member in members:
                # the member's own path is never used, so it cannot lead out of the directory
                if member.isfile() and Path(member.name).name == name:
                    source = members.extractfile(member)
                    assert source is not None
                    _check_room(target, member.size)
                    with open(part, "wb") as file:
                        shutil.copyfileobj(source, file, BLOCK_BYTES)
                    part.replace(target)
                    return target
    except (tarfile.TarError, EOFError, OSError) as error:
        part.unlink(missing_ok=True)
        raise UserError(f"{archive}: not readable as a tar archive ({error}); get it again") from error
    raise UserError(f"{archive}: has no file {name}; get it again, or name your own in data.raw with data=local")
