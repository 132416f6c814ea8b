"""Rows of a memory-mapped file, of which no more than a bounded part is in memory at a time."""

import mmap
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAPPED_BYTES = 32 << 20
FAULT_BYTES = 2 << 20  # the most that Linux maps at once of a file in the page cache, where one byte is looked at


def take_mapped(rows: NDArray[Any], numbers: NDArray[np.integer]) -> NDArray[Any]:
    """rows[numbers] of a mapped .npy file [R, width]; about MAPPED_BYTES of it are resident at most, and none after."""
    if rows.nbytes <= MAPPED_BYTES:
        found = np.take(rows, numbers, axis=0)
        let_go(rows)
        return found
    distinct, places = np.unique(numbers, return_inverse=True)  # in order, so that neighbours are mapped together
    found = np.empty((len(distinct), rows.shape[1]), rows.dtype)
    regions = distinct.astype(np.int64) * (rows.itemsize * rows.shape[1]) // FAULT_BYTES
    faults = np.cumsum(np.diff(regions, prepend=-1) > 0)  # up to and with each
    bounds = np.searchsorted(faults, np.arange(1, faults.max(initial=0) + 1, MAPPED_BYTES // FAULT_BYTES)).tolist()
    for start, stop in pairwise([*bounds, len(distinct)]):
        found[start:stop] = np.take(rows, distinct[start:stop], axis=0)
        let_go(rows)
    return found[places]


def let_go(rows: NDArray[Any]) -> None:
    """Have nothing of a mapped .npy file resident; what is looked at next comes from the page cache, or the disk."""
    mapping = rows.base
    assert isinstance(mapping, mmap.mmap)
    unload(mapping)


def unload(mapping: mmap.mmap) -> None:
    """Have nothing of a mapped file resident; what was written to it stays written."""
    if hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)
