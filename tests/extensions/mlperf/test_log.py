"""The epochs of MLPerf's log, however a run is stopped, resumed and extended; each starts and stops once."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.metrics.documents import EvaluationEvent, TrainEvent
from app.record.documents import Summary
from common.documents import convert
from extensions.mlperf.log import MLPerf
from tests.app.conftest import composed
from tests.app.run_files import LEAST

ROWS = {"train": 1_000, "val": 100, "test": 100}
STEPS = 10  # of an epoch


def tracker(path: Path, from_step: int, *overrides: str) -> MLPerf:
    pytest.importorskip("mlperf_logging")
    arguments = ["recipe=mlperf_v2", "train.global_batch_size=100", *overrides]
    return MLPerf(path, composed(*arguments), ROWS, 1, from_step)


def send(to: MLPerf, *events: tuple[str, int]) -> None:
    for kind, step in events:
        window = TrainEvent(event=kind, step=step, samples=step * 100, loss=0.1, lr=1.0)
        evaluation = EvaluationEvent(event=kind, step=step, samples=step * 100, auc=0.5 + step / 1000, eval_seconds=0.0)
        to.event(window if kind == "train" else evaluation)


def launch(path: Path, from_step: int, status: str, *events: tuple[str, int], keys: Sequence[str] = ()) -> None:
    """A process that logs these events, and ends with this status at the last one's step."""
    log, step = tracker(path, from_step, *keys), events[-1][1]
    send(log, *events)
    log.close(convert({**LEAST, "status": status, "steps": step, "samples": step * 100}, Summary))


def epochs(path: Path) -> list[tuple[str, int, int]]:
    """Starts and stops of epochs, with the epoch and the step."""
    entries = [json.loads(line.partition(":::MLLOG ")[2]) for line in path.read_text(encoding="utf-8").splitlines()]
    ends = [entry for entry in entries if entry["key"].startswith("epoch_")]
    return [(entry["key"][6:], entry["metadata"]["epoch_num"], entry["metadata"]["step"]) for entry in ends]


TWO_EPOCHS = [("start", 1, 0), ("stop", 1, 10), ("start", 2, 10), ("stop", 2, 20)]


def test_a_stop_at_the_end_of_an_epoch_before_its_evaluation(tmp_path: Path) -> None:
    launch(tmp_path / "log", 0, "interrupted", ("train", 5), ("train", 10))
    launch(tmp_path / "log", 10, "completed", ("eval", 10), ("train", 15), ("train", 20), ("eval", 20))
    assert epochs(tmp_path / "log") == TWO_EPOCHS


@pytest.mark.parametrize("status", ["completed", "interrupted"])
def test_no_epoch_starts_that_is_not_trained(status: str, tmp_path: Path) -> None:
    """Though train.epochs would allow for it; a run that is trained further starts it where the last one stopped."""
    keys = ["train.epochs=9", "train.max_steps=10"]
    launch(tmp_path / "log", 0, status, ("train", 5), ("train", 10), ("eval", 10), keys=keys)
    assert epochs(tmp_path / "log") == TWO_EPOCHS[:2]
    launch(tmp_path / "log", 10, "completed", ("train", 15), ("train", 20), ("eval", 20), keys=keys[:1])
    assert epochs(tmp_path / "log") == TWO_EPOCHS


def test_a_run_that_ended_within_an_epoch_is_trained_further(tmp_path: Path) -> None:
    launch(tmp_path / "log", 0, "completed", ("train", 5), ("eval", 5))
    assert epochs(tmp_path / "log") == [("start", 1, 0), ("stop", 1, 5)]
    launch(tmp_path / "log", 5, "completed", ("train", 10), ("train", 20), ("eval", 20))
    assert [end[:2] for end in epochs(tmp_path / "log")] == [end[:2] for end in TWO_EPOCHS]


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    first = tracker(tmp_path / "log", 0)
    send(first, ("train", 5), ("train", 10), ("eval", 10), ("train", 15))
    whole = (tmp_path / "log").read_bytes()
    (tmp_path / "log").write_bytes(whole[:-30])
    first.close(None)
    launch(tmp_path / "log", 10, "completed", ("train", 15), ("train", 20), ("eval", 20))
    assert epochs(tmp_path / "log") == TWO_EPOCHS


@pytest.mark.medium
def test_a_process_knows_when_it_began() -> None:
    """Neither when what it was forked from began, nor when it is asked."""
    script = "import time; first = time.time(); time.sleep(0.3); from extensions.mlperf.log import process_start"
    before = time.time()
    printed = subprocess.check_output([sys.executable, "-c", f"{script}; print(process_start(), first)"], text=True)
    began, first = map(float, printed.split())
    assert before - 0.1 < began < first + 0.1  # ticks of the system are 10 ms
