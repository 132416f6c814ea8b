"""Remedies for raw files, and rows that are not as others; tests/data_prep/test_refusals.py has what is refused."""

import gzip
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from data_prep.encoding.encoder import Encoder
from tests.data_prep import oracle
from tests.data_prep.conftest import load_rows, prepare, refused, write_rows


def test_a_random_split_leaves_rows_to_train_on(tmp_path: Path) -> None:
    keys = [*write_rows(tmp_path, 2), "data.split.method=random", "data.split.held_out=0.999"]
    refused("none is left to train on", prepare, *keys)
    assert not (tmp_path / "out" / "manifest.json").exists()


FAULTS = {
    "a header": "row 1: names of columns, which raw",
    "commas": "row 1: separated by commas, not tabs",
    "returns": "row 1: lines end in carriage returns alone",
}


@pytest.mark.parametrize("name", ["my rows.tsv", "rows.gz"])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_command_that_repairs_a_file_works(tmp_path: Path, fault: str, name: str) -> None:
    """Rows with the names of columns above them, or as a spreadsheet or an old Macintosh exports them."""
    rows = oracle.make_rows(40, seed=0)
    header = "\t".join(["label", *(f"I{number}" for number in range(13)), *(f"C{number}" for number in range(26))])
    content = {
        "a header": header.encode() + b"\n" + rows,
        "commas": rows.replace(b"\t", b","),
        "returns": rows.replace(b"\n", b"\r"),
    }[fault]
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    line = refused(FAULTS[fault], prepare, f"data.raw={tmp_path / name}", f"data.path={tmp_path}/out")
    (command,) = re.findall(r"; (?:remove it|convert the file): (.* > NEW)$", line)
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    assert (tmp_path / "NEW").read_bytes() == rows


def test_new_rows_wrap_and_miss_as_the_dataset_s_do(tmp_path: Path) -> None:
    """The smallest int32 is a number like any other; what overflows in a `torchrec` shard does so in new rows."""
    rows = oracle.make_rows(60, seed=3).split(b"\n")[:-1]
    edge = [b"1", b"-2147483648", b"2147483647", *[b""] * 11, *[b"1"] * 26]
    text = b"\n".join([*rows[:-1], b"\t".join(edge)]) + b"\n"
    (tmp_path / "rows.tsv").write_bytes(text)
    for encoding in ("torchrec", "torchrec_fixed", "vocabulary"):
        more = "data.dense_transform=raw" if encoding == "vocabulary" else "data.split.held_out=0.1"
        keys = [f"data.raw={tmp_path}/rows.tsv", f"data.path={tmp_path / encoding}"]
        prepare(*keys, f"data.encoding={encoding}", more)
        encoder = Encoder.load(tmp_path / encoding)
        dense, new = load_rows(tmp_path / encoding)[1], encoder.encode(encoder.parse(text, "new")).dense
        np.testing.assert_array_equal(np.sort(dense, axis=0), np.sort(new, axis=0))
