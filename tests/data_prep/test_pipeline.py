import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import SPLITS, Capture, load_split, prepare, sums, write_rows
from tests.error_lines import refused


def expected_splits(text: bytes, rows: tuple[int, int, int]) -> dict[str, list[NDArray[Any]]]:
    labels, dense, sparse = oracle.parse(text)
    arrays = (labels, oracle.encode_dense(dense), oracle.encode_vocabulary(sparse, rows[0]))
    bounds = np.cumsum([0, *rows])
    return {split: [a[bounds[i] : bounds[i + 1]] for a in arrays] for i, split in enumerate(SPLITS)}


def assert_dataset(root: Path, expected: dict[str, list[NDArray[Any]]]) -> None:
    for split in SPLITS:
        for actual, expected_array in zip(load_split(root, split), expected[split], strict=True):
            np.testing.assert_array_equal(actual, expected_array)
    verify_dataset(root)


def test_rows_with_one_worker(tmp_path: Path, rows: Path) -> None:
    expected_rows = oracle.seventh(len(rows.read_bytes().splitlines()))
    manifest = prepare(f"data.raw={rows}", f"data.path={tmp_path}/out", "data.workers=1")
    assert tuple(manifest.splits[split].rows for split in SPLITS) == expected_rows
    assert_dataset(tmp_path / "out", expected_splits(rows.read_bytes(), expected_rows))
    labels, _, ids = load_split(tmp_path / "out", "test")
    assert manifest.splits["test"].label_rate == labels.mean()
    unknown = manifest.extra["out_of_vocabulary"]["test"]
    assert list(unknown.values()) == (ids == 0).sum(axis=0).tolist()
    assert sum(manifest.extra["out_of_vocabulary"]["train"].values()) == 0
    assert manifest.sources[0]["rows"] == sum(expected_rows)
    assert manifest.extra["peak_memory_bytes"] > 50 << 20


@pytest.mark.parametrize("rows", range(1, 9))
def test_tiny_inputs(tmp_path: Path, rows: int) -> None:
    prepared = prepare(*write_rows(tmp_path, rows, seed=rows))
    assert_dataset(tmp_path / "out", expected_splits(oracle.make_rows(rows, seed=rows), oracle.seventh(rows)))
    assert all((split.label_rate is None) == (split.rows == 0) for split in prepared.splits.values())


@pytest.mark.medium
def test_done_is_done_and_other_parameters_are_refused(tmp_path: Path, capsys: Capture) -> None:
    arguments = write_rows(tmp_path, 50)
    first = prepare(*arguments)
    mtime = (tmp_path / "out" / "manifest.json").stat().st_mtime_ns
    assert prepare(*arguments) == first
    assert "already done" in capsys.readouterr().err
    assert (tmp_path / "out" / "manifest.json").stat().st_mtime_ns == mtime
    (tmp_path / "rows.tsv").write_bytes((tmp_path / "rows.tsv").read_bytes())  # touched, it is the same source
    prepare(*arguments)
    assert "already done" in capsys.readouterr().err
    refused("frequency_threshold is 1 there, 2 here", prepare, *arguments, "data.frequency_threshold=2")
    before = sums(tmp_path / "out")
    write_rows(tmp_path, 50, seed=1)
    refused("made from other raw files", prepare, *arguments)
    assert sums(tmp_path / "out") == before
    assert not (tmp_path / "out" / ".work").exists()
    second = prepare(*arguments, "data.overwrite=true")
    assert second.digest != first.digest
    verify_dataset(tmp_path / "out")


def test_raw_files_in_a_directory_of_the_dataset_s(tmp_path: Path) -> None:
    (tmp_path / "days").mkdir()
    (tmp_path / ".gitignore").write_text("*")
    raw, _ = write_rows(tmp_path / "days", 100)
    assert prepare(raw, f"data.path={tmp_path}").rows == 100


def test_another_job_at_work_is_respected(tmp_path: Path) -> None:
    (tmp_path / "out/.work").mkdir(parents=True)
    with open(tmp_path / "out/.work/lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused("another job is writing here", prepare, *write_rows(tmp_path))


def test_the_manifest_names_what_decides_the_bytes(tmp_path: Path) -> None:
    prepare(*write_rows(tmp_path), "data.frequency_threshold=2")
    document = json.loads((tmp_path / "out" / "manifest.json").read_text())
    expected = {"name": "vocabulary", "frequency_threshold": 2, "split": "fraction", "held_out": 1 / 7}
    assert expected.items() <= document["encoding"].items()
    assert document["encoding"]["vocabulary"]["cat_0"]["values"] == document["num_embeddings"]["cat_0"] - 1
    assert document["sources"][0]["name"] == "rows.tsv"
    assert str(tmp_path) not in json.dumps(document)


@pytest.mark.parametrize("link", [shutil.copy, os.link])
def test_days_of_the_same_bytes_are_refused(tmp_path: Path, link: Callable[[Path, Path], object]) -> None:
    for day in range(2):
        (tmp_path / f"day_{day}").write_bytes(oracle.make_rows(30, seed=day))
    link(tmp_path / "day_0", tmp_path / "day_2")
    message = r"day_2: the same bytes as .*day_0, so its rows would count twice"
    refused(message, prepare, f"data.raw={tmp_path}", f"data.path={tmp_path}/out")
    assert not (tmp_path / "out/manifest.json").exists()


def test_what_is_read_and_what_is_missing_is_said(tmp_path: Path, capsys: Capture) -> None:
    for day in (0, 1, 4):
        (tmp_path / f"day_{day}").write_bytes(oracle.make_rows(30, seed=day))
    prepare(f"data.raw={tmp_path}", f"data.path={tmp_path}/out")
    output = capsys.readouterr().err
    assert f"{tmp_path}/out: 3 raw files, from day_0 to day_4\n" in output
    assert f"{tmp_path}/out: warning: among the raw files there is no day_2, day_3\n" in output


@pytest.mark.medium
def test_criteo_s_rows_do_without_pyarrow() -> None:
    """It takes 40 MiB of each worker."""
    code = "import sys, data_prep.__main__; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
