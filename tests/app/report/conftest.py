"""What the tests of reports share."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.app.report.runs import write_run


class LongRun(NamedTuple):
    """200,000 steps, each an event, and the one step whose logloss is `peak`."""

    directory: Path
    step: int
    peak: float


@pytest.fixture(scope="session")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> LongRun:
    run = write_run(tmp_path_factory.mktemp("runs") / "long", steps=200_000, every=1)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    event = {**json.loads(lines[123_456]), "logloss": 9.0}
    lines[123_456] = json.dumps(event)
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return LongRun(run, event["step"], 9.0)
