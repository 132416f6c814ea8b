"""Bytes read by a thread that runs a few blocks ahead of who needs them, in memory that is used again and again."""

import io
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

BLOCK_BYTES = 1 << 20
BLOCKS = 4


class ReadAhead(io.RawIOBase):
    """What `fill` gives, call after call, as a stream.

    Args:
        fill: fills some of the memory it is handed and returns how much, 0 at the end; called in one thread only.
    """

    def __init__(self, fill: Callable[[memoryview], int]) -> None:
        super().__init__()
        self._fill = fill
        self._free: SimpleQueue[memoryview | None] = SimpleQueue()
        self._filled: SimpleQueue[tuple[memoryview, int] | Exception] = SimpleQueue()
        for _ in range(BLOCKS):
            self._free.put(memoryview(bytearray(BLOCK_BYTES)))
        self._block: memoryview | None = None
        self._rest = memoryview(b"")
        self._ended = False
        self._ending = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (block := self._free.get()) is not None and not self._ending:
            try:
                count = self._fill(block)
            except Exception as error:  # noqa: BLE001  # raised again in the caller's thread
                self._filled.put(error)
                return
            self._filled.put((block, count))
            if not count:
                return

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, view: Any) -> int:
        """Fill some of `view`; 0 at the end. Raises what `fill` raised."""
        if not self._rest and not self._ended:
            if self._block is not None:
                self._free.put(self._block)
            filled = self._filled.get()
            self._ended = isinstance(filled, Exception) or not filled[1]
            if isinstance(filled, Exception):
                raise filled
            self._block, count = filled
            self._rest = self._block[:count]
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        """End the thread, after what it is just reading."""
        self._ending = True
        self._free.put(None)
        self._thread.join()
        super().close()
