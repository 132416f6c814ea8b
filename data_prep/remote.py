"""Published datasets by their configuration: which files, from where, unpacked how."""

from pathlib import Path

from common.errors import UserError
from data_prep.config import DataConfig
from data_prep.download import Patience, RemoteFile, download_all, unpack_member


def remote_files(data: DataConfig) -> list[RemoteFile]:
    """The files to fetch, in the order of the days.

    Raises:
        UserError: the configuration names none, or days of a dataset that has none.
    """
    remote = data.remote
    if not remote.name:
        raise UserError("data.remote.name: not given; choose data=criteo_1tb or data=criteo_kaggle")
    has_days = "{day}" in remote.name
    if has_days != (data.days is not None):
        raise UserError(f"data.days={data.days}: {'name the days to fetch' if has_days else 'there are no days here'}")
    files = []
    for day in data.days if data.days is not None else [0]:
        name = remote.name.replace("{day}", str(day))
        urls = tuple(mirror.replace("{day}", str(day)) for mirror in remote.mirrors)
        files.append(RemoteFile(name, urls, remote.sha256.get(name)))
    return files


def fetch_days(data: DataConfig, root: Path) -> list[str]:
    """Have the raw files on disk; their paths.

    Raises:
        UserError: a file cannot be had.
    """
    if data.raw is not None:
        raise UserError("data.raw: these files are fetched; to use your own, choose data=local")
    remote = data.remote
    directory = Path(remote.directory) if remote.directory else root / "raw"
    patience = Patience(remote.tries, remote.pause, remote.timeout)
    paths = download_all(remote_files(data), directory, patience)
    if remote.member is not None:
        paths = [unpack_member(path, remote.member, directory) for path in paths]
    return [str(path) for path in paths]
