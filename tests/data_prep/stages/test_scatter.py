"""Packed rows, against the rows."""

import numpy as np
import pytest

from data_prep.stages.write import RowLayout


@pytest.mark.medium
@pytest.mark.parametrize("num_dense", [0, 3])
@pytest.mark.parametrize("largest", [(), (255, 256, 65535, 65536, 0, 2**31 - 1), (10, 20, 30)])
def test_packed_rows_come_back_at_other_indices(num_dense: int, largest: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(largest))
    layout, rows = RowLayout(num_dense, largest), 500
    ids = [rng.integers(0, most, rows, endpoint=True) for most in largest]
    arrays = {
        "labels": rng.integers(0, 2, (rows, 1)).astype(np.int32),
        "dense": rng.standard_normal((rows, num_dense)).astype(np.float32),
        "sparse": np.array(ids).reshape(len(largest), rows).T.astype(np.int32),
    }
    arrays["sparse"][0] = largest
    left_out = rng.random(rows) < 0.1
    places = np.full(rows, -1)
    places[~left_out] = rng.permutation(rows - left_out.sum())
    records = np.zeros((rows - left_out.sum(), layout.row_bytes), np.uint8)
    layout.pack(arrays, places, records)
    outputs = {kind: np.zeros((len(records), layout.width(kind)), array.dtype) for kind, array in arrays.items()}
    back = rng.permutation(len(records))
    layout.unpack(records, back, outputs)
    for kind, array in arrays.items():
        np.testing.assert_array_equal(outputs[kind][back[places[~left_out]]], array[~left_out])


def test_ids_take_as_few_bytes_as_they_need() -> None:
    for largest in ((255,) * 4, (256, 65535), (65536,)):
        assert RowLayout(13, largest).row_bytes == 4 + 52 + 4
    assert RowLayout(0, (1,)).row_bytes == 4 + 4  # whole words
