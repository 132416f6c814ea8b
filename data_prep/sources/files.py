"""Files of a job, or of an existing dataset: places, checksums, and bytes in blocks of lines, inflated if needed.

Downloads have the SHA-256 that data.remote.sha256 gives, files that the user gives for each split the MD5 of
data.checksums, as published files of splits do.
"""

import contextlib
import glob
import gzip
import io
import mmap
import os
import re
import shlex
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote

import numpy as np
from isal import igzip, isal_zlib
from numpy.typing import NDArray

from common.documents import Json
from common.errors import UserError
from common.files import FileDigest, SummedFile
from data_prep.config import DataConfig
from data_prep.dataset.format import MANIFEST_NAME, Manifest, load_manifest
from data_prep.io import BLOCK_BYTES, ReadAhead


class DamageError(Exception):
    """Raised if the content of a compressed file is not what a compressor writes."""


DAMAGE: tuple[Any, ...] = (DamageError, gzip.BadGzipFile, isal_zlib.error)
RAW_DIRECTORY = "raw"  # directory in a dataset for raw files that were made or downloaded for it
GZIP_MAGIC = b"\x1f\x8b"
TAR_MAGIC_AT = 257
TEXT_ROW_BYTES = 244  # bytes of a row of Criteo's days, or of a generated one
GZIP_RATIO = 3.5  # ratio of Criteo's days, if no sample can tell


@dataclass(frozen=True)
class Source:
    """One raw file as it was found: `name` is its file name, `path` its location, `bytes` its size on disk.

    mtime_ns, ctime_ns: when it was written, and when last changed; 0: not recorded.
    split: split that the file was given for, if any.
    partitions: names and values of its folders `NAME=VALUE`, outermost first; a null has the value None.
    """

    path: str
    name: str
    bytes: int
    mtime_ns: int
    compressed: bool
    ctime_ns: int = 0
    split: str | None = None
    partitions: tuple[tuple[str, str | None], ...] = ()

    @property
    def key(self) -> str:
        """Configuration key that gives the file, for errors: data.raw, data.train and so on."""
        return f"data.{self.split or 'raw'}"


def resolve_sources(raw: Any, split: str | None = None) -> list[Source]:
    """Return raw files in the order of their days.

    raw: a path, a glob, a directory or a list of these. A directory means its files named day_*, or else all its files,
    in natural order, and the files in folders NAME=VALUE, as Spark and Hive write them. split: the split that they are
    given for; None: they come from `data.raw`. Raises UserError: nothing is given, a path is missing or unreadable, a
    glob matches nothing, or a file is empty.
    """
    key = f"data.{split or 'raw'}"
    entries = [raw] if isinstance(raw, (str, Path)) else raw
    if not raw or not isinstance(entries, Sequence) or not all(isinstance(e, (str, Path)) for e in entries):
        raise UserError(f"{key}={raw}: give the raw file, a glob, a directory of day files, or a list of them")
    sources: list[Source] = []
    roots = (Path(os.path.expanduser(entry)) for entry in entries)
    found = ((root, path) for root in roots for path in _expand_entry(root, key))
    for root, path in found:
        # Names and values of the folders between a directory and a file in it; this undoes Hive's escapes.
        folders = path.relative_to(root).parts[:-1] if path.is_relative_to(root) else ()
        partitions = tuple(
            (unquote(name), None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value))
            for name, _, value in (folder.partition("=") for folder in folders)
        )
        sources.append(replace(_inspect(path, key), split=split, partitions=partitions))
    _refuse_same_paths(sources)
    return sources


def resolve_splits(files: Mapping[str, Any]) -> list[Source]:
    """Return the files given for each split, in the order of the splits.

    files: maps each split to its files (a path, glob, directory or list), or to None if it has none. Raises UserError:
    as `resolve_sources`, or a file is given for two splits, which would then share its rows.
    """
    sources = [source for split, raw in files.items() if raw is not None for source in resolve_sources(raw, split)]
    _refuse_same_paths(sources)
    return sources


