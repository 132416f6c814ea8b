"""What a terminal shows in the end and on the way."""

from typing import Any

import pytest

from app.record.documents import Summary
from app.training import recorder
from common.documents import convert
from tests.app.run_files import BY_AUC, LEAST

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


def closing_lines(document: dict[str, Any], encoding: str | None = None, must_beat_rate: bool = False) -> list[str]:
    whole = convert({**LEAST, "last": document["eval"], **document}, Summary)
    return recorder.closing_lines(whole, 20, encoding=encoding, must_beat_rate=must_beat_rate)


def closing_text(encoding: str | None = None, must_beat_rate: bool = False, **changes: Any) -> str:
    """Return the last lines about a run whose summary differs in these parts."""
    return "\n".join(closing_lines({**SUMMARY, **changes}, encoding, must_beat_rate))


def test_a_run_that_overfits_or_learns_nothing_is_told() -> None:
    auc, best = {**SUMMARY["eval"], "step": 300}, {**BY_AUC, "step": 100, "auc": 0.8}
    over: dict[str, Any] = {"eval": {**SUMMARY["eval"], "step": 100, "auc": 0.8}, "last": auc, "best": best}
    text = closing_text(**over, events={"eval": 4})
    assert "(val, 500 samples, of the best checkpoint, step 100)" in text
    assert "0.75000 at step 300 (checkpoint=last)" in text
    assert "Overfitted: the best AUC was 0.80000 at step 100" in text
    assert "best AUC     0.80000 at step 100" in closing_text(eval=auc, best=best)
    assert "checkpoint=best" not in closing_text(eval=auc, best={**BY_AUC, "step": 300, "auc": 0.75})
    assert "Learned nothing: AUC 0.47678 is no better than chance" in closing_text(eval={**auc, "auc": 0.47678})
    text = closing_text("random", eval={**auc, "auc": 0.47678})
    assert "Learned nothing" not in text
    assert "Labels are drawn by chance (data.source=random), so no model can do better than an AUC of 0.5" in text


@pytest.mark.parametrize(("ne", "has_rates", "said"), [(1.0, True, True), (0.999, True, False), (1.2, False, False)])
def test_a_model_no_better_than_the_base_rate_is_told(ne: float, has_rates: bool, said: bool) -> None:
    text = closing_text(must_beat_rate=has_rates, eval={**SUMMARY["eval"], "ne": ne})
    assert (f"no better than the base rate, the same probability for each row: NE {ne:.5f}" in text) == said
