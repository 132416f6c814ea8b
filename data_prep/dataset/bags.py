"""Bags of ids of multi-hot features: part of the on-disk contract beside data_prep/dataset/format.py.

A shard with R multi-hot features and n rows has two arrays. `values` [L] int32 holds the ids of the first feature's
bags row by row, then those of the next. `offsets` [R * n + 1] int64 divides them: the bag of row r of feature f is
values[offsets[f * n + r] : offsets[f * n + r + 1]]. A batch holds bags in the same order (feature-major, as TorchRec's
KeyedJaggedTensor).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BAG_KINDS = ("values", "offsets")


class Bags(NamedTuple):
    """The bags of one feature in n rows: row r has values[offsets[r] : offsets[r + 1]].

    offsets [n + 1] int64 need not begin at 0, so that slices are views.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    @property
    def ids(self) -> NDArray[Any]:
        """Return the ids of all bags, one bag after the other."""
        return self.values[self.offsets[0] : self.offsets[-1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return the number of ids in each bag, [n]."""
        return np.diff(self.offsets)

    def part(self, start: int, stop: int) -> "Bags":
        """Return the bags of rows [start, stop) as views."""
        return Bags(self.values, self.offsets[start : stop + 1])

    def copy(self) -> "Bags":
        """Copy the ids and offsets of these bags alone."""
        return Bags(np.array(self.ids), self.offsets - self.offsets[0])

    def take(self, rows: NDArray[np.integer]) -> "Bags":
        """Return copies of the bags of the numbered rows, in the order of `rows`."""
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        size = int(lengths[0]) if len(lengths) else 0
        first = starts[0] % size if size else 0
        # Bags of one size are rows of a matrix, which NumPy takes faster.
        if size and (lengths == size).all() and (starts % size == first).all():
            matrix = self.values[first : first + (len(self.values) - first) // size * size].reshape(-1, size)
            ids = np.take(matrix, starts // size, axis=0)
            return Bags(ids.reshape(-1), np.arange(len(rows) + 1, dtype=np.int64) * size)
        offsets = offsets_of(lengths)
        indices = np.repeat(starts - offsets[:-1], lengths)
        indices += np.arange(offsets[-1])
        return Bags(self.values[indices], offsets)


def offsets_of(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return where each bag of these lengths [n] begins, and where the last one ends: [n + 1] int64."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def join(parts: Sequence[Bags]) -> Bags:
    """Concatenate bags of one feature, in the order of `parts`."""
    if len(parts) == 1:
        return parts[0]
    values = np.concatenate([part.ids for part in parts])
    return Bags(values, offsets_of(np.concatenate([part.lengths for part in parts])))


def pack(features: Sequence[Bags]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return a shard's `values` and `offsets` from the bags of its features."""
    values = np.concatenate([bags.ids for bags in features])
    return values, offsets_of(np.concatenate([bags.lengths for bags in features]))


def unpack(values: NDArray[Any], offsets: NDArray[np.int64], num_features: int) -> tuple[Bags, ...]:
    """Return each feature's bags, as views of a shard's arrays."""
    rows = (len(offsets) - 1) // num_features if num_features else 0
    return tuple(Bags(values, offsets[f * rows : (f + 1) * rows + 1]) for f in range(num_features))