def _refuse_same_paths(sources: Sequence[Source]) -> None:
    """Refuse two sources at one place, before their rows are read and compared."""
    # Without links and its packing's suffix, a path is equal for two files of the same rows.
    refuse_same(sources, [without_packing(str(Path(source.path).resolve())) for source in sources], "rows")


def refuse_same(sources: Sequence[Source], marks: Sequence[Hashable], content: str = "bytes") -> None:
    """Refuse files with equal marks: their rows would count twice, or be both trained on and held out.

    marks: checksum or path of each file. content: what equal marks say is the same, for the error.
    """
    source_of: dict[Hashable, Source] = {}
    for source, mark in zip(sources, marks, strict=True):
        twin = source_of.setdefault(mark, source)
        if twin is not source:
            place = source.key if source.key == twin.key else f"{twin.key} or {source.key}"
            raise UserError(
                f"{source.path}: the same {content} as {twin.path}, so its rows would count twice; get the right file, "
                f"or name each once in {place}"
            )


def natural_key(path: Path) -> list[Any]:
    """Return a sort key that puts day_2 before day_10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(path))]


def _expand_entry(path: Path, key: str) -> list[Path]:
    """Return the files that one entry of data.raw means: a directory's, those of a glob, or the path itself."""
    if path.is_dir():
        # Spark's own notes beside its files are no rows.
        notes = (".", "_SUCCESS", "_metadata", "_common_metadata", "_committed_", "_started_")
        entries = [entry_path for entry_path in path.iterdir() if not entry_path.name.startswith(notes)]
        files = _sorted_files(entries)
        files = [file for file in files if file.name.startswith("day_")] or files
        folders = sorted((folder for folder in entries if folder.is_dir() and "=" in folder.name), key=natural_key)
        if not files and not folders:
            raise UserError(f"{path}: no files in this directory; point {key} at the raw day files")
        _refuse_leftovers(files, key)
        return files + [file for folder in folders for file in _expand_entry(folder, key)]
    # A file may have such characters in its own name.
    if not path.exists() and set("*?[") & set(str(path)):
        files = _sorted_files(Path(match) for match in glob.glob(str(path), recursive=True))
        if not files:
            raise UserError(f"{key}={path}: no file matches; check the pattern")
        _refuse_leftovers(files, key)
        return files
    return [path]


def _sorted_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files among paths in natural order, broken links included."""
    return sorted((path for path in paths if path.is_file() or not path.exists()), key=natural_key)


def _refuse_leftovers(files: Sequence[Path], key: str) -> None:
    """Raise UserError for a broken link, a backup or the part of a download among a directory's or a glob's files."""
    for file in files:
        if not file.exists():
            fault = f"a link to {os.readlink(file)}, which is not there; restore it"
        elif file.suffix == ".part":
            fault = "a download that has not ended; wait for it, remove it"
        elif file.suffix in (".bak", ".orig", ".old", ".save", ".swp", ".tmp") or file.name.endswith("~"):
            fault = "a backup, by its name, whose rows would count too; remove it"
        else:
            continue
        raise UserError(f"{file}: {fault}, or name the files to read in {key}")


def missing_days(sources: Sequence[Source]) -> list[str]:
    """Return the days that are missing between the first and the last source, by the numbers in their names."""
    matches = [re.match(r"day_(\d+)(?!\d)", source.name) for source in sources]
    numbers = {int(match[1]) for match in matches if match}
    return [f"day_{day}" for day in range(min(numbers, default=0), max(numbers, default=0)) if day not in numbers]


class ArrowStream(io.RawIOBase):
    """One or more compressed streams, as parallel compressors write them, decompressed by one of pyarrow's codecs.

    Unlike bz2.open, this refuses other bytes after a stream. To that function a stream whose beginning is damaged is
    such bytes: its rows would be missing without a word.
    """

    def __init__(self, file: Any, codec: str) -> None:
        """file: a path or an open file. codec: pyarrow's name of the compression."""
        super().__init__()
        import pyarrow as pa  # only these files need it

        packed = pa.OSFile(str(file)) if isinstance(file, str | Path) else pa.PythonFile(file, "r")
        # Python has no zstd before 3.14, and pyarrow is required anyway.
        self._content = pa.CompressedInputStream(packed, codec)

    def readable(self) -> bool:
        """Return True: io.RawIOBase says False, and readers of files ask."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with what follows.

        Raises EOFError: the file ends within a stream. Raises DamageError: the following bytes are not a stream.
        """
        try:
            return int(self._content.readinto(buffer))
        except OSError as error:
            if error.errno is not None:
                raise
            if "Truncated" in str(error):
                raise EOFError from error
            raise DamageError(str(error)) from error


