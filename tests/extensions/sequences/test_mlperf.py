"""What MLPerf's log of DLRMv4 holds."""

import json
from pathlib import Path

import pytest

from tests.app.trackers.test_mlperf import tracker


@pytest.mark.parametrize(
    ("forward", "backward", "lowest"),
    [("fp32", "fp32", "fp32"), ("fp16", "fp32", "fp16"), ("fp32", "bf16", "bfloat16"), ("fp16", "bf16", "bfloat16")],
)
def test_the_lowest_precision_between_processes_is_that_of_qcomm(
    forward: str, backward: str, lowest: str, tmp_path: Path
) -> None:
    overrides = [f"sharding.qcomm.forward={forward}", f"sharding.qcomm.backward={backward}", "recipe=mlperf_v4"]
    tracker(tmp_path / "log", 0, *overrides).close(None)
    entries = [json.loads(line.partition(":::MLLOG ")[2]) for line in (tmp_path / "log").read_text().splitlines()]
    assert [entry["value"] for entry in entries if entry["key"] == "lowest_numerical_precision_in_comm"] == [lowest]
