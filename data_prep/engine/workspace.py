"""The directory at `data.path`: locked for one job, resumed, and replaced by the finished dataset."""

import errno
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from common.documents import decode
from common.errors import UserError
from common.files import digest_file, sync, write_atomically
from data_prep.config.agreement import first_difference
from data_prep.config.keys import DataConfig, given_values
from data_prep.dataset.format import MANIFEST_NAME, Manifest, load_manifest, save_manifest
from data_prep.dataset.kinds import split_directories
from data_prep.dataset.multi_hot import TABLES_DIRECTORY
from data_prep.encoding.lookup import VOCABULARY_DIRECTORY
from data_prep.engine.job import CHUNKS_DIRECTORY, WORK_DIRECTORY, WORK_FORMAT
from data_prep.sources.discover import RAW_DIRECTORY, Source
from data_prep.sources.finished import other_dataset, recorded_times

LOCK_NAME = "lock"
PLAN_NAME = "finish.json"
JOB_NAME = "job.json"
CLEARING_NAME = "clearing"  # marks that an older dataset is being removed, so that its remaining files are ours


@contextmanager
def locked(root: Path) -> Iterator[Path]:
    """Hold <root>/.work for this process; remove it afterwards if nothing in it is worth keeping.

    A finished dataset in a read-only directory needs no lock: it is only read or refused.

    Raises:
        UserError: another process holds the lock.
        OSError: the directory is not writable, and there is no dataset.
    """
    existed = root.exists()
    work = root / WORK_DIRECTORY
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES) or not (root / MANIFEST_NAME).exists():
            raise
        yield work
        return
    lock = FileLock(work / LOCK_NAME, blocking=False)
    try:
        lock.acquire()
        if not (work / LOCK_NAME).exists():
            raise Timeout(lock.lock_file)  # its holder has just removed it with its directory
    except Timeout as error:
        raise UserError(f"{root}: another job is writing here; wait for it, or choose another data.path") from error
    try:
        yield work
    finally:
        if not any(work.glob(f"{CHUNKS_DIRECTORY}/*.json")) and not (work / PLAN_NAME).exists():
            shutil.rmtree(work, ignore_errors=True)
        lock.release()
        if not existed and root.exists() and not any(root.iterdir()):
            root.rmdir()


@contextmanager
def claimed(root: Path) -> Iterator[Path]:
    """Hold the lock as `locked` does, after completing the moves of a killed job."""
    with locked(root) as work:
        if (work / PLAN_NAME).exists():
            _finish(work, root)
    with locked(root) as work:  # again, since completing removed the directory with its lock
        yield work


def keep_or_discard_work(work: Path, parameters: dict[str, Any], sources: Sequence[Source]) -> None:
    """Keep the work of a killed job with the same parameters and sources; discard any other."""
    description = {"format": WORK_FORMAT, "parameters": parameters, "sources": [asdict(source) for source in sources]}
    content = json.dumps(description).encode()
    path = work / JOB_NAME
    if path.exists() and path.read_bytes() == content:
        print(f"{work.parent}: resuming where the last job stopped", file=sys.stderr)
    else:
        if path.exists():
            print(f"{work.parent}: discarding the unfinished work of another job", file=sys.stderr)
        for entry in work.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != LOCK_NAME:
                entry.unlink()
        write_atomically(path, content)
    (work / CHUNKS_DIRECTORY).mkdir(exist_ok=True)


def refuse_foreign_files(root: Path, work: Path, raw_files: Sequence[Path]) -> None:
    """Refuse to write over files other than an older dataset's and raw files in their own directory."""
    dataset_paths = [root / name for name in (*split_directories(), VOCABULARY_DIRECTORY)]
    for path in raw_files:
        if any(path.resolve().is_relative_to(directory.resolve()) for directory in dataset_paths):
            raise UserError(f"{path}: lies where data.path={root} will be written; choose another data.path")
    if (root / MANIFEST_NAME).exists() or (work / CLEARING_NAME).exists() or not root.exists():
        return
    for directory in dataset_paths:
        if directory.exists() and any(directory.iterdir()):
            raise UserError(f"{directory}: holds files that are not a dataset's; choose another data.path")
    raw = [path.resolve() for path in raw_files]
    raw = [path.relative_to(root.resolve()) for path in raw if path.is_relative_to(root.resolve())]
    allowed = {*(path.name for path in dataset_paths), TABLES_DIRECTORY, RAW_DIRECTORY, "lost+found"}
    allowed |= {path.parts[0] for path in raw if len(path.parts) > 1}
    strangers = sorted(path.name for path in root.iterdir() if path.name not in allowed and path.name[0] != ".")
    if strangers:
        raise UserError(
            f"{root}: holds files that are not a dataset's ({strangers[0]}{', …' if len(strangers) > 1 else ''}); "
            "give a new directory in data.path"
        )


