"""Format of Parquet files, read in batches of rows.

A chunk is several row groups, or a part of one if the group exceeds the size of a chunk.
"""

import itertools
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import UserError
from data_prep.dataset.dialect import STANDARD, Dialect
from data_prep.parsing.convert import is_list_type
from data_prep.parsing.formats import NUMBER_LIST, Chunk, Column, FileLayout, Format, Size
from data_prep.parsing.raw_rows import RawRows
from data_prep.sources.discover import Source

MAGIC = b"PAR1"
BATCH_ROWS = 1 << 16  # at most, since repeated texts are larger in memory than in the file
BATCH_BYTES = 16 << 20  # size of a batch in pyarrow's memory, and of its read-ahead over all columns
BUFFER_BYTES, MIN_BUFFER_BYTES = 1 << 20, 1 << 14
FIELD_BYTES, LIST_VALUE_BYTES = 8, 16  # memory of a field, and of a value in a list, during reading
VALUE_TEXT_BYTES = 2  # text of a value in a list; the chunk size of data_prep/config/keys.py assumes it


class RowRange(NamedTuple):
    """Rows first..first + rows within the row groups groups[0]..groups[1].

    `row` is the number of the groups' first row in the file, from 0.
    """

    groups: tuple[int, int]
    first: int
    rows: int
    row: int


