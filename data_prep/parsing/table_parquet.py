"""A user's own table in Parquet: its columns, its chunks, and its rows block by block.

A chunk is some row groups, or a part of one where a group is larger than a chunk may be; which, depends on the file
and `chunk_bytes` alone. Values are read column by column.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.dataset.bags import offsets_of
from data_prep.dataset.table_spec import DatePart, Table
from data_prep.parsing.dates import part_of, read_times
from data_prep.parsing.table_block import TableBlock, TextBags
from data_prep.parsing.table_csv import encode_texts, number_texts, too_large
from data_prep.sources.discover import Source

BLOCK_ROWS = 1 << 16
BATCH_BYTES = 16 << 20  # of a batch of rows as pyarrow holds it, and of what it reads ahead, all columns together
BUFFER_BYTES, MIN_BUFFER_BYTES = 1 << 20, 1 << 14
FIELD_BYTES, LIST_VALUE_BYTES = 8, 16  # of a field, and of a value in a list, on their way
VALUE_TEXT_BYTES = (
    2  # of a value in a field of many, as text: data_prep/config/keys.py's chunk for such columns counts so
)
MIN_ROW_BYTES = 41  # of a row's text, which data_prep/engine/memory_budget.py counts with


class RowRange(NamedTuple):
    """Rows first..first + rows of the row groups groups[0]..groups[1] taken together.

    `row` is the number of the first of these groups' rows in the file, from 0.
    """

    groups: tuple[int, int]
    first: int
    rows: int
    row: int


def plan_chunks(source: Source, table: Table, chunk_bytes: int) -> list[RowRange]:
    """The file's chunks, in the order of its rows; `chunk_bytes` is the maximum size of one, uncompressed.

    In the file and, as rows may take hardly any space there, in memory, where each counts as MIN_ROW_BYTES at least.
    """
    row_bytes = max(MIN_ROW_BYTES, 4 + 8 * len(table.dense) + 4 * len(table.sparse))
    metadata = open_parquet(source).metadata
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    sizes = [
        max(group.total_byte_size, row_bytes * group.num_rows + VALUE_TEXT_BYTES * _list_values(group, table))
        for group in groups
    ]
    return cut_groups([group.num_rows for group in groups], sizes, chunk_bytes)


def cut_groups(rows: list[int], sizes: list[int], chunk_bytes: int) -> list[RowRange]:
    """Chunks of at most `chunk_bytes` of row groups, given their rows and sizes."""
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


def _list_values(group: Any, table: Table) -> int:
    """Count the values in a row group's multi-valued columns that are lists."""
    columns = (group.column(i) for i in range(group.num_columns))
    return sum(
        column.num_values for column in columns if column.path_in_schema.partition(".")[0] in table.schema.ragged
    )


def batch_rows(metadata: Any, table: Table, groups: tuple[int, int]) -> int:
    """Rows read at once, of which pyarrow holds about BATCH_BYTES."""
    chosen = [metadata.row_group(i) for i in range(*groups)]
    rows = max(1, sum(group.num_rows for group in chosen))
    values = sum(_list_values(group, table) for group in chosen)
    row_bytes = FIELD_BYTES * len(table.schema.columns) + LIST_VALUE_BYTES * values / rows
    return max(1, min(BLOCK_ROWS, int(BATCH_BYTES / row_bytes)))


