"""Raw files: from `data.raw` to an ordered list, and opened for reading whatever their compression."""

import glob
import gzip
import queue
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from common.errors import UserError

try:
    from isal import igzip as gzip_module
    from isal import isal_zlib as zlib_module
except ImportError:  # the same bytes, but slower
    import gzip as gzip_module  # type: ignore[no-redef]
    import zlib as zlib_module  # type: ignore[no-redef]


GZIP_MAGIC = b"\x1f\x8b"
GLOB_CHARACTERS = frozenset("*?[")
GENERATED_ROW_BYTES = 4 * 40  # of a row in a shard
READ_AHEAD_BYTES = 1 << 20
READ_AHEAD_BLOCKS = 4


@dataclass(frozen=True)
class Source:
    """One raw file as it was found; `name` is its file name, `path` where it lies.

    generated_rows: of a file that only describes a day, how many rows are to be generated from it.
    """

    path: str
    name: str
    bytes: int
    mtime_ns: int
    compressed: bool
    generated_rows: int | None = None

    @property
    def work_bytes(self) -> int:
        """Bytes to read, or to generate."""
        return self.bytes if self.generated_rows is None else self.generated_rows * GENERATED_ROW_BYTES


def resolve_sources(raw: Any) -> list[Source]:
    """Raw files in the order of their days.

    Args:
        raw: a path, a glob, a directory (its files named day_*, or else all of them, in natural order), or a
            list of these.

    Raises:
        UserError: nothing given, a missing or unreadable path, a glob that matches nothing, an empty file.
    """
    entries = [raw] if isinstance(raw, (str, Path)) else raw
    if not raw or not isinstance(entries, Sequence) or not all(isinstance(e, (str, Path)) for e in entries):
        raise UserError(f"data.raw={raw}: give the raw file, a glob, a directory of day files, or a list of them")
    paths = [path for entry in entries for path in _expand(str(entry))]
    seen: dict[str, Path] = {}
    for path in paths:
        twin = seen.setdefault(str(path.resolve()).removesuffix(".gz"), path)
        if twin is not path:
            raise UserError(f"{path}: its rows are in {twin} too; name each day once in data.raw")
    return [_inspect(path) for path in paths]


def natural_key(path: Path) -> list[Any]:
    """Sort key under which day_2 comes before day_10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(path))]


def _expand(entry: str) -> list[Path]:
    path = Path(entry).expanduser()
    if path.is_dir():
        files = [file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")]
        days = [file for file in files if file.name.startswith("day_")] or files
        if not days:
            raise UserError(f"{path}: no files in this directory; point data.raw at the raw day files")
        return sorted(days, key=natural_key)
    if not path.exists() and GLOB_CHARACTERS & set(entry):
        matches = [Path(match) for match in glob.glob(str(path), recursive=True)]
        files = sorted((match for match in matches if match.is_file()), key=natural_key)
        if not files:
            raise UserError(f"data.raw={entry}: no file matches; check the pattern")
        return files
    return [path]


def _inspect(path: Path) -> Source:
    try:
        status = path.stat()
        with open(path, "rb") as file:
            compressed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; check data.raw") from error
    except OSError as error:
        raise UserError(f"{path}: not readable ({error.strerror}); check data.raw") from error
    if status.st_size == 0:
        raise UserError(f"{path}: empty file; get it again, or leave it out of data.raw")
    if path.suffix == ".gz" and not compressed:
        raise UserError(f"{path}: not a gzip file, though named .gz; get it again, or rename it")
    return Source(str(path), path.name, status.st_size, status.st_mtime_ns, compressed)


class PlainReader:
    """Bytes of a plain file from an offset."""

    def __init__(self, source: Source, offset: int = 0) -> None:
        self._file: BinaryIO = open(source.path, "rb", buffering=0)  # noqa: SIM115
        self._file.seek(offset)

    def readinto(self, view: memoryview) -> int:
        """Fill some of `view`; 0 at the end."""
        return self._file.readinto(view) or 0  # type: ignore[attr-defined]

    def consumed(self) -> int:
        """Position in the file."""
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class GzipReader:
    """Bytes of a gzip file, inflated by a thread that runs a few blocks ahead of the caller."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._file = open(source.path, "rb")  # noqa: SIM115
        self._stream: Any = gzip_module.open(self._file, "rb")  # noqa: SIM115
        self._blocks: queue.Queue[bytes | Exception] = queue.Queue(READ_AHEAD_BLOCKS)
        self._rest = memoryview(b"")
        self._closed = False
        self._ended = False
        self._thread = threading.Thread(target=self._inflate, daemon=True)
        self._thread.start()

    def _inflate(self) -> None:
        while True:
            try:
                block: bytes | Exception = self._stream.read(READ_AHEAD_BYTES)
            except Exception as error:  # noqa: BLE001  # raised again in the caller's thread
                block = error
            while not self._closed:
                try:
                    self._blocks.put(block, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if self._closed or not block or isinstance(block, Exception):
                return

    def readinto(self, view: memoryview) -> int:
        """Fill some of `view`; 0 at the end.

        Raises:
            UserError: the file is truncated or damaged.
        """
        if not self._rest and not self._ended:
            block = self._blocks.get()
            if isinstance(block, Exception):
                raise self._explain(block)
            self._rest = memoryview(block)
            self._ended = not block
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def _explain(self, error: Exception) -> Exception:
        if isinstance(error, EOFError):
            return UserError(f"{self._source.path}: truncated gzip file, or bytes behind its end; get it again")
        damage: tuple[Any, ...] = (gzip.BadGzipFile, zlib_module.error)
        if isinstance(error, damage):
            return UserError(f"{self._source.path}: damaged gzip file ({error}); get it again")
        return error

    def consumed(self) -> int:
        """Position in the compressed file, somewhat ahead of the bytes handed out."""
        return min(self._file.tell(), self._source.bytes)

    def close(self) -> None:
        """Stop the thread and close the file."""
        self._closed = True
        self._thread.join()
        self._stream.close()
        self._file.close()


Reader = PlainReader | GzipReader


def open_source(source: Source, offset: int = 0) -> Reader:
    """A reader of the uncompressed bytes; a compressed source can only be read from the start."""
    if source.compressed:
        if offset:
            raise ValueError("a compressed source has no random access")
        return GzipReader(source)
    return PlainReader(source, offset)
