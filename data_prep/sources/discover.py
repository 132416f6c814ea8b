"""Raw files: an ordered list from `data.raw`, or from `data.train`, `data.val` and `data.test`."""

import contextlib
import glob
import gzip
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

import numpy as np
from isal import igzip, isal_zlib
from numpy.typing import NDArray

from common.command import load
from common.errors import UserError


class DamageError(Exception):
    """Raised if the content of a compressed file is not what a compressor writes."""


DAMAGE: tuple[Any, ...] = (DamageError, gzip.BadGzipFile, isal_zlib.error)
RAW_DIRECTORY = "raw"  # directory in a dataset for raw files that were made or downloaded for it
GZIP_MAGIC = b"\x1f\x8b"
TAR_MAGIC, TAR_MAGIC_AT = b"ustar", 257
BACKUPS = (".bak", ".orig", ".old", ".save", ".swp", ".tmp")
# Beginnings of names of Spark's own files in a directory.
NOTES = (".", "_SUCCESS", "_metadata", "_common_metadata", "_committed_", "_started_")
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
GLOB_CHARACTERS = frozenset("*?[")
GENERATED_ROW_BYTES = 4 * 40  # bytes of a row in a shard
TEXT_ROW_BYTES = 244  # bytes of a row of Criteo's days, or of a generated one
GZIP_RATIO = 3.5  # ratio of Criteo's days, if no sample can tell


class RowGenerator(Protocol):
    """Makes the rows of a source block by block, in any process."""

    @property
    def rows(self) -> int:
        """Return the number of rows."""

    @property
    def block_rows(self) -> int:
        """Return the rows of every block except the last."""

    def blocks(self, first: int, stop: int) -> Iterator[tuple[Any, NDArray[np.float32]]]:
        """Yield blocks first to stop - 1 as parsed (`data_prep.parsing.criteo.Block`), and probabilities [rows, 1]."""


@dataclass(frozen=True)
class Source:
    """One raw file as it was found: `name` is its file name, `path` its location.

    generator: generates the rows of a file that only describes a day. split: split that the file was given for, if any.
    partitions: names and values of its folders `NAME=VALUE`, outermost first; a null has the value None.
    """

    path: str
    name: str
    bytes: int
    mtime_ns: int
    compressed: bool
    generator: RowGenerator | None = None
    ctime_ns: int = 0
    split: str | None = None
    partitions: tuple[tuple[str, str | None], ...] = ()

    @property
    def key(self) -> str:
        """Key that names the file."""
        return f"data.{self.split or 'raw'}"

    @property
    def work_bytes(self) -> int:
        """Bytes to read or to generate."""
        return self.bytes if self.generator is None else self.generator.rows * GENERATED_ROW_BYTES


def resolve_sources(raw: Any, split: str | None = None) -> list[Source]:
    """Return raw files in the order of their days.

    Args:
        raw: a path, a glob, a directory or a list of these. A directory means its files named day_*, or else all its
            files, in natural order, and the files in folders NAME=VALUE, as Spark and Hive write them.
        split: the split that they are given for; None: they come from `data.raw`.

    Raises:
        UserError: nothing is given, a path is missing or unreadable, a glob matches nothing, or a file is empty.
    """
    key = f"data.{split or 'raw'}"
    entries = [raw] if isinstance(raw, (str, Path)) else raw
    if isinstance(raw, (int, float)):
        raise UserError(f"{key}={raw}: a number; if that is the name of a file, write '{key}=\"{raw}\"'")
    if not raw or not isinstance(entries, Sequence) or not all(isinstance(e, (str, Path)) for e in entries):
        raise UserError(f"{key}={raw}: give the raw file, a glob, a directory of day files, or a list of them")
    paths = [(path, own_path(str(entry))) for entry in entries for path in _expand(str(entry), key)]
    path_of_rows: dict[str, Path] = {}
    for path, _ in paths:
        twin = path_of_rows.setdefault(_rows_of(path), path)
        if twin is not path:
            raise UserError(f"{path}: its rows are in {twin} too; name each day once in {key}")
    return [replace(_inspect(path, key), split=split, partitions=_partitions(path, root)) for path, root in paths]


def resolve_splits(files: Mapping[str, Any]) -> list[Source]:
    """Return the files given for each split, as `resolve_sources` does, in the order of the splits.

    Args:
        files: maps each split to its files, or to None if it has none.
    """
    sources = [each for split, raw in files.items() if raw is not None for each in resolve_sources(raw, split)]
    names: dict[str, Source] = {}
    inodes: dict[tuple[int, int], Source] = {}
    for source in sources:
        status = Path(source.path).stat()
        twin = names.setdefault(_rows_of(Path(source.path)), source)
        twin = inodes.setdefault((status.st_dev, status.st_ino), source) if twin is source else twin
        if twin is not source:
            raise UserError(
                f"{source.path}: its rows are in {twin.path} too, so {twin.key} and {source.key} share them; name each "
                "file in one of them"
            )
    return sources


def _rows_of(path: Path) -> str:
    """Return a text that is equal for two paths of the same file, packed or not."""
    return without_packing(str(path.resolve()))


def _partitions(path: Path, root: Path) -> tuple[tuple[str, str | None], ...]:
    """Return names and values of the folders between a directory and a file in it; undoes Hive's escapes."""
    if not path.is_relative_to(root):
        return ()
    pairs = [folder.partition("=")[::2] for folder in path.relative_to(root).parts[:-1]]
    return tuple((unquote(name), None if value == HIVE_NULL else unquote(value)) for name, value in pairs)


def own_path(text: str) -> Path:
    """Return a path as the user gives it; ~ stands for a home directory if that user exists."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def natural_key(path: Path) -> list[Any]:
    """Return a sort key by which day_2 comes before day_10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(path))]


