"""Readers of files compressed by bzip2, xz or zstd; they report damage as such."""

import bz2
import io
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_prep.sources.discover import DamageError

READ_BYTES = 1 << 18


def open_bzip2(file: Any) -> io.RawIOBase:
    """Open the content of a file, given by path or open; reading it raises EOFError or DamageError."""
    return Streams(file, bz2.BZ2Decompressor)


def open_xz(file: Any) -> io.RawIOBase:
    """Open the content as `open_bzip2` does."""
    return Streams(file, lzma.LZMADecompressor)


def open_zstd(file: Any) -> io.RawIOBase:
    """Open the content as `open_bzip2` does."""
    return ArrowStream(file, "zstd")


class Streams(io.RawIOBase):
    """One or more compressed streams; unlike bz2.open and lzma.open, this refuses other bytes after one."""

    def __init__(self, file: Any, make: Callable[[], Any]) -> None:
        super().__init__()
        self._file = open(file, "rb") if isinstance(file, str | Path) else file  # noqa: SIM115 -- close() closes it
        self._make, self._stream = make, make()

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with what follows: at least one byte, except at the end.

        Raises:
            EOFError: the file ends within a stream.
            DamageError: the following bytes are not a stream.
        """
        while True:
            packed = b""
            if self._stream.eof:
                packed = self._stream.unused_data or self._file.read(READ_BYTES)
                if not packed:
                    return 0
                self._stream = self._make()
            elif self._stream.needs_input:
                packed = self._file.read(READ_BYTES)
                if not packed:
                    raise EOFError
            try:
                content = self._stream.decompress(packed, len(buffer))
            except (OSError, lzma.LZMAError) as error:
                raise DamageError(str(error)) from error
            if content:
                buffer[: len(content)] = content
                return len(content)

    def close(self) -> None:
        """Close the file as well."""
        self._file.close()
        super().close()


class ArrowStream(io.RawIOBase):
    """A stream decompressed by one of pyarrow's codecs."""

    def __init__(self, file: Any, codec: str) -> None:
        super().__init__()
        import pyarrow as pa  # only these files need it

        packed = pa.OSFile(str(file)) if isinstance(file, str | Path) else pa.PythonFile(file, "r")
        self._content = pa.CompressedInputStream(packed, codec)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with what follows; raises EOFError and DamageError as `Streams` does."""
        try:
            return int(self._content.readinto(buffer))
        except OSError as error:
            if error.errno is not None:
                raise
            if "Truncated" in str(error):
                raise EOFError from error
            raise DamageError(str(error)) from error
