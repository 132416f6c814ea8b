import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.files import digest_file
from data_prep.encoding import Encoder
from data_prep.verify import verify_dataset
from tests.app.datasets import write_ragged_dataset
from tests.data_prep.conftest import REPOSITORY, prepare, write_rows
from tests.data_prep.tables import make, paths, write
from tests.error_lines import error_line, refused
from tests.forks import run_module


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    prepare(*write_rows(tmp_path, 100, seed=4), "data.chunk_bytes=10000")
    return tmp_path / "out"


def change(root: Path, edit: Callable[..., Any]) -> None:
    path = root / "manifest.json"
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def change_array(root: Path, number: int, kind: str, index: Any, value: float) -> None:
    """Change one value of a shard of train, and the sum that the manifest gives."""
    path = root / "train" / f"{number:05}.{kind}.npy"
    array = np.load(path)
    array[index] = value
    np.save(path, array)
    digest = digest_file(path)
    files = {kind: {"bytes": digest.bytes, "sha256": digest.sha256}}
    change(root, lambda document: document["splits"]["train"]["shards"][number]["files"].update(files))


def test_a_whole_dataset(dataset: Path) -> None:
    process = run_module("data_prep.verify", f"data.path={dataset}", cwd=REPOSITORY)
    assert process.returncode == 0, process.stderr
    assert "100 rows" in process.stdout
    (dataset / "val" / "00000.dense.npy").unlink()
    process = run_module("data_prep.verify", f"data.path={dataset}", cwd=REPOSITORY)
    assert process.returncode == 2
    assert error_line(process.stderr).startswith(f"error: {dataset}/val/00000.dense.npy")


HASHED = ["data.encoding=hash", "data.max_ind_range=50", "data.multi_hot.sizes=mlperf_v2"]


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["vocabulary", "multi-hot", "texts and bags"])
def test_one_changed_byte_of_any_file(tmp_path: Path, kind: str) -> None:
    if kind == "texts and bags":
        write(tmp_path / "rows.csv", {"label": [0, 1] * 40, "user": [*"abcd"] * 20, "tags": ["x|y", "z"] * 40})
        keys = paths(tmp_path, "label: label\nsparse: [user, {column: tags, separator: '|'}]\n")
    else:
        keys = [*write_rows(tmp_path, 60, seed=4), *(HASHED if kind == "multi-hot" else [])]
    change_bytes(keys, tmp_path / "out")


def change_bytes(keys: list[str], root: Path, encodes: bool = True) -> None:
    """Make a dataset and change a byte of a file of each kind: verification names it, and so does an encoder."""
    prepare(*keys, f"data.path={root}")
    one_of_each = {(path.parent, re.sub(r"\d+", "", path.name)): path for path in sorted(root.rglob("*.npy"))}
    assert len(one_of_each) > 6
    for path in one_of_each.values():
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        refused(rf"{path.relative_to(root)}: .*sha256 .*again", verify_dataset, root)
        if "vocab" in path.parts and "texts" not in path.name and "offsets" not in path.name and encodes:
            refused(rf"{path.name}: sha256 .* the file changed", Encoder.load, root)
        path.write_bytes(whole)
    verify_dataset(root)


@pytest.mark.parametrize("name", ["train/00009.sparse.npy", "test/notes.txt", "vocab/cat_99.npy"])
def test_a_file_that_does_not_belong(dataset: Path, name: str) -> None:
    (dataset / name).write_bytes(b"")
    refused(f"{name}: does not belong to the dataset", verify_dataset, dataset)


def test_a_directory_in_place_of_a_file(dataset: Path) -> None:
    for name in ("vocab/cat_9.npy", "val/00000.dense.npy"):
        for damage in ((dataset / name).unlink, (dataset / name).mkdir):
            damage()
            refused(f"{name}: file not readable", verify_dataset, dataset)
    shutil.rmtree(dataset / "val")
    (dataset / "val").touch()
    refused("val: directory not readable", verify_dataset, dataset)


RANGES: list[Any] = [("labels", (3, 0), 2, "label"), ("dense", (3, 5), np.nan, "int_5")]
RANGES += [("sparse", (3, 7), -1, "cat_7"), ("sparse", (3, 7), 10**6, "cat_7")]


@pytest.mark.parametrize(("kind", "index", "value", "column"), RANGES)
def test_values_out_of_range(dataset: Path, kind: str, index: tuple[int, int], value: float, column: str) -> None:
    change_array(dataset, 0, kind, index, value)
    refused(rf"train/00000\.{kind}\.npy: row 4, column {column}: value out of range", verify_dataset, dataset)


def test_a_number_as_a_label_that_is_not_finite(tmp_path: Path) -> None:
    columns = {"rating": [row / 8 for row in range(70)], "user": [f"u{row % 9}" for row in range(70)]}
    make(tmp_path, columns, "label: {column: rating, kind: number}\nsparse: [user]\n")
    change_array(tmp_path / "out", 0, "labels", (3, 0), np.nan)
    refused(r"labels\.npy: row 4, column rating: value out of range", verify_dataset, tmp_path / "out")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda each: each["splits"]["val"].update(label_rate=0.123), r"key 'splits\.val\.label_rate' is 0\.123"),
        (lambda each: each.update(rows=101), "key 'rows' is 101, but the splits have 100"),
    ],
)
def test_counts_and_rates(dataset: Path, edit: Callable[..., Any], message: str) -> None:
    change(dataset, edit)
    refused(rf"manifest\.json: {message}", verify_dataset, dataset)


BAGS = [
    ("values", 11, 30, r"00001\.values\.npy: row \d+, column tags: value out of range"),
    ("values", -1, -1, r"00001\.values\.npy: row 70, column genres: value out of range"),
    ("offsets", 5, 10_000, r"00001\.offsets\.npy: row 5, column tags: value out of range"),
]


@pytest.mark.parametrize(("kind", "place", "value", "message"), BAGS)
def test_bags_are_checked_too(tmp_path: Path, kind: str, place: int, value: int, message: str) -> None:
    write_ragged_dataset(tmp_path, {"train": 140})
    change(tmp_path, lambda document: document.update(label_rate=document["splits"]["train"]["label_rate"]))
    verify_dataset(tmp_path)
    change_array(tmp_path, 1, kind, place, value)
    refused(message, verify_dataset, tmp_path)
