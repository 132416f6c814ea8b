"""The recipe mlperf_v4: its parameters, tiny form, grid of evaluations and log."""

import json
import time
from pathlib import Path

import pytest

from app.config import CONFIG_DIR, AppConfig, TrainConfig, validate
from app.config.published import published_tables
from app.config.train import evaluation_steps
from app.metrics.documents import EvaluationEvent, TrainEvent
from app.record.documents import Summary
from app.training import meta_build
from app.training.state import RunLength
from common.compose import compose_config
from common.documents import convert
from extensions.mlperf import log as mlperf
from extensions.mlperf.log import MLPerf
from tests.app.conftest import Command
from tests.app.summaries import LEAST
from tests.extensions.mlperf.test_runs import require_compliant

YAMBDA = {"train": 2_290_835_423, "val": 2_058_204}  # samples


def test_the_recipe_has_the_parameters_of_its_source() -> None:
    config = compose_config(AppConfig, CONFIG_DIR, ["recipe=mlperf_v4"])
    validate(config)
    assert sum(published_tables("mlperf_v4").rows.values()) == 293_051_712
    assert meta_build.parameter_counts(meta_build.meta_model(config))["total"] == 293_051_712 * 512 + 15_243_057
    assert config.run.name == config.published.recipe == "mlperf_v4"
    tiny = compose_config(AppConfig, CONFIG_DIR, ["recipe=mlperf_v4", "data.scale=tiny"])
    validate(tiny)
    assert vars(tiny.model) == vars(config.model)


@pytest.mark.slow
def test_the_recipe_trains_tiny(run_app: Command, tmp_path: Path) -> None:
    """Stopped and resumed; generated events have no such crosses as Yambda's."""
    overrides = ["recipe=mlperf_v4", "data.scale=tiny", "train.log_every_steps=1", "eval.global_batch_size=512"]
    overrides += ["run.name=tiny", "data.synthetic_events.users=50", "train.target_auc=null"]
    for steps in (2, 4):
        process = run_app("train", *overrides, "runtime.num_threads=2", f"train.max_steps={steps}")
    assert "resume: from runs/tiny/checkpoints/step_00000002, step 2" in process.stderr
    summary = json.loads((tmp_path / "runs/tiny/summary.json").read_bytes())
    assert (summary["status"], summary["steps"]) == ("completed", 4)
    assert len(json.loads((tmp_path / "runs/tiny/manifest.json").read_bytes())["tables"]) == 7


@pytest.mark.parametrize(("batch", "every", "blocks"), [(8192, 280, 25), (16_384, 140, 31), (32_768, 70, 41)])
def test_the_grid_of_dlrmv4_is_the_rules(batch: int, every: int, blocks: int) -> None:
    """By hand: 2,290,835.423 samples in whole steps; the rules name the block of the first evaluation."""
    train = compose_config(AppConfig, CONFIG_DIR, ["recipe=mlperf_v4", f"train.global_batch_size={batch}"]).train
    assert evaluation_steps(train, YAMBDA["train"]) == (every, blocks * every)
    assert every * batch == 2_293_760
    length = _length(train)
    steps, step = [], 0
    while step < (blocks + 2) * every:
        step = length.next_evaluation(step)
        steps.append(step)
    assert steps == [blocks * every, (blocks + 1) * every, (blocks + 2) * every]
    assert length.next_evaluation(length.total_steps - 1) == length.total_steps


def test_the_log_of_dlrmv4_passes_the_compliance_checker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the recipe as it is, on as many samples as Yambda has, killed and resumed: the tracker knows of it."""
    monkeypatch.setattr(mlperf, "process_start", time.time)  # this process may be older than a run's start may take
    config = compose_config(AppConfig, CONFIG_DIR, ["recipe=mlperf_v4"])
    length, path = _length(config.train), tmp_path / "mllog.txt"
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


def _length(train: TrainConfig) -> RunLength:
    """Of a run over all of Yambda's samples."""
    steps, (every, first) = YAMBDA["train"] // train.global_batch_size, evaluation_steps(train, YAMBDA["train"])
    return RunLength(steps, steps, train, first, every)
