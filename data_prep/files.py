"""Files that appear whole: written beside their place under a name of this process and thread, then moved; sums."""

import hashlib
import os
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class FileDigest:
    """Size in bytes and SHA-256 (hex) of one file."""

    bytes: int
    sha256: str


def digest_file(path: Path) -> FileDigest:
    """Size and SHA-256 of a file, read in a stream."""
    sha256 = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(1 << 20):
            sha256.update(block)
        return FileDigest(bytes=file.tell(), sha256=sha256.hexdigest())


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
