"""A stream of bytes cut into blocks of whole lines, at offsets that do not depend on who reads them."""

import mmap
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.io.read_ahead import BLOCK_BYTES
from data_prep.sources.discover import ROOM_BEFORE, Reader, Source, SourceStream, open_source


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
        block_bytes: of a block, and of the longest line there may be.
        reader: where the bytes come from, if opened already; closed with this.
    """

    def __init__(
        self, source: Source, offset: int = 0, block_bytes: int = BLOCK_BYTES, reader: Reader | None = None
    ) -> None:
        if block_bytes > ROOM_BEFORE:
            raise ValueError(f"blocks of more than {ROOM_BEFORE} bytes")
        self._source = source
        self._bytes: mmap.mmap | bytes = b""
        self._longest = block_bytes
        self._start = self._end = 0
        self._at_end = False
        # the byte before `offset` tells whether a line starts there
        self._offset = max(offset - 1, 0)
        self._reader = reader or open_source(source, self._offset, block_bytes)
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
            first = self._bytes.find(b"\n", self._start, self._end)
            if first < 0 or first - self._start >= self._longest:
                raise UserError(
                    f"{self._source.path}: a line at byte {self._offset} is longer than {self._longest} "
                    "bytes; not a table of one row per line"
                )
            end = self._bytes.rfind(b"\n", self._start, self._end) + 1
            if self._offset + (end - self._start) > stop:
                end = self._bytes.find(b"\n", self._start + (stop - 1 - self._offset)) + 1
            start, offset = self._start, self._offset
            self._offset += end - start
            self._start = end
            array = np.frombuffer(self._bytes, np.uint8)
            is_last = end == self._end and (self._at_end or self._reader.at_end())
            yield LineBlock(array, start, end, offset, is_last)

    def _fill(self) -> None:
        """Have at least one whole line in the block, or all that is left."""
        while not self._at_end and self._bytes.find(b"\n", self._start, self._end) < 0:
            rest = self._bytes[self._start : self._end]
            if len(rest) >= self._longest:
                return
            block, count = self._reader.next_block()
            self._bytes, self._start, self._end = block, ROOM_BEFORE - len(rest), ROOM_BEFORE + count
            block[self._start : ROOM_BEFORE] = rest
            if count == 0:
                self._at_end = True
                if rest:
                    block[self._end] = ord("\n")
                    self._end += 1


def count_lines_before(source: Source, offset: int) -> int:
    """Newlines in the first `offset` uncompressed bytes: for the row number in an error."""
    reader = open_source(source)
    lines = 0
    try:
        while offset > 0:
            block, count = reader.next_block()
            if count == 0:
                break
            lines += block[ROOM_BEFORE : ROOM_BEFORE + min(count, offset)].count(b"\n")
            offset -= count
    finally:
        reader.close()
    return lines