def find_finished(
    root: Path, parameters: dict[str, Any], schema: dict[str, Any] | None, sources: Sequence[Source], data: DataConfig
) -> Manifest | None:
    """Return the dataset at `root` if it is the requested one, and log this; None if there is none or it is replaced.

    Compares only those keys that the user gave.

    Args:
        parameters: further entries that the manifest's `encoding` must have.
        schema: required `raw_schema`.
    """
    if not (root / MANIFEST_NAME).exists():
        return None
    try:
        manifest = load_manifest(root)
        difference = _difference(manifest, parameters, schema, sources, data)
    except UserError:
        if data.overwrite:
            return None
        raise
    if data.overwrite:  # also an equal one, since its files may be damaged
        return None
    if difference is None:
        print(f"{root}: already done ({manifest.rows:,} {manifest.kind.name})", file=sys.stderr)
        return manifest
    raise other_dataset(root, difference)


def _difference(
    manifest: Manifest,
    parameters: dict[str, Any],
    schema: dict[str, Any] | None,
    sources: Sequence[Source],
    data: DataConfig,
) -> str | None:
    if manifest.encoding.get("raw_schema") != schema:
        return "other columns"
    if (difference := first_difference(given_values(data), manifest)) is not None:
        return f"{difference.key} is {difference.recorded} there, {difference.setting} here"
    for key, value in parameters.items():
        if manifest.encoding.get(key) != value:
            return f"{key} is {manifest.encoding.get(key)} there, {value} here"
    return None if _same_sources(manifest, sources) else "made from other raw files, or for other splits"


def _same_sources(manifest: Manifest, sources: Sequence[Source]) -> bool:
    """Return whether the raw files are the manifest's, by name, size and times, or else by checksum."""
    of_manifest = [(each["name"], each["bytes"], each.get("split")) for each in manifest.sources]
    if of_manifest != [(source.name, source.bytes, source.split) for source in sources]:
        return False
    return all(
        (source.mtime_ns == mtime and ctime in (0, source.ctime_ns))
        or digest_file(Path(source.path)).sha256 == entry["sha256"]
        for source, entry, (mtime, ctime) in zip(sources, manifest.sources, recorded_times(manifest), strict=True)
    )


def publish(work: Path, root: Path, manifest: Manifest, moves: list[tuple[str, str]]) -> Manifest:
    """Replace the dataset at `root` by the files of `work`. After a kill, the next job there completes this.

    Args:
        moves: each file's path below `work`, and its path below `root`.
    """
    (work / CLEARING_NAME).touch()
    (root / MANIFEST_NAME).unlink(missing_ok=True)  # first, since a dataset without a manifest is no dataset
    for name in (*split_directories(), VOCABULARY_DIRECTORY, TABLES_DIRECTORY):
        shutil.rmtree(root / name, ignore_errors=True)
    save_manifest(work / "final", manifest)
    write_atomically(work / PLAN_NAME, json.dumps(moves).encode())
    return _finish(work, root)


def _finish(work: Path, root: Path) -> Manifest:
    """Move all files into the dataset and sync them, then add the manifest."""
    moves = decode((work / PLAN_NAME).read_bytes(), list[tuple[str, str]])
    directories = {root}
    for source, target in moves:
        path = root / target
        path.parent.mkdir(parents=True, exist_ok=True)
        directories.add(path.parent)
        if (work / source).exists():
            os.replace(work / source, path)
        sync(path)
    for directory in directories:
        sync(directory)
    if (work / "final" / MANIFEST_NAME).exists():
        os.replace(work / "final" / MANIFEST_NAME, root / MANIFEST_NAME)
    sync(root)
    for entry in work.iterdir():  # The plan goes last, so that a later job clears what a killed one left.
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != PLAN_NAME:
            entry.unlink()
    shutil.rmtree(work)
    return load_manifest(root)
