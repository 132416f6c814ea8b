import gzip

import pytest

from common.errors import UserError
from data_prep.sources import open_source, resolve_sources


def names(raw):
    return [source.name for source in resolve_sources(raw)]


@pytest.fixture
def days(tmp_path):
    for name in ("day_10", "day_2", "day_1", "notes.txt", ".hidden"):
        (tmp_path / name).write_bytes(b"x\n")
    return tmp_path


def test_a_directory_means_its_days_in_natural_order(days):
    assert names(str(days)) == ["day_1", "day_2", "day_10"]


def test_a_directory_without_days_means_all_its_files(tmp_path):
    for name in ("b.tsv", "a.tsv"):
        (tmp_path / name).write_bytes(b"x\n")
    assert names(str(tmp_path)) == ["a.tsv", "b.tsv"]


def test_a_glob_is_sorted_and_a_list_is_not(days):
    assert names(f"{days}/day_*") == ["day_1", "day_2", "day_10"]
    assert names([f"{days}/day_10", f"{days}/day_?"]) == ["day_10", "day_1", "day_2"]


def test_compression_is_told_by_content(tmp_path):
    (tmp_path / "day_0").write_bytes(gzip.compress(b"hello\n"))
    source = resolve_sources(str(tmp_path / "day_0"))[0]
    assert source.compressed
    reader = open_source(source)
    buffer = bytearray(10)
    assert reader.readinto(memoryview(buffer)) == 6
    assert bytes(buffer[:6]) == b"hello\n"
    assert reader.readinto(memoryview(buffer)) == 0
    assert reader.readinto(memoryview(buffer)) == 0
    reader.close()


@pytest.mark.parametrize(
    ("make", "raw", "message"),
    [
        (None, "absent.tsv", "absent.tsv: no such file"),
        (None, "*.tsv", "no file matches"),
        (b"", "day_0", "day_0: empty file"),
        (b"not gzip\n", "day_0.gz", "day_0.gz: not a gzip file"),
    ],
)
def test_unusable_sources(tmp_path, make, raw, message):
    if make is not None:
        (tmp_path / raw).write_bytes(make)
    with pytest.raises(UserError, match=message):
        resolve_sources(str(tmp_path / raw))


@pytest.mark.parametrize("raw", [None, "", [], [1], 3, {"a": 1}])
def test_what_is_not_a_source(raw):
    with pytest.raises(UserError, match=r"data\.raw="):
        resolve_sources(raw)


def test_an_empty_directory(tmp_path):
    with pytest.raises(UserError, match="no files in this directory"):
        resolve_sources(str(tmp_path))
