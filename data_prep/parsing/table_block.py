"""Rows of a user's own table as parsed: labels, numbers, and categories as text."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class TextBags(NamedTuple):
    """The categories of a multi-valued column: those of row r are values[offsets[r] : offsets[r + 1]].

    values: an Arrow array of a dictionary of distinct texts, without nulls; offsets: [rows + 1], from 0.
    """

    values: Any
    offsets: NDArray[np.int64]


class TableBlock(NamedTuple):
    """Parsed rows, of given files and of new rows alike.

    labels [rows] int32, or float32 where they are numbers; dense [rows, N] float64, 0 where a field is empty;
    categories: of each single-valued sparse column an Arrow array [rows] of a dictionary of distinct texts (int32
    indices, no nulls; "" where a field is empty); bags: of each multi-valued one; forms: of each sparse column how its
    values are spelled, as `data_prep.dataset.spelling.Form`.
    """

    labels: NDArray[Any]
    dense: NDArray[np.float64]
    categories: tuple[Any, ...]
    bags: tuple[TextBags, ...]
    forms: tuple[int, ...] = ()
