import json
import subprocess
import sys

import numpy as np
import pytest

from common.errors import UserError
from data_prep.format import digest_file
from data_prep.pipeline import preprocess
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import REPOSITORY, config


@pytest.fixture
def dataset(tmp_path):
    (tmp_path / "rows.tsv").write_bytes(oracle.make_rows(100, seed=4))
    preprocess(config(f"data.raw={tmp_path}/rows.tsv", f"data.path={tmp_path}/out", "data.chunk_bytes=10000"))
    return tmp_path / "out"


def change(root, edit):
    """Edit the manifest's document."""
    path = root / "manifest.json"
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def change_array(root, split, kind, index, value):
    """Change one value of a split's first shard and the sum that the manifest gives."""
    path = root / split / f"00000.{kind}.npy"
    array = np.load(path)
    array[index] = value
    np.save(path, array)
    digest = digest_file(path)

    def edit(document):
        document["splits"][split]["shards"][0]["files"][kind] = {
            "bytes": digest.bytes,
            "sha256": digest.sha256,
        }

    change(root, edit)


def test_a_whole_dataset(dataset):
    arguments = [sys.executable, "-m", "data_prep.verify", f"data.path={dataset}"]
    process = subprocess.run(arguments, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert "100 rows" in process.stdout
    (dataset / "val" / "00000.dense.npy").unlink()
    process = subprocess.run(arguments, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert process.stderr.startswith(f"error: {dataset}/val/00000.dense.npy")
    assert process.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "name", ["train/00001.sparse.npy", "val/00000.labels.npy", "test/00000.dense.npy", "vocab/cat_9.npy"]
)
def test_one_changed_byte(dataset, name):
    path = dataset / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=name):
        verify_dataset(dataset)


@pytest.mark.parametrize(
    ("kind", "index", "value", "column"),
    [
        ("labels", (3, 0), 2, "label"),
        ("dense", (3, 5), np.nan, "int_5"),
        ("sparse", (3, 7), -1, "cat_7"),
        ("sparse", (3, 7), 10**6, "cat_7"),
    ],
)
def test_values_out_of_range(dataset, kind, index, value, column):
    change_array(dataset, "train", kind, index, value)
    with pytest.raises(UserError, match=rf"train/00000\.{kind}\.npy: row 4, column {column}: value out of range"):
        verify_dataset(dataset)


def test_counts_and_rates(dataset):
    verify_dataset(dataset)
    change(dataset, lambda document: document["splits"]["val"].update(label_rate=0.123))
    with pytest.raises(UserError, match="split val"):
        verify_dataset(dataset)


def test_a_row_count_that_does_not_add_up(dataset):
    change(dataset, lambda document: document.update(rows=101))
    with pytest.raises(UserError, match="the dataset 101 rows"):
        verify_dataset(dataset)
