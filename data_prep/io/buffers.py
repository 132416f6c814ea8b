"""Memory that is used again: large arrays at one place per thread, read and written past the page cache.

A fresh page has to be found and cleared before its first use, which on many machines takes longer than what is done
with it afterwards. So large passing arrays are not asked of the system anew for every unit.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from common.memory import give_back_freed_memory
from data_prep.io.atomic import FileDigest, temporary_path

PAGE_BYTES = 4096
PIECE_BYTES = 4 << 20  # summed while the one before is written
DIRECT = getattr(os, "O_DIRECT", 0)

_rooms = threading.local()


def take_memory(num_bytes: int) -> mmap.mmap:
    """Fresh memory that begins with a page, in large pages where the system has them: a few faults, not thousands."""
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def scratch(name: str, num_bytes: int) -> NDArray[np.uint8]:
    """That many bytes, beginning with a page, which this thread gets again whenever it asks under that name."""
    room = getattr(_rooms, name, None)
    if room is None or len(room) < num_bytes:
        room = take_memory(-(-max(1, num_bytes + num_bytes // 8) // PAGE_BYTES) * PAGE_BYTES)
        setattr(_rooms, name, room)
    return np.frombuffer(room, np.uint8, num_bytes)


def release_scratch() -> None:
    """Give the memory of this thread, and what was freed, back to the system."""
    vars(_rooms).clear()
    give_back_freed_memory()


def scratch_array(name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An array in `scratch`."""
    num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return scratch(name, num_bytes).view(dtype).reshape(shape)


def save_past_cache(
    path: Path,
    pieces: Sequence[memoryview],
    start_sum: Callable[[], Any],
    is_saved: Callable[[int], None] = lambda number: None,
) -> FileDigest:
    """Write a file, which appears whole, past the page cache, and sum it at the same time; its size and sum.

    pieces: what it holds, each but the last of whole pages. is_saved: called with the number of each piece that is
    not needed any more.
    """
    temporary = temporary_path(path)
    begun, offsets = start_sum(), np.cumsum([0, *map(len, pieces)]).tolist()
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        with ThreadPoolExecutor(1) as writer:
            writing = [writer.submit(write_past_cache, file, *part) for part in zip(pieces, offsets, strict=False)]
            for number, piece in enumerate(pieces):
                begun.update(piece)
                writing[number].result()
                is_saved(number)
    finally:
        os.close(file)
    temporary.replace(path)
    return FileDigest(offsets[-1], begun.hexdigest())


def write_past_cache(file: int, content: memoryview, offset: int) -> None:
    """Write at an offset of whole pages, without the page cache where the file system can and as far as pages go."""
    whole = len(content) // PAGE_BYTES * PAGE_BYTES
    if set_direct(file, True):
        try:
            _write(file, content[:whole], offset)
            offset, content = offset + whole, content[whole:]
        except OSError as error:
            if error.errno != errno.EINVAL:  # that it cannot after all
                raise
        set_direct(file, False)
    _write(file, content, offset)


def set_direct(file: int, wanted: bool) -> bool:
    """Turn to or from going past the page cache; whether the system and the file system could."""
    flags = fcntl.fcntl(file, fcntl.F_GETFL) & ~DIRECT
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | DIRECT if wanted else flags)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return DIRECT != 0


def _write(file: int, content: memoryview, offset: int) -> None:
    while content:
        count = os.pwrite(file, content, offset)
        content, offset = content[count:], offset + count
