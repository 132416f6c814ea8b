"""Arrays written whole with their checksum, by direct I/O where it is possible; ranges read ahead of use.

A chunk's files are written once and read once. In the page cache, each page would first have to be found and cleared,
which can take longer than all work on the rows. File systems without direct I/O use the page cache.
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

from common.files import FileDigest, digest_file, format_bytes, temporary_path

if TYPE_CHECKING:
    from data_prep.executor import Counters

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


class FileWriter(AbstractContextManager["FileWriter"]):
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
        # Spilled: the file became longer than MAX_HELD_BYTES, so its first pieces are on disk, not yet in the checksum.
        self._is_buffered, self._is_spilled = is_buffered, False
        self._temporary = temporary_path(path)
        self._file: int | None = None
        self._pieces: list[NDArray[np.uint8]] = []
        self._begin = 0  # offset of the first piece
        self._threads = ThreadPoolExecutor(1)  # starts its thread at the first write
        self._writes: deque[Future[int]] = deque()

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def append(self, array: NDArray[Any]) -> None:
        """Append the bytes of an array, copied to pieces of PIECE_BYTES; a full piece is written in the background."""
        rest = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        while len(rest):
            out = self._free_part()[: len(rest)]
            out[:] = rest[: len(out)]
            self.bytes += len(out)
            rest = rest[len(out) :]

    def extend(self, shape: tuple[int, ...], dtype: DTypeLike, fill: Callable[[NDArray[Any]], object]) -> None:
        """Append an array that `fill` writes to the memory it receives, if possible the file's own."""
        num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        # An array that crosses the end of a piece has no contiguous memory there, so it is made elsewhere and copied.
        out = self._free_part()[:num_bytes]
        if len(out) < num_bytes:
            array = np.empty(shape, dtype)
            fill(array)
            self.append(array)
        else:
            fill(out.view(dtype).reshape(shape))
            self.bytes += num_bytes

    def read_into(self, offset: int, target: NDArray[Any]) -> None:
        """Fill an array with the bytes from an offset on; only if the writer is buffered."""
        if self._is_spilled:
            self._send_all()
            self._wait_for_writes(0)
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
            self._wait_for_writes(0)
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

    def _free_part(self) -> NDArray[np.uint8]:
        """Return the unfilled bytes of the last piece or, where it is full, all bytes of a new piece."""
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
            # A piece is checksummed while the previous one is written; few may wait, so that memory stays bounded.
            self._wait_for_writes(MAX_WRITES - 1)
            self._writes.append(
                self._threads.submit(transfer_past_cache, os.pwritev, self._file, content, begin, len(content))
            )
            if not self._is_spilled:
                self._checksum.update(content)
            begin += len(content)

    def _wait_for_writes(self, max_pieces: int) -> None:
        """Wait until at most `max_pieces` writes are pending."""
        while len(self._writes) > max_pieces:
            self._writes.popleft().result()


def transfer_past_cache(call: Callable[..., int], file: int, pages: memoryview, offset: int, num_bytes: int) -> int:
    """Read or write num_bytes at an offset, a multiple of PAGE_BYTES; return the bytes done: fewer where a file ends.

    call: os.preadv or os.pwritev. pages: memory of the bytes; its whole pages bypass the page cache if possible.
    """
    # Direct I/O takes whole pages, so the end of a written file goes through the cache.
    whole, done, flags = len(pages) // PAGE_BYTES * PAGE_BYTES, 0, fcntl.fcntl(file, fcntl.F_GETFL)
    if whole and DIRECT:
        try:
            fcntl.fcntl(file, fcntl.F_SETFL, flags | DIRECT)
            done = call(file, [pages[:whole]], offset)
        except OSError as error:
            if error.errno != errno.EINVAL:  # raised where the file system cannot
                raise
        fcntl.fcntl(file, fcntl.F_SETFL, flags)
    while done < num_bytes and (count := call(file, [pages[done:]], offset + done)):
        done += count
    return done


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
            # Not in a reader, whose memory no later thread reuses.
            pages = empty_pages((part.num_bytes // PAGE_BYTES + 2) * PAGE_BYTES)
            coming.append(readers.submit(_read_range, part, pages))
            if len(coming) > READ_AHEAD:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def _read_range(part: FileRange, pages: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Read the pages that a range touches, and return the range; raise OSError if the file is shorter."""
    start = part.offset % PAGE_BYTES
    end = start + part.num_bytes
    content = pages[: -(-end // PAGE_BYTES) * PAGE_BYTES].data
    with open(part.path, "rb", buffering=0) as file:
        if transfer_past_cache(os.preadv, file.fileno(), content, part.offset - start, end) < end:
            raise OSError(errno.EIO, "shorter than it was", str(part.path))
    return pages[start:end]


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
        rows: number of rows, or None if it is known only at the end; see `FileWriter`.
        checksum: constructor of the checksum, such as `hashlib.sha256`.
    """

    def __init__(
        self,
        path: Path,
        dtype: DTypeLike,
        width: int | None,
        rows: int | None,
        checksum: Callable[[], Any] = hashlib.sha256,
    ) -> None:
        self.path = path
        self.rows = 0  # written so far
        self._dtype, self._width, self._total = np.dtype(dtype), width, rows
        self._file = FileWriter(path, checksum, is_buffered=rows is None)
        self._file.append(np.frombuffer(npy_header(self._dtype, rows or 0, width), np.uint8))

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def append(self, rows: NDArray[Any]) -> None:
        """Append [rows, width], or [rows] values if the width is 1 or None."""
        self._file.append(np.ascontiguousarray(rows, self._dtype))
        self.rows += len(rows)

    def extend(self, rows: int, fill: Callable[[NDArray[Any]], object]) -> None:
        """Append rows; `fill` writes them to the array [rows, width] that it receives."""
        self._file.extend((rows, 1 if self._width is None else self._width), self._dtype, fill)
        self.rows += rows

    def close(self) -> FileDigest:
        """Write the rest, give the file its name, and return its size and checksum."""
        if self._total is None:
            return self._file.close(npy_header(self._dtype, self.rows, self._width))
        assert self.rows == self._total, f"{self.path}: {self.rows} rows of {self._total}"
        return self._file.close()

    def abandon(self) -> None:
        """Remove an unfinished file; no effect after `close`."""
        self._file.abandon()


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


def rows_range(path: Path, start: int, stop: int, width: int, dtype: DTypeLike) -> FileRange:
    """Return the byte range of rows start..stop of a .npy file [rows, width]."""
    row_bytes = width * np.dtype(dtype).itemsize
    return FileRange(path, HEADER_BYTES + start * row_bytes, (stop - start) * row_bytes)


def read_rows(blocks: Sequence[tuple[Path, int, int]], width: int, dtype: DTypeLike) -> Iterator[NDArray[Any]]:
    """Yield rows start..stop of the .npy file [rows, width] for each of `blocks`; the next block is read ahead."""
    ranges = (rows_range(*block, width, dtype) for block in blocks)
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
