"""A background thread that reads a few blocks ahead of their consumer, into a ring of buffers."""

import io
import mmap
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

BLOCK_BYTES = 2 << 20  # A few blocks fit the outer caches.
BLOCKS = 4


class ReadAhead(io.RawIOBase):
    """Reader of the blocks that `fill` produces, as blocks or as a stream.

    Args:
        fill: fills part of the given memory and returns the number of bytes, 0 at the end; runs in one thread only.
        before, after: bytes of padding around each block.
    """

    def __init__(self, fill: Callable[[memoryview], int], before: int = 0, after: int = 0) -> None:
        super().__init__()
        self._fill, self._before = fill, before
        self._free: SimpleQueue[mmap.mmap | None] = SimpleQueue()
        self._filled: SimpleQueue[tuple[mmap.mmap, int] | Exception] = SimpleQueue()
        for _ in range(BLOCKS):
            self._free.put(mmap.mmap(-1, before + BLOCK_BYTES + after))  # unused padding takes no memory
        self._block: mmap.mmap | None = None
        self._peeked: tuple[mmap.mmap, int] | Exception | None = None
        self._rest = memoryview(b"")
        self._ended = self._ending = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (block := self._free.get()) is not None and not self._ending:
            try:
                count = self._fill(memoryview(block)[self._before : self._before + BLOCK_BYTES])
            except Exception as error:  # noqa: BLE001  # raised again in the caller's thread
                self._filled.put(error)
                return
            self._filled.put((block, count))
            if not count:
                return

    def next_block(self) -> tuple[mmap.mmap, int]:
        """Return a buffer and the number of bytes after its padding, 0 at the end; valid until the next call.

        Raise an error of `fill`; after that, and after the end, raise ValueError.
        """
        if self._ended:
            raise ValueError("read past the end")
        if self._block is not None:
            self._free.put(self._block)
        filled, self._peeked = self._peeked or self._filled.get(), None
        self._ended = isinstance(filled, Exception) or not filled[1]
        if isinstance(filled, Exception):
            raise filled
        self._block = filled[0]
        return filled

    def at_end(self) -> bool:
        """Return whether the next block is the empty one; the current block stays valid."""
        self._peeked = self._peeked or self._filled.get()
        return not isinstance(self._peeked, Exception) and not self._peeked[1]

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, view: Any) -> int:
        """Fill part of `view`; return 0 at the end. Raise an error of `fill`."""
        if not self._rest and not self._ended:
            block, count = self.next_block()
            self._rest = memoryview(block)[self._before : self._before + count]
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        """End the thread after its current read."""
        self._ending = True
        self._free.put(None)
        self._thread.join()
        super().close()
