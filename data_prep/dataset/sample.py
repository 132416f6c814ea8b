"""Samples of a dataset's rows that depend only on the rows' numbers, not on their content."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BLOCK_ROWS = 256  # rows read together
INCREMENT = np.uint64(0x9E3779B97F4A7C15)


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply Sebastiano Vigna's splitmix64, a bijection of 64 bits, to each value."""
    mixed = values + INCREMENT
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def sampled_blocks(rows: int, share: float, number: int, block_rows: int) -> list[tuple[int, int]]:
    """Return the bounds of the sampled blocks of a shard; a hash of shard and block numbers chooses them."""
    starts = np.arange(0, rows, block_rows)
    if share < 1:
        hashes = mix(np.arange(len(starts)).astype(np.uint64) + (np.uint64(number) << np.uint64(32)))
        starts = starts[hashes < np.uint64(int(share * 2**64))]
    return [(start, min(start + block_rows, rows)) for start in starts.tolist()]


def rows_of_blocks(blocks: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """Return the row numbers in the blocks, in order."""
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(start, stop) for start, stop in blocks)])


def sampled_rows(rows: int, share: float, number: int) -> NDArray[np.int64]:
    """Return the sampled row numbers of a shard, in blocks of BLOCK_ROWS."""
    return rows_of_blocks(sampled_blocks(rows, share, number, BLOCK_ROWS))


def sampled_split(shard_rows: Sequence[int], limit: int | None) -> list[NDArray[np.int64]]:
    """Return the sampled row numbers within each shard of a split: all rows, or at most `limit`."""
    total = sum(shard_rows)
    share = 1.0 if limit is None or limit >= total else limit / total
    parts, rows_left = [], total if limit is None else limit
    for number, rows in enumerate(shard_rows):
        part = sampled_rows(rows, share, number)[:rows_left]
        rows_left -= len(part)
        parts.append(part)
    return parts


def sampled_numbers(shard_rows: Sequence[int], limit: int | None) -> NDArray[np.int64]:
    """Return the rows of `sampled_split` by their numbers within the split, in order."""
    starts = np.cumsum([0, *shard_rows])
    parts = sampled_split(shard_rows, limit)
    return np.concatenate([np.zeros(0, np.int64), *(start + part for start, part in zip(starts, parts, strict=False))])
