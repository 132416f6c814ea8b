"""Bags of ids, any number of ids in each: part of the on-disk contract beside data_prep/dataset/format.py.

A shard with R multi-hot features and n rows has `values` [L] int32, the ids of the first such feature's bags row by
row, then those of the next, and `offsets` [R * n + 1] int64: the bag of row r of feature f is
values[offsets[f * n + r] : offsets[f * n + r + 1]]. That is also how a batch holds them (feature-major, as in
TorchRec's KeyedJaggedTensor).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BAG_KINDS = ("values", "offsets")


class Bags(NamedTuple):
    """The bags of n rows of one feature: that of row r is values[offsets[r] : offsets[r + 1]].

    offsets [n + 1] int64 need not begin at 0, so that slices are views.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    @property
    def ids(self) -> NDArray[Any]:
        """The ids of all bags, one after the other."""
        return self.values[self.offsets[0] : self.offsets[-1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Ids per bag, [n]."""
        return np.diff(self.offsets)

    def part(self, start: int, stop: int) -> "Bags":
        """The bags of the rows [start, stop), as views."""
        return Bags(self.values, self.offsets[start : stop + 1])

    def copy(self) -> "Bags":
        """Copy to memory of their own."""
        return Bags(np.array(self.ids), self.offsets - self.offsets[0])

    def take(self, rows: NDArray[np.integer]) -> "Bags":
        """The bags of the rows numbered `rows`, in that order; no others are read."""
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        size = int(lengths[0]) if len(lengths) else 0
        first = starts[0] % size if size else 0
        if size and (lengths == size).all() and (starts % size == first).all():  # rows of a matrix, faster
            matrix = self.values[first : first + (len(self.values) - first) // size * size].reshape(-1, size)
            ids = np.take(matrix, starts // size, axis=0)
            return Bags(ids.reshape(-1), np.arange(len(rows) + 1, dtype=np.int64) * size)
        offsets = offsets_of(lengths)
        indices = np.repeat(starts - offsets[:-1], lengths)
        indices += np.arange(offsets[-1])
        return Bags(self.values[indices], offsets)


def offsets_of(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """Offsets of bags of these lengths [n]: where each begins and the last one ends, [n + 1] int64."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def join(parts: Sequence[Bags]) -> Bags:
    """The bags of one feature's rows, in the order of `parts`."""
    if len(parts) == 1:
        return parts[0]
    values = np.concatenate([part.ids for part in parts])
    return Bags(values, offsets_of(np.concatenate([part.lengths for part in parts])))


def pack(features: Sequence[Bags]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """`values` and `offsets` of a shard from the bags of its features."""
    values = np.concatenate([bags.ids for bags in features])
    return values, offsets_of(np.concatenate([bags.lengths for bags in features]))


def unpack(values: NDArray[Any], offsets: NDArray[np.int64], num_features: int) -> tuple[Bags, ...]:
    """The other way, as views."""
    rows = (len(offsets) - 1) // num_features if num_features else 0
    return tuple(Bags(values, offsets[f * rows : (f + 1) * rows + 1]) for f in range(num_features))
