"""Which rows of a Parquet file are worked on together: units, and batches within them, by the memory they take."""

from typing import Any, NamedTuple

from common.errors import UserError
from data_prep.dataset.table_spec import Table
from data_prep.sources.discover import Source

BLOCK_ROWS = 1 << 16
BATCH_BYTES = 16 << 20  # of a batch of rows as pyarrow holds it, and of what it reads ahead, all columns together
BUFFER_BYTES, LEAST_BUFFER_BYTES = 1 << 20, 1 << 14
FIELD_BYTES, LIST_VALUE_BYTES = 8, 16  # of a field, and of a value in a list, on their way
VALUE_TEXT_BYTES = (
    2  # of a value in a field of many, as text: data_prep/config/keys.py's chunk for such columns counts so
)
LEAST_ROW_BYTES = 41  # of a row's text, which data_prep/engine/memory_budget.py counts with


class RowRange(NamedTuple):
    """Rows first..first + rows of the row groups groups[0]..groups[1] taken together.

    `row` is the number of the first of these groups' rows in the file, from 0.
    """

    groups: tuple[int, int]
    first: int
    rows: int
    row: int


def plan_units(source: Source, table: Table, chunk_bytes: int) -> list[RowRange]:
    """The file's work units, in the order of its rows; `chunk_bytes` is what a unit may have, uncompressed.

    In the file and, as rows may take hardly any room there, in memory, where each counts as LEAST_ROW_BYTES at least.
    """
    row_bytes = max(LEAST_ROW_BYTES, 4 + 8 * len(table.dense) + 4 * len(table.sparse))
    metadata = open_parquet(source).metadata
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rows = [group.num_rows for group in groups]
    sizes = [
        max(group.total_byte_size, row_bytes * group.num_rows + VALUE_TEXT_BYTES * _list_values(group, table))
        for group in groups
    ]
    units: list[RowRange] = []
    begin = group = 0
    while group < len(sizes):
        stop, size = group + 1, sizes[group]
        while stop < len(sizes) and size + sizes[stop] <= chunk_bytes:
            size += sizes[stop]
            stop += 1
        total = sum(rows[group:stop])
        step = max(1, -(-total // max(1, -(-size // chunk_bytes))))
        units += [RowRange((group, stop), first, min(step, total - first), begin) for first in range(0, total, step)]
        begin += total
        group = stop
    return units


def _list_values(group: Any, table: Table) -> int:
    """How many values the fields of a row group's multi-valued columns hold, where they are lists."""
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
    """The file, with a buffer for each of so many columns. Raises UserError if it is not readable."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UserError(f"{source.path}: Parquet needs pyarrow; install it, or convert the file to CSV") from error
    buffer = max(LEAST_BUFFER_BYTES, min(BUFFER_BYTES, BATCH_BYTES // num_columns))
    try:
        return pq.ParquetFile(source.path, buffer_size=buffer, pre_buffer=False)
    except (OSError, pa.ArrowInvalid) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{source.path}: not readable as Parquet ({reason}); get it again") from error
