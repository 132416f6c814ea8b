"""Arrays written whole with their checksum, ranges of files read ahead of use, and the progress of a stage.

Files are written by direct I/O where the file system can: in the page cache they would take the place of raw files that
are still to be read. File systems without it use the page cache.
"""

import errno
import fcntl
import hashlib
import io
import mmap
import os
import sys
import threading
import time
import tokenize
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray
from tqdm import tqdm

from common.files import FileDigest, format_bytes, temporary_path

if TYPE_CHECKING:
    from data_prep.executor import Counters

PAGE_BYTES = 4096
PIECE_BYTES = 4 << 20  # written while the next piece is filled
READ_AHEAD = 2  # ranges read ahead
DIRECT = getattr(os, "O_DIRECT", 0)


class FileWriter(AbstractContextManager["FileWriter"]):
    """Writes and checksums a file, which appears with `close`; leaving the context without `close` removes it.

    Args:
        path: path of the file.
        checksum: constructor of the checksum, such as `hashlib.sha256`.
    """

    def __init__(self, path: Path, checksum: Callable[[], Any] = hashlib.sha256) -> None:
        self.path = path
        self._checksum, self._bytes = checksum(), 0
        self._temporary = temporary_path(path)
        self._file: int | None = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self._piece, self._filled = _empty_pages(PIECE_BYTES), 0
        self._thread, self._write = ThreadPoolExecutor(1), Future[None]()
        self._write.set_result(None)

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def append(self, array: NDArray[Any]) -> None:
        """Append the bytes of an array; each full piece is written in the background."""
        rest = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        while len(rest):
            out = self._piece[self._filled :][: len(rest)]
            out[:] = rest[: len(out)]
            self._filled += len(out)
            rest = rest[len(out) :]
            if self._filled == PIECE_BYTES:
                self._send()

    def close(self) -> FileDigest:
        """Write the rest, give the file its name, and return its size and checksum."""
        try:
            self._send()
            self._write.result()
            self._temporary.replace(self.path)
        finally:
            self.abandon()
        return FileDigest(self._bytes, self._checksum.hexdigest())

    def abandon(self) -> None:
        """Stop writing, and remove an unfinished file; no effect after `close`."""
        self._thread.shutdown()
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self._temporary.unlink(missing_ok=True)

    def _send(self) -> None:
        """Write the piece in the background, once the one before is written."""
        assert self._file is not None
        content = self._piece[: self._filled].data
        self._checksum.update(content)
        self._write.result()
        self._write = self._thread.submit(_write_past_cache, self._file, content, self._bytes)
        self._bytes += len(content)
        self._piece, self._filled = _empty_pages(PIECE_BYTES), 0


def _empty_pages(num_bytes: int) -> NDArray[np.uint8]:
    """Allocate memory [num_bytes] that begins at a page, as direct I/O requires."""
    memory = np.empty(num_bytes + PAGE_BYTES, np.uint8)
    start = -memory.ctypes.data % PAGE_BYTES
    return memory[start : start + num_bytes]


def _write_past_cache(file: int, content: memoryview, offset: int) -> None:
    """Write whole pages at an offset, a multiple of PAGE_BYTES, without the page cache if possible; then the rest."""
    whole = len(content) // PAGE_BYTES * PAGE_BYTES if DIRECT else 0
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | DIRECT)
        done = os.pwrite(file, content[:whole], offset) if whole else 0
    except OSError as error:
        if error.errno != errno.EINVAL:  # raised where the file system cannot
            raise
        done = 0
    fcntl.fcntl(file, fcntl.F_SETFL, flags)
    while done < len(content):
        done += os.pwrite(file, content[done:], offset + done)


class FileRange(NamedTuple):
    """The `num_bytes` bytes of a file from byte `offset` on."""

    path: Path
    offset: int
    num_bytes: int


def read_ranges(ranges: Iterable[FileRange]) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of each range; up to READ_AHEAD further ranges are read in the background."""
    coming: deque[Future[NDArray[np.uint8]]] = deque()
    with ThreadPoolExecutor(READ_AHEAD) as readers:
        for part in ranges:
            out = np.empty(part.num_bytes, np.uint8)  # not in a reader, whose memory no later thread reuses
            coming.append(readers.submit(_read_range, part, out))
            if len(coming) > READ_AHEAD:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def _read_range(part: FileRange, out: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Read a range into `out`, and return it; raise OSError if the file is shorter."""
    with open(part.path, "rb") as file:
        file.seek(part.offset)
        if file.readinto(out.data) < part.num_bytes:
            raise OSError(errno.EIO, "shorter than it was", str(part.path))
    return out


BLOCK_BYTES = 2 << 20  # A few blocks fit the outer caches.
BLOCKS = 4  # of one reader, in memory at once


