"""Batches on their way to a device."""

import numpy as np
import pytest

from app.data.batch import BatchBuilder, RowArrays
from data_prep.dataset.multi_hot import MultiHotTables
from data_prep.dataset.spelling import Bags

SIZE = 4


def _rows(seed: int, count: int = SIZE) -> RowArrays:
    rng = np.random.default_rng(seed)
    return RowArrays(
        rng.random(count, np.float32), rng.random((count, 3), np.float32), rng.integers(0, 5, (count, 2), np.int32)
    )


@pytest.mark.medium
def test_lengths_and_offsets_of_full_batches_are_copied_once() -> None:
    tables = MultiHotTables([None, np.arange(15, dtype=np.int32).reshape(5, 3) % 5])
    builder = BatchBuilder(["a", "b"], SIZE, [], tables)
    batches = [builder.batch(_rows(seed)) for seed in range(2)]
    first, second = (batch._map_parts(lambda part: part.to("meta")).sparse_features for batch in batches)
    assert first.lengths() is second.lengths()
    assert first.offsets() is second.offsets()
    assert first.values() is not second.values()
    for batch in batches:
        features = batch.sparse_features
        assert features.length_per_key() == [SIZE, 3 * SIZE]
        assert features.offsets().tolist() == np.cumsum([0, *[1] * SIZE, *[3] * SIZE]).tolist()
    last = builder.batch(_rows(2, count=3))  # its fourth bag of b is empty
    assert last.layout is None
    assert last.sparse_features.lengths().tolist() == [1] * SIZE + [3, 3, 3, 0]


def test_rows_of_the_same_features_have_the_same_number() -> None:
    """Whatever the order within a bag; not those with another number, or an id that is another, elsewhere or twice."""
    sparse = np.array([[1], [1], [1], [1], [2], [1], [1], [1], [1]], np.int32)
    dense = np.array([[0.5, 1]] * 8 + [[1, 0.5]], np.float32)
    of_a = [[3, 4], [4, 3], [3], [3, 3], [3, 4], [], [3], [3, 4], [3, 4]]
    of_b = [[], [], [4], [4], [], [3, 4], [4], [], []]
    bags = tuple(
        Bags(np.array([each for row in rows for each in row], np.int32), np.cumsum([0, *map(len, rows)]))
        for rows in (of_a, of_b)
    )
    rows = RowArrays(np.zeros(9, np.float32), dense, sparse, bags)
    keys = BatchBuilder(["one", "a", "b"], 9, ["a", "b"], None).batch(rows).row_keys()
    assert keys.dtype == np.int64
    expected = list(zip(dense.tolist(), sparse[:, 0].tolist(), map(sorted, of_a), map(sorted, of_b), strict=True))
    for first in range(9):
        for second in range(9):
            assert (keys[first] == keys[second]) == (expected[first] == expected[second])
