"""Published datasets: the files that the configuration names, downloaded and unpacked unless they exist."""

import hashlib
import re
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common.disk_space import Need, require_room
from common.errors import UserError
from common.files import FileDigest, SummedFile
from common.redact import redact
from data_prep.config.keys import DataConfig, RemoteConfig
from data_prep.dataset.format import Manifest
from data_prep.io.progress import Progress, Tally
from data_prep.sources.checksums import (
    PUBLISHED,
    KnownSum,
    known_sum,
    note_sums,
    published_sums,
    refuse_other,
    refuse_other_size,
)
from data_prep.sources.discover import (
    DAMAGE,
    GZIP_RATIO,
    RAW_DIRECTORY,
    TEXT_ROW_BYTES,
    Source,
    is_gzip,
    is_tar,
    open_gzip,
    own_path,
    resolve_sources,
)
from data_prep.sources.download import BLOCK_BYTES, Origin, PartialFile, RemoteFile, download_all, find_origin
from data_prep.sources.finished import finished_manifest, other_dataset, recorded_sources


def remote_files(data: DataConfig, directory: Path) -> list[RemoteFile]:
    """Return the files to download, in the order of the days, with their checksums if known."""
    remote = data.remote
    if not remote.name:
        raise UserError("data.remote.name: not given; choose data.source=criteo_1tb or data.source=criteo_kaggle")
    has_days = "{day}" in remote.name
    if has_days and data.days is None:
        raise UserError("data.days=null: name the days to fetch")
    if has_days and remote.member is not None:
        raise UserError("data.remote.member: of a single archive, not of days; leave it out")
    _refuse_unused_sums(remote)
    for mirror in remote.mirrors if len(data.days or []) > 1 else []:
        if "{day}" not in mirror:
            raise UserError(f"data.remote.mirrors: {redact(mirror)}: the same file for every day; write {{day}} in it")
    entries = []
    for day in data.days if data.days is not None else [0]:
        name = remote.name.replace("{day}", str(day))
        urls = [mirror.replace("{day}", str(day)) for mirror in remote.mirrors]
        remedy = f"put it at {directory / name} yourself, or name your file in data.raw and leave out data.source"
        if remote.member is not None:
            remedy = (
                f"get it yourself and put it, or {remote.member} out of it, into {directory}, or name it in data.raw"
            )
        entries.append((name, urls, remedy))
    for name, urls in (remote.also or {}).items():
        entries.append((name, urls, f"put it at {directory / name} yourself"))
    files = []
    for name, urls, remedy in entries:
        expected = known_sum(directory, name, remote.sha256)
        sha256, given_by = (None, PUBLISHED) if expected is None else (expected.sha256, expected.given_by)
        files.append(RemoteFile(name, tuple(urls), sha256, given_by, remedy))
    return files


def _refuse_unused_sums(remote: RemoteConfig) -> None:
    """Raise UserError for the checksum of a file that is not downloaded."""
    pattern = "|".join([re.escape(remote.name), *map(re.escape, remote.also or {})])
    pattern = pattern.replace(re.escape("{day}"), r"\d+")
    for name in published_sums(remote.sha256):
        if not re.fullmatch(pattern, name) and name != remote.member:
            raise UserError(f"{PUBLISHED}: {name}: no such file is fetched; their name is {remote.name}")


def find_remote(data: DataConfig, root: Path, dataset_bytes: Callable[[float], int]) -> list[Source]:
    """Find the raw files where the user put them, or download them.

    If there is a finished dataset at `root`, its manifest describes files that no longer exist, as they are not needed.

    Args:
        dataset_bytes: returns the disk space for this number of rows until the dataset is made.
    """
    remote = data.remote
    directory = raw_directory(data, root)
    files = remote_files(data, directory)
    if data.raw is not None:
        return _own_files(data, root, directory)
    names = [file.name for file in files] if remote.member is None else [remote.member]
    paths = [directory / name for name in names]
    if (manifest := finished_manifest(data, root)) is not None:
        return _sources_of_finished(manifest, paths)
    if remote.member is None or not paths[0].exists():
        for file in files:
            if (directory / file.name).exists():
                refuse_other_size(directory / file.name, known_sum(directory, file.name, remote.sha256))
        needs = _later_needs(data, root, directory, dataset_bytes)
        fetched = download_all(files, directory, remote, needs)
        if remote.member is not None:
            _unpack(data, fetched[0], directory)
    for path in paths:
        refuse_other_size(path, known_sum(directory, path.name, remote.sha256))
    return resolve_sources(list(map(str, paths)))


def raw_directory(data: DataConfig, root: Path) -> Path:
    """Return the directory of downloaded files."""
    return Path(data.remote.directory) if data.remote.directory else root / RAW_DIRECTORY


def _own_files(data: DataConfig, root: Path, directory: Path) -> list[Source]:
    """Return the user's own files: an archive's, or the file that the archive would hold."""
    member = data.remote.member
    if member is None:
        raise UserError(f"data.raw: these files are fetched; put your own into {directory}, or leave out data.source")
    raw = own_path(data.raw) if isinstance(data.raw, str) else None
    if raw is None or not raw.is_file() or not is_tar(raw):
        return resolve_sources(data.raw)
    path, manifest = directory / member, finished_manifest(data, root)
    if find_origin(path) == archive_origin(raw):
        if manifest is not None:
            return _sources_of_finished(manifest, [path])
    elif path.exists():
        raise UserError(f"{path}: is there already, and not from {raw} as it is now; delete it, or leave out data.raw")
    # Compare the archive with the dataset, without unpacking it.
    if manifest is not None and not path.exists():
        if member_sha256(raw, member) not in [entry["sha256"] for entry in manifest.sources]:
            raise other_dataset(root, "made from other raw files")
        return recorded_sources(root, manifest)
    if not path.exists():
        _unpack(data, raw, directory)
    return resolve_sources(str(path))


