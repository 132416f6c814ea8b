"""Rows of a user's own table, of whatever form of file: labels, numbers, and categories as distinct texts and codes."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa


class TextBags(NamedTuple):
    """The values of a column that holds any number of them: those of row r are values[offsets[r] : offsets[r + 1]].

    values: dictionary-encoded as a column of `TableBlock.categories`. offsets [rows + 1] int64 begin at 0.
    """

    values: "pa.DictionaryArray"
    offsets: NDArray[np.int64]


class TableBlock(NamedTuple):
    """Consecutive rows.

    labels [rows] int32; dense [rows, N] float64, 0 where the field is empty. `categories`: of each column of
    `Schema.single`, int32 indices without nulls into a pa.string() dictionary of distinct texts, "" being an empty
    field; `bags`: of each column of `Schema.ragged`.
    """

    labels: NDArray[np.int32]
    dense: NDArray[np.float64]
    categories: "tuple[pa.DictionaryArray, ...]"
    bags: tuple[TextBags, ...] = ()
