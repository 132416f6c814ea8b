"""Categories as text to the values that they are known by."""

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.dataset.bags import Bags
from data_prep.parsing.criteo import Block
from data_prep.parsing.table_block import TableBlock


def to_block(block: TableBlock) -> Block:
    """A table's rows with each category as its value."""
    sparse = np.empty((len(block.labels), len(block.categories)), np.uint32)
    for i, column in enumerate(block.categories):
        sparse[:, i] = _values(column)
    bags = tuple(Bags(_values(each.values), each.offsets) for each in block.bags)
    return Block(block.labels, block.dense, sparse, bags)  # type: ignore[arg-type]  # real numbers instead of int32


def _values(column: Any) -> NDArray[np.uint32]:
    sums = np.array([zlib.crc32(text.encode()) for text in column.dictionary.to_pylist()], np.uint32)
    return sums[column.indices.to_numpy()]
