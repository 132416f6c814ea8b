"""Keys without effect, choices that cannot be, input of another kind: refused, in one line, before any work."""

import gzip
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from common.errors import UserError
from data_prep.dataset.format import Manifest
from data_prep.encoding.encoder import Encoder
from data_prep.pipeline import preprocess
from tests.data_prep import oracle
from tests.data_prep.conftest import config, load_split


def make(directory: Path, *overrides: str, raw: Path | None = None) -> Manifest:
    for day in range(2):
        if not (directory / f"day_{day}").exists():
            (directory / f"day_{day}").write_bytes(oracle.make_rows(40, seed=day))
    return preprocess(config(f"data.raw={raw or directory}", f"data.path={directory}/out", *overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        ["data.split.seed=3"],
        ["data.split.method=fraction", "data.split.seed=3"],
        ["data.split.held_out=0.5"],
        ["data.split.method=last_day", "data.split.held_out=0.5"],
        ["data.encoding=dlrm_kaggle", "data.split.held_out=0.5"],
        ["data.encoding=amd_blog", "data.split.seed=3"],
        ["data.sampling.seed=3"],
        ["data.synthetic.rows=10"],
        ["data.remote.tries=2"],
        ["data.days=[1]"],
    ],
)
def test_a_key_without_effect(tmp_path: Path, overrides: list[str]) -> None:
    with pytest.raises(UserError, match=r"has no effect|does not leave it open"):
        make(tmp_path, *overrides)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.split.method=last_day", "data.days=[0]"], "needs at least two raw files"),
        (["data.encoding=dlrm_kaggle", "data.max_ind_range=9"], "does not leave it open"),
        (["data.multi_hot.sizes=[1,2]"], "2 given for 26 features"),
        (["data.schema=x.yaml"], "these rows are Criteo's"),
    ],
)
def test_nothing_is_fetched_for_choices_that_cannot_be(
    tmp_path: Path, overrides: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data_prep.job_setup.find_remote", lambda *_: pytest.fail("fetched"))
    with pytest.raises(UserError, match=message):
        preprocess(config("data=criteo_1tb", f"data.path={tmp_path}/out", *overrides))


def test_the_raw_directory_is_not_the_dataset_s(tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").write_bytes(oracle.make_rows(40, seed=0))
    with pytest.raises(UserError, match=r"is data\.path too"):
        preprocess(config(f"data.raw={tmp_path}", f"data.path={tmp_path}/."))


def test_a_random_split_leaves_rows_to_train_on(tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").write_bytes(oracle.make_rows(2, seed=0))
    with pytest.raises(UserError, match="none is left to train on"):
        make(tmp_path, "data.split.method=random", "data.split.held_out=0.999", raw=tmp_path / "rows.tsv")
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"user,item,label\n1,2,3\n", "row 1: separated by commas, not tabs"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00", "row 1: not text"),
        (b"PAR1\x15\x04\x15\x10\n\x00\xff" * 9, "row 1: not text"),
        (gzip.compress(b"\x00\x01\x02\n" * 9, mtime=0), "row 1: not text"),
    ],
    ids=["CSV", "PNG", "Parquet", "gzip"],
)
def test_files_of_another_kind(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UserError, match=message):
        make(tmp_path, raw=tmp_path / "file")


@pytest.mark.parametrize("name", ["my rows.tsv", "rows.gz"])
@pytest.mark.parametrize("fault", ["a header", "commas", "returns"])
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
    with pytest.raises(UserError) as error:
        make(tmp_path, raw=tmp_path / name)
    words = {
        "a header": "row 1: names of columns, which raw",
        "commas": "row 1: separated by commas, not tabs",
        "returns": "row 1: lines end in carriage returns alone",
    }
    assert words[fault] in str(error.value)
    (command,) = re.findall(r"; (?:remove it|convert the file): (.* > NEW)$", str(error.value))
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    assert (tmp_path / "NEW").read_bytes() == rows


def test_new_rows_wrap_and_miss_as_the_dataset_s_do(tmp_path: Path) -> None:
    """The smallest int32 is a number like any other; what overflows in a `torchrec` shard does so in new rows."""
    rows = oracle.make_rows(60, seed=3).split(b"\n")[:-1]
    edge = [b"1", b"-2147483648", b"2147483647", *[b""] * 11, *[b"1"] * 26]
    text = b"\n".join([*rows[:-1], b"\t".join(edge)]) + b"\n"
    for encoding in ("torchrec", "torchrec_fixed", "vocabulary"):
        (tmp_path / "rows.tsv").write_bytes(text)
        root = tmp_path / encoding
        more = "data.dense_transform=raw" if encoding == "vocabulary" else "data.split.held_out=0.1"
        paths = [f"data.raw={tmp_path}/rows.tsv", f"data.path={root}"]
        preprocess(config(*paths, f"data.encoding={encoding}", more))
        encoder = Encoder.load(root)
        dense = np.concatenate([load_split(root, split)[1] for split in ("train", "val", "test")])
        new_dense = encoder.encode(encoder.parse(text, "new")).dense
        np.testing.assert_array_equal(np.sort(dense, axis=0), np.sort(new_dense, axis=0))
