"""Files held in memory, against the bytes they were given."""

import hashlib
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.io import buffered_file, buffers
from data_prep.io.buffered_file import HeldArray, HeldFile
from data_prep.io.npy import HEADER_BYTES

PIECE, MOST = 4096, 3 * 4096
SIZES = st.sampled_from([0, 1, 100, PIECE - 1, PIECE, PIECE + 1, MOST, MOST + 5])


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(buffered_file, "_free", [])
    monkeypatch.setattr(buffered_file, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(buffers, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(buffered_file, "HOLD_BYTES", MOST)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["append", "extend", "read"]), SIZES), max_size=12), st.booleans())
def test_a_file_holds_what_was_added(tmp_path_factory, steps, header):
    """However it was added, more than can be held included; and so does a file that reuses the pieces."""
    path = tmp_path_factory.mktemp("held") / "00000-00000.raw"
    rng, expected = np.random.default_rng(len(steps)), bytearray()
    file = HeldFile(path)
    for how, size in steps:
        content = rng.integers(0, 256, size).astype(np.uint8)
        if how == "read":
            start = len(expected) // 3
            found = np.zeros(min(size, len(expected) - start), np.uint8)
            file.read_into(start, found)
            assert found.tobytes() == expected[start : start + len(found)]
            continue
        if how == "append":
            file.append(content)
        else:
            file.extend((size,), np.uint8, partial(np.copyto, src=content))
        expected += content.tobytes()
    first = b"header" if header and len(expected) > 10 else b""
    expected[: len(first)] = first
    digest = file.close(hashlib.sha256, first)
    assert path.read_bytes() == expected
    assert (digest.bytes, digest.sha256) == (len(expected), hashlib.sha256(expected).hexdigest())


@pytest.mark.parametrize("width", [None, 0, 1, 3])
def test_an_array_grows_by_rows_that_are_made_in_place(tmp_path, width):
    array, columns = HeldArray(tmp_path / "00000-00000.dense.npy", np.int32, width), 1 if width is None else width
    parts = [np.arange(rows * columns, dtype=np.int32).reshape(rows, columns) for rows in (0, 5, 900, 2000)]
    for part in parts:
        array.extend(len(part), partial(np.copyto, src=part))
    array.close(hashlib.sha256)
    found = np.load(tmp_path / "00000-00000.dense.npy")
    assert found.shape == ((2905,) if width is None else (2905, width))
    np.testing.assert_array_equal(found.reshape(-1), np.concatenate(parts).reshape(-1))
    assert (tmp_path / "00000-00000.dense.npy").stat().st_size == HEADER_BYTES + 4 * found.size
