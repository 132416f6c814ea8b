"""File I/O past the page cache, in the background while other data is processed.

A chunk's files are written once and read once. In the page cache, each page would first have to be found and cleared,
which can take longer than all work on the rows. File systems without direct I/O use the page cache.
"""

import errno
import fcntl
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from common.files import FileDigest, digest_file, temporary_path

PAGE_BYTES = 4096
PIECE_BYTES = 4 << 20  # checksummed while the previous piece is written
MAX_WRITES = 2  # pieces being written while the next is filled
MAX_HELD_BYTES = 64 << 20  # per file, enough for a chunk of the default size; longer files are written in steps
READ_AHEAD = 2  # ranges read ahead
DIRECT = getattr(os, "O_DIRECT", 0)


def empty_pages(num_bytes: int) -> NDArray[np.uint8]:
    """Allocate memory [num_bytes] that begins at a page, as direct I/O requires."""
    memory = np.empty(num_bytes + PAGE_BYTES, np.uint8)
    start = -memory.ctypes.data % PAGE_BYTES
    return memory[start : start + num_bytes]


class FileWriter:
    """Writes and checksums a file, which appears with `close`; leaving the context without `close` abandons it.

    Args:
        path: path of the file.
        checksum: constructor of the checksum, such as `hashlib.sha256`.
        is_buffered: whether the first bytes are known only at the end. The file then stays in memory up to
            MAX_HELD_BYTES; a longer one is read again for its checksum.
    """

    def __init__(self, path: Path, checksum: Callable[[], Any] = hashlib.sha256, is_buffered: bool = False) -> None:
        self.path = path
        self.bytes = 0
        self._start_checksum, self._checksum = checksum, checksum()
        self._is_buffered, self._is_spilled = is_buffered, False
        self._temporary = temporary_path(path)
        self._file: int | None = None
        self._pieces: list[NDArray[np.uint8]] = []
        self._begin = 0  # offset of the first piece
        self._threads = ThreadPoolExecutor(1)  # starts its thread at the first write
        self._writes: deque[Future[None]] = deque()

    def __enter__(self) -> "FileWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def append(self, array: NDArray[Any]) -> None:
        """Append the bytes of an array."""
        rest = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        while len(rest):
            out = self._out()[: len(rest)]
            out[:] = rest[: len(out)]
            self.bytes += len(out)
            rest = rest[len(out) :]

    def extend(self, shape: tuple[int, ...], dtype: DTypeLike, fill: Callable[[NDArray[Any]], object]) -> None:
        """Append an array that `fill` writes to the memory it receives, if possible the file's own."""
        num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        out = self._out()[:num_bytes]
        if len(out) < num_bytes:
            array = np.empty(shape, dtype)
            fill(array)
            self.append(array)
        else:
            fill(out.view(dtype).reshape(shape))
            self.bytes += num_bytes

    def read_into(self, offset: int, target: NDArray[Any]) -> None:
        """Fill an array with the bytes from an offset on; for buffered files only."""
        if self._is_spilled:
            self._send_all()
            self._wait(0)
            assert self._file is not None
            os.preadv(self._file, [target.data], offset)
            return
        rest = target.view(np.uint8)
        while len(rest):
            number, start = divmod(offset, PIECE_BYTES)
            count = min(len(rest), PIECE_BYTES - start)
            rest[:count] = self._pieces[number][start : start + count]
            rest, offset = rest[count:], offset + count

    def close(self, header: bytes = b"") -> FileDigest:
        """Write the rest, replace the first bytes by `header`, and give the file its name."""
        try:
            if header and not self._is_spilled:
                self._pieces[0][: len(header)] = np.frombuffer(header, np.uint8)
            self._send_all()
            self._wait(0)
            if self._is_spilled:
                assert self._file is not None
                os.pwrite(self._file, header, 0)
                digest = digest_file(self._temporary, self._start_checksum)
            else:
                digest = FileDigest(self.bytes, self._checksum.hexdigest())
            self._temporary.replace(self.path)
        finally:
            self.abandon()
        return digest

    def abandon(self) -> None:
        """Stop writing, and remove an unfinished file; no effect after `close`."""
        self._threads.shutdown(cancel_futures=True)
        self._pieces.clear()
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self._temporary.unlink(missing_ok=True)

    def _out(self) -> NDArray[np.uint8]:
        """Return the rest of the last piece, or a new piece."""
        if self.bytes == self._begin + PIECE_BYTES * len(self._pieces):
            if not self._is_buffered:
                self._send_all()
            elif len(self._pieces) >= max(1, MAX_HELD_BYTES // PIECE_BYTES):
                self._is_spilled = True
                self._send_all()
            self._pieces.append(empty_pages(PIECE_BYTES))
        return self._pieces[-1][(self.bytes - self._begin) % PIECE_BYTES :]

    def _send_all(self) -> None:
        """Write all pieces in the background, including the filled part of the last one."""
        if self._file is None:
            self._file = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        pieces, begin = self._pieces, self._begin
        self._pieces, self._begin = [], self.bytes
        while pieces:
            content = pieces.pop(0)[: self.bytes - begin].data
            self._wait(MAX_WRITES - 1)
            self._writes.append(self._threads.submit(write_past_cache, self._file, content, begin))
            if not self._is_spilled:
                self._checksum.update(content)
            begin += len(content)

    def _wait(self, max_pieces: int) -> None:
        """Wait until at most `max_pieces` writes are pending."""
        while len(self._writes) > max_pieces:
            self._writes.popleft().result()


def write_past_cache(file: int, content: memoryview, offset: int) -> None:
    """Write whole pages at an offset without the page cache if possible, and the rest through it."""
    whole = len(content) // PAGE_BYTES * PAGE_BYTES
    if offset % PAGE_BYTES == 0 and set_direct(file, True):
        try:
            _write(file, content[:whole], offset)
            offset, content = offset + whole, content[whole:]
        except OSError as error:
            if error.errno != errno.EINVAL:  # raised if the file system cannot after all
                raise
        set_direct(file, False)
    _write(file, content, offset)


def set_direct(file: int, is_direct: bool) -> bool:
    """Turn direct I/O on or off; return whether it is possible."""
    flags = fcntl.fcntl(file, fcntl.F_GETFL) & ~DIRECT
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | DIRECT if is_direct else flags)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return DIRECT != 0


