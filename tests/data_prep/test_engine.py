"""Tasks on a Dask cluster give the same bytes; a write that fails leaves no file."""

import gzip
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep import executor
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


def test_a_failing_write_leaves_no_file(tmp_path: Path) -> None:
    before, (soft, hard) = set(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30000, hard))
    try:
        with FileWriter(tmp_path / "a") as file:
            file.append(np.ones(10000, np.int32))
            with pytest.raises(OSError, match="too large"):
                file.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())
    assert set(os.listdir("/proc/self/fd")) == before
