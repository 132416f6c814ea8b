import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.io import BLOCK_BYTES
from data_prep.parsing.criteo import PADDING
from data_prep.sources.discover import resolve_sources
from data_prep.sources.line_blocks import ROOM_BEFORE, ROOM_BEHIND, LineBlocks, count_lines_before
from tests.error_lines import refused


def chunks_of(path: Path, chunk_bytes: int, block_bytes: int) -> list[bytes]:
    """The lines of every chunk, read as a worker reads them."""
    source = resolve_sources(str(path))[0]
    result: list[Any] = []
    if source.compressed:
        with LineBlocks(source, block_bytes=block_bytes) as lines:
            while not lines.exhausted:
                result.append(collect(lines, (len(result) + 1) * chunk_bytes))
    else:
        for chunk in range(-(-source.bytes // chunk_bytes)):
            with LineBlocks(source, chunk * chunk_bytes, block_bytes) as lines:
                result.append(collect(lines, (chunk + 1) * chunk_bytes))
    while result and not result[-1]:
        result.pop()
    return result


def collect(lines: LineBlocks, stop: int) -> bytes:
    return b"".join(bytes(block.buffer[block.start : block.end]) for block in lines.read_until(stop))


LINES = st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"").replace(b"\x1f", b""))


@settings(max_examples=60, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=12), st.integers(1, 60), st.integers(40, 100), st.booleans())
def test_a_line_belongs_to_the_chunk_it_starts_in(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], chunk_bytes: int, block_bytes: int, newline: bool
) -> None:
    text = b"\n".join(lines) + (b"\n" if newline else b"")
    if not text:
        return
    directory = tmp_path_factory.mktemp("lines")
    (directory / "plain").write_bytes(text)
    (directory / "packed.gz").write_bytes(gzip.compress(text))
    whole = text if text.endswith(b"\n") else text + b"\n"
    expected: list[bytes] = [b""] * (len(whole) // chunk_bytes + 1)
    offset = 0
    for line in whole.split(b"\n")[:-1]:
        expected[offset // chunk_bytes] += line + b"\n"
        offset += len(line) + 1
    while expected and not expected[-1]:
        expected.pop()
    assert chunks_of(directory / "plain", chunk_bytes, block_bytes) == expected
    assert chunks_of(directory / "packed.gz", chunk_bytes, block_bytes) == expected


def test_offsets_and_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "day_0"
    path.write_bytes(b"one\ntwo\nthree")
    source = resolve_sources(str(path))[0]
    with LineBlocks(source, block_bytes=10) as lines:
        blocks = [(block.offset, block.end - block.start, block.is_last) for block in lines.read_until(100)]
    assert blocks == [(0, 8, False), (8, 6, True)]
    assert count_lines_before(source, 9) == 2


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("text", [b"one\ntwo\n", b"one\ntwo"])
def test_the_last_block_says_that_it_is(tmp_path: Path, text: bytes, packed: bool) -> None:
    path = tmp_path / "day_0"
    path.write_bytes(gzip.compress(text) if packed else text)
    with LineBlocks(resolve_sources(str(path))[0]) as lines:
        assert [block.is_last for block in lines.read_until(100)][-1]


def test_there_is_room_for_a_newline_and_for_what_kernels_read_too_far() -> None:
    assert ROOM_BEHIND > PADDING
    assert ROOM_BEFORE >= BLOCK_BYTES


@pytest.mark.parametrize("before", [b"", b"0123456789\n"])
def test_a_long_line_is_refused_wherever_it_begins(tmp_path: Path, before: bytes) -> None:
    path = tmp_path / "day_0"
    path.write_bytes(before + b"x" * (3 << 20) + b"\n")
    with LineBlocks(resolve_sources(str(path))[0]) as lines:
        refused("longer than", list, lines.read_until(4 << 20))


def test_a_line_longer_than_a_block(tmp_path: Path) -> None:
    path = tmp_path / "day_0"
    path.write_bytes(b"x" * 100)
    with LineBlocks(resolve_sources(str(path))[0], block_bytes=64) as lines:
        refused("a line at byte 0 is longer than 64 bytes", list, lines.read_until(1000))