def _write(file: int, content: memoryview, offset: int) -> None:
    while content:
        count = os.pwrite(file, content, offset)
        content, offset = content[count:], offset + count


class FileRange(NamedTuple):
    """A range of bytes of a file."""

    path: Path
    offset: int
    num_bytes: int

    @property
    def page_bytes(self) -> int:
        """Return the memory to read the range with all pages that it touches."""
        return (-(-self.num_bytes // PAGE_BYTES) + 2) * PAGE_BYTES


def read_ranges(ranges: Iterable[FileRange]) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of each range; up to READ_AHEAD further ranges are read in the background."""
    coming: deque[Future[NDArray[np.uint8]]] = deque()
    with ThreadPoolExecutor(READ_AHEAD) as readers:
        for part in ranges:
            out = empty_pages(part.page_bytes)  # not in a reader, whose memory no later thread reuses
            coming.append(readers.submit(_read_range, part, out))
            if len(coming) > READ_AHEAD:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def _read_range(part: FileRange, out: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Read the whole pages around a range into `out`, and return the range."""
    first = part.offset // PAGE_BYTES * PAGE_BYTES
    count = part.offset - first + part.num_bytes
    out = out[: -(-count // PAGE_BYTES) * PAGE_BYTES]
    file = os.open(part.path, os.O_RDONLY)
    try:
        is_direct = set_direct(file, True)
        try:
            _read(file, part.path, out, first, count)
        except OSError as error:
            if not is_direct or error.errno != errno.EINVAL:
                raise
            set_direct(file, False)
            _read(file, part.path, out, first, count)
    finally:
        os.close(file)
    return out[part.offset - first : count]


def _read(file: int, path: Path, out: NDArray[np.uint8], offset: int, num_bytes: int) -> None:
    bytes_read = 0
    while bytes_read < num_bytes:
        count = os.preadv(file, [out[bytes_read:].data], offset + bytes_read)
        if not count:
            raise OSError(errno.EIO, "shorter than it was", str(path))
        bytes_read += count
