"""A raw file's bytes, inflated if needed, in blocks of whole lines; the offsets do not depend on the reader."""

import mmap
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from common.files import FileDigest, SummedFile
from data_prep.io import BLOCK_BYTES, ReadAhead
from data_prep.sources.files import DAMAGE, Source, copy_command, packing_of

ROOM_BEFORE = BLOCK_BYTES  # bytes before a block, for the beginning of a line that ends in it
ROOM_BEHIND = 128  # bytes for a newline, and for what a kernel may read beyond the end


def describe_bare_returns(path: str) -> str:
    r"""Describe the fault of a file whose lines end in \r alone, with the command that converts it."""
    command = copy_command(r"tr '\r' '\n'", path)
    return f"lines end in carriage returns alone; convert the file: {command}"


class PlainReader:
    """Reads a plain file from an offset, block by block."""

    def __init__(self, source: Source, offset: int, block_bytes: int) -> None:
        """offset: first byte to read. block_bytes: most bytes of a block, without the room around it."""
        self._file: BinaryIO = open(source.path, "rb", buffering=0)  # noqa: SIM115
        self._file.seek(offset)
        # Of an anonymous mapping, the room before a block takes no memory until the begin of a line is put there.
        self._block = mmap.mmap(-1, ROOM_BEFORE + block_bytes + ROOM_BEHIND)
        self._view = memoryview(self._block)[ROOM_BEFORE : ROOM_BEFORE + block_bytes]

    def next_block(self) -> tuple[mmap.mmap, int]:
        """Return memory and the number of bytes after ROOM_BEFORE in it, 0 at the end; valid until the next call."""
        return self._block, self._file.readinto(self._view) or 0  # type: ignore[attr-defined]

    def at_end(self) -> bool:
        """Return whether the next block will be the empty one; the last block stays valid."""
        return self._file.tell() >= os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class SourceStream(ReadAhead):
    """Reads a file from front to back, inflated if needed; it is read once and its checksum computed on the way.

    One thread reads and computes the checksum, another inflates, both ahead of the consumer.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._file = SummedFile(Path(source.path))
        self._inflated: Any = None
        packing = packing_of(Path(source.path)) if source.compressed else None
        self._packing = "" if packing is None else packing.name
        if packing is not None:
            self._raw = ReadAhead(self._file.readinto)
            self._inflated = packing.open(self._raw)
        super().__init__(self._inflate if source.compressed else self._file.readinto, ROOM_BEFORE, ROOM_BEHIND)

    def _inflate(self, block: memoryview) -> int:
        """Fill part of a block with uncompressed bytes; return their number, 0 at the end. Refuse a damaged file."""
        try:
            return int(self._inflated.readinto(block))
        except EOFError as error:
            raise UserError(
                f"{self._source.path}: truncated {self._packing} file, or bytes after its end; get it again"
            ) from error
        except DAMAGE as error:
            raise UserError(f"{self._source.path}: damaged {self._packing} file ({error}); get it again") from error

    def consumed(self) -> int:
        """Return the position in the file, somewhat ahead of the bytes returned so far."""
        return self._file.position

    def digest(self) -> FileDigest:
        """Return the size and checksum of the file; call this after all of it was read."""
        return self._file.digest()

    def close(self) -> None:
        """Stop reading ahead and close the file."""
        super().close()
        if self._inflated is not None:
            self._inflated.close()
            self._raw.close()
        self._file.close()


Reader = PlainReader | SourceStream


class LineBlock(NamedTuple):
    """Whole lines: buffer[start:end] ends with a newline; kernels may read ROOM_BEHIND - 1 bytes beyond it.

    `offset` is its first byte's in the uncompressed source; `is_last` tells whether the source ends with it.
    """

    buffer: NDArray[np.uint8]
    start: int
    end: int
    offset: int
    is_last: bool


class LineBlocks(AbstractContextManager["LineBlocks"]):
    """Reads a source once, front to back.

    A line belongs to the range of offsets in which it starts. So plain and compressed files, and any number of readers,
    give the same lines for the same range.

    block_bytes: size of a block, and the largest length of a line. reader: source of the bytes, if already open; it is
    closed with this object.
    """

    def __init__(
        self, source: Source, offset: int = 0, block_bytes: int = BLOCK_BYTES, reader: Reader | None = None
    ) -> None:
        self._source = source
        self._bytes: mmap.mmap | bytes = b""
        self._longest = block_bytes
        self._start = self._end = 0
        self._at_end = False
        # The byte before `offset` tells whether a line starts there.
        self._offset = max(offset - 1, 0)
        if reader is None:
            # A compressed source can only be read from its start.
            assert not source.compressed or self._offset == 0
            reader = SourceStream(source) if source.compressed else PlainReader(source, self._offset, block_bytes)
        self._reader = reader
        self._reported = offset  # position up to which `advance` has counted
        # The rest of a line that starts before `offset` belongs to the range before.
        for _ in self.read_until(offset):
            pass

    def __exit__(self, *exception: object) -> None:
        self._reader.close()

    @property
    def exhausted(self) -> bool:
        """Whether no line is left to yield; reads the next block if the answer needs it."""
        self._fill()
        return self._start == self._end

    def advance(self) -> int:
        """Return the bytes of the file on disk that were processed since the last call."""
        reader = self._reader
        # Of a compressed file the size on disk is known alone, so its compressed bytes are counted.
        position = reader.consumed() if self._source.compressed and isinstance(reader, SourceStream) else self._offset
        advance, self._reported = position - self._reported, position
        return advance

    def read_until(self, stop: int) -> Iterator[LineBlock]:
        """Yield blocks of the lines that start before the offset `stop` and were not yet yielded.

        A block is valid only until the next one is requested.
        """
        while self._offset < stop:
            # A block may hold no line end.
            self._fill()
            if self._start == self._end:
                return
            first = self._bytes.find(b"\n", self._start, self._end)
            if first < 0 or first - self._start >= self._longest:
                has_returns = self._bytes.find(b"\r", self._start, self._end) >= 0
                fault = describe_bare_returns(self._source.path) if has_returns else "not a table of one row per line"
                place = f"a line at byte {self._offset} is longer than {self._longest} bytes"
                raise UserError(f"{self._source.path}: {place}; {fault}")
            end = self._bytes.rfind(b"\n", self._start, self._end) + 1
            # A line belongs to the range in which it starts, so the last one may end beyond the range.
            if self._offset + (end - self._start) > stop:
                end = self._bytes.find(b"\n", self._start + (stop - 1 - self._offset)) + 1
            start, offset = self._start, self._offset
            self._offset += end - start
            self._start = end
            array = np.frombuffer(self._bytes, np.uint8)
            is_last = end == self._end and (self._at_end or self._reader.at_end())
            yield LineBlock(array, start, end, offset, is_last)

    def _fill(self) -> None:
        """Make sure that the block has at least one whole line, or everything that is left."""
        while not self._at_end and self._bytes.find(b"\n", self._start, self._end) < 0:
            rest = self._bytes[self._start : self._end]
            # A longer line than this is refused by the caller; reading on would take ever more memory.
            if len(rest) >= self._longest:
                return
            block, count = self._reader.next_block()
            self._bytes, self._start, self._end = block, ROOM_BEFORE - len(rest), ROOM_BEFORE + count
            # The beginning of a line moves in front of the next block, so that each line is contiguous.
            block[self._start : ROOM_BEFORE] = rest
            if count == 0:
                self._at_end = True
                # The last line of a file may lack its end.
                if rest:
                    block[self._end] = ord("\n")
                    self._end += 1


def count_lines_before(source: Source, offset: int) -> int:
    """Return the number of lines before an offset at which one begins, for a row number in an error."""
    with LineBlocks(source) as lines:
        return sum(
            int((block.buffer[block.start : block.end] == ord("\n")).sum()) for block in lines.read_until(offset)
        )