class Packing(NamedTuple):
    """A form of packed file: its first bytes, its name, the command that unpacks it, and the suffix of file names.

    open: function that opens a path or an open file as its content, which raises EOFError or DAMAGE; None: the form
    cannot be read. If it can be read, the command prints the content.
    """

    magic: re.Pattern[bytes]
    name: str
    unpack: str
    suffix: str = ""
    open: Any = None


PACKINGS = (
    Packing(re.compile(GZIP_MAGIC), "gzip", "gzip -dc {}", ".gz", partial(igzip.open, mode="rb")),
    Packing(re.compile(rb"\x28\xb5\x2f\xfd"), "zstd", "zstd -dc {}", ".zst", partial(ArrowStream, codec="zstd")),
    # A text may begin with BZh, so the mark of a block or of the end has to follow.
    Packing(
        re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
        "bzip2",
        "bunzip2 -c {}",
        ".bz2",
        partial(ArrowStream, codec="bz2"),
    ),
    Packing(re.compile(rb"\xfd7zXZ\0"), "xz", "xz -dc {} > NEW"),
    Packing(re.compile(rb"PK(\x03\x04|\x05\x06)"), "zip", "unzip {}"),
    Packing(re.compile(rb"\x04\x22\x4d\x18"), "lz4", "lz4 -d {}"),
    Packing(re.compile(rb"\xff\xfe|\xfe\xff"), "UTF-16", "iconv -f UTF-16 -t UTF-8 {} > NEW"),
)


def packing_of(path: Path) -> Packing | None:
    """Return the form of a packed file by its first bytes; None for other files."""
    with open(path, "rb") as file:
        start = file.read(16)  # more than any `magic` matches
    packing = next((packing for packing in PACKINGS if packing.magic.match(start)), None)
    if packing is not None and packing.open is None:
        command = packing.unpack.format(shlex.quote(str(path)))
        raise UserError(f"{path}: {packing.name}, which is not read; convert it: {command}")
    return packing


def packing_by_name(name: str) -> Packing | None:
    """Return the readable packing that the suffix of a file's name means; None without one."""
    return next((packing for packing in PACKINGS if packing.open and name.lower().endswith(packing.suffix)), None)


def without_packing(name: str) -> str:
    """Return a file's name without the suffix of a readable packing."""
    packing = packing_by_name(name)
    return name if packing is None else name[: -len(packing.suffix)]


def copy_command(program: str, path: str) -> str:
    """Return a shell command that makes the file NEW of a file by a program; unpacks it first if its name says so."""
    packing, name = packing_by_name(path), shlex.quote(path)
    return f"{program} < {name} > NEW" if packing is None else f"{packing.unpack.format(name)} | {program} > NEW"


def _inspect(path: Path, key: str) -> Source:
    """Return an existing raw file's source; refuse an empty file, an unreadable form, and a name of another form."""
    try:
        status = path.stat()
        # The content decides the packing, as names of downloads are often wrong.
        packing = packing_of(path)
    except OSError as error:
        raise UserError(f"{path}: {str(error.strerror).lower()}; check {key}") from error
    if status.st_size == 0:
        raise UserError(f"{path}: empty file; get it again, or leave it out of {key}")
    if packing is None and (suffix_packing := packing_by_name(path.name)) is not None:
        raise UserError(
            f"{path}: not a {suffix_packing.name} file, though named {suffix_packing.suffix}; get it again, or "
            "rename it"
        )
    with contextlib.suppress(EOFError, *DAMAGE), open(path, "rb") if packing is None else packing.open(path) as content:
        if content.read(TAR_MAGIC_AT + 5)[TAR_MAGIC_AT:] == b"ustar":
            raise UserError(f"{path}: a tar archive, not rows; unpack it")
    return Source(
        str(path), path.name, status.st_size, status.st_mtime_ns, packing is not None, ctime_ns=status.st_ctime_ns
    )