def _expand(entry: str, key: str) -> list[Path]:
    path = own_path(entry)
    if path.is_dir():
        entries = [each for each in path.iterdir() if not each.name.startswith(NOTES)]
        files = _files(entries)
        days = [file for file in files if file.name.startswith("day_")] or files
        folders = [each for each in entries if each.is_dir() and "=" in each.name]
        if folders:
            return days + [file for each in sorted(folders, key=natural_key) for file in _expand(str(each), key)]
        if not days:
            raise UserError(f"{path}: no files in this directory; point {key} at the raw day files")
        return _refuse_leftovers(days, key)
    if not path.exists() and GLOB_CHARACTERS & set(entry):
        files = _files(Path(match) for match in glob.glob(str(path), recursive=True))
        if not files:
            raise UserError(f"{key}={entry}: no file matches; check the pattern")
        return _refuse_leftovers(files, key)
    return [path]


def _files(paths: Iterable[Path]) -> list[Path]:
    """Return the files among paths in natural order, broken links included."""
    return sorted((path for path in paths if path.is_file() or not path.exists()), key=natural_key)


def _refuse_leftovers(files: Sequence[Path], key: str) -> list[Path]:
    """Return the files of a directory or a pattern, without the parts of downloads that have ended."""
    remedy = f"or name the files to read in {key}"
    names = {file.name for file in files}
    for file in files:
        if not file.exists():
            raise UserError(f"{file}: a link to {os.readlink(file)}, which is not there; restore it, {remedy}")
        whole = file.name.removesuffix(".part")
        other_names = names - {file.name}
        if file.suffix == ".part" and not any(name == whole or name.startswith(f"{whole}.") for name in other_names):
            raise UserError(f"{file}: a download that has not ended; wait for it, remove it, {remedy}")
        if file.suffix in BACKUPS or file.name.endswith("~"):
            raise UserError(f"{file}: a backup, by its name, whose rows would count too; remove it, {remedy}")
    return [file for file in files if file.suffix != ".part"]


def described_sources(sources: Sequence[Source]) -> str:
    """Describe the sources for the log: their number, and the names of the first and the last."""
    return f"{len(sources)} raw files, from {sources[0].name} to {sources[-1].name}"


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


class Packing(NamedTuple):
    """A form of packed file: its first bytes, its name, the command that unpacks it, and the suffix of file names.

    reader: "module:function" that opens a path or an open file as its content, which raises EOFError or DAMAGE; None:
    the form cannot be read. If it can be read, the command prints the content.
    """

    magic: re.Pattern[bytes]
    name: str
    unpack: str
    suffix: str = ""
    reader: str | None = None

    def open(self, file: Any) -> Any:
        """Open a file of this form, which must be readable."""
        assert self.reader is not None
        return load(self.reader)(file)


PACKINGS = (
    Packing(re.compile(GZIP_MAGIC), "gzip", "gzip -dc {}", ".gz", "data_prep.sources.discover:open_gzip"),
    Packing(re.compile(rb"\x28\xb5\x2f\xfd"), "zstd", "zstd -dc {}", ".zst", "data_prep.sources.packed:open_zstd"),
    Packing(
        re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
        "bzip2",
        "bunzip2 -c {}",
        ".bz2",
        "data_prep.sources.packed:open_bzip2",
    ),
    Packing(re.compile(rb"\xfd7zXZ\0"), "xz", "xz -dc {}", ".xz", "data_prep.sources.packed:open_xz"),
    Packing(re.compile(rb"PK(\x03\x04|\x05\x06)"), "zip", "unzip {}"),
    Packing(re.compile(rb"7z\xbc\xaf\x27\x1c"), "7-Zip", "7z x {}"),
    Packing(re.compile(rb"\x04\x22\x4d\x18"), "lz4", "lz4 -d {}"),
    Packing(re.compile(rb"\x1f\x9d"), "compress", "gzip -dk {}"),
    Packing(re.compile(rb"\xff\xfe|\xfe\xff"), "UTF-16", "iconv -f UTF-16 -t UTF-8 {} > NEW"),
)
PACKED_BYTES = 16


def packing_of(path: Path) -> Packing | None:
    """Return the form of a packed file by its first bytes; None for other files."""
    with open(path, "rb") as file:
        start = file.read(PACKED_BYTES)
    packing = next((each for each in PACKINGS if each.magic.match(start)), None)
    if packing is not None and packing.reader is None:
        command = packing.unpack.format(shlex.quote(str(path)))
        raise UserError(f"{path}: {packing.name}, which is not read; convert it: {command}")
    return packing


def packing_named(name: str) -> Packing | None:
    """Return the readable packing that the suffix of a file's name means; None without one."""
    return next((each for each in PACKINGS if each.reader and name.lower().endswith(each.suffix)), None)


def without_packing(name: str) -> str:
    """Return a file's name without the suffix of a readable packing."""
    packing = packing_named(name)
    return name if packing is None else name[: -len(packing.suffix)]


def copy_by(program: str, path: str) -> str:
    """Return a shell command that makes NEW from a file by a program; unpacks the file first if its name says so."""
    packing, name = packing_named(path), shlex.quote(path)
    return f"{program} < {name} > NEW" if packing is None else f"{packing.unpack.format(name)} | {program} > NEW"


def _inspect(path: Path, key: str) -> Source:
    try:
        status = path.stat()
        packing = packing_of(path)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; check {key}") from error
    except OSError as error:
        raise UserError(f"{path}: not readable ({error.strerror}); check {key}") from error
    if status.st_size == 0:
        raise UserError(f"{path}: empty file; get it again, or leave it out of {key}")
    if packing is None and (suffix_packing := packing_named(path.name)) is not None:
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
