import re
from dataclasses import fields, is_dataclass
from enum import Enum

import pytest

from common.errors import UserError
from data_prep.config.checks import validate
from data_prep.config.keys import PrepConfig, chunk_size, parse_size
from tests.data_prep.conftest import REPOSITORY, config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1048576", 1 << 20),
        ("2GiB", 2 << 30),
        ("1.5 MiB", 3 << 19),
        ("500MB", 5 * 10**8),
        ("64k", 1 << 16),
        ("7b", 7),
    ],
)
def test_sizes(text, expected):
    assert parse_size(text, "key") == expected


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 2", "1XB"])
def test_what_is_not_a_size(text):
    with pytest.raises(UserError, match="key="):
        parse_size(text, "key")


def test_the_chunk_follows_from_the_configuration_alone():
    assert chunk_size(config()) == 128 << 20
    assert chunk_size(config("data.workers=64")) == 128 << 20
    assert chunk_size(config("data.memory_budget=512MiB")) == 32 << 20
    assert chunk_size(config("data.memory_budget=64GiB")) == 128 << 20
    assert chunk_size(config("data.chunk_bytes=1000")) == 1000


@pytest.mark.parametrize(
    "override",
    [
        "data.frequency_threshold=-1",
        "data.max_ind_range=0",
        "data.max_ind_range=3000000000",
        "data.chunk_bytes=0",
        "data.split.held_out=1.0",
        "data.synthetic.rows=0",
        "data.synthetic.click_rate=1",
        "data.synthetic.days=0",
    ],
)
def test_limits(override):
    with pytest.raises(UserError, match=override.split("=")[0]):
        validate(config("data.path=out", override))


def test_a_threshold_without_effect_is_refused():
    with pytest.raises(UserError, match="no effect"):
        validate(config("data.path=out", "data.encoding=hash", "data.max_ind_range=9", "data.frequency_threshold=2"))


def test_lists_of_raw_files():
    assert config("data.raw=[a.tsv,b.tsv]").raw == ["a.tsv", "b.tsv"]
    assert config("data.raw=days/day_*").raw == "days/day_*"


def defaults(prefix, values):
    """key -> default of a dataclass and those in it, as they are given on the command line."""
    found = {}
    for field in fields(values):
        key, value = f"{prefix}{field.name}", getattr(values, field.name)
        value = value.value if isinstance(value, Enum) else value
        found |= defaults(f"{key}.", value) if is_dataclass(value) else {key: value}
    return found


def test_the_documentation_has_every_key_with_its_default():
    text = (REPOSITORY / "docs" / "data.md").read_text()
    table = re.findall(r"^\| `([a-z_0-9.]+\.[a-z_0-9]+)` \| `(.*?)` \| \S", text, re.MULTILINE)
    known = defaults("", PrepConfig())
    told = {"None": "null", "True": "true", "False": "false", "": " ", str(1 / 7): "1/7"}
    assert dict(table) == {key: told.get(str(value), str(value)) for key, value in known.items()}
    assert len(table) == len(known)
