"""What a terminal shows in the end and on the way."""

import fcntl
import io
import os
import pty
import re
import select
import struct
import termios
from pathlib import Path
from typing import Any

import pytest

from app.record.documents import Summary
from app.training import recorder
from common.documents import convert
from tests.app.conftest import Command, forked
from tests.app.summaries import LEAST

OF_STEPS = {"step_ms_p50": 3.2, "step_ms_p95": 4.0, "input_wait_fraction": 0.02, "steps_measured": 290}
OF_VAL = {"split": "val", "samples": 500}
SUMMARY: dict[str, Any] = {
    "status": "completed",
    "steps": 300,
    "samples": 19_200,
    "world_size": 2,
    "eval": {"auc": 0.75, "ne": 0.9, "logloss": 0.4, "accuracy": 0.8, "calibration": 1.0} | OF_VAL,
    "throughput": {"samples_per_second": 2e4, "samples_per_second_per_device": 1e4} | OF_STEPS,
    "phase_seconds": {"forward": 0.001, "backward": 0.0015, "optimizer": 0.0002, "communication": None},
    "memory": {"host_peak_bytes": 1 << 29, "device_peak_bytes": None},
    "power": None,
    "seconds": {"total": 3.0, "train": 2.0, "eval": 0.5, "checkpoint": 0.1},
}

BY_AUC = {"monitor": None, "value": None}


def closing_lines(document: dict[str, Any], measured_before: int = 0, encoding: str | None = None) -> list[str]:
    whole = convert({**LEAST, "last": document["eval"], **document}, Summary)
    return recorder.closing_lines(whole, measured_before, encoding=encoding)


def closing_text(**changes: Any) -> str:
    """Return the last lines about a run whose summary differs in these parts."""
    encoding = changes.pop("encoding", None)
    return "\n".join(closing_lines({**SUMMARY, **changes}, encoding=encoding))


def rows_of(lines: list[str]) -> dict[str, str]:
    return dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines[1:])


def test_what_was_measured_is_told_and_nothing_else() -> None:
    lines = closing_lines(SUMMARY)
    assert lines[0] == "completed: 300 steps, 19,200 samples in 3.0 s"
    rows = rows_of(lines)
    assert list(rows) == ["evaluation", "throughput", "step", "time", "peak memory"]
    assert rows["throughput"] == "20,000 samples/s global, 10,000 per device (over 290 steps)"
    parts = [float(number) for number in re.findall(r"([0-9.]+) s", rows["time"])]
    assert sum(parts) == pytest.approx(3.0)
    assert "forward 1.00 ms" in rows["step"]
    assert "communication" not in rows["step"]
    nothing = {"status": "interrupted", "eval": {"auc": None, "logloss": None}, "throughput": {}}
    assert list(rows_of(closing_lines({**SUMMARY, **nothing}))) == ["to resume", "time", "peak memory"]
    assert "20 of them before the resumption" in "\n".join(closing_lines(SUMMARY, measured_before=20))


def test_a_run_that_overfits_or_learns_nothing_is_told() -> None:
    auc, best = {**SUMMARY["eval"], "step": 300}, {**BY_AUC, "step": 100, "auc": 0.8}
    over = {"eval": {**SUMMARY["eval"], "step": 100, "auc": 0.8}, "last": auc, "best": best}
    assert "Overfitted" not in closing_text(**over, events={"eval": 3})
    lines = closing_text(**over, events={"eval": 4})
    assert "AUC 0.80000" in lines
    assert "(val, 500 samples, of the best checkpoint, step 100)" in lines
    assert "0.75000 at step 300 (checkpoint=last)" in lines
    assert "Overfitted: the best AUC was 0.80000 at step 100, and the last is 0.05000 lower" in lines
    assert "best AUC     0.80000 at step 100" in closing_text(eval=auc, best=best)
    assert "checkpoint=best" not in closing_text(eval=auc, best={**BY_AUC, "step": 300, "auc": 0.75})
    lines = closing_text(eval={**auc, "auc": 0.47678})
    assert "Learned nothing: AUC 0.47678 is no better than chance" in lines
    for key in ("train.max_steps", "train.epochs", "optimizer.lr"):
        assert key in lines.partition("Learned nothing")[2]
    lines = closing_text(eval={**auc, "auc": 0.47678}, encoding="random")
    assert "Learned nothing" not in lines
    assert "Labels are drawn by chance (data.source=random), so no model can do better than an AUC of 0.5" in lines


@pytest.mark.parametrize(("ne", "has_rates", "said"), [(1.0, True, True), (0.999, True, False), (1.2, False, False)])
def test_a_model_no_better_than_the_base_rate_is_told(ne: float, has_rates: bool, said: bool) -> None:
    evaluation = {**SUMMARY["eval"], "ne": ne}
    whole = convert({**LEAST, **SUMMARY, "eval": evaluation, "last": evaluation}, Summary)
    lines = "\n".join(recorder.closing_lines(whole, 0, must_beat_rate=has_rates))
    assert (f"no better than the base rate, the same probability for each row: NE {ne:.5f}" in lines) == said


@pytest.mark.slow("processes")
def test_a_warm_up_longer_than_the_run_is_told(small: list[str], run_app: Command) -> None:
    short = [*small, "train.max_steps=20", "schedule=warmup_poly"]
    process = run_app("train", *short, "schedule.warmup_steps=1000", "run.name=long")
    assert "schedule.warmup_steps=1000: longer than the run's 20 steps" in process.stderr
    remedy = re.search(r"set (schedule\.warmup_steps=\d+), or (schedule=constant)", process.stderr)
    assert remedy is not None
    assert "longer than the run" not in run_app("train", *short, remedy[1], "run.name=short").stderr


@pytest.mark.medium
@pytest.mark.parametrize("no_colour", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_on_a_terminal(small: list[str], tmp_path: Path, no_colour: bool) -> None:
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    keys = [*small, "run.name=a", "train.max_steps=20"]
    environment = {"TERM": "xterm", "NO_COLOR": "1" if no_colour else ""}
    forks = forked("train", *keys, cwd=tmp_path, stderr=os.ttyname(terminal), environment=environment)
    output = io.BytesIO()
    while forks[0].exitcode is None or select.select([controller], [], [], 0)[0]:
        if select.select([controller], [], [], 0.05)[0]:
            output.write(os.read(controller, 4096))
    os.close(terminal)
    os.close(controller)
    text = output.getvalue().decode()
    assert forks[0].exitcode == 0, text
    assert "100%|" in text
    assert "step 20/20" in text
    assert "input wait" in text
    assert ("\x1b[32mcompleted" in text) is not no_colour
    log = (tmp_path / "runs/a/log.txt").read_text()
    assert "completed" in log
    assert "\x1b" not in log
