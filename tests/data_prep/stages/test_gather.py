"""Shuffled rows on their way to shards: in which windows and blocks they go changes no byte."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.engine import job as job_module
from data_prep.pipeline import preprocess
from data_prep.stages import gather
from data_prep.stages.gather import LAST_ROWS, WINDOW_ROWS, window_bounds
from tests.data_prep import oracle
from tests.data_prep.conftest import config, sums


@given(st.integers(0, 6 * WINDOW_ROWS), st.sampled_from([0, 1, LAST_ROWS + 1, 2 * WINDOW_ROWS]))
def test_windows_get_smaller_to_the_end_of_a_shard(rows: int, min_rows: int) -> None:
    bounds = window_bounds(rows, min_rows)
    sizes = [end - begin for begin, end in pairwise(bounds)]
    assert (bounds[0], bounds[-1]) == (0, rows)
    assert sizes == sorted(sizes, reverse=True)
    assert all(max(LAST_ROWS, min_rows) <= size <= max(WINDOW_ROWS, min_rows) for size in sizes[:-1])
    assert not sizes or 0 < sizes[-1] <= max(LAST_ROWS, min_rows)


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
    monkeypatch.setattr(gather, "LAST_ROWS", 23)
    monkeypatch.setattr(gather, "PART_ROWS", 1)
    monkeypatch.setattr(job_module, "MAX_BLOCK_ROWS", 37)
    monkeypatch.setattr(job_module, "MIN_BLOCK_ROWS", 37)
    preprocess(config(f"data.path={tmp_path}/pieces", *job))
    assert sums(tmp_path / "pieces") == sums(tmp_path / "whole")
