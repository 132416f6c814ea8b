"""NumPy files: opened, or written row block by row block, the number of rows being known only at the end."""

import io
import tokenize
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from data_prep.io.atomic import temporary_path

HEADER_BYTES = 128
# what NumPy raises, besides ValueError, where a header is damaged
HEADER_ERRORS = (EOFError, SyntaxError, TypeError, OverflowError, MemoryError, RecursionError, tokenize.TokenError)


class NpyWriter:
    """A .npy file [rows, width], or [rows] without a width, that grows; it appears, whole, with `close`."""

    def __init__(self, path: Path, dtype: DTypeLike, width: int | None) -> None:
        self.path = path
        self.rows = 0
        self._dtype = np.dtype(dtype)
        self._width = width
        self._temporary = temporary_path(path)
        self._file = open(self._temporary, "wb", buffering=0)  # noqa: SIM115
        self._file.write(npy_header(self._dtype, self.rows, self._width))

    def append(self, rows: NDArray[Any]) -> None:
        """Write [rows, width] or, where the width is 1 or None, [rows] values of the file's dtype."""
        array = np.ascontiguousarray(rows, self._dtype)
        view = array.reshape(-1).view(np.uint8).data
        while view:
            view = view[self._file.write(view) :]
        self.rows += len(rows)

    def close(self) -> None:
        """Write the number of rows, close the file, give it its name."""
        self._file.seek(0)
        self._file.write(npy_header(self._dtype, self.rows, self._width))
        self._file.close()
        self._temporary.replace(self.path)


def npy_header(dtype: np.dtype[Any], rows: int, width: int | None) -> bytes:
    """The first HEADER_BYTES of a .npy file [rows, width], or [rows] without a width."""
    stream = io.BytesIO()
    shape = (rows,) if width is None else (rows, width)
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    header = stream.getvalue()
    if len(header) != HEADER_BYTES:
        raise AssertionError(f"NumPy wrote a header of {len(header)} bytes, not {HEADER_BYTES}")
    return header


def open_npy(path: Path) -> NDArray[Any]:
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
