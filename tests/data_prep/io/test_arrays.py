"""Array files, against NumPy's own."""

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.io import HEADER_BYTES, ArrayWriter, open_array, read_rows, write_array
from tests.data_prep.io.test_direct_io import small_pieces as small_pieces


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 7, 1000, 5000]), max_size=6),
    st.sampled_from([None, 0, 1, 3, 26]),
    st.sampled_from([np.int32, np.float32, np.uint8]),
    st.booleans(),
)
def test_two_files_at_once_are_as_numpy_reads_and_hashlib_sums_them(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], width: int | None, dtype: Any, has_row_count: bool
) -> None:
    """Whether the number of rows is known from the start or not."""
    directory = tmp_path_factory.mktemp("arrays")
    rng = np.random.default_rng(sum(steps))
    shape = (sum(steps),) if width is None else (sum(steps), width)
    arrays = [rng.integers(0, 200, shape).astype(dtype) for _ in range(2)]
    rows = sum(steps) if has_row_count else None
    writers = [ArrayWriter(directory / f"{i}.npy", dtype, width, rows) for i in range(2)]
    begin = 0
    for number, step in enumerate(steps):
        for writer, array in zip(writers, arrays, strict=True):
            part = array[begin : begin + step]
            if number % 2:
                writer.extend(step, partial(np.copyto, src=part[:, None] if width is None else part))
            else:
                writer.append(part)
        begin += step
    digests = [writer.close() for writer in writers]
    for i, array in enumerate(arrays):
        path = directory / f"{i}.npy"
        actual = open_array(path) if array.size else np.load(path)
        assert (actual.dtype, actual.shape) == (dtype, shape)
        np.testing.assert_array_equal(actual, array)
        assert path.stat().st_size == digests[i].bytes == HEADER_BYTES + array.nbytes
        assert digests[i].sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert sorted(path.name for path in directory.iterdir()) == ["0.npy", "1.npy"]


def test_a_whole_array_has_the_bytes_that_numpy_writes(tmp_path: Path) -> None:
    for array in (np.arange(5000, dtype=np.int64), np.ones((300, 26), np.float32), np.zeros((0, 3), np.int32)):
        digest = write_array(tmp_path / "ours.npy", array)
        np.save(tmp_path / "numpy.npy", array)
        assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "numpy.npy").read_bytes()
        assert digest.sha256 == hashlib.sha256((tmp_path / "numpy.npy").read_bytes()).hexdigest()


@pytest.mark.parametrize("width", [0, 3])
def test_rows_of_an_array(tmp_path: Path, width: int) -> None:
    array = np.arange(1000 * width, dtype=np.int32).reshape(1000, width)
    np.save(tmp_path / "array.npy", array)
    blocks = [(0, 10), (10, 10), (990, 1000), (0, 1000)]
    places = [(tmp_path / "array.npy", *block) for block in blocks]
    for (start, stop), rows in zip(blocks, read_rows(places, width, np.int32), strict=True):
        np.testing.assert_array_equal(rows, array[start:stop])
