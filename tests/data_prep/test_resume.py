"""What a stopped job leaves is kept, unless it is damaged or another's; test_kills.py kills jobs at drawn moments."""

import hashlib
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from data_prep import __main__ as main_module
from data_prep import job as workspace
from data_prep import pipeline
from data_prep.config import DataConfig, PrepConfig
from data_prep.pipeline import preprocess
from data_prep.stages import parse
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import REPOSITORY, Capture, config, load_rows, run, sums
from tests.error_lines import refused
from tests.forks import run_module


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("rows")
    for day in range(2):
        (directory / f"day_{day}").write_bytes(oracle.make_rows(1500, seed=day))
    return directory


def keys(directory: Path, rows: Path, out: str = "out", chunk_bytes: int = 90_000) -> DataConfig:
    return config(f"data.raw={rows}", f"data.path={directory}/{out}", f"data.chunk_bytes={chunk_bytes}")


def stop(*_: object) -> None:
    raise KeyboardInterrupt


def stop_before_the_cut(monkeypatch: pytest.MonkeyPatch, data: DataConfig, **constants: int) -> Path:
    """The directory of chunks of a job that was stopped when all of them were parsed."""
    with monkeypatch.context() as patch:
        for name, value in constants.items():
            patch.setattr(workspace, name, value)
        patch.setattr(pipeline, "cut_to_shards", stop)
        with pytest.raises(KeyboardInterrupt):
            preprocess(data)
    return Path(str(data.path)) / ".work/chunks"


def acting(number: int, act: Callable[[], object], calls: list[object]) -> Callable[..., Any]:
    """`_parse_lines`, which notes its calls, and begins the one of a number by `act`."""
    original = parse._parse_lines

    def parse_lines(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == number:
            act()
        return original(*arguments)

    return parse_lines


@pytest.mark.medium
def test_finished_units_are_kept(tmp_path: Path, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, calls = keys(tmp_path, rows, chunk_bytes=20_000), list[object]()
    monkeypatch.setattr(parse, "_parse_lines", acting(6, stop, calls))
    with pytest.raises(KeyboardInterrupt):
        preprocess(data)
    assert len(list((tmp_path / "out/.work/chunks").glob("*.parsed.json"))) == 5
    manifest = preprocess(data)
    assert len(calls) == sum(-(-source["bytes"] // 20_000) for source in manifest.sources) + 1


@pytest.mark.medium
def test_a_damaged_unit_is_done_again(tmp_path: Path, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut a finished unit's file may be anything; its sum tells."""
    preprocess(keys(tmp_path, rows, "whole"))
    chunks = stop_before_the_cut(monkeypatch, keys(tmp_path, rows))
    for name in ("00000-00000.dense.npy", "00000-00001.columns", "00001-00000.sparse.npy"):
        content = bytearray((chunks / name).read_bytes())
        content[-1] ^= 1
        (chunks / name).write_bytes(content)
    preprocess(keys(tmp_path, rows))
    assert sums(tmp_path / "out") == sums(tmp_path / "whole")


@pytest.mark.medium
def test_the_work_of_another_release_is_discarded(
    tmp_path: Path, rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """What its units' files are is not known here."""
    chunks = stop_before_the_cut(monkeypatch, keys(tmp_path, rows), WORK_FORMAT=vars(workspace)["WORK_FORMAT"] - 1)
    for record in chunks.glob("*.parsed.json"):
        record.write_text(record.read_text().replace('"rows"', '"number"'))
    capsys.readouterr()
    preprocess(keys(tmp_path, rows))
    assert "discarding the unfinished work of another job" in capsys.readouterr().err


@pytest.mark.medium
def test_a_kill_during_the_last_moves(tmp_path: Path, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preprocess(keys(tmp_path, rows, "whole"))
    moves: list[object] = []
    original = os.replace

    def stop_after_seven(source: Path, target: Path) -> None:
        moves.extend([target] if "chunks" in str(source) else [])
        if len(moves) == 7:
            raise KeyboardInterrupt
        original(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop_after_seven)
        with pytest.raises(KeyboardInterrupt):
            preprocess(keys(tmp_path, rows))
    assert not (tmp_path / "out/manifest.json").exists()
    preprocess(keys(tmp_path, rows))
    assert sums(tmp_path / "out") == sums(tmp_path / "whole")
    verify_dataset(tmp_path / "out")


def stop_in_the_third_unit() -> None:
    vars(parse)["_parse_lines"] = acting(3, partial(os.kill, os.getpid(), signal.SIGTERM), [])


@pytest.mark.slow("processes")
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


@pytest.mark.medium
@pytest.mark.parametrize("moment", ["resumed", "finished", "while it is read"])
def test_a_file_of_equal_size_and_time_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    day, content = tmp_path / "day_0", oracle.make_rows(300, seed=0)
    other = b"".join(b"%d" % (line[:1] == b"0") + line[1:] for line in content.splitlines(keepends=True))
    day.write_bytes(content)
    job = keys(tmp_path, day, chunk_bytes=20_000)
    if moment == "while it is read":
        monkeypatch.setattr(parse, "_parse_lines", acting(2, partial(rewritten, day, other), []))
        refused("changed while it was read; run the same command again", preprocess, job)
        assert not (tmp_path / "out/manifest.json").exists()
    elif moment == "finished":
        preprocess(job)
        rewritten(day, other)
        refused("made from other raw files", preprocess, job)
        rewritten(day, content)
        preprocess(job)  # the same again, by its checksum
        return
    else:
        monkeypatch.setattr(parse, "_parse_lines", acting(3, stop, []))
        with pytest.raises(KeyboardInterrupt):
            preprocess(job)
        rewritten(day, other)
    manifest = preprocess(job)
    assert manifest.sources[0]["sha256"] == hashlib.sha256(other).hexdigest()
    assert load_rows(tmp_path / "out")[0].tolist() == oracle.parse(other)[0].tolist()


@pytest.mark.medium
def test_a_dataset_that_is_there_starts_no_processes(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """`python -m app.train` asks for it each time."""
    data = keys(tmp_path, rows)
    preprocess(data)
    started: list[str] = []
    monkeypatch.setattr(main_module, "start_fork_server", lambda has_schema: started.append("early"))
    monkeypatch.setattr(main_module, "may_use_processes", lambda data: True)
    assert main_module.main(PrepConfig(data=data)) == 0
    assert "already done" in capsys.readouterr().err
    assert started == []