def _unpack(data: DataConfig, archive: Path, directory: Path) -> None:
    """Unpack the archive's member to `directory`; record the checksum of an archive in that directory."""
    assert data.remote.member is not None
    digest = unpack_member(archive, data.remote.member, directory, _expected_sum(data, directory, archive))
    if archive.parent == directory:
        note_sums(directory, {archive.name: digest})


def _sources_of_finished(manifest: Manifest, paths: Sequence[Path]) -> list[Source]:
    """Return the files that exist, and the others as the finished dataset's manifest describes them."""
    source_of_name = {source.name: source for source in recorded_sources(paths[0].parent, manifest)}
    sources = []
    for path in paths:
        if path.exists():
            sources += resolve_sources(str(path))
        else:
            sources.append(source_of_name.get(path.name) or Source(str(path), path.name, 0, 0, compressed=False))
    return sources


def _later_needs(
    data: DataConfig, root: Path, directory: Path, dataset_bytes: Callable[[float], int]
) -> Callable[[int], list[Need]]:
    """Return a function from the size of the downloads to the disk space for unpacking and for the dataset."""

    def needs(size: int) -> list[Need]:
        rows = data.remote.rows or size * GZIP_RATIO / TEXT_ROW_BYTES
        unpacked = [Need(directory, int(rows * TEXT_ROW_BYTES), "to unpack", about=True)] if data.remote.member else []
        return [*unpacked, Need(root, dataset_bytes(rows), "for the dataset", about=True)]

    return needs


def known_sums(data: DataConfig, root: Path, sources: Sequence[Source]) -> tuple[KnownSum | None, ...]:
    """Return the known checksums of the files; None if none is published or recorded."""
    return tuple(_expected_sum(data, raw_directory(data, root), Path(source.path)) for source in sources)


def _expected_sum(data: DataConfig, directory: Path, path: Path) -> KnownSum | None:
    """Return the checksum published for a file of that name, or the one recorded for a file in `directory`."""
    expected = known_sum(directory, path.name, data.remote.sha256)
    is_kept = path.absolute().parent == directory.absolute()
    return expected if is_kept or (expected is not None and expected.given_by == PUBLISHED) else None


def note_read(data: DataConfig, root: Path, sources: Sequence[Source], digests: Sequence[FileDigest]) -> None:
    """Record the checksums of files that were read whole without fault and are in the directory of downloads."""
    directory = raw_directory(data, root).absolute()
    pairs = zip(sources, digests, strict=True)
    note_sums(
        directory, {each.name: digest for each, digest in pairs if Path(each.path).absolute().parent == directory}
    )


def archive_origin(archive: Path) -> Origin:
    """Return the origin of a file unpacked from an archive."""
    status = archive.stat()
    return Origin(str(archive.resolve()), last_modified=str(status.st_mtime_ns), total=status.st_size)


def unpack_member(archive: Path, name: str, directory: Path, expected: KnownSum | None = None) -> FileDigest:
    """Copy one plain file out of a tar archive, wherever it is inside, to directory/name; write nothing else.

    The archive is read to its end, so that gzip's own checksum of the content is compared.

    Args:
        expected: the checksum that the archive must have.

    Returns:
        size and checksum of the archive.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with PartialFile(directory / name) as part:
        part.clear()
        origin = archive_origin(archive)
        try:
            digest = _copy_member(archive, name, part.append, part.partial, expected)
        except BaseException:
            part.clear()
            raise
        part.finish(origin)
    return digest


def member_sha256(archive: Path, name: str) -> str:
    """Return the SHA-256 of a plain file in a tar archive; write nothing."""
    sha256 = hashlib.sha256()
    _copy_member(archive, name, sha256.update)
    return sha256.hexdigest()


def _copy_member(
    archive: Path,
    name: str,
    take: Callable[[bytes], None],
    target: Path | None = None,
    expected: KnownSum | None = None,
) -> FileDigest:
    """Pass the content of the only plain file with that name to `take`; return the archive's digest.

    Args:
        target: the file to which `take` writes, for which the disk must have room.
        expected: the checksum that the archive must have.
    """
    is_there = False
    tally = Tally(0)
    progress = Progress("unpack", archive.stat().st_size, tally)
    try:
        with SummedFile(archive) as summed, progress:
            content: Any = open_gzip(summed) if is_gzip(archive) else summed
            with tarfile.open(fileobj=content, mode="r|") as members:
                for member in members:
                    # The member's own path is never used, so it cannot lead out of the directory.
                    if not member.isfile() or Path(member.name).name != name:
                        continue
                    if is_there:
                        raise UserError(f"{archive}: has two files {name}; unpack the right one, name it in data.raw")
                    source = members.extractfile(member)
                    assert source is not None
                    if target is not None:
                        require_room([Need(target, member.size, f"to unpack {archive.name}")])
                    while block := source.read(BLOCK_BYTES):
                        take(block)
                        tally.bytes = summed.position
                    is_there = True
            while content.read(BLOCK_BYTES):
                tally.bytes = summed.position
            digest = summed.digest()
    except (tarfile.TarError, EOFError, *DAMAGE) as error:
        raise UserError(f"{archive}: not readable as a tar archive ({error}); delete it and get it again") from error
    refuse_other(archive, expected, digest)
    if not is_there:
        remedy = "get it again, or name your own in data.raw and leave out data.source"
        raise UserError(f"{archive}: has no file {name}; {remedy}")
    return digest