class ChecksumKey(NamedTuple):
    """A key that gives checksums of files, {NAME: SUM}: its name, and name and hexadecimal digits of the sums."""

    key: str
    name: str
    digits: int

    def sums(self, value: Any) -> dict[str, str]:
        """Return the checksum of each name of the key's value. Raise UserError if it is none."""
        if not isinstance(value or {}, Mapping):
            raise UserError(f"{self.key}={value}: give {{NAME: SUM}}")
        sums = {str(name): str(checksum).lower() for name, checksum in (value or {}).items()}
        for name, checksum in sums.items():
            if not re.fullmatch(f"[0-9a-f]{{{self.digits}}}", checksum):
                raise UserError(
                    f"{self.key}: {name}: {checksum} is not a {self.name} of {self.digits} hexadecimal digits"
                )
        return sums

    def refuse_other(self, paths: Iterable[object], expected: Sequence[str | None], sums: Sequence[str]) -> None:
        """Raise UserError for a file with another checksum than expected; None: any."""
        for path, right, checksum in zip(paths, expected, sums, strict=True):
            if right not in (None, checksum):
                raise UserError(
                    f"{path}: {self.name} {checksum} where {self.key} has {right}; get the right file (a deleted "
                    f"download is fetched again), or, if it is right, correct {self.key}"
                )


PUBLISHED = ChecksumKey("data.remote.sha256", "SHA-256", 64)
GIVEN = ChecksumKey("data.checksums", "MD5", 32)


def given_md5s(checksums: Any, sources: Sequence[Source]) -> list[str | None]:
    """Return the MD5 that data.checksums, a mapping of names or paths, gives each file; None if it gives none."""
    md5s: list[str | None] = [None] * len(sources)
    for name, md5 in GIVEN.sums(checksums).items():
        indices = [index for index, source in enumerate(sources) if name in (source.name, source.path)]
        if len(indices) != 1:
            count = f"{len(indices)} files" if indices else "no file"
            raise UserError(
                f"{GIVEN.key}: {name}: {count} of data.train, data.val and data.test have that name; "
                f"{'give the path of each' if indices else 'correct it, or leave it out'}"
            )
        md5s[indices[0]] = md5
    return md5s


ROOM_BEFORE = BLOCK_BYTES  # bytes before a block, for the beginning of a line that ends in it
ROOM_BEHIND = 128  # bytes for a newline, and for what a kernel may read beyond the end


def describe_bare_returns(path: str) -> str:
    r"""Describe the fault of a file whose lines end in \r alone, with the command that converts it."""
    command = copy_command(r"tr '\r' '\n'", path)
    return f"lines end in carriage returns alone; convert the file: {command}"


