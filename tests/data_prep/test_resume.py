"""Killed with -9 at random moments, a job ends with the same bytes."""

import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import UserError
from data_prep import __main__ as main_module
from data_prep.config.keys import PrepConfig
from data_prep.engine.executor import Worker
from data_prep.pipeline import preprocess
from data_prep.sources.line_blocks import LineBlocks
from data_prep.stages import parse
from data_prep.stages.parse import ChunkWriter, ParseTask
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import REPOSITORY, config, load_split, run, sums
from tests.forks import run_module


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("rows")
    for day in range(2):
        (directory / f"day_{day}").write_bytes(oracle.make_rows(1500, seed=day))
    return directory


def test_finished_units_are_kept(tmp_path: Path, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done is not done again: a second start parses only what the first left."""
    arguments = config(f"data.raw={rows}", f"data.path={tmp_path}/out", "data.chunk_bytes=20000", "data.workers=1")
    parsed: list[int] = []
    original = parse._parse_lines

    def stop_after_five(task: ParseTask, chunk: int, lines: LineBlocks, worker: Worker) -> ChunkWriter:
        if len(parsed) == 5:
            raise KeyboardInterrupt
        parsed.append(chunk)
        return original(task, chunk, lines, worker)

    monkeypatch.setattr(parse, "_parse_lines", stop_after_five)
    with pytest.raises(KeyboardInterrupt):
        preprocess(arguments)
    assert len(list((tmp_path / "out" / ".work" / "chunks").glob("*.parsed.json"))) == 5
    parse_calls: list[int] = []
    monkeypatch.setattr(parse, "_parse_lines", lambda *a: parse_calls.append(1) or original(*a))  # type: ignore[func-returns-value]
    manifest = preprocess(arguments)
    assert len(parse_calls) == -(-manifest.sources[0]["bytes"] // 20000) + -(-manifest.sources[1]["bytes"] // 20000) - 5


@pytest.mark.slow
def test_a_damaged_unit_is_done_again(tmp_path: Path, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut a finished unit's file may be anything; its sum tells."""
    from data_prep import pipeline

    arguments = config(f"data.raw={rows}", f"data.path={tmp_path}/out", "data.chunk_bytes=90000", "data.workers=1")
    preprocess(config(f"data.raw={rows}", f"data.path={tmp_path}/whole", "data.chunk_bytes=90000", "data.workers=1"))
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "plan_cut", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            preprocess(arguments)
    directory = tmp_path / "out" / ".work" / "chunks"
    for name in ("00000-00000.dense.npy", "00000-00001.columns", "00001-00000.sparse.npy"):
        content = bytearray((directory / name).read_bytes())
        content[-1] ^= 1
        (directory / name).write_bytes(content)
    preprocess(arguments)
    assert sums(tmp_path / "out") == sums(tmp_path / "whole")


def test_the_work_of_another_release_is_discarded(
    tmp_path: Path, rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What its units' files are is not known here."""
    from data_prep import pipeline
    from data_prep.engine import workspace

    arguments = config(f"data.raw={rows}", f"data.path={tmp_path}/out", "data.chunk_bytes=90000", "data.workers=1")
    with monkeypatch.context() as patch:
        patch.setattr(workspace, "WORK_FORMAT", vars(workspace)["WORK_FORMAT"] - 1)
        patch.setattr(pipeline, "plan_cut", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            preprocess(arguments)
    for record in (tmp_path / "out" / ".work" / "chunks").glob("*.parsed.json"):
        record.write_text(record.read_text().replace('"rows"', '"number"'))
    capsys.readouterr()
    preprocess(arguments)
    assert "discarding the unfinished work" in capsys.readouterr().err


@pytest.mark.slow
def test_a_kill_during_the_last_moves(tmp_path: Path, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    preprocess(config(f"data.raw={rows}", f"data.path={tmp_path}/whole", "data.chunk_bytes=90000"))
    arguments = config(f"data.raw={rows}", f"data.path={tmp_path}/out", "data.chunk_bytes=90000")
    moves: list[object] = []
    original = os.replace

    def stop_after_seven(source: Path, target: Path) -> None:
        if "chunks" in str(source):
            moves.append(target)
            if len(moves) == 7:
                raise KeyboardInterrupt
        original(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop_after_seven)
        with pytest.raises(KeyboardInterrupt):
            preprocess(arguments)
    assert not (tmp_path / "out" / "manifest.json").exists()
    preprocess(arguments)
    assert sums(tmp_path / "out") == sums(tmp_path / "whole")
    verify_dataset(tmp_path / "out")


def stop_in_the_third_unit() -> None:
    original, count = parse._parse_lines, []

    def parse_and_stop(*arguments: Any) -> Any:
        count.append(1)
        if len(count) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*arguments)

    vars(parse)["_parse_lines"] = parse_and_stop


@pytest.mark.slow
def test_a_signal_stops_the_job_resumably(tmp_path: Path, rows: Path) -> None:
    arguments = [f"data.raw={rows}", f"data.path={tmp_path}/out", "data.chunk_bytes=5000", "data.workers=1"]
    stopped = run_module("data_prep", *arguments, cwd=REPOSITORY, prepare=stop_in_the_third_unit)
    errors = stopped.stderr
    assert stopped.returncode == 75, errors
    assert "Traceback" not in errors
    assert len(list((tmp_path / "out" / ".work" / "chunks").glob("*.parsed.json"))) in (2, 3)
    assert errors.strip().splitlines()[-1] == "SIGTERM: stopped; run the same command again to resume"
    assert not (tmp_path / "out" / "manifest.json").exists()
    final = run(*arguments)
    assert final.returncode == 0, final.stderr
    assert "resuming where the last job stopped" in final.stderr


def rewritten(path: Path, content: bytes) -> None:
    """Another file of the same size and time of writing, as `tar --mtime` leaves one."""
    status = path.stat()
    assert len(content) == status.st_size
    path.unlink()
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("moment", ["resumed", "finished", "while it is read"])
def test_a_file_of_equal_size_and_time_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    day, content = tmp_path / "day_0", oracle.make_rows(300, seed=0)
    other = b"".join(b"%d" % (line[:1] == b"0") + line[1:] for line in content.splitlines(keepends=True))
    day.write_bytes(content)
    job = config(f"data.raw={day}", f"data.path={tmp_path}/out", "data.chunk_bytes=20000", "data.workers=1")
    parsed: list[int] = []
    original = parse._parse_lines

    def change_or_stop(task: ParseTask, chunk: int, lines: LineBlocks, worker: Worker) -> ChunkWriter:
        parsed.append(chunk)
        if moment == "while it is read" and len(parsed) == 2:
            rewritten(day, other)
        if moment == "resumed" and len(parsed) == 3:
            raise KeyboardInterrupt
        return original(task, chunk, lines, worker)

    monkeypatch.setattr(parse, "_parse_lines", change_or_stop)
    if moment == "while it is read":
        with pytest.raises(UserError, match="changed while it was read; run the same command again"):
            preprocess(job)
        assert not (tmp_path / "out/manifest.json").exists()
    elif moment == "finished":
        preprocess(job)
        rewritten(day, other)
        with pytest.raises(UserError, match="made from other raw files"):
            preprocess(job)
        rewritten(day, content)
        preprocess(job)  # the same again, by its checksum
        return
    else:
        with pytest.raises(KeyboardInterrupt):
            preprocess(job)
        rewritten(day, other)
    manifest = preprocess(job)
    assert manifest.sources[0]["sha256"] == hashlib.sha256(other).hexdigest()
    labels = np.concatenate([load_split(tmp_path / "out", split)[0] for split in ("train", "val", "test")])
    assert labels.tolist() == oracle.parse(other)[0].tolist()


@pytest.mark.slow
def test_a_dataset_that_is_there_starts_no_processes(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`python -m app.train` asks for it each time."""
    arguments = [f"data.raw={rows}", f"data.path={tmp_path}/out", "data.chunk_bytes=20000"]
    preprocess(config(*arguments))
    started: list[str] = []
    monkeypatch.setattr(main_module, "start_fork_server", lambda has_schema: started.append("early"))
    monkeypatch.setattr(main_module, "may_use_processes", lambda data: True)
    assert main_module.main(PrepConfig(data=config(*arguments))) == 0
    assert "already done" in capsys.readouterr().err
    assert started == []
