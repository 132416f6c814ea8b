"""What could cost somebody their files, or hang: found by review, each tried."""

import multiprocessing
import os
import threading
from pathlib import Path

import pytest

from data_prep.config.keys import SyntheticConfig
from data_prep.engine.executor import Counters
from data_prep.synthetic.days import generate_days
from tests.data_prep import oracle
from tests.data_prep.conftest import prepare


def test_raw_files_in_a_directory_of_the_dataset_s(tmp_path: Path) -> None:
    (tmp_path / "x/days").mkdir(parents=True)
    (tmp_path / "x/.gitignore").write_text("*")
    (tmp_path / "x/days/day_0").write_bytes(oracle.make_rows(100, seed=0))
    assert prepare(f"data.raw={tmp_path}/x/days/day_0", f"data.path={tmp_path}/x").rows == 100


def _die_holding(counters: Counters) -> None:
    counters._totals.get_lock().acquire()
    os._exit(9)


@pytest.mark.slow("examples")
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


@pytest.mark.slow("examples")
def test_an_interrupted_generation_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SyntheticConfig(rows=3_000, days=3)
    whole = generate_days(settings, tmp_path / "whole", None)
    replace, calls = Path.replace, []

    def interrupted(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            generate_days(settings, tmp_path / "cut", None)
    days = generate_days(settings, tmp_path / "cut", None)
    assert [Path(day).read_bytes() for day in days] == [Path(day).read_bytes() for day in whole]
