"""Published datasets by their configuration: which files, from where, unpacked how; those that are there already."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from common.errors import UserError
from data_prep.config.keys import DataConfig, RemoteConfig
from data_prep.dataset.format import MANIFEST_NAME, load_manifest
from data_prep.io.atomic import FileDigest
from data_prep.io.disk_space import Need
from data_prep.sources.archive import archive_origin, unpack_member
from data_prep.sources.checksums import PUBLISHED, KnownSum, known_sum, note_sums, published_sums, refuse_other_size
from data_prep.sources.discover import GZIP_RATIO, TEXT_ROW_BYTES, Source, is_tar, own_path, resolve_sources
from data_prep.sources.download import Patience, RemoteFile, download_all
from data_prep.sources.partial_file import noted_origin


def remote_files(data: DataConfig, directory: Path) -> list[RemoteFile]:
    """The files to fetch, in the order of the days, with their sums as far as they are known.

    Raises:
        UserError: the configuration names none, or days of a dataset that has none, or sums of no file of it.
    """
    remote = data.remote
    if not remote.name:
        raise UserError("data.remote.name: not given; choose data=criteo_1tb or data=criteo_kaggle")
    has_days = "{day}" in remote.name
    if has_days != (data.days is not None):
        raise UserError(f"data.days={data.days}: {'name the days to fetch' if has_days else 'there are no days here'}")
    if has_days and remote.member is not None:
        raise UserError("data.remote.member: of a single archive, not of days; leave it out")
    _refuse_idle_sums(remote)
    files = []
    for day in data.days if data.days is not None else [0]:
        name = remote.name.replace("{day}", str(day))
        urls = tuple(mirror.replace("{day}", str(day)) for mirror in remote.mirrors)
        known = known_sum(directory, name, remote.sha256)
        if remote.member is None:
            own = f"get the file yourself and put it at {directory / name}, or name it in data.raw with data=local"
        else:
            own = f"get it yourself and put it, or {remote.member} out of it, into {directory}, or name it in data.raw"
        sha256, told_by = (None, PUBLISHED) if known is None else (known.sha256, known.told_by)
        files.append(RemoteFile(name, urls, sha256, told_by, own))
    return files


def _refuse_idle_sums(remote: RemoteConfig) -> None:
    """Raises UserError for a sum of no file that there is."""
    pattern = re.escape(remote.name).replace(re.escape("{day}"), r"\d+")
    for name in published_sums(remote.sha256):
        if not re.fullmatch(pattern, name) and name != remote.member:
            raise UserError(f"{PUBLISHED}: {name}: no such file is fetched; their name is {remote.name}")


def find_remote(data: DataConfig, root: Path, dataset_bytes: Callable[[float], int]) -> list[Source]:
    """Have the raw files on disk: as the user put them there, or fetched.

    Where there is a finished dataset at `root`, files that are gone are described as it tells of them, for nothing
    need be done with them.

    Args:
        dataset_bytes: room on the disk that so many rows take until the dataset is made.

    Raises:
        UserError: a file cannot be had, or is not what is known of it.
    """
    remote = data.remote
    directory = raw_directory(data, root)
    files = remote_files(data, directory)
    if data.raw is not None:
        return _own_files(data, root, directory)
    names = [file.name for file in files] if remote.member is None else [remote.member]
    paths = [directory / name for name in names]
    if _is_finished(data, root):
        return _as_finished(root, paths)
    if remote.member is None or not paths[0].exists():
        for file in files:
            if (directory / file.name).exists():
                refuse_other_size(directory / file.name, known_sum(directory, file.name, remote.sha256))
        patience = Patience(remote.tries, remote.pause, remote.timeout)
        needs = _later_needs(data, root, directory, dataset_bytes)
        fetched = download_all(files, directory, patience, needs)
        if remote.member is not None:
            _unpack(data, fetched[0], directory)
    for path in paths:
        refuse_other_size(path, known_sum(directory, path.name, remote.sha256))
    return resolve_sources(list(map(str, paths)))


def raw_directory(data: DataConfig, root: Path) -> Path:
    """Where fetched files are kept."""
    return Path(data.remote.directory) if data.remote.directory else root / "raw"


def _own_files(data: DataConfig, root: Path, directory: Path) -> list[Source]:
    """Files that the user has somewhere: an archive, or what is in it."""
    member = data.remote.member
    if member is None:
        raise UserError(f"data.raw: these files are fetched; put your own into {directory}, or choose data=local")
    raw = own_path(data.raw) if isinstance(data.raw, str) else None
    if raw is None or not raw.is_file() or not is_tar(raw):
        return resolve_sources(data.raw)
    path = directory / member
    if noted_origin(path) == archive_origin(raw):
        if _is_finished(data, root):
            return _as_finished(root, [path])
    elif path.exists():
        raise UserError(
            f"{path}: is there already, and not out of {raw} as it is now; delete it, or leave out data.raw"
        )
    if not path.exists():
        _unpack(data, raw, directory)
    return resolve_sources(str(path))


def _unpack(data: DataConfig, archive: Path, directory: Path) -> None:
    """Have the member of an archive in `directory`; the archive's sum is noted where it is one of those there."""
    assert data.remote.member is not None
    digest = unpack_member(archive, data.remote.member, directory, _known(data, directory, archive))
    if archive.parent == directory:
        note_sums(directory, {archive.name: digest})


