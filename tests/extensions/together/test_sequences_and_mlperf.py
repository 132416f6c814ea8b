"""MLPerf's log of DLRMv4: what the extensions sequences and mlperf do together."""

import ast
import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlperf_logging.compliance_checker import mlp_compliance

from app.metrics.documents import EvaluationEvent, TrainEvent
from app.record.documents import Summary
from common.documents import convert
from extensions.mlperf import log as mlperf
from extensions.mlperf.log import MLPerf
from tests.app.conftest import Command, composed
from tests.app.run_files import LEAST, losses
from tests.extensions.mlperf.test_log import tracker
from tests.extensions.mlperf.test_runs import check_benchmark, require_compliant
from tests.extensions.sequences.test_commands import TINY
from tests.extensions.sequences.test_commands import log as log
from tests.extensions.sequences.test_recipe import YAMBDA, length_of


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

    tracker = MLPerf(path, config, YAMBDA, 8, 0)
    send(tracker, (50, None), (first, None), (first, 0.74), (first + 50, None))
    tracker.close(None)
    tracker = MLPerf(path, config, YAMBDA, 8, first)
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


def test_the_log_has_the_values_that_the_rules_of_dlrmv4_name(tmp_path: Path) -> None:
    """Read from the rules themselves: each key that a log must have once, and each value that is fixed."""
    rules = Path(mlp_compliance.__file__).parent / "training_6.1.0"
    keys = [rule["KEY"] for name in ("common.yaml", "closed_dlrmv4.yaml") for rule in rules_of(rules / name)]
    once = {key["NAME"] for key in keys if key.get("REQ") == "EXACTLY_ONE"}
    checks = {key["NAME"]: re.fullmatch(r" v\['value'\] == (.*) ", str(key.get("CHECK"))) for key in keys}
    fixed = {name: ast.literal_eval(check[1]) for name, check in checks.items() if check and "s[" not in check[1]}
    config = composed("recipe=mlperf_v4")
    MLPerf(tmp_path / "log", config, YAMBDA, 8, 0).close(None)
    entries = [json.loads(line.partition(":::MLLOG ")[2]) for line in (tmp_path / "log").read_text().splitlines()]
    counts = Counter(entry["key"] for entry in entries)
    ends = {"run_stop"}  # not of a run in the making
    assert {name for name in once - ends if counts[name] != 1} == set()
    assert len(fixed) >= 10
    assert {entry["key"]: entry["value"] for entry in entries if entry["key"] in fixed} == fixed


def rules_of(path: Path) -> list[dict[str, Any]]:
    """The rules about keys of a file."""
    return [rule for rule in yaml.safe_load(path.read_text(encoding="utf-8")) if "KEY" in rule]


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
