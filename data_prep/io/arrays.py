"""NumPy files: a writer, for whole arrays or in steps, and readers, memory-mapped or by rows."""

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
# Errors besides ValueError that NumPy raises for a damaged header.
HEADER_ERRORS = (EOFError, SyntaxError, TypeError, OverflowError, MemoryError, RecursionError, tokenize.TokenError)
MAPPED_BYTES = 32 << 20
FAULT_BYTES = 2 << 20  # Linux maps at most as much of a cached file when one byte is accessed.


class ArrayWriter:
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

    def __enter__(self) -> "ArrayWriter":
        return self

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
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    header = stream.getvalue()
    if len(header) != HEADER_BYTES:
        raise AssertionError(f"NumPy wrote a header of {len(header)} bytes, not {HEADER_BYTES}")
    return header


def open_array(path: Path) -> NDArray[Any]:
    """Memory-map a .npy file, read-only.

    Raises:
        OSError: missing or unreadable file.
        ValueError: not a complete .npy file of plain values; .npz files and Python objects are refused, too.
    """
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


def take_mapped(rows: NDArray[Any], numbers: NDArray[np.integer]) -> NDArray[Any]:
    """Return rows[numbers] of a mapped .npy file [R, width]; about MAPPED_BYTES are resident at most, none after."""
    if rows.nbytes <= MAPPED_BYTES:
        rows_read = np.take(rows, numbers, axis=0)
        let_go(rows)
        return rows_read
    distinct, inverse = np.unique(numbers, return_inverse=True)  # ascending, so that neighbours are mapped together
    rows_read = np.empty((len(distinct), rows.shape[1]), rows.dtype)
    regions = distinct.astype(np.int64) * (rows.itemsize * rows.shape[1]) // FAULT_BYTES
    faults = np.cumsum(np.diff(regions, prepend=-1) > 0)  # faults up to each row, including it
    bounds = np.searchsorted(faults, np.arange(1, faults.max(initial=0) + 1, MAPPED_BYTES // FAULT_BYTES)).tolist()
    for start, stop in pairwise([*bounds, len(distinct)]):
        rows_read[start:stop] = np.take(rows, distinct[start:stop], axis=0)
        let_go(rows)
    return rows_read[inverse]


def let_go(rows: NDArray[Any]) -> None:
    """Drop a mapped .npy file from resident memory; the page cache or the disk serves later accesses."""
    mapping = rows.base
    assert isinstance(mapping, mmap.mmap)
    unload(mapping)


def will_need(rows: NDArray[Any], start: int, stop: int) -> None:
    """Ask the system to read rows start..stop of a mapped .npy file into the page cache, without waiting."""
    if hasattr(mmap, "MADV_WILLNEED") and isinstance(rows.base, mmap.mmap) and len(rows):
        row_bytes = rows.nbytes // len(rows)
        first = (HEADER_BYTES + start * row_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        rows.base.madvise(mmap.MADV_WILLNEED, min(first, len(rows.base) - 1), (stop - start) * row_bytes)


def unload(mapping: mmap.mmap) -> None:
    """Drop a mapped file from resident memory; written values stay."""
    if hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)
