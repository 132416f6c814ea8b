"""MLPerf's log: its epochs, however a run is stopped and resumed; logs that MLCommons' own checker passes."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from app.metrics.documents import EvaluationEvent, TrainEvent
from app.record.documents import Summary
from app.trackers import Setting
from common.documents import convert
from extensions.mlperf import fill_defaults, is_wanted
from extensions.mlperf.log import MLPerf
from tests.app.config.test_recipes import QUARTERS
from tests.app.conftest import SMALL, Command, composed
from tests.app.run_files import LEAST

ROWS = {"train": 1_000, "val": 100, "test": 100}


def tracker(path: Path, from_step: int, *overrides: str) -> MLPerf:
    pytest.importorskip("mlperf_logging")
    arguments = ["recipe=mlperf_v2", "train.global_batch_size=100", *overrides]
    return MLPerf(Setting(path, composed(*arguments), {}, ROWS, 1, from_step))


def send(to: MLPerf, *events: tuple[str, int]) -> None:
    for kind, step in events:
        window = TrainEvent(event=kind, step=step, samples=step * 100, loss=0.1, lr=1.0)
        evaluation = EvaluationEvent(event=kind, step=step, samples=step * 100, auc=0.5 + step / 1000, eval_seconds=0.0)
        to.event(window if kind == "train" else evaluation)


def launch(path: Path, from_step: int, status: str, *events: tuple[str, int], keys: Sequence[str] = ()) -> None:
    """A process that logs these events, and ends with this status at the last one's step."""
    log, step = tracker(path, from_step, *keys), events[-1][1]
    send(log, *events)
    log.close(convert({**LEAST, "status": status, "steps": step, "samples": step * 100}, Summary))


def epochs(path: Path) -> list[tuple[str, int, int]]:
    """Starts and stops of epochs, with the epoch and the step."""
    entries = [json.loads(line.partition(":::MLLOG ")[2]) for line in path.read_text(encoding="utf-8").splitlines()]
    ends = [entry for entry in entries if entry["key"].startswith("epoch_")]
    return [(entry["key"][6:], entry["metadata"]["epoch_num"], entry["metadata"]["step"]) for entry in ends]


TWO_EPOCHS = [("start", 1, 0), ("stop", 1, 10), ("start", 2, 10), ("stop", 2, 20)]


def test_a_stop_at_the_end_of_an_epoch_before_its_evaluation(tmp_path: Path) -> None:
    launch(tmp_path / "log", 0, "interrupted", ("train", 5), ("train", 10))
    launch(tmp_path / "log", 10, "completed", ("eval", 10), ("train", 15), ("train", 20), ("eval", 20))
    assert epochs(tmp_path / "log") == TWO_EPOCHS


@pytest.mark.parametrize("status", ["completed", "interrupted"])
def test_no_epoch_starts_that_is_not_trained(status: str, tmp_path: Path) -> None:
    """Though train.epochs would allow for it; a run that is trained further starts it where the last one stopped."""
    keys = ["train.epochs=9", "train.max_steps=10"]
    launch(tmp_path / "log", 0, status, ("train", 5), ("train", 10), ("eval", 10), keys=keys)
    assert epochs(tmp_path / "log") == TWO_EPOCHS[:2]
    launch(tmp_path / "log", 10, "completed", ("train", 15), ("train", 20), ("eval", 20), keys=keys[:1])
    assert epochs(tmp_path / "log") == TWO_EPOCHS


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    first = tracker(tmp_path / "log", 0)
    send(first, ("train", 5), ("train", 10), ("eval", 10), ("train", 15))
    whole = (tmp_path / "log").read_bytes()
    (tmp_path / "log").write_bytes(whole[:-30])
    first.close(None)
    launch(tmp_path / "log", 10, "completed", ("train", 15), ("train", 20), ("eval", 20))
    assert epochs(tmp_path / "log") == TWO_EPOCHS


@pytest.mark.parametrize(
    ("recipe", "benchmark"), [("mlperf_v1", "dlrm"), ("mlperf_v2", "dlrm_dcnv2"), ("quickstart", None)]
)
def test_a_recipe_of_mlperf_is_logged_as_its_benchmark(recipe: str, benchmark: str | None) -> None:
    check_benchmark(recipe, benchmark)


def check_benchmark(recipe: str, benchmark: str | None) -> None:
    """Compares a recipe's MLPerf keys, defaults filled in, at full and at tiny scale, with the benchmark's name."""
    for scale, division in (("full", "closed"), ("tiny", "open")):
        config = composed(f"recipe={recipe}", f"data.scale={scale}")
        keys = fill_defaults(config)
        assert is_wanted(config) is (benchmark is not None)
        assert keys.benchmark == (benchmark or "dlrm_dcnv2")
        assert keys.division == (division if benchmark else "open")
    assert not is_wanted(composed(f"recipe={recipe}", "mlperf.enabled=false"))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("ruleset", "benchmark", "optimizer"),
    [("6.0.0", "dlrm_dcnv2", "adagrad"), pytest.param("1.0.0", "dlrm", "sgd", marks=pytest.mark.slow)],
)
def test_the_mlperf_log_passes_the_compliance_checker(
    ruleset: str, benchmark: str, optimizer: str, run_app: Command, dataset: Path, tmp_path: Path
) -> None:
    overrides = [*SMALL, f"data.path={dataset}", f"optimizer={optimizer}", "run.name=log", "mlperf.enabled=true"]
    overrides += [f"mlperf.benchmark={benchmark}", "train.epochs=3", *QUARTERS]
    run_app("train", *overrides, "train.max_steps=3")
    auc = json.loads((tmp_path / "runs/log/summary.json").read_bytes())["eval"]["auc"]
    second = run_app("train", *overrides, f"train.target_auc={auc + 0.01}")
    assert json.loads((tmp_path / "runs/log/summary.json").read_bytes())["status"] == "target_reached", second.stderr
    entries = require_compliant(tmp_path / "runs/log/mllog.txt", ruleset)
    assert entries[-1]["key"] == "run_stop"
    assert entries[-1]["metadata"]["status"] == "success"
    evaluations = [entry["metadata"]["step"] for entry in entries if entry["key"] == "eval_accuracy"]
    assert evaluations == sorted(set(evaluations))
    assert evaluations[:2] == [3, 7]
    samples = {entry["key"]: entry["value"] for entry in entries if entry["key"].endswith("_samples")}
    assert samples == {"train_samples": 2000, "eval_samples": 501}


def require_compliant(log: Path, ruleset: str) -> list[dict[str, Any]]:
    """The log's entries, once MLCommons' own checker has passed it."""
    command = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", ruleset]
    command += ["--log_output", str(log.with_suffix(".checked")), str(log)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in log.read_text(encoding="utf-8").splitlines()]
