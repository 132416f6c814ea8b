"""A stream of bytes cut into blocks of whole lines, at offsets that do not depend on who reads them."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.parse import PADDING
from data_prep.sources import Reader, Source, SourceStream, open_source

BLOCK_BYTES = 2 << 20  # what a kernel reads and writes for one block stays in the outer caches
COUNT_BYTES = 1 << 20


class LineBlock(NamedTuple):
    """Whole lines: buffer[start:end] ends with a newline and has PADDING bytes behind.

    `offset` is the place of its first byte in the uncompressed source; `is_last` says whether the source ends
    with it.
    """

    buffer: NDArray[np.uint8]
    start: int
    end: int
    offset: int
    is_last: bool


class LineBlocks:
    """Reads a source once, front to back.

    A line belongs to the range of offsets in which it starts, so plain and compressed files, and any number
    of readers, give the same lines for the same range.

    Args:
        reader: where the bytes come from, if opened already; closed with this.
    """

    def __init__(
        self, source: Source, offset: int = 0, block_bytes: int = BLOCK_BYTES, reader: Reader | None = None
    ) -> None:
        self._source = source
        self._bytes = bytearray(block_bytes + 1 + PADDING)
        self._array = np.frombuffer(self._bytes, np.uint8)
        self._view = memoryview(self._bytes)
        self._capacity = block_bytes
        self._start = self._end = 0
        self._at_end = False
        # the byte before `offset` tells whether a line starts there
        self._offset = max(offset - 1, 0)
        self._reader = reader or open_source(source, self._offset)
        self._reported = offset
        for _ in self.until(offset):
            pass

    def __enter__(self) -> "LineBlocks":
        return self

    def __exit__(self, *exception: object) -> None:
        self._reader.close()

    @property
    def exhausted(self) -> bool:
        """Whether no line is left."""
        self._fill()
        return self._start == self._end

    def advance(self) -> int:
        """Bytes of the file, as it lies on disk, that were worked through since the last call."""
        reader = self._reader
        position = reader.consumed() if self._source.compressed and isinstance(reader, SourceStream) else self._offset
        advance, self._reported = position - self._reported, position
        return advance

    def until(self, stop: int) -> Iterator[LineBlock]:
        """Blocks of the lines, not yet handed out, that start before the offset `stop`.

        A block is only valid until the next one is asked for.

        Raises:
            UserError: the file is damaged, or a line is longer than a block.
        """
        while self._offset < stop:
            self._fill()
            if self._start == self._end:
                return
            end = self._bytes.rfind(b"\n", self._start, self._end) + 1
            if end == 0:
                raise UserError(
                    f"{self._source.path}: a line at byte {self._offset} is longer than {self._capacity} "
                    "bytes; not a table of one row per line"
                )
            if self._offset + (end - self._start) > stop:
                end = self._bytes.index(b"\n", self._start + (stop - 1 - self._offset)) + 1
            start, offset = self._start, self._offset
            self._offset += end - start
            self._start = end
            yield LineBlock(self._array, start, end, offset, self._at_end and end == self._end)

    def _fill(self) -> None:
        """Have at least one whole line in the buffer, or all that is left."""
        if self._at_end or self._bytes.find(b"\n", self._start, self._end) >= 0:
            return
        rest = self._end - self._start
        self._view[:rest] = bytes(self._view[self._start : self._end])
        self._start, self._end = 0, rest
        while self._end < self._capacity:
            count = self._reader.readinto(self._view[self._end : self._capacity])
            if count == 0:
                self._at_end = True
                if self._end > self._start and self._bytes[self._end - 1] != ord("\n"):
                    self._bytes[self._end] = ord("\n")
                    self._end += 1
                break
            self._end += count


def count_lines_before(source: Source, offset: int) -> int:
    """Newlines in the first `offset` uncompressed bytes: for the row number in an error."""
    reader = open_source(source)
    buffer = bytearray(COUNT_BYTES)
    lines = 0
    try:
        while offset > 0:
            count = reader.readinto(memoryview(buffer)[: min(offset, COUNT_BYTES)])
            if count == 0:
                break
            lines += buffer.count(b"\n", 0, count)
            offset -= count
    finally:
        reader.close()
    return lines
