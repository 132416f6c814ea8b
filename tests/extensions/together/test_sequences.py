"""The extension sequences in the log of MLPerf."""

import time
from pathlib import Path

import pytest

from app.metrics.documents import EvaluationEvent, TrainEvent
from app.record.documents import Summary
from app.trackers import Setting
from common.documents import convert
from extensions.mlperf import log as mlperf
from extensions.mlperf.log import MLPerf
from tests.app.conftest import composed
from tests.app.run_files import LEAST
from tests.extensions.mlperf.test_log import check_benchmark, require_compliant
from tests.extensions.sequences.test_commands import YAMBDA, length_of


def test_the_recipe_of_dlrmv4_is_logged_as_its_benchmark() -> None:
    check_benchmark("mlperf_v4", "dlrmv4")


@pytest.mark.parametrize(
    ("batch", "first_samples"),
    [
        (8192, 57_344_000),  # block 25
        pytest.param(16_384, 71_106_560, marks=pytest.mark.slow),  # block 31
        pytest.param(32_768, 94_044_160, marks=pytest.mark.slow),  # block 41
    ],
)
def test_the_log_of_dlrmv4_passes_the_compliance_checker(
    batch: int, first_samples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unchanged recipe logs as many samples as Yambda has; it is killed and resumed, which the tracker sees."""
    monkeypatch.setattr(mlperf, "process_start", time.time)  # this process may be older than a run's start may take
    keys = ["recipe=mlperf_v4", f"train.global_batch_size={batch}", f"optimizer.lr={1e-6 * batch / 8192}"]
    config = composed(*keys)
    length, path = length_of(config.train), tmp_path / "mllog.txt"
    first = length.next_evaluation(0)
    second = length.next_evaluation(first)

    def send(tracker: MLPerf, *events: tuple[int, float | None]) -> None:
        for step, auc in events:
            window = TrainEvent(event="train", step=step, loss=0.13, lr=1e-7)
            evaluation = EvaluationEvent(event="eval", step=step, auc=auc, eval_seconds=0.0)
            tracker.event(window if auc is None else evaluation)

    tracker = MLPerf(Setting(path, config, {}, YAMBDA, 8, 0))
    send(tracker, (50, None), (first, None), (first, 0.74), (first + 50, None))
    tracker.close(None)
    tracker = MLPerf(Setting(path, config, {}, YAMBDA, 8, first))
    send(tracker, (first, 0.74), (first + 50, None), (second, 0.7501))
    ended = {"status": "target_reached", "steps": second, "samples": second * batch, "eval": {"auc": 0.7501}}
    tracker.close(convert({**LEAST, **ended}, Summary))
    entries = require_compliant(path, "6.1.0")
    values = {entry["key"]: entry["value"] for entry in entries}
    assert (values["submission_benchmark"], values["submission_division"]) == ("dlrmv4", "closed")
    assert (values["opt_name"], values["opt_sparse_name"]) == ("Adam", "RowWiseAdagrad")
    assert values["max_sequence_length"] == 4096
    after = [entry["key"] for entry in entries]
    evaluation = ["block_stop", "eval_start", "eval_accuracy", "eval_stop"]
    block = ["block_start", "train_loss"]
    assert after[after.index("run_start") + 1 :] == [*block, "train_loss", *evaluation, *block, *evaluation, "run_stop"]
    starts = [entry["metadata"]["samples_count"] for entry in entries if entry["key"] == "block_start"]
    assert starts == [0, first_samples]
    assert entries[-1]["metadata"]["samples_count"] == first_samples + 2_293_760
