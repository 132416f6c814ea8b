"""Forms of files that hold a user's rows: a format is a module, and one row of FORMATS.

A format yields `Batch`es: columns by name and where their rows are. What columns become is for
data_prep/parsing/convert.py and extensions/sequences/event_parsing.py, which do not ask where they come from.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import PurePath
from typing import Any, NamedTuple

from common.errors import UserError
from data_prep.dataset.table_spec import FORMATS, Table
from data_prep.sources.discover import Source, without_packing
from data_prep.sources.line_blocks import LineBlocks, count_lines_before

CORRECT = "correct or remove this row"
Locator = Callable[[int], str]  # the file and the row of a batch's row, or of a field, for an error


class Batch(NamedTuple):
    """Rows as read: of each column an Arrow array, or, where types are mixed, a list of Python's values, [rows].

    A locator may raise UserError, where the lines before a row, which it counts, are no rows.
    """

    columns: Mapping[str, Any]
    rows: int
    locator: Locator

    def locator_of(self, column: str) -> Locator:
        """The locator of a column's fields."""
        return lambda index: f"{self.locator(index)}, column {column}"


def numbered_rows(name: str, numbers: Sequence[int]) -> Locator:
    """The locator of rows by their numbers in a file."""
    return lambda index: f"{name}: row {numbers[index]}"


class Column(NamedTuple):
    """A column; kind: text, integer, number, time, list, any, or the name of another type."""

    name: str
    kind: str


class Layout(NamedTuple):
    """The columns of a file's rows, in its order; of text what divides them and whether it begins with names; lists."""

    names: tuple[str, ...]
    delimiter: str = ","
    header: bool = True
    lists: Collection[str] = ()


class Size(NamedTuple):
    """What rows take in memory: least bytes of each; columns that hold any number of values."""

    row_bytes: int
    lists: Collection[str] = ()


class Chunk(NamedTuple):
    """A piece of a file: lines that begin at the bytes start..stop of its text, or some of its rows."""

    start: int
    stop: int
    rows: Any = None

    def bytes_of(self, source: Source) -> int:
        """Bytes of the file that it is about."""
        return min(self.stop, source.bytes) - self.start


BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MIN_ROW_BYTES = 41  # of a row's text, which data_prep/engine/memory_budget.py counts with


def table_layout(table: Table) -> tuple[list[str], Layout]:
    """The columns of a table that are read, and the layout of its files."""
    columns = list(dict.fromkeys((table.label, *table.inputs)))
    return columns, Layout(table.names, table.delimiter, table.header, table.schema.ragged)


def table_size(table: Table) -> Size:
    """What a table's rows take."""
    return Size(max(MIN_ROW_BYTES, 4 + 8 * len(table.dense) + 4 * len(table.sparse)), table.schema.ragged)


class Format(ABC):
    """A form of file; stateless.

    Attributes:
        name: in messages and manifests.
        has_layout: whether delimiter, header and the like have a meaning.
        merges_columns: whether files, and the first rows of each, may lack columns that others have.
    """

    name: str
    has_layout = False
    merges_columns = False

    @abstractmethod
    def is_of(self, source: Source) -> bool:
        """Return whether a file is of this form."""

    @abstractmethod
    def columns(self, source: Source, delimiter: str = ",", header: bool = True) -> list[Column]:
        """The columns of a file, in its order.

        Raises:
            UserError: the file is not readable.
        """

    @abstractmethod
    def chunks(self, source: Source, size: Size, chunk_bytes: int) -> list[Chunk]:
        """The file's chunks, each of at most `chunk_bytes`, in the order of its rows; a function of these alone."""

    @abstractmethod
    def batches(
        self, source: Source, chunk: Chunk, columns: Sequence[str], layout: Layout
    ) -> Iterator[tuple[Batch, int]]:
        """Some columns of a chunk of a file, and how many of the file's bytes were worked through for each batch.

        Raises:
            UserError: a damaged file, or rows that are none (file, row, remedy).
        """

    def num_rows(self, source: Source) -> int | None:
        """Rows of a file, where it says so itself."""
        return None


class LineFormat(Format):
    """A form of file with one row in each line of text, of which `batch_bytes` are parsed at once."""

    batch_bytes = 8 << 20

    def chunks(self, source: Source, size: Size, chunk_bytes: int) -> list[Chunk]:
        """See `Format`; a compressed file is one."""
        if source.compressed:
            return [Chunk(0, 1 << 62)]
        return [Chunk(start, start + chunk_bytes) for start in range(0, source.bytes, chunk_bytes)]

    def batches(
        self, source: Source, chunk: Chunk, columns: Sequence[str], layout: Layout
    ) -> Iterator[tuple[Batch, int]]:
        """See `Format`."""
        with LineBlocks(source, chunk.start) as lines:
            yield from self.batches_of(source, lines, chunk.stop, columns, layout)

    def batches_of(
        self, source: Source, lines: LineBlocks, stop: int, columns: Sequence[str], layout: Layout
    ) -> Iterator[tuple[Batch, int]]:
        """The same of lines that are being read, which begin before `stop`."""
        parts: list[bytes] = []
        begin = 0
        for block in lines.until(stop):
            begin = begin if parts else block.offset
            parts.append(bytes(block.buffer[block.start : block.end]))
            if sum(map(len, parts)) >= self.batch_bytes:
                yield self._parse(b"".join(parts), columns, layout, source, begin), lines.advance()
                parts = []
        if parts:
            yield self._parse(b"".join(parts), columns, layout, source, begin), lines.advance()

    def _parse(self, text: bytes, columns: Sequence[str], layout: Layout, source: Source, offset: int) -> Batch:
        """The rows of whole lines, which begin at a byte of a source's text."""
        count_before, first = partial(self.lines_before, source, layout, offset), 2 if offset else 1
        try:
            fields, numbers = self.fields(text, columns, layout, source.path, first)
        except UserError:
            if offset:  # only now is the row's number worth counting
                self.fields(text, columns, layout, source.path, 1 + count_before())
            raise
        return Batch(fields, len(numbers), lambda i: f"{source.path}: row {numbers[i] - first + 1 + count_before()}")

    @abstractmethod
    def fields(
        self, text: bytes, columns: Sequence[str], layout: Layout, name: str, row: int
    ) -> tuple[Mapping[str, Any], Sequence[int]]:
        """Columns as of `Batch`, and the number of each row's line, of whole lines that begin at line `row` of a file.

        Raises:
            UserError: rows that are none (file, row, remedy).
        """

    def lines_before(self, source: Source, layout: Layout, offset: int) -> int:
        """Lines of a source before an offset. Raises UserError where they are no rows."""
        return count_lines_before(source, offset)


def format_named(name: str) -> Format:
    """The format of that name in FORMATS."""
    module, kind = FORMATS[name]
    form: Format = getattr(import_module(module), kind)()
    return form


def format_of(source: Source) -> Format:
    """The first format that a file is of."""
    return next(form for form in map(format_named, FORMATS) if form.is_of(source))


def suffix_of(name: str) -> str:
    """The ending of a file's name in lower case, without that of a compression."""
    return PurePath(without_packing(name)).suffix.lower()
