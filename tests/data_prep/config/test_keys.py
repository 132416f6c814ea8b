import pytest

from common.keys import declaration, describe
from data_prep.config import DataConfig, PrepConfig, chunk_size, parse_size
from tests.data_prep.conftest import config
from tests.error_lines import refused

SIZES = {"1048576": 1 << 20, "2GiB": 2 << 30, "1.5 MiB": 3 << 19, "500MB": 5 * 10**8, "64k": 1 << 16, "7b": 7}
SIZES |= {"2e9": 2 * 10**9, "1_000": 1000}


def test_sizes() -> None:
    assert {text: parse_size(text, "key") for text in SIZES} == SIZES


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 2", "1XB"])
def test_what_is_not_a_size(text: str) -> None:
    refused("key=", parse_size, text, "key")


def test_the_chunk_follows_from_the_configuration_alone() -> None:
    assert chunk_size(config()) == 128 << 20
    assert chunk_size(config("data.workers=64")) == 128 << 20
    assert chunk_size(config("data.memory_budget=512MiB")) == 32 << 20
    assert chunk_size(config("data.memory_budget=64GiB")) == 128 << 20
    assert chunk_size(config("data.chunk_bytes=1000")) == 1000


def test_lists_of_raw_files() -> None:
    assert config("data.raw=[a.tsv,b.tsv]").raw == ["a.tsv", "b.tsv"]
    assert config("data.raw=days/day_*").raw == "days/day_*"


def test_help_prints_the_meaning_beside_the_value() -> None:
    lines = [" ".join(line.split()) for line in describe(PrepConfig(), {})]
    text = " ".join(line.removeprefix("# ") for line in lines)
    assert "data.overwrite=false # " + declaration(DataConfig, "overwrite").meaning in text
    assert any(line.startswith("data.encoding=null # vocabulary | hash | ") for line in lines)
