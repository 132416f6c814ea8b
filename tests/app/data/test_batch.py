"""Batches on their way to a device."""

import numpy as np

from app.data.batch import BatchBuilder, RowArrays
from data_prep.dataset.multi_hot import MultiHotTables

SIZE = 4


def _rows(seed: int, count: int = SIZE) -> RowArrays:
    rng = np.random.default_rng(seed)
    return RowArrays(
        rng.random(count, np.float32), rng.random((count, 3), np.float32), rng.integers(0, 5, (count, 2), np.int32)
    )


def test_lengths_and_offsets_of_full_batches_are_copied_once() -> None:
    tables = MultiHotTables([None, np.arange(15, dtype=np.int32).reshape(5, 3) % 5])
    builder = BatchBuilder(["a", "b"], SIZE, [], tables)
    here = [builder.batch(_rows(seed)) for seed in range(2)]
    first, second = (batch._with(lambda part: part.to("meta")).sparse_features for batch in here)
    assert first.lengths() is second.lengths()
    assert first.offsets() is second.offsets()
    assert first.values() is not second.values()
    for batch in here:
        features = batch.sparse_features
        assert features.length_per_key() == [SIZE, 3 * SIZE]
        assert features.offsets().tolist() == np.cumsum([0, *[1] * SIZE, *[3] * SIZE]).tolist()
    last = builder.batch(_rows(2, count=3))  # its fourth bag of b is empty
    assert last.layout is None
    assert last.sparse_features.lengths().tolist() == [1] * SIZE + [3, 3, 3, 0]
