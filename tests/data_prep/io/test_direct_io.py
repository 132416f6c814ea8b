"""Files written and read past the page cache, against the bytes they were given."""

import errno
import hashlib
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import io as data_io
from data_prep.io import FileRange, FileWriter, read_ranges

PIECE, MAX_HELD = 4096, 3 * 4096
SIZES = st.sampled_from([0, 1, 100, PIECE - 1, PIECE, PIECE + 1, MAX_HELD, MAX_HELD + 5])


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_io, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(data_io, "MAX_HELD_BYTES", MAX_HELD)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["append", "extend", "read"]), SIZES), max_size=12),
    st.sampled_from(["streamed", "held", "held, with a header"]),
)
def test_a_file_holds_what_was_added(tmp_path_factory: pytest.TempPathFactory, steps: list[Any], way: str) -> None:
    """However it was added, more than can be held included."""
    path = tmp_path_factory.mktemp("files") / "00000-00000.raw"
    rng, expected = np.random.default_rng(len(steps)), bytearray()
    file = FileWriter(path, is_buffered=way != "streamed")
    for how, size in steps:
        content = rng.integers(0, 256, size).astype(np.uint8)
        if how == "read" and way != "streamed":
            start = len(expected) // 3
            buffer = np.zeros(min(size, len(expected) - start), np.uint8)
            file.read_into(start, buffer)
            assert buffer.tobytes() == expected[start : start + len(buffer)]
        elif how == "append":
            file.append(content)
            expected += content.tobytes()
        elif how == "extend":
            file.extend((size,), np.uint8, partial(np.copyto, src=content))
            expected += content.tobytes()
    first = b"header" if way == "held, with a header" and len(expected) > 10 else b""
    expected[: len(first)] = first
    digest = file.close(first)
    assert path.read_bytes() == expected
    assert (digest.bytes, digest.sha256) == (len(expected), hashlib.sha256(expected).hexdigest())
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("is_buffered", [False, True])
def test_a_failing_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_buffered: bool) -> None:
    def disk_is_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(data_io, "write_past_cache", disk_is_full)
    before = set(os.listdir("/proc/self/fd"))
    file = FileWriter(tmp_path / "a", is_buffered=is_buffered)

    def write() -> None:
        try:
            for _ in range(3):
                file.append(np.ones(5000, np.int32))
            file.close()
        finally:
            file.abandon()

    with pytest.raises(OSError, match="No space left"):
        write()
    assert not list(tmp_path.iterdir())
    assert set(os.listdir("/proc/self/fd")) == before


def test_ranges_of_any_size_at_any_offset(tmp_path: Path) -> None:
    """Each is as it should be, whatever is being read after it."""
    content = np.random.default_rng(0).integers(0, 256, 300_000).astype(np.uint8)
    path = tmp_path / "file"
    path.write_bytes(content.tobytes())
    ranges = [(0, 4096), (5, 100_000), (4096, 0), (299_999, 1), (1, 299_999), (8191, 2), (0, 300_000)]
    for read in (iter, list):
        blocks = read(read_ranges([FileRange(path, *each) for each in ranges]))
        for (offset, size), block in zip(ranges, blocks, strict=True):
            np.testing.assert_array_equal(block, content[offset : offset + size])


def test_a_file_that_became_shorter_is_named(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(bytes(100))
    with pytest.raises(OSError, match="shorter than it was") as caught:
        list(read_ranges([FileRange(tmp_path / "short", 50, 100)]))
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(tmp_path / "short"))
