"""Parts of files, one after the other, past the page cache, each read while the one before is worked on."""

import errno
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from data_prep.io.buffers import PAGE_BYTES, scratch, set_direct
from data_prep.io.npy import HEADER_BYTES

AHEAD = 2  # parts read while one is worked on


class Part(NamedTuple):
    """Some bytes of a file, from `offset` on."""

    path: Path
    offset: int
    num_bytes: int


def rows_part(path: Path, start: int, stop: int, width: int, dtype: DTypeLike) -> Part:
    """Rows start..stop of a .npy file [rows, width]."""
    row_bytes = width * np.dtype(dtype).itemsize
    return Part(path, HEADER_BYTES + start * row_bytes, (stop - start) * row_bytes)


def read_parts(parts: Iterable[Part], name: str) -> Iterator[NDArray[np.uint8]]:
    """The bytes of each part, in memory of this thread under that name; valid until the next is asked for."""
    coming: deque[Future[NDArray[np.uint8]]] = deque()
    with ThreadPoolExecutor(AHEAD) as readers:
        for number, part in enumerate(parts):
            room = scratch(f"part of {name} {number % (AHEAD + 1)}", room_bytes(part))
            coming.append(readers.submit(_read_part, part, room))
            if len(coming) > AHEAD:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def room_bytes(part: Part) -> int:
    """Memory to read a part to, with all of the pages that it is on."""
    return (-(-part.num_bytes // PAGE_BYTES) + 2) * PAGE_BYTES


def read_at_once(parts: Sequence[Part], name: str) -> list[NDArray[np.uint8]]:
    """The bytes of all parts, in memory of this thread under that name; valid until it is asked for again."""
    ends = np.cumsum([0, *map(room_bytes, parts)]).tolist()
    room = scratch(name, ends[-1])
    with ThreadPoolExecutor(AHEAD) as readers:
        rooms = [room[begin:end] for begin, end in pairwise(ends)]
        return list(readers.map(_read_part, parts, rooms))


def read_rows(
    path: Path, blocks: Sequence[tuple[int, int]], width: int, dtype: DTypeLike, name: str
) -> Iterator[NDArray[Any]]:
    """Rows start..stop of a .npy file [rows, width] for each of `blocks`; as `read_parts`."""
    parts = (rows_part(path, start, stop, width, dtype) for start, stop in blocks)
    for (start, stop), content in zip(blocks, read_parts(parts, name), strict=True):
        yield content.view(dtype).reshape(stop - start, width)


def _read_part(part: Part, room: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Read whole pages around a part into `room`; the part in it."""
    first = part.offset // PAGE_BYTES * PAGE_BYTES
    wanted = part.offset - first + part.num_bytes
    room = room[: -(-wanted // PAGE_BYTES) * PAGE_BYTES]
    file = os.open(part.path, os.O_RDONLY)
    try:
        is_direct = set_direct(file, True)
        try:
            _read(file, part.path, room, first, wanted)
        except OSError as error:
            if not is_direct or error.errno != errno.EINVAL:
                raise
            set_direct(file, False)
            _read(file, part.path, room, first, wanted)
    finally:
        os.close(file)
    return room[part.offset - first : wanted]


def _read(file: int, path: Path, room: NDArray[np.uint8], offset: int, wanted: int) -> None:
    done = 0
    while done < wanted:
        count = os.preadv(file, [room[done:].data], offset + done)
        if not count:
            raise OSError(errno.EIO, "shorter than it was", str(path))
        done += count
