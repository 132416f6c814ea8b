"""Arrays made window by window, each summed and written past the page cache while the next is made."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from data_prep.io.atomic import FileDigest, temporary_path
from data_prep.io.buffers import PAGE_BYTES, scratch, write_past_cache
from data_prep.io.npy import npy_header

NUM_BUFFERS = 2
Sent: TypeAlias = tuple["Future[None]", "Future[None]"]  # a window being summed, and written


class ArrayWriter:
    """The threads that sum and write .npy files, each in the order it is asked to; a context, which ends with them."""

    def __init__(self) -> None:
        self.summing, self.writing = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._open: set[int] = set()
        self._sent: dict[str, list[Sent]] = {}

    def __enter__(self) -> "ArrayWriter":
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        for thread in (self.summing, self.writing):
            thread.shutdown(wait=True, cancel_futures=kind is not None)
        for file in self._open:
            os.close(file)

    def create(
        self, path: Path, name: str, dtype: DTypeLike, shape: tuple[int, int], start_sum: Callable[[], Any]
    ) -> "WindowedFile":
        """A file of [rows, width], to be filled in this thread's memory of that name.

        A file with the name of another may be created as soon as nothing is to be added to that one.
        """
        return WindowedFile(self, path, name, np.dtype(dtype), shape, start_sum)

    def room(self, name: str, num_bytes: int) -> NDArray[np.uint8]:
        """Memory of that name, of which the window before the last has been summed and written."""
        sent = self._sent.setdefault(name, [])
        if len(sent) >= NUM_BUFFERS:
            _wait(sent[-NUM_BUFFERS])
        return scratch(f"window of {name} {len(sent) % NUM_BUFFERS}", num_bytes)

    def send(self, name: str, summed: "Future[None]", written: "Future[None]") -> Sent:
        """Note that the last room of that name is being summed and written."""
        self._sent[name].append((summed, written))
        return summed, written

    def open(self, path: Path) -> int:
        """Open a file to write to, which is closed with this at the latest."""
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self._open.add(file)
        return file

    def close(self, file: int) -> None:
        """Close such a file."""
        self._open.remove(file)
        os.close(file)


class WindowedFile:
    """A .npy file [rows, width] of an `ArrayWriter`, which appears whole."""

    def __init__(
        self,
        writer: ArrayWriter,
        path: Path,
        name: str,
        dtype: np.dtype[Any],
        shape: tuple[int, int],
        start_sum: Callable[[], Any],
    ) -> None:
        self._writer, self._path, self._name, self._dtype, self._width = writer, path, name, dtype, shape[1]
        self._temporary = temporary_path(path)
        self._file = writer.open(self._temporary)
        self._sum = start_sum()
        self._sent: list[Sent] = []
        self._sent_bytes = 0  # of whole pages
        header = npy_header(dtype, *shape)
        self._sum.update(header)
        self._rest = np.frombuffer(header, np.uint8)  # less than a page, behind what was sent
        self._window: NDArray[np.uint8] | None = None

    def window(self, rows: int) -> NDArray[Any]:
        """Room for the next rows [rows, width], to be filled before the next is asked for."""
        self._send()
        begin = len(self._rest)
        num_bytes = rows * self._width * self._dtype.itemsize
        self._window = self._writer.room(self._name, begin + num_bytes)
        self._window[:begin] = self._rest
        return self._window[begin:].view(self._dtype).reshape(rows, self._width)

    def close(self) -> "Future[FileDigest]":
        """Nothing is to come any more; the file's size and sum, once it is whole."""
        self._send()
        return self._writer.writing.submit(self._finish)

    def _send(self) -> None:
        """Have the last window summed and written."""
        if self._window is not None:
            window, begin, whole = self._window, len(self._rest), len(self._window) // PAGE_BYTES * PAGE_BYTES
            summed = self._writer.summing.submit(self._sum.update, window[begin:].data)
            written = self._writer.writing.submit(write_past_cache, self._file, window[:whole].data, self._sent_bytes)
            self._sent.append(self._writer.send(self._name, summed, written))
            self._sent_bytes += whole
            self._rest = window[whole:].copy()
            self._window = None

    def _finish(self) -> FileDigest:
        for sent in self._sent:
            _wait(sent)
        write_past_cache(self._file, self._rest.data, self._sent_bytes)
        self._writer.close(self._file)
        self._temporary.replace(self._path)
        return FileDigest(self._sent_bytes + len(self._rest), self._sum.hexdigest())


def _wait(sent: Sent) -> None:
    """Until a window has been summed and written, or could not be."""
    for done in sent:
        done.result()
