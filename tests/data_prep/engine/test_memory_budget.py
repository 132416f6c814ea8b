"""The memory budget, held by jobs that would need more of it than is usual."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.dataset.format import Manifest, load_manifest
from data_prep.encoding.texts import VocabularyTexts
from data_prep.engine import memory_budget
from data_prep.pipeline import preprocess
from tests.data_prep import oracle
from tests.data_prep.conftest import REPOSITORY, config, sums

BUDGET = 512 << 20
ROWS = 6_000_000
TEXTS = 10_000_000
PRINTED = np.frombuffer(b"0123456789abcdef", np.uint8)


def short_rows(path: Any, rows: Any) -> None:
    """Rows of one category and nothing else, hardly any of them twice: the most rows and values for their length."""
    rng = np.random.default_rng(1)
    line = np.frombuffer(b"0" + b"\t" * 14 + b"xxxxxxxx" + b"\t" * 25 + b"\n", np.uint8)
    with open(path, "wb") as file:
        for start in range(0, rows, 1 << 18):
            text = np.tile(line, (min(1 << 18, rows - start), 1))
            text[:, 15:23] = PRINTED[rng.integers(0, 16, (len(text), 8))]
            text.tofile(file)


def short_texts(path: Path, rows: int) -> None:
    """A table of a label and a text, hardly any of them twice."""
    rng = np.random.default_rng(1)
    line = np.frombuffer(b"0,xxxxxxxxxxxx\n", np.uint8)
    with open(path, "wb") as file:
        file.write(b"label,user\n")
        for start in range(0, rows, 1 << 18):
            text = np.tile(line, (min(1 << 18, rows - start), 1))
            text[:, 0] += rng.integers(0, 2, len(text), np.uint8)
            text[:, 2:14] = PRINTED[rng.integers(0, 16, (len(text), 12))]
            text.tofile(file)


def largest_memory(pid: Any) -> Any:
    """VmHWM of a process; 0 when it has gone."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM")), 0)
    except OSError:
        return 0


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
@pytest.mark.parametrize(
    ("overrides", "cores"),
    [([], None), (["data.encoding=torchrec_fixed"], 1)],  # a shuffle's threads keep the most memory on one core
)
def test_millions_of_values_that_occur_once_stay_within_the_budget(
    tmp_path: Path, overrides: list[str], cores: int | None
) -> None:
    short_rows(tmp_path / "rows.tsv", ROWS)
    manifest = made_within_the_budget(tmp_path, [f"data.raw={tmp_path}/rows.tsv", *overrides], cores)
    assert manifest.rows == ROWS
    assert manifest.num_embeddings["cat_0"] > 0.8 * ROWS


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_ten_million_texts_stay_within_the_budget(tmp_path: Path) -> None:
    short_texts(tmp_path / "rows.csv", TEXTS)
    (tmp_path / "schema.yaml").write_text("label: label\nsparse: [user]\n")
    paths = [f"data.raw={tmp_path}/rows.csv", f"data.schema={tmp_path}/schema.yaml"]
    manifest = made_within_the_budget(tmp_path, paths, None)
    assert manifest.rows == TEXTS
    assert manifest.num_embeddings["user"] > 0.8 * TEXTS
    assert len(VocabularyTexts(tmp_path / "out", "user")) == manifest.num_embeddings["user"] - 1


def made_within_the_budget(directory: Path, overrides: list[str], cores: int | None) -> Manifest:
    """The dataset that a command makes, whose processes' memory is looked at."""
    arguments = [f"data.path={directory}/out", f"data.memory_budget={BUDGET}", *overrides]
    command = [sys.executable, "-m", "data_prep", *arguments]
    with subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE) as process:
        os.sched_setaffinity(process.pid, sorted(os.sched_getaffinity(0))[:cores])
        peak = 0
        while process.poll() is None:
            peak = max(peak, largest_memory(process.pid))
            time.sleep(0.01)
    assert process.returncode == 0
    manifest = load_manifest(directory / "out")
    reported = manifest.extra["peak_memory_bytes"]
    assert max(peak, reported) <= BUDGET
    assert peak <= 1.01 * reported  # which was read shortly before the end
    return manifest


@pytest.mark.slow
@pytest.mark.parametrize(
    "encoding", ["amd_blog", *(pytest.param(name, marks=pytest.mark.slow) for name in ("dlrm_kaggle", "torchrec"))]
)
def test_a_shuffle_in_many_windows_is_the_one_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    (tmp_path / "rows.tsv").write_bytes(oracle.make_rows(300, seed=3))
    overrides = [
        f"data.raw={tmp_path}/rows.tsv",
        f"data.encoding={encoding}",
        "data.workers=1",
        "data.chunk_bytes=9000",
    ]
    preprocess(config(*overrides, f"data.path={tmp_path}/whole"))
    monkeypatch.setattr(memory_budget, "WINDOWS_PER_BUDGET", 2**31 // 4 // 40)
    preprocess(config(*overrides, f"data.path={tmp_path}/windows"))
    assert sums(tmp_path / "windows") == sums(tmp_path / "whole")


@pytest.fixture
def few_files() -> Iterator[None]:
    """No more files may be open at a time than a few beyond those that are."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 25, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.slow
@pytest.mark.parametrize("is_table", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_units_keep_no_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, is_table: bool
) -> None:
    overrides = ["data.workers=1", "data.split.method=random"]
    if is_table:
        (tmp_path / "schema.yaml").write_text("label: y\nsparse: [{column: tags, separator: '|'}]\n")
        rows = [f"{i % 2},{i % 7}|{i % 11}|{i}" for i in range(900)]
        (tmp_path / "rows").write_text("\n".join(["y,tags", *rows, ""]))
        overrides += [f"data.schema={tmp_path}/schema.yaml", "data.chunk_bytes=300"]
    else:
        (tmp_path / "rows").write_bytes(oracle.make_rows(200, seed=3))
        overrides += ["data.vocabulary_order=first_appearance", "data.chunk_bytes=1500"]
    overrides.append(f"data.raw={tmp_path}/rows")
    preprocess(config(*overrides, f"data.path={tmp_path}/usual"))
    monkeypatch.setattr(memory_budget, "PART_BYTES", 1 << 12)  # so that runs are not read at once
    request.getfixturevalue("few_files")
    preprocess(config(*overrides, f"data.path={tmp_path}/few"))
    assert sums(tmp_path / "few") == sums(tmp_path / "usual")
