"""MLPerf v2's day_N_sparse_multi_hot.npz: an archive of arrays "0", "1", …, each a feature's bags [rows, size]."""

import io
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from common.files import temporary_path
from data_prep.io.arrays import HEADER_ERRORS

# Errors for a damaged or encrypted member (RuntimeError), or an unknown compression (its subclass).
ARCHIVE_ERRORS = (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


class MultiHotReader:
    """Reader of all features of an archive in blocks of rows; memory does not grow, even with compression.

    `rows` and `sizes` are the shapes of the arrays.
    """

    def __init__(self, path: Path, num_features: int) -> None:
        """Raise UserError for an unreadable archive or other arrays."""
        self._path = path
        try:
            self._archive = zipfile.ZipFile(path)
            self._members = [self._archive.open(f"{feature}.npy") for feature in range(num_features)]
            headers = [_read_header(member) for member in self._members]
        except (*ARCHIVE_ERRORS, *HEADER_ERRORS, ValueError, KeyError) as error:
            raise UserError(f"{path}: not readable as multi-hot bags ({error}); get it again") from error
        self._dtypes = [dtype for _, dtype in headers]
        self.rows = headers[0][0][0]
        self.sizes = tuple(shape[1] for shape, _ in headers)
        for feature, (shape, _) in enumerate(headers):
            if shape[0] != self.rows or shape[1] < 1:
                raise UserError(f"{path}: array {feature} is {shape}, but array 0 has {self.rows} rows; get it again")

    def __enter__(self) -> "MultiHotReader":
        return self

    def __exit__(self, *exception: object) -> None:
        self._archive.close()

    def read(self, rows: int) -> list[NDArray[Any]]:
        """Return the next rows of each feature, [rows, size].

        Raises:
            UserError: the archive is damaged or cut short.
        """
        arrays = []
        for feature, (member, size, dtype) in enumerate(zip(self._members, self.sizes, self._dtypes, strict=True)):
            try:
                data = member.read(rows * size * dtype.itemsize)
            except ARCHIVE_ERRORS as error:
                raise UserError(f"{self._path}: array {feature} is damaged ({error}); get it again") from error
            if len(data) != rows * size * dtype.itemsize:
                raise UserError(f"{self._path}: array {feature} is cut short; get it again")
            arrays.append(np.frombuffer(data, dtype).reshape(rows, size))
        return arrays


def _read_header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(member)
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = reader(member)
    if len(shape) != 2 or is_fortran or dtype.kind not in "iu":
        raise ValueError(f"{member.name} holds {dtype} {shape}, not rows of ids")
    return shape, dtype


class MultiHotWriter:
    """Writer of an archive, feature by feature; the file appears when the `with` body ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = temporary_path(path)
        self._archive = zipfile.ZipFile(self._temporary, "w", zipfile.ZIP_STORED, allowZip64=True)
        self._feature = 0

    def append(self, rows: int, size: int, blocks: Iterable[NDArray[np.int32]]) -> None:
        """Write the next feature's bags, [rows, size] in blocks."""
        header = io.BytesIO()
        description = {"descr": "<i4", "fortran_order": False, "shape": (rows, size)}
        np.lib.format.write_array_header_1_0(header, description)
        # force_zip64 as np.savez does, since the reference's reader expects such a header.
        with self._archive.open(f"{self._feature}.npy", "w", force_zip64=True) as member:
            member.write(header.getvalue())
            for block in blocks:
                member.write(np.ascontiguousarray(block, np.int32).tobytes())
        self._feature += 1

    def __enter__(self) -> "MultiHotWriter":
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        self._archive.close()
        if kind is None:
            self._temporary.replace(self.path)
        self._temporary.unlink(missing_ok=True)
