"""Killed with -9 at random moments, a job ends with the same bytes."""

import os
import signal
import subprocess
import time

import numpy as np
import pytest

from data_prep.pipeline import preprocess
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import REPOSITORY, command, config, run, sums


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    directory = tmp_path_factory.mktemp("rows")
    for day in range(2):
        (directory / f"day_{day}").write_bytes(oracle.make_rows(1500, seed=day))
    return directory


@pytest.mark.parametrize(("encoding", "workers"), [("vocabulary", 3), ("hash", 2)], ids=["in chunks", "file by file"])
def test_kill_and_go_on(tmp_path, rows, encoding, workers):
    arguments = [
        f"data.raw={rows}",
        f"data.encoding={encoding}",
        "data.max_ind_range=500",
        "data.chunk_bytes=20000",
    ]
    preprocess(config(*arguments, f"data.path={tmp_path}/whole", "data.workers=1"))
    arguments += [f"data.path={tmp_path}/killed", f"data.workers={workers}"]
    rng = np.random.default_rng(len(encoding))
    kills = 0
    for _ in range(4):
        process = subprocess.Popen(command(*arguments), cwd=REPOSITORY, stderr=subprocess.DEVNULL)
        wait_for_work(process, tmp_path / "killed" / ".work" / "units")
        time.sleep(rng.uniform(0.0, 0.5))
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
        if (tmp_path / "killed" / "manifest.json").exists():
            break
    final = run(*arguments)
    assert final.returncode == 0, final.stderr
    assert kills
    assert sums(tmp_path / "killed") == sums(tmp_path / "whole")
    assert not (tmp_path / "killed" / ".work").exists()
    verify_dataset(tmp_path / "killed")


def wait_for_work(process, units):
    """Until the first unit is finished, so that the kill comes in the middle."""
    for _ in range(48_000):
        if process.poll() is not None or (units.is_dir() and any(units.glob("*.parsed.json"))):
            return
        time.sleep(0.005)
    raise AssertionError("the job never began")


def test_finished_units_are_kept(tmp_path, rows, monkeypatch):
    """What is done is not done again: a second start parses only what the first left."""
    from data_prep import units

    arguments = config(f"data.raw={rows}", f"data.path={tmp_path}/out", "data.chunk_bytes=20000", "data.workers=1")
    parsed: list[int] = []
    original = units._parse_lines

    def stop_after_five(job, source, chunk, lines):
        if len(parsed) == 5:
            raise KeyboardInterrupt
        parsed.append(chunk)
        return original(job, source, chunk, lines)

    monkeypatch.setattr(units, "_parse_lines", stop_after_five)
    with pytest.raises(KeyboardInterrupt):
        preprocess(arguments)
    assert len(list((tmp_path / "out" / ".work" / "units").glob("*.parsed.json"))) == 5
    again: list[int] = []
    monkeypatch.setattr(units, "_parse_lines", lambda *a: (again.append(1), original(*a))[1])
    manifest = preprocess(arguments)
    assert len(again) == -(-manifest.sources[0]["bytes"] // 20000) + -(-manifest.sources[1]["bytes"] // 20000) - 5


def test_a_damaged_unit_is_done_again(tmp_path, rows, monkeypatch):
    """After a power cut a finished unit's file may be anything; its sum tells."""
    from data_prep import stages

    arguments = config(f"data.raw={rows}", f"data.path={tmp_path}/out", "data.chunk_bytes=90000", "data.workers=1")
    preprocess(config(f"data.raw={rows}", f"data.path={tmp_path}/whole", "data.chunk_bytes=90000", "data.workers=1"))
    with monkeypatch.context() as patch:
        patch.setattr(stages, "plan_pieces", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            preprocess(arguments)
    units = tmp_path / "out" / ".work" / "units"
    for name in ("00000-00000.dense.npy", "00000-00001.raw", "00001-00000.sparse.npy"):
        content = bytearray((units / name).read_bytes())
        content[-1] ^= 1
        (units / name).write_bytes(content)
    preprocess(arguments)
    assert sums(tmp_path / "out") == sums(tmp_path / "whole")


def test_a_kill_during_the_last_moves(tmp_path, rows, monkeypatch):
    from data_prep import layout

    preprocess(config(f"data.raw={rows}", f"data.path={tmp_path}/whole", "data.chunk_bytes=90000"))
    arguments = config(f"data.raw={rows}", f"data.path={tmp_path}/out", "data.chunk_bytes=90000")
    moves: list[object] = []
    original = os.replace

    def stop_after_seven(source, target):
        if "units" in str(source):
            moves.append(target)
            if len(moves) == 7:
                raise KeyboardInterrupt
        original(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(layout.os, "replace", stop_after_seven)
        with pytest.raises(KeyboardInterrupt):
            preprocess(arguments)
    assert not (tmp_path / "out" / "manifest.json").exists()
    preprocess(arguments)
    assert sums(tmp_path / "out") == sums(tmp_path / "whole")
    verify_dataset(tmp_path / "out")


def test_a_signal_stops_the_job_resumably(tmp_path, rows):
    arguments = [f"data.raw={rows}", f"data.path={tmp_path}/out", "data.chunk_bytes=5000", "data.workers=1"]
    process = subprocess.Popen(command(*arguments), cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
    wait_for_work(process, tmp_path / "out" / ".work" / "units")
    process.terminate()
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 75, errors
    assert "Traceback" not in errors
    assert errors.strip().splitlines()[-1] == "stopped; run the same command again to go on"
    assert not (tmp_path / "out" / "manifest.json").exists()
    final = run(*arguments)
    assert final.returncode == 0, final.stderr
    assert "going on where the last job stopped" in final.stderr
