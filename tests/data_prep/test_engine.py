"""Tasks on a Dask cluster, the memory budget, and files written past the page cache: the same bytes anyhow."""

import gzip
import multiprocessing
import os
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep import executor
from data_prep import io as arrays
from data_prep import job as memory_budget
from data_prep.config import chunk_size, resolve_rules
from data_prep.dataset.table_spec import Table
from data_prep.io import FileWriter
from data_prep.job import Job
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import config, prepare, sums, write_rows
from tests.error_lines import refused

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


@pytest.mark.slow("examples")
@pytest.mark.filterwarnings("ignore")  # of a library that is not ours
@pytest.mark.parametrize("encoding", ["vocabulary", "torchrec"])
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


@pytest.mark.medium
@pytest.mark.filterwarnings("ignore")
def test_a_bad_row_is_named(tmp_path: Path, scheduler: str) -> None:
    lines = oracle.make_rows(100, 0).splitlines(keepends=True)
    lines[70] = b"2" + lines[70][1:]
    (tmp_path / "rows.tsv").write_bytes(b"".join(lines))
    keys = [f"data.raw={tmp_path}/rows.tsv", f"data.path={tmp_path}/out", "data.chunk_bytes=5000", "data.workers=null"]
    message = rf"on {socket.gethostname()}: .*row 71, column label"
    refused(message, prepare, *keys, f"data.scheduler={scheduler}")
    assert not (tmp_path / "out" / "manifest.json").exists()


CLUSTER_ELSEWHERE = """
from distributed import LocalCluster
cluster = LocalCluster(n_workers=1, threads_per_worker=1, processes=False, protocol='tcp', dashboard_address=None)
print(cluster.scheduler.address, flush=True)
input()
"""


@pytest.mark.medium
def test_workers_that_cannot_load_the_program_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason=NEEDED)
    monkeypatch.setattr(executor, "CONNECT_SECONDS", 240)
    keys = [*write_rows(tmp_path, 10), "data.workers=null"]
    # -S: the environment's packages without clickwork.pth, by which they know this checkout.
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    command = [sys.executable, "-S", "-c", CLUSTER_ELSEWHERE]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes) as elsewhere:
        assert elsewhere.stdout is not None
        address = f"data.scheduler={elsewhere.stdout.readline().strip()}"
        refused(r"cannot load this program .* PYTHONPATH", prepare, *keys, address)
        elsewhere.communicate("\n", timeout=240)


ABSENT = (False, r"^data\.scheduler: needs Dask; install it with `pip install distributed`$")


@pytest.mark.parametrize(("is_installed", "message"), [(True, "no Dask scheduler answers"), ABSENT])
def test_no_scheduler_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_installed: bool, message: str) -> None:
    pytest.importorskip("distributed", reason=NEEDED)
    monkeypatch.setattr(executor, "CONNECT_SECONDS", 1)
    if not is_installed:
        monkeypatch.setitem(sys.modules, "distributed", None)
    keys = [*write_rows(tmp_path, 10), "data.workers=null"]
    refused(message, prepare, *keys, "data.scheduler=tcp://127.0.0.1:1")


def _die_holding(counters: executor.Counters) -> None:
    counters._totals.get_lock().acquire()
    os._exit(9)


@pytest.mark.slow("examples")
def test_a_worker_that_died_while_counting_blocks_nobody() -> None:
    counters = executor.Counters()
    process = multiprocessing.get_context("forkserver").Process(target=_die_holding, args=(counters,))
    process.start()
    process.join()
    assert process.exitcode == 9

    def go_on() -> None:
        counters.add(1, 1)
        counters.reset()
        assert counters.bytes == counters.rows == 0
        counters.stop()

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    thread.join(240)
    assert not thread.is_alive()


def test_a_column_of_texts_that_cannot_be_sorted_in_the_budget_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path, 10)
    data = config(f"data.path={tmp_path}", "data.memory_budget=512MiB")
    table = Table(",", True, "y", (), ("big", "small"), None, ("y", "big", "small"))
    job = Job(tmp_path, (), table.schema, resolve_rules(data, 1), chunk_size(data), table)
    message = "data.memory_budget: too small for the 26,000,000 values of column big; raise it"
    refused(message, memory_budget.workers_to_encode, data, job, 1, {"big": 26_000_000, "small": 2})


PIECE, MAX_HELD = 4096, 3 * 4096


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(arrays, "MAX_HELD_BYTES", MAX_HELD)


@pytest.mark.parametrize("is_buffered", [False, True])
def test_a_failing_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_buffered: bool) -> None:
    def disk_is_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(arrays, "write_past_cache", disk_is_full)
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
