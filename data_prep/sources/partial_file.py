"""A file while it is fetched: what has come of it, of which file it is a part, and that one process fetches it.

<name>.part holds the bytes and is locked by who fetches; .<name>.origin.json says where they are from.
"""

import contextlib
import fcntl
import io
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.errors import UserError
from data_prep.io.atomic import sync, write_atomically


@dataclass(frozen=True)
class Origin:
    """Of which file something is a part: its URL, and how the server tells its versions apart.

    Attributes:
        url: None where parts were put together that only a sum of the whole can vouch for.
        total: bytes of the whole file; None where the server does not tell.
    """

    url: str | None
    etag: str | None = None
    last_modified: str | None = None
    total: int | None = None

    @property
    def validator(self) -> str | None:
        """What stands for these very bytes in If-Range: a strong ETag, else a time (RFC 9110, section 13.1.5)."""
        return self.etag if self._has_strong_etag else self.last_modified

    @property
    def _has_strong_etag(self) -> bool:
        return self.etag is not None and not self.etag.startswith("W/")

    def differs(self, other: "Origin") -> bool:
        """Whether another reply's bytes are not to follow; between mirrors only the size says something.

        A server must tell the ETag in every reply to If-Range (RFC 9110, section 15.3.7), the time it need not.
        """
        if self.url == other.url and self._has_strong_etag and other.etag is None:
            return True
        pairs: list[tuple[Any, Any]] = [(self.total, other.total)]
        if self.url == other.url:
            pairs += [(self.etag, other.etag), (self.last_modified, other.last_modified)]
        return any(a != b for a, b in pairs if a is not None and b is not None)


def part_path(path: Path) -> Path:
    """Where the bytes of a file are kept until it is whole."""
    return path.with_name(f"{path.name}.part")


def _note_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.origin.json")


def origin_of(path: Path) -> Origin | None:
    """What the part of a file is a part of; None if nothing has come, or somebody else put it there."""
    part = part_path(path)
    return noted_origin(path) if part.exists() and part.stat().st_size else None


def noted_origin(path: Path) -> Origin | None:
    """Where a part, or a file that was unpacked, is from; None if that is not known."""
    try:
        return Origin(**json.loads(_note_path(path).read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


class Part:
    """The part of the file `path`, for the length of a `with` body.

    Raises:
        UserError: another process fetches the file, or the disk does not take it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = part_path(path)
        self._note = _note_path(path)
        self._file = self._claim()

    def _claim(self) -> io.FileIO:
        while True:
            file = io.FileIO(self.place, "ab")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.close()
                raise UserError(
                    f"{self.path}: another job is getting it; wait for it, or choose another data.remote.directory"
                ) from error
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(file.fileno()).st_ino == self.place.stat().st_ino:
                    return file
            file.close()  # whoever held it has just made it the file, or removed it

    def __enter__(self) -> "Part":
        return self

    def __exit__(self, *exception: object) -> None:
        if self.place.exists() and not self.size:
            self.place.unlink()
            self._note.unlink(missing_ok=True)
        self._file.close()

    @property
    def size(self) -> int:
        """Bytes that have come."""
        return os.fstat(self._file.fileno()).st_size

    @property
    def origin(self) -> Origin | None:
        """What it is a part of; None if nothing has come, or somebody else put it there."""
        return origin_of(self.path)

    def begin(self, origin: Origin) -> None:
        """Start anew, with bytes from there."""
        self.clear()
        self._keep(origin)

    def mix(self, total: int | None) -> None:
        """Bytes will be put behind those at hand of which nobody says that they belong together."""
        self._keep(Origin(None, total=total))

    def _keep(self, origin: Origin) -> None:
        write_atomically(self._note, json.dumps(asdict(origin)).encode())

    def append(self, block: bytes) -> None:
        """Keep bytes that have come."""
        rest = memoryview(block)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise UserError(f"{self.place}: {error.strerror}; the same command goes on from there") from error

    def clear(self) -> None:
        """Forget what has come."""
        self._file.truncate(0)

    def finish(self, origin: Origin | None = None) -> None:
        """Give the file its name, on the disk; `origin` is kept beside it."""
        os.fsync(self._file.fileno())
        if origin is not None:  # first, so that no kill leaves a file that nobody knows the origin of
            self._keep(origin)
        self.place.replace(self.path)
        if origin is None:
            self._note.unlink(missing_ok=True)
        sync(self.path.parent)
