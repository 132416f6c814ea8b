"""Files that appear whole: written beside their place under a name of this process and thread, then moved; sums."""

import hashlib
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

READ_BYTES = 1 << 18


@dataclass
class FileDigest:
    """Size in bytes and SHA-256 (hex) of one file."""

    bytes: int
    sha256: str


class Crc32:
    """A sum that tells what a power cut spoiled, several times faster than SHA-256."""

    def __init__(self) -> None:
        self._sum = 0

    def update(self, content: Any) -> None:
        """Go on with these bytes."""
        self._sum = crc32(content, self._sum)

    def hexdigest(self) -> str:
        """The sum, told from a SHA-256."""
        return f"crc32 {self._sum:08x}"


def digest_file(path: Path, start_sum: Callable[[], Any] = hashlib.sha256) -> FileDigest:
    """Size and sum of a file, read in a stream."""
    begun = start_sum()
    block = memoryview(bytearray(READ_BYTES))  # one for all: fresh memory for each costs more than the sum
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            begun.update(block[:count])
        return FileDigest(bytes=file.tell(), sha256=begun.hexdigest())


def temporary_path(path: Path) -> Path:
    """A name beside `path` that no other process, thread or machine uses."""
    return path.with_name(f"{path.name}.{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}.part")


def save_array(path: Path, array: NDArray[Any]) -> None:
    """`np.save`, so that the file is there whole or not at all."""
    temporary = temporary_path(path)
    with open(temporary, "wb") as file:
        np.save(file, array)
    temporary.replace(path)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a small file so that it is there whole or not at all, even after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