class Parquet(Format):
    """Format of Parquet files."""

    name = "parquet"

    def is_of(self, source: Source) -> bool:
        """Return whether the file begins with Parquet's magic bytes."""
        with open(source.path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC

    def columns(
        self, source: Source, delimiter: str = ",", header: bool = True, dialect: Dialect = STANDARD
    ) -> list[Column]:
        """Return the columns of the file's schema, and its partition columns, which are text."""
        own = [Column(field.name, _kind(field.type)) for field in _open(source).schema_arrow]
        return own + [Column(name, "any") for name, _ in source.partitions]

    def num_rows(self, source: Source) -> int:
        """Return the number of rows in the file's metadata."""
        return int(_open(source).metadata.num_rows)

    def chunks(self, source: Source, size: Size, chunk_bytes: int) -> list[Chunk]:
        """Divide by uncompressed size, at least `size.row_bytes` a row: rows may take hardly any space in the file."""
        metadata = _open(source).metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        sizes = [
            max(
                group.total_byte_size,
                size.row_bytes * group.num_rows + VALUE_TEXT_BYTES * _list_values(group, size.lists),
            )
            for group in groups
        ]
        ranges = cut_groups([group.num_rows for group in groups], sizes, chunk_bytes)
        ends = [source.bytes * (each.row + each.first + each.rows) // max(1, metadata.num_rows) for each in ranges]
        return [Chunk(start, stop, rows) for start, stop, rows in zip([0, *ends], ends, ranges, strict=False)]

    def batches(
        self, source: Source, chunk: Chunk, columns: Sequence[str], layout: FileLayout
    ) -> Iterator[tuple[RawRows, int]]:
        """Yield batches of as many rows as pyarrow holds in about BATCH_BYTES."""
        partitions = {name: value for name, value in source.partitions if name in columns}
        own = [name for name in columns if name not in partitions]
        rows, key = chunk.rows, (source, chunk.rows.groups, *own)
        reader = _unfinished.pop(key, None)
        _unfinished.clear()
        if reader is None or reader.position > rows.first:
            reader = _GroupReader(source, rows, own, layout.lists)
        row_bytes = source.bytes / max(1, reader.metadata.num_rows)
        try:
            for first, part in reader.read(rows.first, rows.first + rows.rows):
                locator = partial(_locate, source.path, reader.metadata, rows.row + first)
                fields = {name: part.column(name) for name in own}
                for name, value in partitions.items():
                    fields[name] = pa.repeat(pa.scalar(value, pa.string()), len(part))
                yield RawRows(fields, len(part), locator), int(row_bytes * len(part))
        except OSError as error:
            raise UserError(
                f"{source.path}: row groups {rows.groups[0]} to {rows.groups[1] - 1}: damaged "
                f"({' '.join(str(error).split())}); get it again"
            ) from error
        if reader.position < reader.rows:
            _unfinished[key] = reader


class _GroupReader:
    """Reader of some row groups for one chunk after another, since pyarrow cannot begin inside a group.

    Attributes:
        rows: rows of the groups; position: rows read so far.
    """

    def __init__(self, source: Source, chunk: RowRange, columns: Sequence[str], lists: Collection[str]) -> None:
        file, groups = _open(source, max(1, len(columns))), range(*chunk.groups)
        self.metadata = file.metadata
        of_groups = [self.metadata.row_group(i) for i in groups]
        self.rows, self.position = sum(group.num_rows for group in of_groups), 0
        values = sum(_list_values(group, lists) for group in of_groups) / max(1, self.rows)
        row_bytes = FIELD_BYTES * max(1, len(columns)) + LIST_VALUE_BYTES * values
        most = max(1, min(BATCH_ROWS, int(BATCH_BYTES / row_bytes)))
        size = -(-chunk.rows // -(-chunk.rows // most))  # batches end where these groups' chunks end
        # pyarrow reads lists of dictionary entries only group by group.
        at_once = [[group] for group in groups] if _has_dictionary_lists(file, columns) else [groups]
        self._batches = itertools.chain.from_iterable(
            file.iter_batches(size, row_groups=each, columns=list(columns), use_threads=False) for each in at_once
        )
        self._rest: Any = None  # unread rows of the last batch

    def read(self, start: int, stop: int) -> Iterator[tuple[int, Any]]:
        """Yield batches of the rows start..stop, each with the number of its first row; skip the rows before."""
        while self.position < stop:
            batch = next(self._batches, None) if self._rest is None else self._rest
            if batch is None:
                raise OSError("fewer rows than its end says")
            first, end = max(start - self.position, 0), min(stop - self.position, len(batch))
            self._rest = batch.slice(end) if end < len(batch) else None
            begin, self.position = self.position + first, self.position + end
            if first < end:
                yield begin, batch.slice(first, end - first)


_unfinished: dict[Any, _GroupReader] = {}  # the last reader, until a thread takes it for the next chunk


def close_reader() -> None:
    """Close the file that this process has not read to its end."""
    _unfinished.clear()


def _locate(path: str, metadata: Any, first: int, index: int) -> str:
    """Locate a row of a batch that begins with the file's row `first`, from 0."""
    row, group = first + index, 0
    for group in range(metadata.num_row_groups):
        if row < metadata.row_group(group).num_rows:
            break
        row -= metadata.row_group(group).num_rows
    return f"{path}: row group {group}, row {row + 1} of it"


def cut_groups(rows: list[int], sizes: list[int], chunk_bytes: int) -> list[RowRange]:
    """Divide row groups, given their rows and sizes, into ranges of at most `chunk_bytes`."""
    chunks: list[RowRange] = []
    begin = group = 0
    while group < len(sizes):
        stop, size = group + 1, sizes[group]
        while stop < len(sizes) and size + sizes[stop] <= chunk_bytes:
            size += sizes[stop]
            stop += 1
        total = sum(rows[group:stop])
        step = max(1, -(-total // max(1, -(-size // chunk_bytes))))
        chunks += [RowRange((group, stop), first, min(step, total - first), begin) for first in range(0, total, step)]
        begin += total
        group = stop
    return chunks


def _open(source: Source, num_columns: int = 1) -> Any:
    """Open the file with a buffer for each of `num_columns` columns. Raise UserError if it is not readable."""
    buffer = max(MIN_BUFFER_BYTES, min(BUFFER_BYTES, BATCH_BYTES // num_columns))
    try:
        return pq.ParquetFile(source.path, buffer_size=buffer, pre_buffer=False)
    except (OSError, pa.ArrowInvalid) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{source.path}: not readable as Parquet ({reason}); get it again") from error


def _list_values(group: Any, lists: Collection[str]) -> int:
    """Count the values in a row group's list columns."""
    columns = (group.column(i) for i in range(group.num_columns))
    return sum(column.num_values for column in columns if column.path_in_schema.partition(".")[0] in lists)


def _has_dictionary_lists(file: Any, columns: Sequence[str]) -> bool:
    data_types = [file.schema_arrow.field(name).type for name in columns]
    return any(is_list_type(each) and pa.types.is_dictionary(each.value_type) for each in data_types)


def _kind(data_type: Any) -> str:
    """Return the kind of a column for `Column`."""
    types = pa.types
    if types.is_dictionary(data_type):
        data_type = data_type.value_type
    if types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type):
        return "text"
    if types.is_integer(data_type) or types.is_boolean(data_type):
        return "integer"
    if types.is_floating(data_type) or types.is_decimal(data_type):
        return "number"
    if types.is_timestamp(data_type) or types.is_date(data_type):
        return "time"
    member = _kind(data_type.value_type) if is_list_type(data_type) else ""
    return {"text": "list", "integer": "list", "null": "list", "number": NUMBER_LIST}.get(member, str(data_type))
