"""Raw files: which are taken, read in chunks, and compressed; damaged ones are refused."""

import bz2
import gzip
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.files import FileDigest
from data_prep.codec.files import Shape
from data_prep.encoding import read_new_rows
from data_prep.sources.files import ROOM_BEFORE, LineBlocks, SourceStream, resolve_sources
from tests.data_prep.conftest import load_rows, prepare
from tests.data_prep.tables import paths
from tests.error_lines import refused


def zipped(content: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("rows.csv", content)
    return stream.getvalue()


PACKED = {
    "zip": (zipped, "unzip {}"),
    "xz": (lambda content: b"\xfd7zXZ\0" + content, "xz -dc {} > NEW"),
    "lz4": (lambda content: b"\x04\x22\x4d\x18" + content, "lz4 -d {}"),
    "UTF-16": (lambda content: content.decode().encode("utf-16"), "iconv -f UTF-16 -t UTF-8 {} > NEW"),
}


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("name", ["rows.csv", "my rows.csv"])
def test_other_compressions_are_known_by_their_first_bytes(tmp_path: Path, kind: str, name: str) -> None:
    pack, command = PACKED[kind]
    for content in (b"1,2\n" * 100, b""):
        (tmp_path / name).write_bytes(pack(content))
        quoted = f"'{tmp_path / name}'" if " " in name else str(tmp_path / name)
        message = f"{kind}, which is not read; convert it: {command.format(quoted)}"
        refused(re.escape(message), resolve_sources, str(tmp_path))


def names(raw: list[str] | str) -> list[str]:
    return [source.name for source in resolve_sources(raw)]


@pytest.fixture
def days(tmp_path: Path) -> Path:
    for name in ("day_10", "day_2", "day_1", "notes.txt", ".hidden"):
        (tmp_path / name).write_bytes(b"x\n")
    return tmp_path


@pytest.mark.parametrize("packed", [False, True])
def test_a_stream_is_read_once_and_summed_on_the_way(tmp_path: Path, packed: bool) -> None:
    content = np.random.default_rng(0).integers(0, 64, 5_000_001).astype(np.uint8).tobytes()
    path = tmp_path / "day_0"
    stored = gzip.compress(content, 1) if packed else content
    path.write_bytes(stored)
    stream = SourceStream(resolve_sources(str(path))[0])
    path.unlink()  # whatever is asked of it now, it has no other way to the bytes
    stream_bytes = bytearray()
    while (block := stream.next_block())[1]:
        stream_bytes += block[0][ROOM_BEFORE : ROOM_BEFORE + block[1]]
    assert stream_bytes == content
    assert stream.consumed() == len(stored)
    assert stream.digest() == FileDigest(len(stored), hashlib.sha256(stored).hexdigest())
    stream.close()


LEFT_OUT = {
    "day_3": "a link to .*/disk/day_3, which is not there; restore it, or name",
    **dict.fromkeys(("day_3.part", "day_0.part"), "a download that has not ended; wait"),
    **dict.fromkeys(("day_1~", "day_1.bak"), "a backup, by its name"),
}


@pytest.mark.parametrize("pattern", ["", "/day_*", "/*"])
@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_would_be_left_out_or_count_twice_is_refused(days: Path, pattern: str, name: str) -> None:
    message = LEFT_OUT[name]
    if "link" in message:
        (days / name).symlink_to(days / "disk" / name)  # of a disk that is not mounted
    else:
        (days / name).write_bytes(b"x\n")
    refused(f"{re.escape(name)}: {message}", names, f"{days}{pattern}")
    assert names([str(days / "day_1"), str(days / "day_2")]) == ["day_1", "day_2"]  # the remedy


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


BYTE_LINES = st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"").replace(b"\x1f", b""))


@settings(max_examples=60, deadline=None)
@given(st.lists(BYTE_LINES, min_size=1, max_size=12), st.integers(1, 60), st.integers(40, 100), st.booleans())
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


@pytest.mark.parametrize("before", [b"", b"0123456789\n"])
def test_a_long_line_is_refused_wherever_it_begins(tmp_path: Path, before: bytes) -> None:
    path = tmp_path / "day_0"
    path.write_bytes(before + b"x" * (3 << 20) + b"\n")
    with LineBlocks(resolve_sources(str(path))[0]) as lines:
        refused("longer than", list, lines.read_until(4 << 20))


LINES = [{"label": row % 2, "user": f"u{row % 7}", "price": row / 4} for row in range(3_000)]
TEXTS = {
    "jsonl": "".join(json.dumps(line) + "\n" for line in LINES).encode(),
    "csv": ("label,user,price\n" + "".join("{label},{user},{price}\n".format(**line) for line in LINES)).encode(),
}
SCHEMA, SHAPE = "label: label\ndense: [price]\nsparse: [user]\n", Shape(("label", "user", "price"), ",", "label")


def in_two_streams(compress: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda content: compress(content[:5_000]) + compress(content[5_000:])


def by_zstd(content: bytes) -> bytes:
    return bytes(pa.compress(content, codec="zstd", asbytes=True))


FORMS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "bzip2": (".bz2", bz2.compress),
    "bzip2 in two streams": (".bz2", in_two_streams(bz2.compress)),
    "zstd": (".zst", by_zstd),
    "zstd in two streams": (".zst", in_two_streams(by_zstd)),
}


def make(directory: Path, name: str, content: bytes) -> Path:
    (directory / name).write_bytes(content)
    keys = paths(directory, SCHEMA, name, out=f"{name}.out")
    prepare(*keys, "data.split.method=fraction", "data.chunk_bytes=3000")
    return directory / f"{name}.out"


@pytest.mark.medium
@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("form", FORMS)
def test_rows_are_those_of_the_plain_file(tmp_path: Path, form: str, kind: str) -> None:
    suffix, compress = FORMS[form]
    plain = make(tmp_path, f"rows.{kind}", TEXTS[kind])
    packed = make(tmp_path, f"rows.{kind}{suffix}", compress(TEXTS[kind]))
    for one, other in zip(load_rows(plain), load_rows(packed), strict=True):
        np.testing.assert_array_equal(one, other)
    new = read_new_rows(tmp_path / f"rows.{kind}{suffix}", SHAPE)
    assert list(map(str, new.columns["user"])) == [line["user"] for line in LINES]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_whole_is_refused(tmp_path: Path, form: str) -> None:
    suffix, compress = FORMS[form]
    name, packed = form.partition(" ")[0], compress(TEXTS["csv"])
    middle = len(packed) // 2
    cases = {
        "cut": (packed[:-12], f"truncated {name} file"),
        "damaged": (packed[:middle] + bytes(40) + packed[middle + 40 :], f"damaged {name} file"),
        "followed": (packed + b"rows,that,follow\n", f"damaged {name} file"),
    }
    for case, (content, words) in cases.items():
        refused(words, make, tmp_path, f"{case}.csv{suffix}", content)
        assert not (tmp_path / f"{case}.csv{suffix}.out/manifest.json").exists()
        refused("damaged, or cut off", read_new_rows, tmp_path / f"{case}.csv{suffix}", SHAPE)
