"""MLPerf's log of DLRMv4: what the extensions sequences and mlperf do together."""

import json
import time
from pathlib import Path

import pytest

from app.config import CONFIG_DIR, AppConfig
from app.metrics.documents import EvaluationEvent, TrainEvent
from app.record.documents import Summary
from common.compose import compose_config
from common.documents import convert
from extensions.mlperf import log as mlperf
from extensions.mlperf.log import MLPerf
from tests.app.conftest import Command
from tests.app.run_files import losses
from tests.app.summaries import LEAST
from tests.extensions.mlperf.test_log import tracker
from tests.extensions.mlperf.test_runs import check_benchmark, require_compliant
from tests.extensions.sequences.test_commands import TINY
from tests.extensions.sequences.test_commands import log as log
from tests.extensions.sequences.test_recipe import YAMBDA, length_of


def test_the_recipe_of_dlrmv4_is_logged_as_its_benchmark() -> None:
    check_benchmark("mlperf_v4", "dlrmv4")


def test_the_log_of_dlrmv4_passes_the_compliance_checker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the recipe as it is, on as many samples as Yambda has, killed and resumed: the tracker knows of it."""
    monkeypatch.setattr(mlperf, "process_start", time.time)  # this process may be older than a run's start may take
    config = compose_config(AppConfig, CONFIG_DIR, ["recipe=mlperf_v4"])
    length, path = length_of(config.train), tmp_path / "mllog.txt"
    first = length.next_evaluation(0)
    second = length.next_evaluation(first)

    def send(tracker: MLPerf, *events: tuple[int, float | None]) -> None:
        for step, auc in events:
            window = TrainEvent(event="train", step=step, loss=0.13, lr=1e-7)
            evaluation = EvaluationEvent(event="eval", step=step, auc=auc, eval_seconds=0.0)
            tracker.event(window if auc is None else evaluation)

    tracker = MLPerf(path, config, YAMBDA, 8, 0)
    send(tracker, (50, None), (first, None), (first, 0.74), (first + 50, None))
    tracker.close(None)
    tracker = MLPerf(path, config, YAMBDA, 8, first)
    send(tracker, (first, 0.74), (first + 50, None), (second, 0.7501))
    ended = {"status": "target_reached", "steps": second, "samples": second * 8192, "eval": {"auc": 0.7501}}
    tracker.close(convert({**LEAST, **ended}, Summary))
    entries = require_compliant(path, "6.1.0")
    values = {entry["key"]: entry["value"] for entry in entries}
    assert (values["submission_benchmark"], values["submission_division"]) == ("dlrmv4", "closed")
    assert (values["opt_name"], values["opt_sparse_name"], values["max_sequence_length"]) == (
        "Adam",
        "RowWiseAdagrad",
        4096,
    )
    after = [entry["key"] for entry in entries]
    evaluation = ["block_stop", "eval_start", "eval_accuracy", "eval_stop"]
    assert after[after.index("run_start") + 1 :] == [
        "block_start",
        "train_loss",
        "train_loss",
        *evaluation,
        "block_start",
        "train_loss",
        *evaluation,
        "run_stop",
    ]
    assert [entry["metadata"]["samples_count"] for entry in entries if entry["key"] == "block_start"] == [0, 57_344_000]
    assert entries[-1]["metadata"]["samples_count"] == 59_637_760


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


@pytest.mark.slow("processes")
def test_blocks_and_losses_are_in_mlperf_s_log(run_app: Command, log: Path, tmp_path: Path) -> None:
    arguments = [*TINY, f"data.path={log}", "train.max_steps=8", "train.log_every_steps=2", "run.name=x"]
    arguments += ["train.eval_every_steps=4", "mlperf.enabled=true", "mlperf.benchmark=dlrmv4"]
    run_app("train", *arguments)
    lines = (tmp_path / "runs/x/mllog.txt").read_text().splitlines()
    entries = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
    keys = [entry["key"] for entry in entries]
    block = ["block_start", "train_loss", "train_loss", "block_stop", "eval_start", "eval_accuracy", "eval_stop"]
    assert keys[keys.index("run_start") + 1 :] == [*block, *block, "run_stop"]
    assert [entry["value"] for entry in entries if entry["key"] == "train_loss"] == losses(tmp_path / "runs/x")
    samples = [entry["metadata"]["samples_count"] for entry in entries if entry["key"] in ("block_start", "block_stop")]
    assert samples == [0, 128, 128, 256]
