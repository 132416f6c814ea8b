"""Files that appear whole or not at all, disk space that a job needs, and sizes in words."""

import hashlib
import io
import os
import shutil
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isal.isal_zlib import crc32

from common.errors import UserError

READ_BYTES = 1 << 18  # of a file, read at once for its checksum


@dataclass
class FileDigest:
    """Size in bytes and checksum (hex) of one file: SHA-256 unless another was asked for, such as CRC-32 or MD5."""

    bytes: int
    sha256: str


class Crc32:
    """A checksum that detects damage by power cuts, several times faster than SHA-256."""

    PREFIX = "crc32 "

    def __init__(self) -> None:
        self._sum = 0

    def update(self, content: Any) -> None:
        """Add the bytes of a buffer to the checksum, as objects of hashlib do."""
        self._sum = crc32(content, self._sum)

    def hexdigest(self) -> str:
        """Return the checksum in hexadecimal, after a prefix that no SHA-256 has and that `is_unchanged` looks for."""
        return f"{self.PREFIX}{self._sum:08x}"


def digest_file(path: Path, start_sum: Callable[[], Any] = hashlib.sha256) -> FileDigest:
    """Return the size and checksum of a file, read as a stream; start_sum: constructor of the checksum."""
    checksum = start_sum()
    block = memoryview(bytearray(READ_BYTES))  # one for all: allocating each block would take longer than the sum
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            checksum.update(block[:count])
        return FileDigest(bytes=file.tell(), sha256=checksum.hexdigest())


def is_unchanged(path: Path, digest: FileDigest) -> bool:
    """Return whether a file exists with that size and checksum, whichever kind the checksum has."""
    start = Crc32 if digest.sha256.startswith(Crc32.PREFIX) else hashlib.sha256
    try:
        # The size is compared first, as it needs no reading.
        return path.stat().st_size == digest.bytes and digest_file(path, start) == digest
    except FileNotFoundError:
        return False


def temporary_path(path: Path) -> Path:
    """Return a temporary name beside `path`, unique to this thread, process and machine."""
    # Machines of a cluster may share the directory, and their processes may have equal numbers.
    return path.with_name(f"{path.name}.{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}.part")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a small file completely or not at all, even after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        # Unless the content is on the disk, the renaming may get there before it.
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    # The name is an entry of the directory, which has to reach the disk, too.
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or a directory's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class SummedFile(io.RawIOBase):
    """A file read from front to back, with a checksum.

    position: bytes read so far.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.position = 0
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        self._sum = hashlib.sha256()

    def readable(self) -> bool:
        """Return True: io.RawIOBase says False, and readers of files ask."""
        return True

    def readinto(self, target: Any) -> int:
        """Fill part of `target`; return 0 at the end."""
        count = self._file.readinto(target) or 0
        self._sum.update(memoryview(target)[:count])
        self.position += count
        return count

    def digest(self) -> FileDigest:
        """Return the size and checksum of what was read so far."""
        return FileDigest(self.position, self._sum.hexdigest())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def format_bytes(num_bytes: float) -> str:
    """Return bytes in the largest decimal unit that fits, such as 15.3 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        # From 999.95 on, a single decimal would show 1000.0.
        if num_bytes < (1000 if unit == "B" else 999.95):
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.1f} TB"


@dataclass(frozen=True)
class Need:
    """Bytes needed at a path, which need not exist. `what`: purpose, such as "to fetch"; `about`: an estimate."""

    path: Path
    bytes: int
    what: str
    about: bool = False

    def __str__(self) -> str:
        """Return the bytes in words, such as `about 15.3 GB`."""
        return f"{'about ' if self.about else ''}{format_bytes(self.bytes)}"


def require_room(needs: Sequence[Need], remedy: str = "free some, or choose another place") -> None:
    """Raise UserError for needs that do not fit; needs on one file system are added up.

    remedy: end of the message.
    """
    by_device: dict[int, list[Need]] = {}
    for need in needs:
        by_device.setdefault(_nearest_existing(need.path).stat().st_dev, []).append(need)
    for device_needs in by_device.values():
        path, num_bytes = device_needs[0].path, sum(need.bytes for need in device_needs)
        free = shutil.disk_usage(_nearest_existing(path)).free
        if num_bytes > free:
            if len(device_needs) == 1:
                text = f"{device_needs[0]} needed {device_needs[0].what}"
            else:
                total = Need(path, num_bytes, "", any(need.about for need in device_needs))
                text = f"{total} needed ({', '.join(f'{need} {need.what}' for need in device_needs)})"
            raise UserError(f"{path}: {text}, {format_bytes(free)} free; {remedy}")


def _nearest_existing(path: Path) -> Path:
    """Return the path, or its nearest parent that exists: both are on the file system that the path will be on."""
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
