"""Keys of data_prep: sizes, and remedies that are typed and work; new rows wrap as those of the dataset."""

import re
from pathlib import Path

import numpy as np
import pytest

from data_prep.config import parse_size
from data_prep.encoding import Encoder, read_new_rows
from tests.data_prep import oracle
from tests.data_prep.conftest import load_rows, prepare
from tests.error_lines import refused

SIZES = {"1048576": 1 << 20, "2GiB": 2 << 30, "1.5 MiB": 3 << 19, "500MB": 5 * 10**8, "64k": 1 << 16, "7b": 7}
SIZES |= {"2e9": 2 * 10**9, "1_000": 1000}


def test_sizes() -> None:
    assert {text: parse_size(text, "key") for text in SIZES} == SIZES


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 2", "1XB"])
def test_what_is_not_a_size(text: str) -> None:
    refused("key=", parse_size, text, "key")


OWN, CUSTOM = "data.raw=own.csv data.schema=own.yaml", "data.raw=own.csv"
DAY, DAYS = "data.raw=day_0", "data.raw=day_* data.split.method"
LARGE = "data.raw=large.csv data.schema=own.yaml"
# What is typed; what its message must have; what is typed next, of its groups.
REMEDIES: list[tuple[str, str, str | None]] = [
    ("data.rwa=day_0", r"did you mean (data\.raw)\?", "{0}=day_0"),
    ("--data.raw=day_0", r"have no dashes; write (\S+)$", "{0}"),
    (DAY + " data.held_out=0.2", r"did you mean (data\.split\.held_out)\?", DAY + " {0}=0.2"),
    (CUSTOM, r"name its columns in (data\.schema)=FILE", CUSTOM + " {0}=own.yaml"),
    ("data.source=synthetic " + OWN, r"name your own in data\.raw and leave out (data\.source)", OWN),
    (DAY + " data.encoding=hash", r"needs (data\.max_ind_range), .*e\.g\. (\d+)", DAY + " data.encoding=hash {0}={1}"),
    (OWN + " data.encoding=torchrec", "use (vocabulary) or hash", OWN + " data.encoding={0}"),
    (f"{DAYS}=last_day data.split.held_out=0.5", "use (fraction), or leave it", DAYS + "={0} data.split.held_out=0.5"),
    (DAY + " data.chunk_bytes=1GiB", "give at most a 16th of it", DAY + " data.chunk_bytes=128MiB"),
    (LARGE + " data.dense_transform=raw", r"set (data\.dense_transform=signed_log1p);", LARGE + " {0}"),
]


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    for day in range(2):
        (tmp_path / f"day_{day}").write_bytes(oracle.make_rows(60, seed=day))
    for name, price in (("own", "1"), ("large", "1e39")):
        (tmp_path / f"{name}.csv").write_text("label,price,user\n" + f"1,{price},u\n0,2,v\n" * 30)
    (tmp_path / "own.yaml").write_text("label: label\ndense: [price]\nsparse: [user]\n")
    return tmp_path


@pytest.mark.medium
@pytest.mark.parametrize(("bad", "message", "good"), REMEDIES)
def test_each_remedy(inputs: Path, monkeypatch: pytest.MonkeyPatch, bad: str, message: str, good: str | None) -> None:
    monkeypatch.chdir(inputs)
    match = re.search(message, refused(message, prepare, *bad.split(), "data.path=out"))
    assert match
    if good is not None:
        prepare(*good.format(*match.groups()).split(), "data.path=out")
        assert (inputs / "out/manifest.json").exists()


@pytest.mark.medium
def test_new_rows_wrap_and_miss_as_the_dataset_s_do(tmp_path: Path) -> None:
    rows = oracle.make_rows(60, seed=3).split(b"\n")[:-1]
    edge = [b"1", b"-2147483648", b"2147483647", *[b""] * 11, *[b"1"] * 26]
    text = b"\n".join([*rows[:-1], b"\t".join(edge)]) + b"\n"
    (tmp_path / "rows.tsv").write_bytes(text)
    for encoding in ("torchrec", "torchrec_fixed", "vocabulary"):
        more = "data.dense_transform=raw" if encoding == "vocabulary" else "data.split.held_out=0.1"
        keys = [f"data.raw={tmp_path}/rows.tsv", f"data.path={tmp_path / encoding}"]
        prepare(*keys, f"data.encoding={encoding}", more)
        encoder = Encoder.load(tmp_path / encoding)
        columns = read_new_rows(tmp_path / "rows.tsv", encoder.shape()).columns
        dense, new = load_rows(tmp_path / encoding)[1], encoder.encode(encoder.parse_columns(columns, "new")).dense
        np.testing.assert_array_equal(np.sort(dense, axis=0), np.sort(new, axis=0))
