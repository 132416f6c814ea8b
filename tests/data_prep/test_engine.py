"""Tasks on a Dask cluster give the same bytes; a write that fails leaves no file."""

import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep import executor
from data_prep import io as arrays
from data_prep.io import FileWriter
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import prepare, sums

NEEDED = "Dask is not installed: pip install distributed"


@pytest.fixture(scope="module")
def scheduler() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed", reason=NEEDED)
    import dask

    patient = dask.config.set({f"distributed.comm.timeouts.{phase}": "240s" for phase in ("connect", "tcp")})
    local = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with pytest.MonkeyPatch.context() as patch, patient, distributed.LocalCluster(**local) as cluster:
        patch.setattr(executor, "CONNECT_SECONDS", 240)  # on a machine that does other work
        yield cluster.scheduler_address


@pytest.mark.medium
@pytest.mark.filterwarnings("ignore")  # of a library that is not ours
@pytest.mark.parametrize("encoding", ["vocabulary", pytest.param("torchrec", marks=pytest.mark.slow)])
def test_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str, encoding: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "day_0").write_bytes(oracle.make_rows(500, 0))
    (tmp_path / "day_1").write_bytes(gzip.compress(oracle.make_rows(300, 1)))
    arguments = ["data.raw=day_?", f"data.encoding={encoding}", "data.chunk_bytes=20000", "data.max_ind_range=500"]
    whole = prepare(*arguments, "data.path=one")
    both = prepare(*arguments, "data.path=two", "data.workers=null", f"data.scheduler={scheduler}")
    assert sums(tmp_path / "two") == sums(tmp_path / "one")
    assert both.digest == whole.digest
    verify_dataset(tmp_path / "two")


PIECE, MAX_HELD = 4096, 3 * 4096


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(arrays, "MAX_HELD_BYTES", MAX_HELD)


@pytest.mark.parametrize("is_buffered", [False, True])
def test_a_failing_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_buffered: bool) -> None:
    def disk_is_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(arrays, "transfer_past_cache", disk_is_full)
    before = set(os.listdir("/proc/self/fd"))
    file = FileWriter(tmp_path / "a", is_buffered=is_buffered)

    def write() -> None:
        try:
            for _ in range(3):
                file.append(np.ones(5000, np.int32))
            file.close()
        finally:
            file.abandon()

    with pytest.raises(OSError, match="No space left"):
        write()
    assert not list(tmp_path.iterdir())
    assert set(os.listdir("/proc/self/fd")) == before
