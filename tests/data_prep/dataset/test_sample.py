"""A sample of rows by their numbers."""

import numpy as np
from numpy.typing import NDArray

from data_prep.dataset.format import BLOCK_ROWS, rows_of_blocks, sampled_blocks, sampled_row_numbers


def sampled_rows(rows: int, share: float, number: int) -> NDArray[np.int64]:
    return rows_of_blocks(sampled_blocks(rows, share, number, BLOCK_ROWS))


def test_the_sample_is_a_function_of_a_row_s_number() -> None:
    first, second = (sampled_rows(100_000, 0.3, 7) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert 0.2 < len(first) / 100_000 < 0.4
    blocks = sorted({int(row) // 256 for row in first})
    rows = [row for block in blocks for row in range(block * 256, block * 256 + 256) if row < 100_000]
    assert sorted(first.tolist()) == rows
    assert sampled_rows(1_000, 1.0, 0).tolist() == list(range(1_000))


def test_numbers_of_a_sample_are_those_of_its_shards() -> None:
    shard_rows = [700, 0, 2_000, 513]
    by_shard = [sampled_rows(rows, 1_000 / sum(shard_rows), number) for number, rows in enumerate(shard_rows)]
    starts = (0, 700, 700, 2_700)
    rows = [start + row for start, part in zip(starts, by_shard, strict=True) for row in part.tolist()]
    assert sampled_row_numbers(shard_rows, 1_000).tolist() == rows[:1_000]
    assert sampled_row_numbers(shard_rows, None).tolist() == list(range(3_213))
    assert sampled_row_numbers(shard_rows, 3_213).tolist() == list(range(3_213))
