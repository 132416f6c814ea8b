"""Formats of files with a user's rows; each format is a module and one row of FORMATS.

A format yields `RawRows`: columns by name, and the places of their rows. data_prep/codec/convert.py and
extensions/sequences/events.py convert these columns without knowing the format.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import PurePath
from typing import Any, NamedTuple

from common.errors import UserError
from data_prep.codec.values import STANDARD, Dialect, RawRows
from data_prep.dataset.options import FORMATS, Table
from data_prep.sources.discover import Source, copy_command, without_packing
from data_prep.sources.line_blocks import LineBlocks, count_lines_before

NUMBER_LIST = "list of numbers"


class Column(NamedTuple):
    """A column. `kind` is text, integer, number, time, list, NUMBER_LIST, any, or the name of another type."""

    name: str
    kind: str


class FileLayout(NamedTuple):
    """Columns of a file, in order; delimiter and dialect of text; `lists`: columns of lists.

    header: whether the first row of text names the columns.
    """

    names: tuple[str, ...] = ()
    delimiter: str = ","
    header: bool = True
    lists: Collection[str] = ()
    dialect: Dialect = STANDARD


class Chunk(NamedTuple):
    """A part of a file: lines that begin in the bytes start..stop of its text, or the rows `rows`."""

    start: int
    stop: int
    rows: Any = None

    def bytes_of(self, source: Source) -> int:
        """Return the bytes of the file that the chunk covers; the last chunk may end beyond the file."""
        return min(self.stop, source.bytes) - self.start


MIN_ROW_BYTES = 41  # shortest row of text; data_prep/job.py relies on it


def table_layout(table: Table) -> tuple[list[str], FileLayout]:
    """Return the columns to read of a table, and the layout of its files."""
    columns = list(dict.fromkeys((*table.targets, *table.inputs)))
    lists = (*table.schema.ragged, *(vector.column for vector in table.vectors))  # that may hold lists
    return columns, FileLayout(table.names, table.delimiter, table.header, lists, table.dialect)


def row_bytes(table: Table) -> int:
    """Return the least memory of a table's row."""
    return max(MIN_ROW_BYTES, 4 + 8 * len(table.dense) + 4 * len(table.sparse))


class Format(ABC):
    """A file format; instances have no state.

    Attributes:
        name: name in messages and manifests.
        has_layout: whether delimiter and header apply.
        merges_columns: whether files, and first rows of a file, may lack columns that others have.
    """

    name: str
    has_layout = False
    merges_columns = False

    @abstractmethod
    def accepts(self, source: Source) -> bool:
        """Return whether a file has this format."""

    @abstractmethod
    def columns(self, source: Source, layout: FileLayout) -> list[Column]:
        """Return the columns of a file, in order; the names in `layout` do not matter."""

    @abstractmethod
    def chunks(self, source: Source, layout: FileLayout, row_bytes: int, chunk_bytes: int) -> list[Chunk]:
        """Divide the file into chunks of at most `chunk_bytes`, in row order; depends on the arguments alone.

        row_bytes: least memory of a row.
        """

    @abstractmethod
    def batches(
        self, source: Source, chunk: Chunk, columns: Sequence[str], layout: FileLayout
    ) -> Iterator[tuple[RawRows, int]]:
        """Yield some columns of a chunk, with the number of the file's bytes that each batch covers."""

    def num_rows(self, source: Source) -> int | None:
        """Return the rows of a file if its metadata holds them, otherwise None."""
        return None


class LineFormat(Format):
    """A format with one row per line of text; `batch_bytes` are parsed at once."""

    batch_bytes = 8 << 20

    def chunks(self, source: Source, layout: FileLayout, row_bytes: int, chunk_bytes: int) -> list[Chunk]:
        """Divide the file at multiples of `chunk_bytes`; a line belongs to the chunk in which it begins."""
        if source.compressed:
            # The length of its text is known only once it is inflated.
            return [Chunk(0, 1 << 62)]
        return [Chunk(start, start + chunk_bytes) for start in range(0, source.bytes, chunk_bytes)]

    def batches(
        self, source: Source, chunk: Chunk, columns: Sequence[str], layout: FileLayout
    ) -> Iterator[tuple[RawRows, int]]:
        """Yield some columns of a chunk, with the number of the file's bytes that each batch covers."""
        with LineBlocks(source, chunk.start) as lines:
            yield from self.batches_of(source, lines, chunk.stop, columns, layout)

    def batches_of(
        self, source: Source, lines: LineBlocks, stop: int, columns: Sequence[str], layout: FileLayout
    ) -> Iterator[tuple[RawRows, int]]:
        """Yield batches of the lines that begin before the offset `stop`, from an open reader: see `batches`."""
        parts: list[bytes] = []
        begin = 0
        for block in lines.read_until(stop):
            # A block is valid until the next one is read, so its bytes are copied.
            begin = begin if parts else block.offset
            parts.append(bytes(block.buffer[block.start : block.end]))
            if sum(map(len, parts)) >= self.batch_bytes:
                yield self._parse(b"".join(parts), columns, layout, source, begin), lines.advance()
                parts = []
        if parts:
            yield self._parse(b"".join(parts), columns, layout, source, begin), lines.advance()

    def _parse(self, text: bytes, columns: Sequence[str], layout: FileLayout, source: Source, offset: int) -> RawRows:
        """Parse whole lines, which begin at the byte `offset` of a source's text."""
        # Line 1 alone is special (names, a byte-order mark), so 2 stands for any other until an error needs its number.
        count_before, first = partial(self.lines_before, source, layout, offset), 2 if offset else 1
        try:
            fields, numbers = self.fields(text, columns, layout, source.path, first)
        except UserError:
            if offset:  # count lines only for an error
                self.fields(text, columns, layout, source.path, 1 + count_before())
            raise
        return RawRows(fields, len(numbers), lambda i: f"{source.path}: row {numbers[i] - first + 1 + count_before()}")

    @abstractmethod
    def fields(
        self, text: bytes, columns: Sequence[str], layout: FileLayout, name: str, row: int
    ) -> tuple[Mapping[str, Any], Sequence[int]]:
        """Parse whole lines that begin at line `row` of a file: the columns, and the number of each row's line.

        Raises UserError: an invalid row (file, row, remedy).
        """

    def lines_before(self, source: Source, layout: FileLayout, offset: int) -> int:
        """Count a source's lines before an offset of its text. Raise UserError if they are not rows."""
        return count_lines_before(source, offset)


def format_named(name: str) -> Format:
    """Return the format of FORMATS with that name, and import its module."""
    module, kind = FORMATS[name]
    form: Format = getattr(import_module(module), kind)()
    return form


def format_of(source: Source) -> Format:
    """Return the first format that accepts a file. Raise UserError if its name does not tell the form of JSON."""
    if suffix_of(source.name) == ".json":
        command = copy_command("jq -c '.[]'", source.path)
        raise UserError(f"{source.path}: name JSON lines .jsonl, and write an array one object a line: {command}.jsonl")
    return next(form for form in map(format_named, FORMATS) if form.accepts(source))


def suffix_of(name: str) -> str:
    """Return a file name's suffix in lower case, without a compression's."""
    return PurePath(without_packing(name)).suffix.lower()
