"""What the tests of reports share."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from app.report.page import write_report
from tests.app.report.runs import write_run
from tests.once import made_once

STEPS, PEAK_STEP, PEAK = 200_000, 123_457, 9.0


class LongReport(NamedTuple):
    """Of 200,000 steps, each an event, and the one step whose logloss is `peak`."""

    page: Path
    step: int
    peak: float


@pytest.fixture(scope="session")
def long_report(tmp_path_factory: pytest.TempPathFactory) -> LongReport:
    def write(directory: Path) -> None:
        run = write_run(directory / "long", steps=STEPS, every=1)
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        event = json.loads(lines[PEAK_STEP - 1])
        assert event["step"] == PEAK_STEP
        lines[PEAK_STEP - 1] = json.dumps({**event, "logloss": PEAK}) + "\n"
        (run / "metrics.jsonl").write_text("".join(lines))
        write_report(run)

    return LongReport(made_once(tmp_path_factory, "long_report", write) / "long/report.html", PEAK_STEP, PEAK)
