"""Files of a job: where they are, how they are inflated, and their checksums.

Downloads have the SHA-256 that data.remote.sha256 gives, files that the user gives for each split the MD5 of
data.checksums, as published files of splits do.
"""

import bz2
import contextlib
import glob
import gzip
import io
import lzma
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from isal import igzip, isal_zlib

from common.errors import UserError
from common.files import FileDigest


class DamageError(Exception):
    """Raised if the content of a compressed file is not what a compressor writes."""


DAMAGE: tuple[Any, ...] = (DamageError, gzip.BadGzipFile, isal_zlib.error)
RAW_DIRECTORY = "raw"  # directory in a dataset for raw files that were made or downloaded for it
GZIP_MAGIC = b"\x1f\x8b"
TAR_MAGIC, TAR_MAGIC_AT = b"ustar", 257
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
    if isinstance(raw, (int, float)):
        raise UserError(f"{key}={raw}: a number; if that is the name of a file, write '{key}=\"{raw}\"'")
    if not raw or not isinstance(entries, Sequence) or not all(isinstance(e, (str, Path)) for e in entries):
        raise UserError(f"{key}={raw}: give the raw file, a glob, a directory of day files, or a list of them")
    sources: list[Source] = []
    path_of_rows: dict[str, Path] = {}
    for root, path in ((own_path(entry), path) for entry in map(str, entries) for path in _expand_entry(entry, key)):
        # Without links and its packing's suffix, a path is equal for two files of the same rows.
        twin = path_of_rows.setdefault(without_packing(str(path.resolve())), path)
        if twin is not path:
            raise UserError(f"{path}: its rows are in {twin} too; name each day once in {key}")
        # Names and values of the folders between a directory and a file in it; this undoes Hive's escapes.
        folders = path.relative_to(root).parts[:-1] if path.is_relative_to(root) else ()
        partitions = tuple(
            (unquote(name), None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value))
            for name, _, value in (folder.partition("=") for folder in folders)
        )
        sources.append(replace(_inspect(path, key), split=split, partitions=partitions))
    return sources


def resolve_splits(files: Mapping[str, Any]) -> list[Source]:
    """Return the files given for each split, in the order of the splits.

    files: maps each split to its files (a path, glob, directory or list), or to None if it has none. Raises UserError:
    as `resolve_sources`, or a file is given for two splits, which would then share its rows.
    """
    sources = [source for split, raw in files.items() if raw is not None for source in resolve_sources(raw, split)]
    by_name: dict[str, Source] = {}
    by_inode: dict[tuple[int, int], Source] = {}
    for source in sources:
        status = Path(source.path).stat()
        same_name = by_name.setdefault(without_packing(str(Path(source.path).resolve())), source)
        # rows.csv and rows.csv.gz have one name without packing. A hard link has another, and only its inode shows it.
        same_inode = by_inode.setdefault((status.st_dev, status.st_ino), source)
        twin = same_name if same_name is not source else same_inode
        if twin is not source:
            raise UserError(
                f"{source.path}: its rows are in {twin.path} too, so {twin.key} and {source.key} share them; name each "
                "file in one of them"
            )
    return sources


def own_path(text: str) -> Path:
    """Return a path as the user gives it; ~ stands for a home directory if that user exists."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def natural_key(path: Path) -> list[Any]:
    """Return a sort key that puts day_2 before day_10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(path))]


def _expand_entry(entry: str, key: str) -> list[Path]:
    """Return the files that one entry of data.raw means: a directory's, those of a glob, or the path itself."""
    path = own_path(entry)
    if path.is_dir():
        # Spark's own notes beside its files are no rows.
        notes = (".", "_SUCCESS", "_metadata", "_common_metadata", "_committed_", "_started_")
        entries = [entry_path for entry_path in path.iterdir() if not entry_path.name.startswith(notes)]
        files = _sorted_files(entries)
        days = [file for file in files if file.name.startswith("day_")] or files
        folders = sorted((folder for folder in entries if folder.is_dir() and "=" in folder.name), key=natural_key)
        if folders:
            return days + [file for folder in folders for file in _expand_entry(str(folder), key)]
        if not days:
            raise UserError(f"{path}: no files in this directory; point {key} at the raw day files")
        return _refuse_leftovers(days, key)
    # A file may have such characters in its own name.
    if not path.exists() and set("*?[") & set(entry):
        files = _sorted_files(Path(match) for match in glob.glob(str(path), recursive=True))
        if not files:
            raise UserError(f"{key}={entry}: no file matches; check the pattern")
        return _refuse_leftovers(files, key)
    return [path]


