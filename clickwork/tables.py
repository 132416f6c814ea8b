"""Tables of other libraries as new rows: what has Arrow's C interface, dicts, and iterables of either."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from common.errors import UserError

if TYPE_CHECKING:
    from data_prep.encoding.new_rows import NewRows

PIECE_ROWS = 1 << 16  # parsed at once
REMEDY = "give a pandas, polars or Arrow table, record batches, or dicts"


class ArrowStream(Protocol):
    """A table of any library with Arrow's C interface: pandas (2.2 or newer), polars, pyarrow, and others."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


# One dict is one row; an iterable has dicts, or tables such as record batches.
TableLike: TypeAlias = ArrowStream | Mapping[str, Any] | Iterable[Any]


def pieces_of(table: TableLike, name: str = "table", size: int = PIECE_ROWS) -> "Iterator[NewRows]":
    """Yield the rows of a table in pieces of at most `size`; an iterable is asked for each table when it is needed.

    Args:
        table: see `TableLike`.
        name: of the table in errors, in which its rows are numbered from 1.
        size: rows of a piece.

    Raises:
        UserError: not a table, or two columns of one name.
    """
    first = 1
    for piece in _pieces(table, name, size):
        rows = _rows_of(piece, name, first)
        first += len(rows.numbers)
        yield rows


def one_piece(table: TableLike, name: str) -> "NewRows":
    """Return all rows of a table that fits in memory. Raises UserError as `pieces_of`, or for several tables."""
    import pyarrow as pa

    from data_prep.encoding.new_rows import NewRows

    if hasattr(table, "__arrow_c_stream__"):
        with _readable(name):
            table = pa.table(table).combine_chunks()
    pieces = [*pieces_of(table, name, sys.maxsize)] or [NewRows(name, {}, ())]
    if len(pieces) > 1:
        raise UserError(f"{name}: several tables; give one")
    return pieces[0]


def _pieces(table: Any, name: str, size: int) -> Iterator[Any]:
    """Yield lists of dicts, or Arrow's record batches."""
    if hasattr(table, "__arrow_c_stream__"):
        for batch in _batches(table, name):
            yield from (batch.slice(start, size) for start in range(0, batch.num_rows, size))
    elif isinstance(table, Mapping):
        yield [table]
    elif isinstance(table, Iterable) and not isinstance(table, str | bytes):
        items = iter(table)
        for item in items:
            if isinstance(item, Mapping):
                yield [item, *islice(items, size - 1)]
            elif hasattr(item, "__arrow_c_stream__"):
                yield from _pieces(item, name, size)
            else:
                raise UserError(f"{name}: {type(item).__name__} in it is not a row; {REMEDY}")
    else:
        raise UserError(f"{name}: {type(table).__name__} is not a table; {REMEDY}")


def _batches(table: ArrowStream, name: str) -> Iterator[Any]:
    import pyarrow as pa

    with _readable(name):
        yield from pa.RecordBatchReader.from_stream(table)


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Context in which a library's failure to give its table to Arrow is a UserError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, TypeError, ValueError) as error:  # pandas', of sparse columns, and two of one name
        raise UserError(f"{name}: not readable through Arrow's interface ({str(error).splitlines()[0]})") from error


def _rows_of(piece: Any, name: str, first: int) -> "NewRows":
    """Return a list of dicts, or a record batch, whose first row has the number `first`."""
    from data_prep.encoding.new_rows import NewRows, require_distinct, rows_of_objects
    from data_prep.parsing.convert import without_nan
    from data_prep.parsing.in_memory import plain_value

    if not isinstance(piece, list):
        require_distinct(name, piece.schema.names, None)
        columns = dict(zip(piece.schema.names, map(without_nan, piece.columns), strict=True))
        return NewRows(name, columns, range(first, first + piece.num_rows))
    for number, row in enumerate(piece, first):
        if not isinstance(row, Mapping):
            raise UserError(f"{name}: row {number}: {type(row).__name__}, not a dict; {REMEDY}")
    objects = {
        number: {str(key): plain_value(value) for key, value in row.items()} for number, row in enumerate(piece, first)
    }
    return rows_of_objects(name, objects)