def open_parquet(source: Source, num_columns: int = 1) -> Any:
    """The file, with a buffer for each of `num_columns` columns. Raises UserError if it is not readable."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UserError(f"{source.path}: Parquet needs pyarrow; install it, or convert the file to CSV") from error
    buffer = max(MIN_BUFFER_BYTES, min(BUFFER_BYTES, BATCH_BYTES // num_columns))
    try:
        return pq.ParquetFile(source.path, buffer_size=buffer, pre_buffer=False)
    except (OSError, pa.ArrowInvalid) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{source.path}: not readable as Parquet ({reason}); get it again") from error


MAGIC = b"PAR1"


def is_parquet(source: Source) -> bool:
    """Return whether a file is Parquet, by its first bytes."""
    with open(source.path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def column_kinds(source: Source) -> dict[str, str]:
    """The kind of each column: text, integer, number, time, list (of text or integers), or the name of another type.

    Raises:
        UserError: not readable as Parquet.
    """
    schema = open_parquet(source).schema_arrow
    return {field.name: _kind(field.type) for field in schema}


def num_rows(source: Source) -> int:
    """Rows of the file."""
    return int(open_parquet(source).metadata.num_rows)


def read_chunk(source: Source, table: Table, chunk: RowRange, max_number: float = np.inf) -> Iterator[TableBlock]:
    """The rows of a chunk, block by block, as `data_prep.parsing.table_csv.parse_table` gives them.

    Raises:
        UserError: a value that does not fit (file, row group, row, column, remedy), or a damaged file.
    """
    columns = dict.fromkeys((table.label, *table.inputs))
    file = open_parquet(source, len(columns))
    for batch, where in read_batches(
        file, source, list(columns), chunk, batch_rows(file.metadata, table, chunk.groups)
    ):
        yield _block(batch, table, where, max_number)


def read_batches(
    file: Any, source: Source, columns: list[str], chunk: RowRange, rows: int
) -> Iterator[tuple[Any, "Where"]]:
    """The columns of a chunk of an open file, at most `rows` rows at once, and where each batch is.

    Raises:
        UserError: a damaged file.
    """
    position = 0
    batches = file.iter_batches(rows, row_groups=range(*chunk.groups), columns=columns, use_threads=False)
    try:
        for batch in batches:
            start, stop = max(chunk.first - position, 0), min(chunk.first + chunk.rows - position, batch.num_rows)
            if start < stop:
                where = Where(source.path, file.metadata, chunk.row + position + start)
                yield batch.slice(start, stop - start), where
            position += batch.num_rows
            if position >= chunk.first + chunk.rows:
                return
    except OSError as error:
        raise UserError(f"{source.path}: row groups {chunk.groups[0]} to {chunk.groups[1] - 1}: damaged "
                        f"({' '.join(str(error).split())}); get it again") from error  # fmt: skip


class Where(NamedTuple):
    """A Parquet file and the number of a row in it, from 0."""

    path: str
    metadata: Any
    row: int

    def error(self, offset: int, column: str, fault: str, remedy: str = "correct or remove this row") -> UserError:
        """About the row `offset` rows further on."""
        row = self.row + offset
        group = 0
        for group in range(self.metadata.num_row_groups):
            if row < self.metadata.row_group(group).num_rows:
                break
            row -= self.metadata.row_group(group).num_rows
        where = f"{self.path}: row group {group}, row {row + 1} of it, column {column}"
        return UserError(f"{where}: {fault}; {remedy}")


def _block(batch: Any, table: Table, where: Where, max_number: float) -> TableBlock:
    numbers = _numbers(batch.column(table.label), where, table.label, None, np.inf)
    labels, bad = table.apply_rule(numbers)
    if bad is not None:
        raise where.error(bad, table.label, f"{numbers[bad]:g} is not a label (0 or 1), and the schema has no rule")
    parts = {part.feature: _date_part(batch.column(part.column), where, part) for part in table.parts}
    dense = np.empty((len(labels), len(table.dense)))
    for i, column in enumerate(table.dense):
        if column in parts:
            dense[:, i] = parts[column][0]
        else:
            dense[:, i] = _numbers(batch.column(column), where, column, 0.0, max_number)
    categories = tuple(
        encode_texts(number_texts(*parts[column]))
        if column in parts
        else _categories(_as_integers(batch.column(column), where, column))
        for column in table.schema.single
    )
    separators = dict(table.separators)
    bags = tuple(_bags(batch.column(column), separators[column]) for column in table.schema.ragged)
    return TableBlock(labels, dense, categories, bags)


def _date_part(array: Any, where: Where, part: DatePart) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A part of dates and times, or of text or seconds that stand for them; see `part_of`."""
    import pyarrow as pa

    if _kind(array.type) == "time":
        return part_of(array.to_numpy(zero_copy_only=False).astype("M8[s]"), part.part)
    texts = [text or "" for text in array.cast(pa.string()).to_pylist()]
    try:
        return part_of(read_times(texts, part.format), part.part)
    except ValueError as error:
        raise where.error(error.args[0], part.column, f"{texts[error.args[0]][:40]!a} is not a time") from error


