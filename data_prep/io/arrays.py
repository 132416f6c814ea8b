"""NumPy files: one writer, whole or in steps; opened memory-mapped, or read by rows."""

import hashlib
import io
import mmap
import tokenize
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from common.files import FileDigest
from data_prep.io.direct_io import FileRange, FileWriter, read_ranges

HEADER_BYTES = 128
# what NumPy raises, besides ValueError, where a header is damaged
HEADER_ERRORS = (EOFError, SyntaxError, TypeError, OverflowError, MemoryError, RecursionError, tokenize.TokenError)
MAPPED_BYTES = 32 << 20
FAULT_BYTES = 2 << 20  # the most that Linux maps at once of a file in the page cache, where one byte is looked at


class ArrayWriter:
    """Writes a .npy file [rows, width], or [rows] without a width, which appears whole with `close`.

    Args:
        path: of the file, whose directory is there.
        dtype: of its values.
        width: of a row, None for an array of one dimension.
        rows: their number, or None where it is only known at the end; see `FileWriter`.
        checksum: makes the checksum, as `hashlib.sha256` does.
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
        self.rows = 0  # so far
        self._dtype, self._width, self._total = np.dtype(dtype), width, rows
        self._file = FileWriter(path, checksum, is_buffered=rows is None)
        self._file.append(np.frombuffer(npy_header(self._dtype, rows or 0, width), np.uint8))

    def __enter__(self) -> "ArrayWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def append(self, rows: NDArray[Any]) -> None:
        """Add [rows, width] or, where the width is 1 or None, [rows] values."""
        self._file.append(np.ascontiguousarray(rows, self._dtype))
        self.rows += len(rows)

    def extend(self, rows: int, fill: Callable[[NDArray[Any]], object]) -> None:
        """Add rows, which `fill` writes to the array [rows, width] that it is given."""
        self._file.extend((rows, 1 if self._width is None else self._width), self._dtype, fill)
        self.rows += rows

    def close(self) -> FileDigest:
        """Write what is left and give the file its name; its size and checksum."""
        if self._total is None:
            return self._file.close(npy_header(self._dtype, self.rows, self._width))
        assert self.rows == self._total, f"{self.path}: {self.rows} rows of {self._total}"
        return self._file.close()

    def abandon(self) -> None:
        self._file.abandon()


def write_array(path: Path, array: NDArray[Any], checksum: Callable[[], Any] = hashlib.sha256) -> FileDigest:
    """Write an array of one or two dimensions, whole; the file's size and checksum."""
    with ArrayWriter(path, array.dtype, None if array.ndim == 1 else array.shape[1], len(array), checksum) as writer:
        writer.append(array)
        return writer.close()


def npy_header(dtype: np.dtype[Any], rows: int, width: int | None) -> bytes:
    """The first HEADER_BYTES of a .npy file [rows, width], or [rows] without a width."""
    stream = io.BytesIO()
    shape = (rows,) if width is None else (rows, width)
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    header = stream.getvalue()
    if len(header) != HEADER_BYTES:
        raise AssertionError(f"NumPy wrote a header of {len(header)} bytes, not {HEADER_BYTES}")
    return header


def open_array(path: Path) -> NDArray[Any]:
    """Memory-map a .npy file, read-only.

    Raises:
        OSError: there is none, or it may not be read.
        ValueError: it is not a whole .npy file of plain values; an .npz is not, nor are Python's objects.
    """
    try:
        array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except HEADER_ERRORS as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return array


def rows_range(path: Path, start: int, stop: int, width: int, dtype: DTypeLike) -> FileRange:
    """Byte range of rows start..stop of a .npy file [rows, width]."""
    row_bytes = width * np.dtype(dtype).itemsize
    return FileRange(path, HEADER_BYTES + start * row_bytes, (stop - start) * row_bytes)


def read_rows(blocks: Sequence[tuple[Path, int, int]], width: int, dtype: DTypeLike) -> Iterator[NDArray[Any]]:
    """Rows start..stop of the .npy file [rows, width] at a path, for each of `blocks`; the next is read meanwhile."""
    ranges = (rows_range(*block, width, dtype) for block in blocks)
    for (_, start, stop), content in zip(blocks, read_ranges(ranges), strict=True):
        yield content.view(dtype).reshape(stop - start, width)


def take_mapped(rows: NDArray[Any], numbers: NDArray[np.integer]) -> NDArray[Any]:
    """rows[numbers] of a mapped .npy file [R, width]; about MAPPED_BYTES of it are resident at most, none after."""
    if rows.nbytes <= MAPPED_BYTES:
        rows_read = np.take(rows, numbers, axis=0)
        let_go(rows)
        return rows_read
    distinct, inverse = np.unique(numbers, return_inverse=True)  # in order, so that neighbours are mapped together
    rows_read = np.empty((len(distinct), rows.shape[1]), rows.dtype)
    regions = distinct.astype(np.int64) * (rows.itemsize * rows.shape[1]) // FAULT_BYTES
    faults = np.cumsum(np.diff(regions, prepend=-1) > 0)  # up to and with each
    bounds = np.searchsorted(faults, np.arange(1, faults.max(initial=0) + 1, MAPPED_BYTES // FAULT_BYTES)).tolist()
    for start, stop in pairwise([*bounds, len(distinct)]):
        rows_read[start:stop] = np.take(rows, distinct[start:stop], axis=0)
        let_go(rows)
    return rows_read[inverse]


def let_go(rows: NDArray[Any]) -> None:
    """Have nothing of a mapped .npy file resident; what is looked at next comes from the page cache, or the disk."""
    mapping = rows.base
    assert isinstance(mapping, mmap.mmap)
    unload(mapping)


def will_need(rows: NDArray[Any], start: int, stop: int) -> None:
    """Have the system read rows start..stop of a mapped .npy file into the page cache, without waiting for them."""
    if hasattr(mmap, "MADV_WILLNEED") and isinstance(rows.base, mmap.mmap) and len(rows):
        row_bytes = rows.nbytes // len(rows)
        first = (HEADER_BYTES + start * row_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        rows.base.madvise(mmap.MADV_WILLNEED, min(first, len(rows.base) - 1), (stop - start) * row_bytes)


def unload(mapping: mmap.mmap) -> None:
    """Have nothing of a mapped file resident; what was written to it stays written."""
    if hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)