class ReadAhead(io.RawIOBase):
    """Reader of the blocks that `fill` produces, as blocks or as a stream.

    fill: fills part of the given memory and returns the number of bytes, 0 at the end and after it; runs in one thread
    only. before, after: bytes of padding around each block.
    """

    def __init__(self, fill: Callable[[memoryview], int], before: int = 0, after: int = 0) -> None:
        super().__init__()
        self._fill, self._before = fill, before
        self._block: mmap.mmap | None = None
        self._rest = memoryview(b"")
        self._thread = ThreadPoolExecutor(1)
        # Blocks travel in a circle, so memory is fixed and none is allocated while reading. An anonymous mapping gets a
        # page of memory when it is first written, so unused padding takes none.
        blocks = [mmap.mmap(-1, before + BLOCK_BYTES + after) for _ in range(BLOCKS)]
        self._coming = deque(self._thread.submit(self._fill_block, block) for block in blocks)

    def _fill_block(self, block: mmap.mmap) -> tuple[mmap.mmap, int]:
        """Fill a block; runs in the background thread."""
        return block, self._fill(memoryview(block)[self._before : self._before + BLOCK_BYTES])

    def next_block(self) -> tuple[mmap.mmap, int]:
        """Return a buffer and the number of bytes after its padding, 0 at the end; valid until the next call.

        Raise an error of `fill`.
        """
        if self._block is not None:
            self._coming.append(self._thread.submit(self._fill_block, self._block))
        self._block, count = self._coming.popleft().result()
        return self._block, count

    def at_end(self) -> bool:
        """Return whether `next_block` would return the empty block; the current block stays valid."""
        return self._coming[0].exception() is None and not self._coming[0].result()[1]

    def readable(self) -> bool:
        """Return True: io.RawIOBase says False, and readers of files ask."""
        return True

    def readinto(self, view: Any) -> int:
        """Fill part of `view`; return 0 at the end. Raise an error of `fill`."""
        if not self._rest:
            block, count = self.next_block()
            self._rest = memoryview(block)[self._before : self._before + count]
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        """End the thread after its current read."""
        self._thread.shutdown(cancel_futures=True)
        super().close()


HEADER_BYTES = 128
# Errors besides ValueError that NumPy raises for a damaged header.
HEADER_ERRORS = (EOFError, SyntaxError, TypeError, OverflowError, MemoryError, RecursionError, tokenize.TokenError)


class ArrayWriter(AbstractContextManager["ArrayWriter"]):
    """Writes a .npy file [rows, width], or [rows] without a width; it appears with `close`.

    Args:
        path: path of the file, in an existing directory.
        dtype: dtype of the values.
        width: values per row; None for an array of one dimension.
        rows: number of rows.
        checksum: constructor of the checksum, such as `hashlib.sha256`.
    """

    def __init__(
        self, path: Path, dtype: DTypeLike, width: int | None, rows: int, checksum: Callable[[], Any] = hashlib.sha256
    ) -> None:
        self.path = path
        self._dtype, self._missing = np.dtype(dtype), rows
        self._file = FileWriter(path, checksum)
        self._file.append(np.frombuffer(npy_header(self._dtype, rows, width), np.uint8))

    def __exit__(self, *_: object) -> None:
        self._file.abandon()

    def append(self, rows: NDArray[Any]) -> None:
        """Append [rows, width], or [rows] values if the width is 1 or None."""
        self._file.append(np.ascontiguousarray(rows, self._dtype))
        self._missing -= len(rows)

    def close(self) -> FileDigest:
        """Write the rest, give the file its name, and return its size and checksum."""
        assert not self._missing, f"{self.path}: {self._missing} rows are missing"
        return self._file.close()


def write_array(path: Path, array: NDArray[Any], checksum: Callable[[], Any] = hashlib.sha256) -> FileDigest:
    """Write an array of one or two dimensions; return the file's size and checksum."""
    with ArrayWriter(path, array.dtype, None if array.ndim == 1 else array.shape[1], len(array), checksum) as writer:
        writer.append(array)
        return writer.close()


def npy_header(dtype: np.dtype[Any], rows: int, width: int | None) -> bytes:
    """Return the first HEADER_BYTES of a .npy file [rows, width], or [rows] without a width."""
    stream = io.BytesIO()
    shape = (rows,) if width is None else (rows, width)
    # A header of fixed length gives each row a known offset, and can be filled in once the rows are counted.
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    header = stream.getvalue()
    assert len(header) == HEADER_BYTES, f"NumPy wrote a header of {len(header)} bytes, not {HEADER_BYTES}"
    return header


def open_array(path: Path) -> NDArray[Any]:
    """Memory-map a .npy file, read-only.

    Raises OSError: missing or unreadable file. Raises ValueError: not a complete .npy file of plain values; .npz files
    and Python objects are refused, too.
    """
    # Unlike np.load, this opens neither archives nor pickled objects, which could run code.
    try:
        array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except HEADER_ERRORS as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return array


