"""A sample of a dataset's rows that is a function of their numbers alone."""

import numpy as np
from numpy.typing import NDArray

BLOCK_ROWS = 256  # rows of a sample that are read together
INCREMENT = np.uint64(0x9E3779B97F4A7C15)


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Sebastiano Vigna's splitmix64 of each value: a bijection of 64 bits."""
    mixed = values + INCREMENT
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def sampled_rows(rows: int, share: float, number: int) -> NDArray[np.int64]:
    """The rows of shard `number` that are looked at: all, or of blocks by a hash of theirs and the shard's number."""
    if share >= 1:
        return np.arange(rows)
    blocks = np.arange(-(-rows // BLOCK_ROWS)).astype(np.uint64) + (np.uint64(number) << np.uint64(32))
    is_sampled = mix(blocks) < np.uint64(int(share * 2**64))
    return np.flatnonzero(np.repeat(is_sampled, BLOCK_ROWS)[:rows])
