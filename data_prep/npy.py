"""NumPy files written row block by row block, the number of rows being known only at the end."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from data_prep.files import temporary_path

HEADER_BYTES = 128


class NpyWriter:
    """A .npy file [rows, width], or [rows] without a width, that grows; it appears, whole, with `close`."""

    def __init__(self, path: Path, dtype: DTypeLike, width: int | None) -> None:
        self.path = path
        self.rows = 0
        self._dtype = np.dtype(dtype)
        self._width = width
        self._temporary = temporary_path(path)
        self._file = open(self._temporary, "wb", buffering=0)  # noqa: SIM115
        self._file.write(self._header())

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
        self._file.write(self._header())
        self._file.close()
        self._temporary.replace(self.path)

    def abandon(self) -> None:
        """Close the file, unless it is closed, without giving it its name."""
        self._file.close()

    def _header(self) -> bytes:
        stream = io.BytesIO()
        shape = (self.rows,) if self._width is None else (self.rows, self._width)
        description = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, description)
        header = stream.getvalue()
        if len(header) != HEADER_BYTES:
            raise AssertionError(f"NumPy wrote a header of {len(header)} bytes, not {HEADER_BYTES}")
        return header
