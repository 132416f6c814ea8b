import gzip
import hashlib
import io
import re
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.files import FileDigest
from data_prep.config import resolve_rules
from data_prep.dataset.options import CRITEO
from data_prep.dataset.table_spec import Table
from data_prep.io import BLOCK_BYTES
from data_prep.job import Job, reads_whole
from data_prep.parsing.formats import Chunk
from data_prep.sources.discover import Source, missing_days, resolve_sources
from data_prep.sources.line_blocks import ROOM_BEFORE, SourceStream
from data_prep.stages.parse import DigestTask, ParseTask, reading_tasks
from tests.data_prep.conftest import config
from tests.error_lines import refused


def zipped(content: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("rows.csv", content)
    return stream.getvalue()


PACKED = {
    "zip": (zipped, "unzip {}"),
    "7-Zip": (lambda content: b"7z\xbc\xaf\x27\x1c" + content, "7z x {}"),
    "lz4": (lambda content: b"\x04\x22\x4d\x18" + content, "lz4 -d {}"),
    "compress": (lambda content: b"\x1f\x9d" + content, "gzip -dk {}"),
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


@pytest.mark.parametrize("start", [b"BZh", b"BZhello", b"PK,rows", b"7z"])
def test_text_that_begins_like_them_is_text(tmp_path: Path, start: bytes) -> None:
    (tmp_path / "rows.csv").write_bytes(start + b",x\n1,2\n")
    assert names(str(tmp_path)) == ["rows.csv"]


def names(raw: list[str] | str) -> list[str]:
    return [source.name for source in resolve_sources(raw)]


@pytest.fixture
def days(tmp_path: Path) -> Path:
    for name in ("day_10", "day_2", "day_1", "notes.txt", ".hidden"):
        (tmp_path / name).write_bytes(b"x\n")
    return tmp_path


NAMES = [
    ("{0}", ["day_1", "day_2", "day_10"]),  # a directory means its days in natural order
    ("{0}/day_*", ["day_1", "day_2", "day_10"]),
    (["{0}/day_10", "{0}/day_?"], ["day_10", "day_1", "day_2"]),
    ("{0}/more", ["a.tsv", "b.tsv"]),  # without days it means all its files
]


@pytest.mark.parametrize(("raw", "expected"), NAMES)
def test_names_of_sources(days: Path, raw: str | list[str], expected: list[str]) -> None:
    (days / "more").mkdir()
    for name in ("b.tsv", "a.tsv"):
        (days / "more" / name).write_bytes(b"x\n")
    assert names(raw.format(days) if isinstance(raw, str) else [each.format(days) for each in raw]) == expected


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


def test_a_stream_ends_before_its_end_when_closed(tmp_path: Path) -> None:
    (tmp_path / "day_0").write_bytes(bytes(20_000_000))
    threads = threading.active_count()
    stream = SourceStream(resolve_sources(str(tmp_path / "day_0"))[0])
    assert stream.next_block()[1] == BLOCK_BYTES
    stream.close()
    assert stream.consumed() < 20_000_000
    assert threading.active_count() == threads


def test_a_source_is_read_whole_or_in_chunks_and_summed(tmp_path: Path) -> None:
    for name in ("day_0", "day_1"):
        (tmp_path / name).write_bytes(bytes(1000))
    (tmp_path / "day_2").write_bytes(gzip.compress(bytes(1000)))
    sources = tuple(resolve_sources(str(tmp_path)))
    job = Job(tmp_path, sources, CRITEO, resolve_rules(config(), 3), 400)
    assert reading_tasks(job, whole=True) == [ParseTask(job, index, None) for index in range(3)]
    places = [Chunk(0, 400), Chunk(400, 800), Chunk(800, 1200)]
    split = [[DigestTask(sources[i]), *(ParseTask(job, i, *each) for each in enumerate(places))] for i in range(2)]
    assert reading_tasks(job, whole=False) == [*split[0], *split[1], ParseTask(job, 2, None)]


CASES: list[tuple[list[int], int, list[str], bool]]
CASES = [([1000], 1, [], True), ([1000], 2, [], False), ([1000] * 24, 8, [], True), ([1000] * 24, 16, [], False)]
CASES += [([900, 1000, 1100, 1000], 2, [], True), ([5000, 10], 2, [], False)]
CASES += [([1000] * 4, 4, ["data.memory_budget=1GiB"], False)]
CASES += [([1000], 1, ["data.workers=null", "data.scheduler=tcp://nowhere:1"], False)]


@pytest.mark.parametrize(("sizes", "workers", "overrides", "whole"), CASES)
def test_sources_read_whole(tmp_path: Path, sizes: list[int], workers: int, overrides: list[str], whole: bool) -> None:
    sources = tuple(Source(f"day_{i}", f"day_{i}", size, 0, False) for i, size in enumerate(sizes))
    data = config(f"data.path={tmp_path}", "data.memory_budget=64GiB", *overrides)
    job = Job(tmp_path, sources, CRITEO, resolve_rules(data, len(sources)), 128 << 20)
    assert reads_whole(data, job, workers) == whole


@pytest.mark.parametrize(("budget", "whole"), [("512MiB", False), ("64GiB", True)])
def test_a_table_is_read_in_chunks_where_two_at_once_do_not_fit(tmp_path: Path, budget: str, whole: bool) -> None:
    table = Table(",", True, "label", (), ("user",), None, ("label", "user"))
    data = config(f"data.path={tmp_path}", f"data.memory_budget={budget}")
    source = Source("rows", "rows.csv", 1 << 30, 0, False)
    job = Job(tmp_path, (source,), table.schema, resolve_rules(data, 1), 4 << 20, table)
    assert reads_whole(data, job, 1) == whole


@pytest.mark.parametrize("raw", [None, "", [], [1], 3, {"a": 1}])
def test_what_is_not_a_source(raw: Any, tmp_path: Path) -> None:
    refused(r"data\.raw=", resolve_sources, raw)
    refused("no files in this directory", resolve_sources, str(tmp_path))


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


def test_a_longer_name_is_not_the_whole_of_an_unfinished_one(days: Path) -> None:
    (days / "day_1").rename(days / "day_1.part")  # day_10 is there
    refused(r"day_1\.part: a download that has not ended", names, str(days))


def test_what_lies_beside_the_days_of_a_directory_does_not_matter(days: Path) -> None:
    (days / "notes.bak").write_bytes(b"x\n")
    (days / "other").symlink_to(days / "nowhere")
    (days / "day_2.gz.part").write_bytes(b"x\n")  # day_2 is there
    (days / "day_2").rename(days / "day_2.gz")
    (days / "day_2.gz").write_bytes(gzip.compress(b"x\n"))
    assert names(str(days)) == ["day_1", "day_2.gz", "day_10"]


def test_days_between_others_are_missed() -> None:
    sources = [Source(name, name, 1, 0, False) for name in ("day_1.gz", "day_2", "day_5.tsv", "notes", "day_5x")]
    assert missing_days(sources) == ["day_3", "day_4"]
    assert missing_days(sources[3:4]) == []
