"""The pretended device refuses what a GPU refuses and takes what a GPU takes."""

import json
from pathlib import Path

import pytest


@pytest.mark.medium
def test_it_refuses_what_a_gpu_refuses(runs: Path) -> None:
    outcomes = json.loads((runs / "refusals/.stdout").read_text())
    assert len(outcomes["mixes"]) >= 10
    assert {key: error for key, error in outcomes["mixes"].items() if "on the same device" not in error} == {}
    assert [key for key, error in outcomes["others"].items() if not error] == []
    assert {key: error for key, error in outcomes["allowed"].items() if error} == {}
