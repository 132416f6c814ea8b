"""Shuffles in windows against NumPy's own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from data_prep.stages import place as permutation
from data_prep.stages.place import inverse_permutation


@pytest.mark.slow("examples")
@pytest.mark.parametrize("rows", [1, 2, 3, 100, 5000])
@pytest.mark.parametrize("window_rows", [1, 2, 64, 4999, 5000, 10_000])
def test_any_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, window_rows: int) -> None:
    """They give NumPy's permutation."""
    monkeypatch.setattr(permutation, "DRAWS", 50)
    rows = min(rows, 1000 * window_rows)
    parts = list(inverse_permutation(rows, 3, tmp_path / "files", window_rows))
    assert [len(part) for part in parts[:-1]] == [window_rows] * (len(parts) - 1)
    assert all(part.dtype == np.uint32 for part in parts)
    np.testing.assert_array_equal(np.concatenate(parts), np.argsort(np.random.RandomState(3).permutation(rows)))
    assert not list((tmp_path / "files").iterdir())


def test_it_is_where_numpy_shuffles_the_rows_of_a_matrix_to(tmp_path: Path) -> None:
    rows = np.arange(10_000).reshape(5000, 2)
    np.random.RandomState(3).shuffle(rows)
    inverse = np.concatenate(list(inverse_permutation(5000, 3, tmp_path / "files", 700)))
    np.testing.assert_array_equal(inverse, np.argsort(rows[:, 0] // 2))


def by_numpy_s_generator(rows: int, seed: int, wide: int) -> NDArray[np.int64]:
    """The shuffle as NumPy's legacy code does it, places from `wide` on drawn by its next_uint64."""
    bits = np.random.MT19937()
    state: Any = np.random.RandomState(seed).get_state(legacy=False)
    bits.state = state
    order = np.arange(rows)
    for last in range(rows - 1, 0, -1):
        draw = bits.ctypes.next_uint64 if last >= wide else bits.ctypes.next_uint32
        mask = 2 ** last.bit_length() - 1
        while (place := draw(bits.ctypes.state) & mask) > last:
            pass
        order[[last, place]] = order[[place, last]]
    return order


@pytest.mark.parametrize(("window_rows", "draws"), [(64, 50), (200, 51), (1000, 1 << 18)])
def test_more_rows_than_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window_rows: int, draws: int) -> None:
    """2^32 rows cannot be tried; instead the limit is lowered to 300 of 1,000, here and in what it is held against."""
    monkeypatch.setattr(permutation, "WIDE", 300)
    monkeypatch.setattr(permutation, "DRAWS", draws)
    parts = list(inverse_permutation(1000, 7, tmp_path / "files", window_rows))
    assert all(part.dtype == np.uint64 for part in parts)
    np.testing.assert_array_equal(np.concatenate(parts), np.argsort(by_numpy_s_generator(1000, 7, wide=300)))
    np.testing.assert_array_equal(by_numpy_s_generator(1000, 7, wide=2**32), np.random.RandomState(7).permutation(1000))


@pytest.mark.parametrize("calls", [0, 1, 20, 45])
def test_it_ends_when_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    monkeypatch.setattr(permutation, "DRAWS", 50)
    allowance = [None] * calls
    with pytest.raises(IndexError):
        list(inverse_permutation(1000, 3, tmp_path / "files", 300, allowance.pop))
