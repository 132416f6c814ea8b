"""What could cost somebody their files, or hang: found by review, each tried."""

import multiprocessing
import os
import subprocess
import threading
from pathlib import Path

import pytest

from common.errors import UserError
from data_prep.config.keys import SyntheticConfig
from data_prep.engine.executor import Counters
from data_prep.sources.discover import resolve_sources
from data_prep.synthetic.days import generate_days
from tests.data_prep import oracle
from tests.data_prep.conftest import run
from tests.error_lines import error_line


def test_raw_rows_inside_the_dataset_are_not_removed(tmp_path: Path) -> None:
    (tmp_path / "x/train").mkdir(parents=True)
    (tmp_path / "x/train/day_0").write_bytes(oracle.make_rows(100, seed=0))
    process = run(f"data.raw={tmp_path}/x/train/day_0", f"data.path={tmp_path}/x")
    assert process.returncode == 2
    assert "lies where data.path=" in process.stderr
    assert (tmp_path / "x/train/day_0").stat().st_size


def test_files_of_others_are_not_removed(tmp_path: Path) -> None:
    (tmp_path / "x/val").mkdir(parents=True)
    (tmp_path / "x/val/notes.txt").write_text("keep")
    (tmp_path / "rows.tsv").write_bytes(oracle.make_rows(100, seed=0))
    process = run(f"data.raw={tmp_path}/rows.tsv", f"data.path={tmp_path}/x")
    assert process.returncode == 2
    assert "holds files that are not a dataset's" in process.stderr
    assert (tmp_path / "x/val/notes.txt").read_text() == "keep"


@pytest.mark.parametrize("raw", ["rows.tsv", "x/rows.tsv"])
def test_a_directory_of_other_files_is_no_place_for_a_dataset(tmp_path: Path, raw: str) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x/sales.csv").write_text("keep")
    (tmp_path / raw).write_bytes(oracle.make_rows(100, seed=0))
    before = sorted(path.name for path in (tmp_path / "x").iterdir())
    for more in ([f"data.raw={tmp_path}/{raw}"], ["data=random", "data.random.rows=10"]):
        process = run(*more, f"data.path={tmp_path}/x")
        assert process.returncode == 2
        assert "holds files that are not a dataset's (" in error_line(process.stderr)
        assert sorted(path.name for path in (tmp_path / "x").iterdir()) == before


def test_raw_files_in_a_directory_of_the_dataset_s(tmp_path: Path) -> None:
    (tmp_path / "x/days").mkdir(parents=True)
    (tmp_path / "x/.gitignore").write_text("*")
    (tmp_path / "x/days/day_0").write_bytes(oracle.make_rows(100, seed=0))
    assert run(f"data.raw={tmp_path}/x/days/day_0", f"data.path={tmp_path}/x").returncode == 0


def test_a_dataset_is_replaced_when_asked(tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").write_bytes(oracle.make_rows(100, seed=0))
    command = [f"data.raw={tmp_path}/rows.tsv", f"data.path={tmp_path}/x"]
    assert run(*command).returncode == 0
    assert run(*command, "data.encoding=hash", "data.max_ind_range=9", "data.overwrite=true").returncode == 0


def _die_holding(counters: Counters) -> None:
    counters._totals.get_lock().acquire()
    os._exit(9)


@pytest.mark.slow
def test_a_worker_that_died_while_counting_blocks_nobody() -> None:
    counters = Counters()
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


@pytest.mark.slow
def test_an_interrupted_generation_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SyntheticConfig(rows=3_000, days=3)
    whole = generate_days(config, tmp_path / "whole", None)
    replace, calls = Path.replace, []

    def interrupted(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            generate_days(config, tmp_path / "cut", None)
    days = generate_days(config, tmp_path / "cut", None)
    assert [Path(day).read_bytes() for day in days] == [Path(day).read_bytes() for day in whole]


def test_a_day_given_twice_is_refused(tmp_path: Path) -> None:
    for name in ("day_0", "day_0.gz"):
        (tmp_path / name).write_bytes(b"x")
    for raw in (str(tmp_path), [str(tmp_path / "day_0"), f"{tmp_path}/../{tmp_path.name}/day_0"]):
        with pytest.raises(UserError, match="name each day once"):
            resolve_sources(raw)


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from data_prep import pipeline

    path = tmp_path / "rows.tsv"
    path.write_bytes(oracle.make_rows(300, seed=0))
    before = vars(pipeline)["refuse_empty"]

    def rewritten(*arguments: object) -> None:
        before(*arguments)
        path.write_bytes(oracle.make_rows(300, seed=1))

    monkeypatch.setattr(pipeline, "refuse_empty", rewritten)
    from data_prep.pipeline import preprocess
    from tests.data_prep.conftest import config

    with pytest.raises(UserError, match="changed while it was read"):
        preprocess(config(f"data.raw={path}", f"data.path={tmp_path}/out"))
    assert not (tmp_path / "out/manifest.json").exists()


@pytest.mark.parametrize("name", ["user.id", "../evil", "a\\b"])
def test_a_column_cannot_name_a_file_elsewhere(name: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"y,{name}\n1,2\n0,3\n")
    (tmp_path / "t.yaml").write_text(f"delimiter: ','\nheader: true\nlabel: y\ndense: []\nsparse: ['{name}']\n")
    process: subprocess.CompletedProcess[str] = run(
        f"data.raw={tmp_path}/t.csv", f"data.path={tmp_path}/out", f"data.schema={tmp_path}/t.yaml"
    )
    assert process.returncode == 2
    assert "sparse column" in error_line(process.stderr)
