"""The extension sequences beside the commands of plan and export, and in MLPerf's log."""

import ast
import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from mlperf_logging.compliance_checker import mlp_compliance

from app.metrics.documents import EvaluationEvent, TrainEvent
from app.record.documents import Summary
from common.documents import convert
from extensions.mlperf import log as mlperf
from extensions.mlperf.log import MLPerf
from tests.app.conftest import Command, Refusal, composed
from tests.app.run_files import LEAST, losses
from tests.extensions.mlperf.test_log import check_benchmark, require_compliant
from tests.extensions.plan.test_plan import planned
from tests.extensions.sequences.test_commands import TINY, YAMBDA, length_of
from tests.extensions.sequences.test_commands import log as log
from tests.extensions.sequences.test_commands import trained as trained

NOWHERE = ["model=hstu", "data.path=nowhere"]


@pytest.mark.slow("processes")
def test_two_processes_train_by_a_plan(run_app: Command, log: Path, tmp_path: Path) -> None:
    overrides = [*TINY, f"data.path={log}", "train.max_steps=3"]
    hardware = ["topology=cpu", "topology.devices_per_node=2", "sharding.types=[table_wise,row_wise]"]
    process = run_app("plan", *overrides, *hardware, "plan.out=plan.json")
    assert "note: every history is taken to have 15 events" in process.stdout
    planned = json.loads((tmp_path / "plan.json").read_bytes())
    sizes = json.loads((log / "manifest.json").read_bytes())["num_embeddings"]
    assert {name: table["num_embeddings"] for name, table in planned["tables"].items()} == sizes
    run_app("train", *overrides, "sharding.plan=plan.json", "run.name=pair", processes=2)
    run_app("train", *overrides, "run.name=alone")
    actual, expected = (losses(tmp_path / "runs" / name) for name in ("pair", "alone"))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.slow("processes")
def test_dlrm_v4_on_hardware_that_is_not_here(run_app: Command, tmp_path: Path) -> None:
    """Tables looked up id by id: their rows go to the processes whose samples have the ids, each for itself."""
    fit, too_small = ["mi355x", "h200", "b200", "b300", "gb300"], ["h100"]
    plan = planned(
        run_app,
        tmp_path,
        "recipe=mlperf_v4",
        "topology=mi300x",
        "topology.devices_per_node=8",
        f"plan.topologies=[{','.join(fit + too_small)}]",
    )
    shards = [shard for table in plan["tables"].values() for shard in table["shards"]]
    assert sum(height * width * 4 for *_, height, width in shards) == 293_051_712 * 512 * 4
    # A value of the optimizer's a row, and the rows of 1,024 samples of 4,086 events and a candidate each.
    rows_of_a_batch = 1024 * (3 * (4086 + 1) + 8) * 512 * 4
    for rank in plan["ranks"]:
        table_bytes = sum(height * (width + 1) * 4 for owner, _, _, height, width in shards if owner == rank["rank"])
        assert table_bytes + rows_of_a_batch <= rank["device_bytes"] <= table_bytes + rows_of_a_batch + (1 << 30)
    # A process sends an eighth of all rows to the others and gets as many gradients, at 0.8 of 448 GB/s.
    sent_ms = 8192 * (4086 + 1) / 8 * 512 * 4 / (0.8 * 448e6)
    for name in ("item", "artist", "album"):
        assert plan["tables"][name]["type"] == "row_wise"
        assert 2 * sent_ms < plan["tables"][name]["communication_ms"] < 2.3 * sent_ms
    cases = {case["topology"]: case for case in plan["what_if"]}
    assert all(cases[name]["forecast"]["fits"] for name in ("mi300x", *fit))
    assert "no plan fits: 11 tables of 559.0 GiB" in cases["h100"]["problem"]
    assert "4,086 events" in plan["notes"][0]
    assert "attention, the dense layers and their memory are not estimated" in plan["notes"][2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*NOWHERE], "nowhere: no dataset to plan for; give data.path of events or plan.num_embeddings=mlperf_v4"),
        ([*NOWHERE, "plan.num_embeddings=[7]"], "rows alone are no tables of events"),
        ([*NOWHERE, "plan.num_embeddings=mlperf_v2"], "mlperf_v2: of rows, which model=hstu does not"),
        (["data.path={log}"], "holds events, not rows; give model=hstu"),
    ],
)
def test_what_a_plan_cannot_be_of_is_refused(
    arguments: list[str], message: str, refused_command: Refusal, log: Path
) -> None:
    assert message in refused_command("plan", *(each.format(log=log) for each in arguments))


def test_an_export_is_of_dlrm_alone(refused_command: Refusal, trained: Path) -> None:
    message = refused_command("export", f"run={trained}", "out=x")
    assert "export is for DLRM alone so far; train, evaluate, recommend" in message


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
    return [rule for rule in yaml.safe_load(path.read_text(encoding="utf-8")) if "KEY" in rule]
