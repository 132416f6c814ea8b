"""Files from the first mirror that gives them whole: several at a time, resumed, retried, checked.

A file being fetched is a `Part`; it gets its name when its size and, where one is known, its sum are right.
"""

import http.client
import queue
import threading
import urllib.error
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from common.errors import UserError
from common.sizes import in_words
from data_prep.io.atomic import digest_file
from data_prep.io.disk_space import Need, require_room
from data_prep.io.progress import Progress, Tally
from data_prep.sources.checksums import PUBLISHED
from data_prep.sources.discover import DAMAGE, open_gzip
from data_prep.sources.partial_file import Part, origin_of, part_path
from data_prep.sources.transfer import BLOCK_BYTES, Transfer, WrongFile, tell_size

PARALLEL_FILES = 4
SIZE_TIMEOUT = 10.0  # seconds: it is asked once, and only to tell beforehand

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class RemoteFile:
    """A file by its name and where it may be had.

    Attributes:
        sha256: the sum it must have, if it is known; told_by: whom it is known from.
        otherwise: what a user can do where no mirror gives it.
    """

    name: str
    urls: tuple[str, ...]
    sha256: str | None = None
    told_by: str = PUBLISHED
    otherwise: str = "get the file yourself and name it in data.raw with data=local"


@dataclass(frozen=True)
class Patience:
    """Tries per mirror, seconds before the second (doubled before each further one), seconds without a byte.

    A try that got further than those before it starts the count again.
    """

    tries: int = 5
    pause: float = 2.0
    timeout: float = 60.0


def download_all(
    files: Sequence[RemoteFile],
    directory: Path,
    patience: Patience | None = None,
    needs: Callable[[int], list[Need]] = lambda size: [],
) -> list[Path]:
    """Have all files in `directory`; one that is there already is taken as it is.

    Args:
        needs: the room wanted besides, by the size of all files together.

    Raises:
        UserError: no mirror gives a file whole, the disk has no room, or another job fetches the same.
    """
    directory.mkdir(parents=True, exist_ok=True)
    patience = patience or Patience()
    paths = [directory / file.name for file in files]
    missing = [file for file, path in zip(files, paths, strict=True) if not path.exists()]
    if not missing:
        return paths
    stop = threading.Event()
    sizes = _in_parallel(lambda file: _tell_size(file, directory, patience), missing, stop)
    known = [size for size in sizes if size is not None]
    parts = [_size(part_path(directory / file.name)) for file in missing]
    to_fetch = sum(size - part for size, part in zip(sizes, parts, strict=True) if size is not None and size > part)
    all_bytes = sum(known) + sum(_size(path) for path in paths)
    remedy = "free some, or choose another data.path or data.remote.directory"
    require_room([Need(directory, to_fetch, "to fetch"), *needs(all_bytes)], remedy)
    total = sum(known) if len(known) == len(missing) else None
    with Progress("download", total, Tally(sum(parts))) as progress:
        said = in_words(to_fetch) if total is not None else "of a size that no mirror tells beforehand"
        progress.say(f"{directory}: fetching {len(missing)} of {len(files)} files, {said}")
        _in_parallel(lambda file: _download(file, directory, patience, progress, stop), missing, stop)
    return paths


