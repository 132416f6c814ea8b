"""Files made window by window, against NumPy's own."""

import hashlib
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.io import array_writer
from data_prep.io.array_writer import ArrayWriter


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 7, 1000, 5000]), max_size=6), st.sampled_from([0, 1, 3, 26]),
    st.sampled_from([np.int32, np.float32, np.uint8]),
)  # fmt: skip
def test_two_files_at_once_are_as_numpy_reads_and_hashlib_sums_them(tmp_path_factory, windows, width, dtype):
    directory = tmp_path_factory.mktemp("arrays")
    rng = np.random.default_rng(sum(windows))
    arrays = [rng.integers(0, 200, (sum(windows), width)).astype(dtype) for _ in range(2)]
    with ArrayWriter() as writer:
        files = [
            writer.create(directory / f"{i}.npy", f"test {i}", dtype, array.shape, hashlib.sha256)
            for i, array in enumerate(arrays)
        ]
        begin = 0
        for rows in windows:
            for file, array in zip(files, arrays, strict=True):
                file.window(rows)[:] = array[begin : begin + rows]
            begin += rows
        digests = [file.close().result() for file in files]
    for i, array in enumerate(arrays):
        path = directory / f"{i}.npy"
        found = np.load(path)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, array)
        assert (digests[i].bytes, digests[i].sha256) == (
            path.stat().st_size,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
    assert sorted(path.name for path in directory.iterdir()) == ["0.npy", "1.npy"]


def test_a_file_is_written_while_the_next_one_of_its_name_is_filled(tmp_path):
    with ArrayWriter() as writer:
        closing = []
        for i in range(5):
            file = writer.create(tmp_path / f"{i}.npy", "test", np.int32, (2000 * i + 3, 7), hashlib.sha256)
            for rows in (1000 * i, 3, 1000 * i):
                file.window(rows)[:] = i
            closing.append(file.close())
        digests = [closed.result() for closed in closing]
    for i, digest in enumerate(digests):
        np.testing.assert_array_equal(np.load(tmp_path / f"{i}.npy"), np.full((2000 * i + 3, 7), i, np.int32))
        assert digest.sha256 == hashlib.sha256((tmp_path / f"{i}.npy").read_bytes()).hexdigest()


def test_a_failing_write_is_told_and_leaves_no_file_of_that_name(tmp_path, monkeypatch):
    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(array_writer, "write_past_cache", no_room)
    before = set(os.listdir("/proc/self/fd"))

    def write() -> None:
        with ArrayWriter() as writer:
            file = writer.create(tmp_path / "a.npy", "test", np.int32, (3, 5000), hashlib.sha256)
            for _ in range(3):
                file.window(1)[:] = 1
            file.close().result()

    with pytest.raises(OSError, match="No space left"):
        write()
    assert not (tmp_path / "a.npy").exists()
    assert set(os.listdir("/proc/self/fd")) == before
