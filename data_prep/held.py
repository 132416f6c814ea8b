"""Files held in memory until they are whole, then summed and written in one go, past the page cache.

A unit's files are written once and not read again soon. Through the page cache each of their pages would have to be
found and cleared first, which can take longer than all work on the rows; here the memory of one file serves the next.
"""

import mmap
import os
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from data_prep.files import FileDigest, digest_file, temporary_path
from data_prep.npy import HEADER_BYTES, npy_header
from data_prep.scratch import save_past_cache, take_memory, write_past_cache

HOLD_BYTES = 64 << 20  # of one file, enough for a chunk of the default size; a longer one is written in steps

_free: defaultdict[str, list[mmap.mmap]] = defaultdict(list)  # by kind of file: only as much is touched as one needs
_lock = threading.Lock()


def _take_room(kind: str) -> mmap.mmap:
    with _lock:
        return _free[kind].pop() if _free[kind] else take_memory(HOLD_BYTES)


def release_rooms() -> None:
    """Give memory that no file holds back to the system."""
    with _lock:
        _free.clear()


class HeldFile:
    """Bytes on their way to a file, which appears, whole, with `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kind = path.name.partition(".")[2]
        room = _take_room(self._kind)
        self._room: mmap.mmap | None = room
        self._view = memoryview(room)
        self._bytes = np.frombuffer(self._view, np.uint8)
        self._held = 0
        self._temporary = temporary_path(path)
        self._written = 0
        self._file: int | None = None  # until there is more than can be held

    def append(self, array: NDArray[Any]) -> None:
        """Add an array's bytes."""
        rest = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        while len(rest):
            count = min(len(rest), HOLD_BYTES - self._held)
            self._bytes[self._held : self._held + count] = rest[:count]
            self._held += count
            rest = rest[count:]
            if len(rest):
                self._spill()

    def read_into(self, offset: int, target: NDArray[Any]) -> None:
        """Fill an array with what was added `offset` bytes behind the start and after."""
        if self._file is None:
            wanted = self._view[offset : offset + target.nbytes]
            target[:] = np.frombuffer(wanted, target.dtype)
        else:
            self._spill()
            os.preadv(self._file, [target.data], offset)

    def close(self, start_sum: Callable[[], Any], header: bytes = b"") -> FileDigest:
        """Write the file, with its first bytes replaced by `header`, and give it its name; its size and sum."""
        if self._file is None:
            self._view[: len(header)] = header
            digest = save_past_cache(self.path, self._view[: self._held], start_sum)
            self.abandon()
            return digest
        self._spill()
        os.pwrite(self._file, header, 0)
        digest = digest_file(self._temporary, start_sum)
        self.abandon()
        self._temporary.replace(self.path)
        return digest

    def abandon(self) -> None:
        """Close the file, if it is open, without giving it its name, and hand its memory on to another."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._room is not None:
            with _lock:
                _free[self._kind].append(self._room)
            self._room = None

    def _spill(self) -> None:
        """Write what is held."""
        if self._file is None:
            self._file = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        write_past_cache(self._file, self._view[: self._held], self._written)
        self._written += self._held
        self._held = 0


class HeldArray:
    """A .npy file [rows, width], or [rows] without a width, that grows; as `NpyWriter`, but held."""

    def __init__(self, path: Path, dtype: DTypeLike, width: int | None) -> None:
        self.rows = 0
        self._dtype = np.dtype(dtype)
        self._width = width
        self._file = HeldFile(path)
        self._file.append(np.zeros(HEADER_BYTES, np.uint8))

    def append(self, rows: NDArray[Any]) -> None:
        """Add [rows, width] or, where the width is 1 or None, [rows] values."""
        self._file.append(np.ascontiguousarray(rows, self._dtype))
        self.rows += len(rows)

    def close(self, start_sum: Callable[[], Any]) -> FileDigest:
        """Write the file; its size and sum."""
        return self._file.close(start_sum, npy_header(self._dtype, self.rows, self._width))

    def abandon(self) -> None:
        """As `HeldFile.abandon`."""
        self._file.abandon()
