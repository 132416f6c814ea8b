"""Where two arrays of one shape differ, bit by bit, and by how much."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Difference(NamedTuple):
    """The index of the first element (row-major) whose bits differ; the largest of all, relative to max(floor, |x|)."""

    first: tuple[int, ...]
    largest: float


def compare(recorded: NDArray[np.generic], replayed: NDArray[np.generic], floor: float) -> Difference | None:
    """None where all bits are equal; a NaN equals the same NaN and is infinitely far from all else."""
    if recorded.shape != replayed.shape:
        return Difference((0,) * recorded.ndim, float("inf"))
    width = f"u{recorded.dtype.itemsize}"
    bits = np.flatnonzero(np.ascontiguousarray(recorded).view(width) != np.ascontiguousarray(replayed).view(width))
    if not len(bits):
        return None
    then, now = recorded.ravel()[bits].astype(np.float64), replayed.ravel()[bits].astype(np.float64)
    with np.errstate(invalid="ignore"):
        relative = np.abs(then - now) / np.maximum(floor, np.abs(then))
    largest = float("inf") if np.isnan(relative).any() else float(relative.max())
    first = tuple(int(index) for index in np.unravel_index(bits[0], recorded.shape))
    return Difference(first, largest)


def merged(one: Difference | None, other: Difference | None) -> Difference | None:
    """What two parts of one array have in common: the earlier place, the larger difference."""
    if one is None or other is None:
        return one or other
    return Difference(min(one.first, other.first), max(one.largest, other.largest))
