"""A file that is read once, and summed on the way."""

import hashlib
import io
from pathlib import Path
from typing import Any

from data_prep.io.atomic import FileDigest


class SummedFile(io.RawIOBase):
    """A file's bytes, front to back.

    Attributes:
        position: bytes read so far.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.position = 0
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        self._sum = hashlib.sha256()

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, target: Any) -> int:
        """Fill some of `target`; 0 at the end."""
        count = self._file.readinto(target) or 0
        self._sum.update(memoryview(target)[:count])
        self.position += count
        return count

    def digest(self) -> FileDigest:
        """Size and sum of what was read: of the file, once all was."""
        return FileDigest(self.position, self._sum.hexdigest())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()