class PlainReader:
    """Reads a plain file from an offset, block by block."""

    def __init__(self, source: Source, offset: int, block_bytes: int) -> None:
        """offset: first byte to read. block_bytes: most bytes of a block, without the room around it."""
        self._file: BinaryIO = open(source.path, "rb", buffering=0)  # noqa: SIM115
        self._file.seek(offset)
        # Of an anonymous mapping, the room before a block takes no memory until the begin of a line is put there.
        self._block = mmap.mmap(-1, ROOM_BEFORE + block_bytes + ROOM_BEHIND)
        self._view = memoryview(self._block)[ROOM_BEFORE : ROOM_BEFORE + block_bytes]

    def next_block(self) -> tuple[mmap.mmap, int]:
        """Return memory and the number of bytes after ROOM_BEFORE in it, 0 at the end; valid until the next call."""
        return self._block, self._file.readinto(self._view) or 0  # type: ignore[attr-defined]

    def at_end(self) -> bool:
        """Return whether the next block will be the empty one; the last block stays valid."""
        return self._file.tell() >= os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class SourceStream(ReadAhead):
    """Reads a file from front to back, inflated if needed; it is read once and its checksum computed on the way.

    One thread reads and computes the checksum, another inflates, both ahead of the consumer.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._file = SummedFile(Path(source.path))
        self._inflated: Any = None
        packing = packing_of(Path(source.path)) if source.compressed else None
        self._packing = "" if packing is None else packing.name
        if packing is not None:
            self._raw = ReadAhead(self._file.readinto)
            self._inflated = packing.open(self._raw)
        super().__init__(self._inflate if source.compressed else self._file.readinto, ROOM_BEFORE, ROOM_BEHIND)

    def _inflate(self, block: memoryview) -> int:
        """Fill part of a block with uncompressed bytes; return their number, 0 at the end. Refuse a damaged file."""
        try:
            return int(self._inflated.readinto(block))
        except EOFError as error:
            raise UserError(
                f"{self._source.path}: truncated {self._packing} file, or bytes after its end; get it again"
            ) from error
        except DAMAGE as error:
            raise UserError(f"{self._source.path}: damaged {self._packing} file ({error}); get it again") from error

    def consumed(self) -> int:
        """Return the position in the file, somewhat ahead of the bytes returned so far."""
        return self._file.position

    def digest(self) -> FileDigest:
        """Return the size and checksum of the file; call this after all of it was read."""
        return self._file.digest()

    def close(self) -> None:
        """Stop reading ahead and close the file."""
        super().close()
        if self._inflated is not None:
            self._inflated.close()
            self._raw.close()
        self._file.close()


Reader = PlainReader | SourceStream


class LineBlock(NamedTuple):
    """Whole lines: buffer[start:end] ends with a newline; kernels may read ROOM_BEHIND - 1 bytes beyond it.

    `offset` is its first byte's in the uncompressed source; `is_last` says whether the source ends with it.
    """

    buffer: NDArray[np.uint8]
    start: int
    end: int
    offset: int
    is_last: bool


class LineBlocks(AbstractContextManager["LineBlocks"]):
    """Reads a source once, front to back.

    A line belongs to the range of offsets in which it starts. So plain and compressed files, and any number of readers,
    give the same lines for the same range.

    block_bytes: size of a block, and the largest length of a line. reader: source of the bytes, if already open; it is
    closed with this object.
    """

    def __init__(
        self, source: Source, offset: int = 0, block_bytes: int = BLOCK_BYTES, reader: Reader | None = None
    ) -> None:
        self._source = source
        self._bytes: mmap.mmap | bytes = b""
        self._longest = block_bytes
        self._start = self._end = 0
        self._at_end = False
        # The byte before `offset` shows whether a line starts there.
        self._offset = max(offset - 1, 0)
        if reader is None:
            # A compressed source can only be read from its start.
            assert not source.compressed or self._offset == 0
            reader = SourceStream(source) if source.compressed else PlainReader(source, self._offset, block_bytes)
        self._reader = reader
        self._reported = offset  # position up to which `advance` has counted
        # The rest of a line that starts before `offset` belongs to the range before.
        for _ in self.read_until(offset):
            pass

    def __exit__(self, *exception: object) -> None:
        self._reader.close()

    @property
    def exhausted(self) -> bool:
        """Whether no line is left to yield; reads the next block if the answer needs it."""
        self._fill()
        return self._start == self._end

    def advance(self) -> int:
        """Return the bytes of the file on disk that were processed since the last call."""
        reader = self._reader
        # Of a compressed file the size on disk is known alone, so its compressed bytes are counted.
        position = reader.consumed() if self._source.compressed and isinstance(reader, SourceStream) else self._offset
        advance, self._reported = position - self._reported, position
        return advance

    def read_until(self, stop: int) -> Iterator[LineBlock]:
        """Yield blocks of the lines that start before the offset `stop` and were not yet yielded.

        A block is valid only until the next one is requested.
        """
        while self._offset < stop:
            # A block may hold no line end.
            self._fill()
            if self._start == self._end:
                return
            first = self._bytes.find(b"\n", self._start, self._end)
            if first < 0 or first - self._start >= self._longest:
                has_returns = self._bytes.find(b"\r", self._start, self._end) >= 0
                fault = describe_bare_returns(self._source.path) if has_returns else "not a table of one row per line"
                place = f"a line at byte {self._offset} is longer than {self._longest} bytes"
                raise UserError(f"{self._source.path}: {place}; {fault}")
            end = self._bytes.rfind(b"\n", self._start, self._end) + 1
            # A line belongs to the range in which it starts, so the last one may end beyond the range.
            if self._offset + (end - self._start) > stop:
                end = self._bytes.find(b"\n", self._start + (stop - 1 - self._offset)) + 1
            start, offset = self._start, self._offset
            self._offset += end - start
            self._start = end
            array = np.frombuffer(self._bytes, np.uint8)
            is_last = end == self._end and (self._at_end or self._reader.at_end())
            yield LineBlock(array, start, end, offset, is_last)

    def _fill(self) -> None:
        """Make sure that the block has at least one whole line, or everything that is left."""
        while not self._at_end and self._bytes.find(b"\n", self._start, self._end) < 0:
            rest = self._bytes[self._start : self._end]
            # A longer line than this is refused by the caller; reading on would take ever more memory.
            if len(rest) >= self._longest:
                return
            block, count = self._reader.next_block()
            self._bytes, self._start, self._end = block, ROOM_BEFORE - len(rest), ROOM_BEFORE + count
            # The beginning of a line moves in front of the next block, so that each line is contiguous.
            block[self._start : ROOM_BEFORE] = rest
            if count == 0:
                self._at_end = True
                # The last line of a file may lack its end.
                if rest:
                    block[self._end] = ord("\n")
                    self._end += 1


def count_lines_before(source: Source, offset: int) -> int:
    """Return the number of lines before an offset at which one begins, for a row number in an error."""
    with LineBlocks(source) as lines:
        return sum(
            int((block.buffer[block.start : block.end] == ord("\n")).sum()) for block in lines.read_until(offset)
        )


SOURCE_MD5 = "source_md5"  # key in a manifest's `extra`: MD5 of each source, if files are given for each split
SOURCE_TIMES = "source_times_ns"  # likewise: when each was written and last changed


def finished_manifest(data: DataConfig, root: Path) -> Manifest | None:
    """Return the manifest of the dataset at `root`; None without one, or if it is to be replaced."""
    return None if data.overwrite or not (root / MANIFEST_NAME).exists() else load_manifest(root)


def recorded_sources(directory: Path, manifest: Manifest) -> list[Source]:
    """Return the sources that the manifest records, with paths in `directory`, whether or not they exist there."""
    sources = []
    for entry, (mtime, ctime) in zip(manifest.sources, recorded_times(manifest), strict=True):
        name, split = entry["name"], entry.get("split")
        is_compressed = without_packing(name) != name
        path = str(directory / name)
        sources.append(Source(path, name, entry["bytes"], mtime, is_compressed, ctime_ns=ctime, split=split))
    return sources


def recorded_times(manifest: Manifest) -> list[tuple[int, int]]:
    """Return the times in nanoseconds at which each source was written and last changed (0: not recorded).

    Programs such as tar can set a file's time of writing, but not that of its last change.
    """
    return [tuple(times) for times in manifest.extra.get(SOURCE_TIMES) or [(0, 0)] * len(manifest.sources)]


def note_times(sources: Sequence[Source]) -> dict[str, list[tuple[int, int]]]:
    """Return the entry of the manifest's `extra` that `recorded_times` reads."""
    return {SOURCE_TIMES: [(source.mtime_ns, source.ctime_ns) for source in sources]}


def other_dataset_error(root: Path, difference: str) -> UserError:
    """Return the error that the dataset at `root` is not the one that the command describes."""
    return UserError(
        f"{root}: holds another dataset ({difference}); choose another data.path, or set data.overwrite=true"
    )


def sources_of_generated(data: DataConfig, root: Path, settings: Json) -> list[Source]:
    """Return the sources of generated rows that the finished dataset at `root` records; none without one.

    settings: of this command; another value in the manifest is refused.
    """
    manifest, group = finished_manifest(data, root), data.source_kind.group
    if manifest is None:
        return []
    recorded = manifest.extra.get(group) or {}
    for key, value in settings.items():
        if recorded.get(key) != value:
            raise other_dataset_error(root, f"{group}.{key} is {recorded.get(key)} there, {value} here")
    return recorded_sources(root, manifest)
