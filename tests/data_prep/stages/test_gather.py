"""Shuffled rows on their way to shards: in which windows and blocks they go changes no byte."""

from pathlib import Path

import pytest

from data_prep.engine import job as job_module
from data_prep.pipeline import preprocess
from data_prep.stages import gather
from tests.data_prep import oracle
from tests.data_prep.conftest import config, sums


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["torchrec_fixed", pytest.param("amd_blog", marks=pytest.mark.slow)])
def test_bytes_do_not_depend_on_windows_and_blocks(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = []
    for day in range(3):
        (tmp_path / f"day_{day}").write_bytes(oracle.make_rows(2500, seed=day))
        days.append(f"{tmp_path}/day_{day}")
    job = [f"data.encoding={encoding}", f"data.raw=[{','.join(days)}]", "data.chunk_bytes=128KiB"]
    preprocess(config(f"data.path={tmp_path}/whole", *job))
    monkeypatch.setattr(gather, "WINDOW_ROWS", 190)
    monkeypatch.setattr(gather, "PART_ROWS", 1)
    monkeypatch.setattr(job_module, "MAX_BLOCK_ROWS", 37)
    monkeypatch.setattr(job_module, "MIN_BLOCK_ROWS", 37)
    preprocess(config(f"data.path={tmp_path}/pieces", *job))
    assert sums(tmp_path / "pieces") == sums(tmp_path / "whole")