def _sorted_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files among paths in natural order, broken links included."""
    return sorted((path for path in paths if path.is_file() or not path.exists()), key=natural_key)


def _refuse_leftovers(files: Sequence[Path], key: str) -> list[Path]:
    """Return the files of a directory or a pattern, without the parts of downloads that have ended.

    Raise UserError for a broken link, a backup, and the part of a download that has not ended.
    """
    remedy = f"or name the files to read in {key}"
    names = {file.name for file in files}
    for file in files:
        if not file.exists():
            raise UserError(f"{file}: a link to {os.readlink(file)}, which is not there; restore it, {remedy}")
        # A part whose whole file stands beside it is a leftover, and only skipped.
        whole = file.name.removesuffix(".part")
        other_names = names - {file.name}
        if file.suffix == ".part" and not any(name == whole or name.startswith(f"{whole}.") for name in other_names):
            raise UserError(f"{file}: a download that has not ended; wait for it, remove it, {remedy}")
        if file.suffix in (".bak", ".orig", ".old", ".save", ".swp", ".tmp") or file.name.endswith("~"):
            raise UserError(f"{file}: a backup, by its name, whose rows would count too; remove it, {remedy}")
    return [file for file in files if file.suffix != ".part"]


def missing_days(sources: Sequence[Source]) -> list[str]:
    """Return the days that are missing between the first and the last source, by the numbers in their names."""
    matches = [re.match(r"day_(\d+)(?!\d)", source.name) for source in sources]
    numbers = {int(match[1]) for match in matches if match}
    return [f"day_{day}" for day in range(min(numbers, default=0), max(numbers, default=0)) if day not in numbers]


def is_gzip(path: Path) -> bool:
    """Return whether a file's first bytes are gzip's."""
    with open(path, "rb") as file:
        return file.read(len(GZIP_MAGIC)) == GZIP_MAGIC


def open_gzip(file: Any) -> Any:
    """Open the content of a gzip file, given by path or open; reading it raises EOFError or DAMAGE."""
    return igzip.open(file, "rb")


def is_tar(path: Path) -> bool:
    """Return whether a file is a tar archive (POSIX or GNU), compressed by gzip or not; looks at its first header."""
    with contextlib.suppress(EOFError, *DAMAGE), open_gzip(path) if is_gzip(path) else open(path, "rb") as content:
        return bool(content.read(TAR_MAGIC_AT + len(TAR_MAGIC))[TAR_MAGIC_AT:] == TAR_MAGIC)
    return False


class Streams(io.RawIOBase):
    """One or more compressed streams; unlike bz2.open and lzma.open, this refuses other bytes after one.

    To those a stream whose beginning is damaged is such bytes: its rows would be missing without a word.
    """

    def __init__(self, file: Any, make: Callable[[], Any]) -> None:
        """file: a path or an open file. make: constructor of the decompressor of one stream."""
        super().__init__()
        self._file = open(file, "rb") if isinstance(file, str | Path) else file  # noqa: SIM115 -- close() closes it
        self._make, self._stream = make, make()

    def readable(self) -> bool:
        """Return True: io.RawIOBase says False, and readers of files ask."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with what follows: at least one byte, except at the end.

        Raises EOFError: the file ends within a stream. Raises DamageError: the following bytes are not a stream.
        """
        while True:
            packed = b""
            if self._stream.eof:
                # A file may consist of several streams, as parallel compressors write them.
                packed = self._stream.unused_data or self._file.read(1 << 18)
                if not packed:
                    return 0
                self._stream = self._make()
            elif self._stream.needs_input:
                packed = self._file.read(1 << 18)
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
        """Fill a buffer with what follows; raises EOFError and DamageError as `Streams` does."""
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
    Packing(re.compile(GZIP_MAGIC), "gzip", "gzip -dc {}", ".gz", open_gzip),
    Packing(re.compile(rb"\x28\xb5\x2f\xfd"), "zstd", "zstd -dc {}", ".zst", partial(ArrowStream, codec="zstd")),
    Packing(
        # A text may begin with BZh, so the mark of a block or of the end has to follow.
        re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
        "bzip2",
        "bunzip2 -c {}",
        ".bz2",
        partial(Streams, make=bz2.BZ2Decompressor),
    ),
    Packing(re.compile(rb"\xfd7zXZ\0"), "xz", "xz -dc {}", ".xz", partial(Streams, make=lzma.LZMADecompressor)),
    Packing(re.compile(rb"PK(\x03\x04|\x05\x06)"), "zip", "unzip {}"),
    Packing(re.compile(rb"7z\xbc\xaf\x27\x1c"), "7-Zip", "7z x {}"),
    Packing(re.compile(rb"\x04\x22\x4d\x18"), "lz4", "lz4 -d {}"),
    Packing(re.compile(rb"\x1f\x9d"), "compress", "gzip -dk {}"),
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
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; check {key}") from error
    except OSError as error:
        raise UserError(f"{path}: not readable ({error.strerror}); check {key}") from error
    if status.st_size == 0:
        raise UserError(f"{path}: empty file; get it again, or leave it out of {key}")
    if packing is None and (suffix_packing := packing_by_name(path.name)) is not None:
        raise UserError(
            f"{path}: not a {suffix_packing.name} file, though named {suffix_packing.suffix}; get it again, or "
            "rename it"
        )
    if is_tar(path):
        raise UserError(
            f"{path}: a tar archive, not rows; unpack it, or, of Criteo's Kaggle competition, "
            f"choose data.source=criteo_kaggle data.raw={path}"
        )
    return Source(
        str(path), path.name, status.st_size, status.st_mtime_ns, packing is not None, ctime_ns=status.st_ctime_ns
    )


PUBLISHED = "data.remote.sha256"


def published_sums(sums: Any) -> dict[str, str]:
    """Return checksums by file name, from a mapping or from a file in sha256sum's format."""
    if isinstance(sums, str):
        try:
            text = own_path(sums).read_text(encoding="utf-8")
            lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
            # sha256sum marks binary files by *, and writes the paths that it was given.
            sums = {name.strip().removeprefix("*").removeprefix("./"): sha256 for sha256, name in lines}
        except (OSError, ValueError) as error:
            raise UserError(f"{PUBLISHED}={sums}: not a file as sha256sum writes it ({error})") from error
    if not isinstance(sums or {}, Mapping):
        raise UserError(f"{PUBLISHED}={sums}: give {{NAME: SUM}}, or a file as sha256sum writes it")
    for name, sha256 in (sums or {}).items():
        if not re.fullmatch("[0-9a-fA-F]{64}", str(sha256)):
            raise UserError(f"{PUBLISHED}: {name}: {sha256} is not a SHA-256 of 64 hexadecimal digits")
    return {str(name): str(sha256).lower() for name, sha256 in (sums or {}).items()}