def _numbers(array: Any, where: Where, column: str, empty: float | None, max_number: float) -> NDArray[np.float64]:
    """Finite numbers of at most `max_number`; `empty` replaces nulls; None: nulls are errors."""
    import pyarrow as pa

    nulls = array.is_null().to_numpy(zero_copy_only=False)
    if empty is None and nulls.any():
        raise where.error(int(nulls.argmax()), column, "no value")
    filled: NDArray[np.float64] = array.cast(pa.float64(), safe=False).fill_null(empty or 0.0).to_numpy()
    good = np.isfinite(filled)
    if not good.all():
        raise where.error(int(good.argmin()), column, f"{filled[good.argmin()]} is not a number")
    good = np.abs(filled) <= max_number
    if not good.all():
        raise where.error(int(good.argmin()), column, too_large(filled[good.argmin()], max_number))
    return filled


def _as_integers(array: Any, where: Where, column: str) -> Any:
    """Integers where a column has them as numbers with a fraction, as one with gaps often does, or as truths."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_boolean(array.type):
        return array.cast(pa.int8())
    if not pa.types.is_floating(array.type):
        return array
    values = array.to_numpy(zero_copy_only=False)
    good = array.is_null().to_numpy(zero_copy_only=False) | (np.abs(values) < 2**53) & (values == np.rint(values))
    if not good.all():
        index = int(good.argmin())
        raise where.error(index, column, f"{values[index]} is not a category: text or an integer")
    return pc.cast(array, pa.int64(), safe=False)


def _categories(array: Any) -> Any:
    """A column as `TableBlock` has it, a null's text being none."""
    import pyarrow as pa

    encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    texts = encoded.dictionary.cast(pa.string()).to_pylist()
    numbers = encoded.indices.cast(pa.int64()).fill_null(len(texts)).to_numpy()
    text_of = pa.array([text or "" for text in texts] + [""], pa.string()).dictionary_encode()
    return pa.DictionaryArray.from_arrays(text_of.indices.to_numpy()[numbers], text_of.dictionary)


def _bags(array: Any, separator: str) -> TextBags:
    """The categories in fields that hold any number of them; a null field, or an empty one, holds none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if separator:
        if pa.types.is_dictionary(array.type):
            array = array.cast(pa.string())
        array = pc.split_pattern(array, separator)
    lengths = pc.list_value_length(array).fill_null(0).to_numpy()
    values = array.flatten()  # nulls and what lies under them left out
    kept = values.is_valid()
    if separator:
        kept = pc.and_(kept, pc.not_equal(values, ""))
    mask = kept.to_numpy(zero_copy_only=False)
    before = offsets_of(mask)
    return TextBags(_categories(values.filter(kept)), before[offsets_of(lengths)])


def _kind(data_type: Any) -> str:
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(data_type):
        data_type = data_type.value_type
    if types.is_string(data_type) or types.is_large_string(data_type):
        return "text"
    if types.is_integer(data_type) or types.is_boolean(data_type):
        return "integer"
    if types.is_floating(data_type) or types.is_decimal(data_type):
        return "number"
    if types.is_timestamp(data_type) or types.is_date(data_type):
        return "time"
    is_list = types.is_list(data_type) or types.is_large_list(data_type)
    if not is_list or types.is_dictionary(data_type.value_type):  # lists of dictionary entries pyarrow cannot stream
        return str(data_type)
    return "list" if _kind(data_type.value_type) in ("text", "integer") else str(data_type)