def _is_finished(data: DataConfig, root: Path) -> bool:
    """Whether there is a dataset that is not to be replaced."""
    return not data.overwrite and (root / MANIFEST_NAME).exists()


def _as_finished(root: Path, paths: Sequence[Path]) -> list[Source]:
    """The files that are there, and those that are gone as a finished dataset tells of them."""
    manifest = load_manifest(root)
    times = manifest.extra.get("source_mtime_ns") or [0] * len(manifest.sources)
    told = {entry["name"]: (entry["bytes"], time) for entry, time in zip(manifest.sources, times, strict=False)}
    sources = []
    for path in paths:
        if path.exists():
            sources += resolve_sources(str(path))
        else:
            size, time = told.get(path.name, (0, 0))
            sources.append(Source(str(path), path.name, size, time, compressed=path.suffix == ".gz"))
    return sources


def _later_needs(
    data: DataConfig, root: Path, directory: Path, dataset_bytes: Callable[[float], int]
) -> Callable[[int], list[Need]]:
    """The room that files will take once they are fetched, by their size: unpacked, and made a dataset."""

    def needs(size: int) -> list[Need]:
        rows = data.remote.rows or size * GZIP_RATIO / TEXT_ROW_BYTES
        unpacked = [Need(directory, int(rows * TEXT_ROW_BYTES), "to unpack", about=True)] if data.remote.member else []
        return [*unpacked, Need(root, dataset_bytes(rows), "for the dataset", about=True)]

    return needs


def known_sums(data: DataConfig, root: Path, sources: Sequence[Source]) -> tuple[KnownSum | None, ...]:
    """What the files must be, as far as anything is published or noted of them."""
    return tuple(_known(data, raw_directory(data, root), Path(source.path)) for source in sources)


def _known(data: DataConfig, directory: Path, path: Path) -> KnownSum | None:
    """What is published of a file of that name, or noted of it, if it lies where fetched files are kept."""
    known = known_sum(directory, path.name, data.remote.sha256)
    is_kept = path.absolute().parent == directory.absolute()
    return known if is_kept or (known is not None and known.told_by == PUBLISHED) else None


def note_read(data: DataConfig, root: Path, sources: Sequence[Source], digests: Sequence[FileDigest]) -> None:
    """Note the sums of files that have been read whole and found good, where fetched files are kept."""
    directory = raw_directory(data, root).absolute()
    pairs = zip(sources, digests, strict=True)
    note_sums(directory, {each.name: found for each, found in pairs if Path(each.path).absolute().parent == directory})
