"""Rows of a user's own table as parsed: labels, numbers, and categories as text."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.dataset.spelling import Form


class TextColumn(NamedTuple):
    """The categories of a sparse column, "" where a field is empty.

    values: an Arrow array of a dictionary of distinct texts, each of which occurs (int32 indices, no nulls): one a row,
    or, of a multi-valued column, those of row r from offsets[r] to offsets[r + 1]; form: how they are spelled; offsets:
    [rows + 1] int64, from 0, None of a single-valued column.
    """

    values: Any
    form: Form
    offsets: NDArray[np.int64] | None = None


class TableBlock(NamedTuple):
    """Parsed rows, of given files and of new rows alike.

    labels [rows] int32, or float32 where they are numbers; dense [rows, N] float64, 0 where a field is empty;
    categories: of each sparse column.
    """

    labels: NDArray[Any]
    dense: NDArray[np.float64]
    categories: tuple[TextColumn, ...]
