"""Files held in memory until they are whole, then summed and written in one go, past the page cache.

A unit's files are written once and not read again soon. Through the page cache each of their pages would have to be
found and cleared first, which can take longer than all work on the rows; here the memory of one file serves the next,
piece by piece, from when the piece is written.
"""

import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from data_prep.io.atomic import FileDigest, digest_file, temporary_path
from data_prep.io.buffers import PIECE_BYTES, save_past_cache, take_memory, write_past_cache
from data_prep.io.npy import HEADER_BYTES, npy_header

HOLD_BYTES = 64 << 20  # of one file, enough for a chunk of the default size; a longer one is written in steps

_free: list[mmap.mmap] = []
_lock = threading.Lock()


def _take_piece() -> mmap.mmap:
    with _lock:
        return _free.pop() if _free else take_memory(PIECE_BYTES)


def _give_back(piece: mmap.mmap) -> None:
    with _lock:
        _free.append(piece)


def release_pieces() -> None:
    """Give memory that no file holds back to the system."""
    with _lock:
        _free.clear()


class HeldFile:
    """Bytes on their way to a file, which appears, whole, with `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pieces: list[mmap.mmap] = []
        self._held = 0  # bytes in them
        self._temporary = temporary_path(path)
        self._written = 0
        self._file: int | None = None  # until there is more than can be held

    def append(self, array: NDArray[Any]) -> None:
        """Add an array's bytes."""
        rest = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        while len(rest):
            room = self._room()[: len(rest)]
            room[:] = rest[: len(room)]
            self._held += len(room)
            rest = rest[len(room) :]

    def extend(self, shape: tuple[int, ...], dtype: DTypeLike, fill: Callable[[NDArray[Any]], object]) -> None:
        """Add an array that `fill` makes in the memory it is handed: the file's own, where it lies in one piece."""
        num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        room = self._room()[:num_bytes]
        if len(room) < num_bytes:
            array = np.empty(shape, dtype)
            fill(array)
            self.append(array)
        else:
            fill(room.view(dtype).reshape(shape))
            self._held += num_bytes

    def _room(self) -> NDArray[np.uint8]:
        """What is left of the last piece, or a new one."""
        if self._held == HOLD_BYTES:
            self._spill()
        if self._held == len(self._pieces) * PIECE_BYTES:
            self._pieces.append(_take_piece())
        return np.frombuffer(self._pieces[-1], np.uint8)[self._held % PIECE_BYTES :]

    def read_into(self, offset: int, target: NDArray[Any]) -> None:
        """Fill an array with what was added `offset` bytes behind the start and after."""
        if self._file is not None:
            self._spill()
            os.preadv(self._file, [target.data], offset)
            return
        rest = target.view(np.uint8)
        while len(rest):
            number, place = divmod(offset, PIECE_BYTES)
            count = min(len(rest), PIECE_BYTES - place)
            rest[:count] = np.frombuffer(self._pieces[number], np.uint8)[place : place + count]
            rest, offset = rest[count:], offset + count

    def close(self, start_sum: Callable[[], Any], header: bytes = b"") -> FileDigest:
        """Write the file, with its first bytes replaced by `header`, and give it its name; its size and sum."""
        if self._file is None:
            contents = self._contents()
            if header:
                contents[0][: len(header)] = header
            pieces, self._pieces = self._pieces, []
            return save_past_cache(self.path, contents, start_sum, lambda number: _give_back(pieces[number]))
        self._spill()
        os.pwrite(self._file, header, 0)
        digest = digest_file(self._temporary, start_sum)
        self._temporary.replace(self.path)
        self.abandon()
        return digest

    def abandon(self) -> None:
        """Close and remove the file, if it is open, without giving it its name; hand its memory on to another."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self._temporary.unlink(missing_ok=True)
        self._empty()

    def _empty(self) -> None:
        """Hold nothing any more."""
        while self._pieces:
            _give_back(self._pieces.pop())
        self._held = 0

    def _contents(self) -> list[memoryview]:
        """What each piece holds."""
        starts = range(0, self._held, PIECE_BYTES)
        return [memoryview(piece)[: self._held - start] for start, piece in zip(starts, self._pieces, strict=False)]

    def _spill(self) -> None:
        """Write what is held."""
        if self._file is None:
            self._file = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        for content in self._contents():
            write_past_cache(self._file, content, self._written)
            self._written += len(content)
        self._empty()


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

    def extend(self, rows: int, fill: Callable[[NDArray[Any]], object]) -> None:
        """Add rows, which `fill` writes to the array [rows, width] that it is handed."""
        self._file.extend((rows, 1 if self._width is None else self._width), self._dtype, fill)
        self.rows += rows

    def close(self, start_sum: Callable[[], Any]) -> FileDigest:
        """Write the file; its size and sum."""
        return self._file.close(start_sum, npy_header(self._dtype, self.rows, self._width))

    def abandon(self) -> None:
        """As `HeldFile.abandon`."""
        self._file.abandon()