def read_rows(blocks: Sequence[tuple[Path, int, int]], width: int, dtype: DTypeLike) -> Iterator[NDArray[Any]]:
    """Yield rows start..stop of the .npy file [rows, width] for each of `blocks`; the next block is read ahead."""
    row_bytes = width * np.dtype(dtype).itemsize
    ranges = (
        FileRange(path, HEADER_BYTES + start * row_bytes, (stop - start) * row_bytes) for path, start, stop in blocks
    )
    for (_, start, stop), content in zip(blocks, read_ranges(ranges), strict=True):
        yield content.view(dtype).reshape(stop - start, width)


def prefetch(rows: NDArray[Any], start: int, stop: int) -> None:
    """Ask the system to read rows start..stop of a mapped .npy file into the page cache, without waiting."""
    if hasattr(mmap, "MADV_WILLNEED") and isinstance(rows.base, mmap.mmap) and len(rows):
        row_bytes = rows.nbytes // len(rows)
        first = (HEADER_BYTES + start * row_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        rows.base.madvise(mmap.MADV_WILLNEED, min(first, len(rows.base) - 1), (stop - start) * row_bytes)


def unload(mapping: mmap.mmap) -> None:
    """Drop a mapped file from resident memory; written values stay."""
    if hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


REFRESH_SECONDS = 0.25
LINE_SECONDS = 10.0
NO_BYTES = "{desc}: {elapsed}{postfix}"


class Tally:
    """Counters for the threads of this process; `at_hand`: bytes done before, which do not count for the speed."""

    def __init__(self, at_hand: int = 0) -> None:
        self._at_hand = at_hand
        self._lock = threading.Lock()
        self.reset()

    def add(self, num_bytes: int, num_rows: int = 0) -> None:
        """Count work done; a negative count is work to do again."""
        with self._lock:
            self.bytes += num_bytes
            self.rows += num_rows

    def reset(self) -> None:
        """Set the counts to what is at hand."""
        self.bytes, self.rows = self._at_hand, 0


class Progress:
    """Shows the counters of one stage until the `with` body ends.

    The body counts bytes of files on disk, and rows; other processes may do the counting. total_bytes: None if unknown.
    """

    def __init__(self, stage: str, total_bytes: int | None, counters: "Counters") -> None:
        self._stage = stage
        self._total = total_bytes
        self.counters = counters
        counters.reset()
        self._first = counters.bytes  # done before the stage
        self._end = threading.Event()
        self._start = time.monotonic()
        self._bar: Any = None
        if sys.stderr.isatty():
            shape = NO_BYTES if total_bytes == 0 else None  # ordering rows reads no files
            self._bar = tqdm(
                total=total_bytes,
                desc=stage,
                unit="B",
                unit_scale=True,
                leave=False,
                initial=self._first,
                bar_format=shape,
            )
        self._thread = threading.Thread(target=self._refresh, daemon=True)

    def __enter__(self) -> "Progress":
        self._thread.start()
        return self

    def say(self, line: str) -> None:
        """Print a line on stderr, above the bar if there is one."""
        if self._end.is_set():
            return  # the stage is over
        if self._bar is not None:
            tqdm.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)

    def __exit__(self, kind: object, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if self._bar is not None:
            self._bar.close()
        if kind is None:
            self._print_line()

    def _refresh(self) -> None:
        """Redraw the bar, or print a line now and then, until the stage ends; runs in a thread."""
        next_line = self._start + LINE_SECONDS
        while not self._end.wait(REFRESH_SECONDS):
            if self._bar is not None:
                self._bar.n = self._bytes()
                self._bar.set_postfix_str(f"{self._rate()} rows/s" if self.counters.rows else "", refresh=True)
            elif time.monotonic() >= next_line:
                next_line += LINE_SECONDS
                self._print_line()

    def _bytes(self) -> int:
        """Return the bytes done, at most the total if that is known."""
        return self.counters.bytes if self._total is None else min(self.counters.bytes, self._total)

    def _rate(self) -> str:
        """Return the rows per second since the stage began, as text with thousands separators."""
        return f"{self.counters.rows / max(time.monotonic() - self._start, 1e-9):,.0f}"

    def _print_line(self) -> None:
        """Print what is done, how fast, and how long the rest may take."""
        seconds = max(time.monotonic() - self._start, 1e-9)
        num_bytes = self._bytes()
        speed = (num_bytes - self._first) / seconds
        fields = [f"{seconds:.1f} s"]
        if self._total != 0:  # merging in memory reads no files
            total = "" if self._total is None else f" of {format_bytes(self._total)}"
            fields = [f"{format_bytes(num_bytes)}{total}", f"{format_bytes(speed)}/s", *fields]
        if self.counters.rows:  # some stages, such as checksums, count no rows
            fields = [f"{self.counters.rows:,} rows", f"{self._rate()} rows/s", *fields]
        if self._total is not None and speed > 0 and num_bytes < self._total and not self._end.is_set():
            fields.append(f"{(self._total - num_bytes) / speed:.0f} s to go")
        print(f"{self._stage}: {', '.join(fields)}", file=sys.stderr, flush=True)