def refuse_other_sum(path: Path, expected: str | None, digest: FileDigest) -> None:
    """Raise UserError for a file whose SHA-256 is not the expected one; None: any."""
    if expected is not None and digest.sha256 != expected:
        raise UserError(
            f"{path}: sha256 {digest.sha256} where {PUBLISHED} has {expected}; delete it to have it fetched again, or, "
            f"if it is right, take its name out of {PUBLISHED}"
        )


def given_md5s(checksums: Any, sources: Sequence[Source]) -> list[str | None]:
    """Return the MD5 that data.checksums, a mapping of names or paths, gives each file; None if it gives none."""
    if not isinstance(checksums or {}, Mapping):
        raise UserError(f"data.checksums={checksums}: give {{NAME: MD5}}")
    sums: list[str | None] = [None] * len(sources)
    for name, md5 in (checksums or {}).items():
        if not re.fullmatch("[0-9a-fA-F]{32}", str(md5)):
            raise UserError(f"data.checksums: {name}: {md5} is not an MD5 of 32 hexadecimal digits")
        path = own_path(str(name)).resolve()
        indices = [index for index, source in enumerate(sources) if Path(source.path).resolve() == path]
        indices = indices or [index for index, source in enumerate(sources) if source.name == str(name)]
        if len(indices) != 1:
            count = f"{len(indices)} files" if indices else "no file"
            raise UserError(
                f"data.checksums: {name}: {count} of data.train, data.val and data.test have that name; "
                f"{'give the path of each' if indices else 'correct it, or leave it out'}"
            )
        sums[indices[0]] = str(md5).lower()
    return sums


def refuse_other_md5(sources: Sequence[Source], expected_md5s: Sequence[str | None], md5s: Sequence[str]) -> None:
    """Raise UserError for a file with another MD5 than expected; None: any."""
    for source, expected, md5 in zip(sources, expected_md5s, md5s, strict=True):
        if expected not in (None, md5):
            raise UserError(
                f"{source.path}: MD5 {md5} where data.checksums has {expected}; get the right file, or, if it is "
                "right, correct data.checksums"
            )
