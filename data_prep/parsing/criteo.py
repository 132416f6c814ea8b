r"""Bytes of a Criteo TSV to typed columns: the hot path.

A row is label, N integers, F hexadecimal categories, separated by tabs, ended by \n or \r\n. Rows are parsed in
batches, and one by one where a batch has something unusual in it, up to the first row that is none;
`diagnose_row` says why.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from common.jit import jit
from data_prep.dataset.bags import Bags
from data_prep.dataset.schema import CRITEO, Schema
from data_prep.parsing.criteo_batch import AT_ONCE, BATCH_BYTES, batch_room, parse_batch
from data_prep.parsing.criteo_row import NEWLINE, parse_rows
from data_prep.parsing.diagnose import diagnose_row

PADDING = AT_ONCE  # readable bytes behind the last row
MISSING_INTEGER = np.int32(-(2**31))
MISSING_CATEGORY = np.uint32(0)


class Block(NamedTuple):
    """Parsed rows.

    labels [rows] int32; dense [rows, N] int32, MISSING_INTEGER where the field is empty; sparse [rows, F]
    uint32, 0 where the field is empty (as in TorchRec, where it is a value like any other). Of a user's own table
    dense is float64, and `bags` has the values of the columns that hold any number of them, which `sparse` lacks.
    """

    labels: NDArray[np.int32]
    dense: NDArray[np.int32]
    sparse: NDArray[np.uint32]
    bags: tuple[Bags, ...] = ()


@jit
def parse_lines(buffer, start, end, labelled, missing, labels, dense, sparse):  # type: ignore[no-untyped-def]
    """Parse the whole lines in buffer[start:end], which ends with a newline and has PADDING bytes behind.

    Args:
        buffer: uint8; start, end: positions of the first row and behind the last.
        labelled: whether a row begins with the label (else labels become 0).
        missing: int32 written for an empty integer.
        labels, dense, sparse: outputs as in `Block`, with room for all rows.

    Returns:
        (rows parsed, position of the first row not parsed): that position is `end` if all went well.
    """
    room = batch_room()
    position = start
    row = 0
    while position < end:
        batch_end = min(position + BATCH_BYTES, end)
        rows, behind = parse_batch(buffer, position, batch_end, labelled, missing, row, labels, dense, sparse, room)
        if rows == 0:
            rows, behind = parse_rows(buffer, position, batch_end, end, labelled, missing, row, labels, dense, sparse)
        if rows == 0:
            break
        row += rows
        position = behind
    return row, position


def empty_block(rows: int, schema: Schema = CRITEO) -> Block:
    """A block with room for `rows` rows, not initialised."""
    return Block(
        labels=np.empty(rows, np.int32),
        dense=np.empty((rows, len(schema.dense)), np.int32),
        sparse=np.empty((rows, len(schema.sparse)), np.uint32),
    )


def max_rows(num_bytes: int, schema: Schema = CRITEO, labelled: bool = True) -> int:
    """The most rows that `num_bytes` can hold: all fields empty but the label."""
    shortest = len(schema.columns) + 1 if labelled else len(schema.columns) - 1
    return num_bytes // shortest + 1


def parse_bytes(
    data: bytes,
    name: str,
    schema: Schema = CRITEO,
    labelled: bool = True,
    first_row: int = 1,
    missing: np.int32 = MISSING_INTEGER,
) -> Block:
    """Parse rows held in memory, e.g. candidates to be scored.

    Args:
        data: whole rows; the last may lack its newline.
        name: what to call the source in an error.
        labelled: False for rows without the label column; their labels are 0.
        first_row: the number of the first row, for an error.
        missing: what an empty integer becomes.

    Raises:
        UserError: no rows, or a row that does not fit the schema (file, row, column, remedy).
    """
    if not data:
        raise UserError(f"{name}: empty file; give at least one row")
    buffer = np.zeros(len(data) + 1 + PADDING, np.uint8)
    buffer[: len(data)] = np.frombuffer(data, np.uint8)
    end = len(data)
    if data[-1] != NEWLINE:
        buffer[end] = NEWLINE
        end += 1
    block = empty_block(max_rows(end, schema, labelled), schema)
    rows, position = parse_lines(buffer, 0, end, labelled, missing, *block[:3])
    if position != end:
        line = bytes(buffer[position:end]).split(b"\n", 1)[0]
        is_last = position + len(line) + 1 >= end
        raise UserError(diagnose_row(line, name, first_row + rows, schema, labelled, is_last))
    return Block(block.labels[:rows], block.dense[:rows], block.sparse[:rows])
