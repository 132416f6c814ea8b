"""Rows with the place in a file that an error names, and the block of columns that they become."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.dataset.spelling import Form

CORRECT = "correct or remove this row"
Locator = Callable[[int], str]  # returns the file and row of a row, or of a field, for an error


class RawRows(NamedTuple):
    """Rows as read: each column is an Arrow array or, for mixed types, a list of Python values, [rows].

    The locator counts the lines before a row; it raises UserError if they are not rows.
    """

    columns: Mapping[str, Any]
    rows: int
    locator: Locator

    def locator_of(self, column: str) -> Locator:
        """Return the locator of a column's fields."""
        return lambda index: f"{self.locator(index)}, column {column}"


def numbered_rows(name: str, numbers: Sequence[int]) -> Locator:
    """Return the locator of rows with these numbers in a file."""
    return lambda index: f"{name}: row {numbers[index]}"


class TextColumn(NamedTuple):
    """The categories of a sparse column; an empty field is "".

    values: a dictionary-encoded Arrow array (int32 indices, no nulls, no unused entries) of all texts in row order.
    form: spellings of the texts.
    offsets: [rows + 1] int64 from 0 for a multi-hot column: row r has values[offsets[r] : offsets[r + 1]]; otherwise
        None.
    """

    values: Any
    form: Form
    offsets: NDArray[np.int64] | None = None


class TableBlock(NamedTuple):
    """Parsed rows of a dataset's files or of new rows.

    labels [rows] int32, or float32 if they are numbers; dense [rows, N] float64, 0 for an empty field; categories: one
    entry per sparse column; positive_rows: number of rows with each of the table's `positive` labels; weights [rows]
    float32: sample weights of labelled rows, if the table has them.
    """

    labels: NDArray[Any]
    dense: NDArray[np.float64]
    categories: tuple[TextColumn, ...]
    positive_rows: tuple[int, ...] = ()
    weights: NDArray[np.float32] | None = None