def _in_parallel(function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT], stop: threading.Event) -> list[ResultT]:
    """function(task) of all tasks, a few at a time; the first failure, or an interrupt, ends the waiting for all.

    The threads are daemons: one that waits for a mirror's next byte keeps nobody from ending.
    """
    results: dict[int, ResultT] = {}
    waiting = queue.SimpleQueue[tuple[int, TaskT]]()
    done = queue.SimpleQueue[tuple[int, ResultT | None, BaseException | None]]()
    for entry in enumerate(tasks):
        waiting.put(entry)

    def work() -> None:
        while not stop.is_set():
            try:
                number, task = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((number, function(task), None))
            except BaseException as error:  # noqa: BLE001  raised where it is waited for
                done.put((number, None, error))

    for _ in range(min(PARALLEL_FILES, len(tasks))):
        threading.Thread(target=work, daemon=True).start()
    try:
        while len(results) < len(tasks):
            number, result, error = done.get()
            if error is not None:
                raise error
            results[number] = result  # type: ignore[assignment]
    except BaseException:
        stop.set()
        raise
    return [results[number] for number in range(len(tasks))]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _tell_size(file: RemoteFile, directory: Path, patience: Patience) -> int | None:
    """Bytes of a file that is to be fetched."""
    origin = origin_of(directory / file.name)
    return (
        origin.total
        if origin is not None and origin.total
        else tell_size(file.urls, min(patience.timeout, SIZE_TIMEOUT))
    )


def _download(file: RemoteFile, directory: Path, patience: Patience, progress: Progress, stop: threading.Event) -> None:
    """Have one file in `directory`."""
    path = directory / file.name
    with Part(path) as part:
        if path.exists():
            return  # another job was faster
        transfer = Transfer(
            part, file.sha256 is not None, patience.timeout, stop,
            lambda count: progress.counters.add(count, 0), lambda said: progress.say(f"{file.name}: {said}"),
        )  # fmt: skip
        faults = []
        for url in file.urls:
            fault = _try_mirror(url, file, part, transfer, patience, stop)
            if fault is None:
                return
            faults.append(f"{url}: {fault}")
    found = "; ".join(faults) or "no mirror is configured in data.remote.mirrors"
    raise UserError(f"{file.name}: cannot be had ({found}); try again later, or {file.otherwise}")


def _try_mirror(
    url: str, file: RemoteFile, part: Part, transfer: Transfer, patience: Patience, stop: threading.Event
) -> str | None:
    """Have the file from a mirror, in several tries; what is wrong, None if nothing is."""
    tries, most = 0, part.size
    while True:
        try:
            _accept(file, part, transfer, transfer.fetch(url))
            return None
        except (WrongFile, ValueError) as error:  # not the file, not a URL
            return str(error)
        except urllib.error.HTTPError as error:
            fault = str(error)
            if error.code < 500 and error.code != 429:  # it is not there, or not for us
                return fault
        except (OSError, http.client.HTTPException, EOFError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            fault = str(reason) or type(reason).__name__
        tries = 1 if part.size > most else tries + 1
        most = max(most, part.size)
        if tries >= patience.tries:
            return fault
        pause = patience.pause * 2 ** (tries - 1)
        transfer.say(f"{fault}; trying again in {pause:g} s")
        stop.wait(pause)


def _accept(file: RemoteFile, part: Part, transfer: Transfer, told_whole: bool) -> None:
    """Check the fetched part and give it its name.

    Raises:
        EOFError: it is not the file, but another try may give it.
        WrongFile: it is not, and another try would not.
    """
    if file.sha256 is not None:
        transfer.say("comparing its sum")
        found = digest_file(part.place).sha256
        if found != file.sha256:
            transfer.give_up()
            fault = f"sha256 {found} where {file.told_by} has {file.sha256}"
            if not transfer.in_one_go:  # what was at hand may be to blame
                raise EOFError(fault)
            raise WrongFile(fault)
    elif not told_whole:
        if not file.name.endswith(".gz"):
            raise WrongFile("it tells no length, so nobody knows whether it is whole; give data.remote.sha256")
        _inflate(part, transfer)
    part.finish()


def _inflate(part: Part, transfer: Transfer) -> None:
    """A gzip file ends with a sum of its content, which is the one thing left to go by."""
    block = bytearray(BLOCK_BYTES)
    try:
        with open_gzip(part.place) as content:
            while content.readinto(block):
                pass
    except EOFError as error:
        raise EOFError(f"it tells no length, and ends early at byte {part.size:,}") from error
    except DAMAGE as error:
        transfer.give_up()
        raise EOFError(f"it tells no length, and is damaged ({error})") from error
