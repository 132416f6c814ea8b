"""Metrics of a split, whatever the number of processes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app import recommend, scoring
from app.config.app_config import AppConfig
from app.config.commands import EvaluateConfig, RecommendConfig, TablePrecision
from app.config.train import Precision, RuntimeConfig
from app.data.split import SplitReader
from app.runtime.platform import Runtime
from app.training.predictor import Predictor
from common.errors import UserError
from common.keys import check, to_plain
from data_prep.dataset.format import load_manifest
from tests.app.conftest import SMALL, Command, composed
from tests.changed import changed
from tests.reference import bce


@pytest.mark.slow("processes")
def test_processes_and_histograms_agree(run_app: Command, small: list[str], tmp_path: Path) -> None:
    """One process, two, and two that add up histograms; the curves of rank 0 are of all rows."""
    run_app("train", *small, "run.name=x", "train.max_steps=20", processes=2)
    assert json.loads((tmp_path / "runs/x/curves.json").read_bytes())["samples"] == 501

    def evaluated(*overrides: str, processes: int) -> dict[str, Any]:
        run_app("evaluate", "run=runs/x", "split=val", "out=x.json", *overrides, processes=processes)
        return json.loads((tmp_path / "x.json").read_bytes())

    alone, both = (evaluated(processes=processes) for processes in (1, 2))
    figures = ("auc", "pr_auc", "logloss", "ne", "accuracy", "ece", "calibration", "base_rate")
    assert {key: both[key] for key in figures} == pytest.approx({key: alone[key] for key in figures}, abs=1e-5)
    binned = evaluated("exact_rows=500", processes=2)
    assert (binned["samples"], binned["auc_method"], binned["pr_auc"]) == (501, "histogram", None)
    assert abs(binned["auc"] - both["auc"]) <= binned["auc_error"] + 1e-12
    assert binned["logloss"] == pytest.approx(both["logloss"], rel=1e-12)
    assert "auc_method" not in both


@pytest.mark.slow("processes")
def test_tables_are_scored_in_fp32(run_app: Command, dataset: Path, tmp_path: Path) -> None:
    """Whatever the run was trained in."""
    overrides = [*SMALL, f"data.path={dataset}", "run.name=x", "train.max_steps=20", "runtime.precision=bf16"]
    run_app("train", *overrides, "eval.global_batch_size=100")
    trained = composed(*overrides)
    manifest, checkpoint = load_manifest(dataset), next((tmp_path / "runs/x/checkpoints").glob("step_*"))
    model = scoring.load(checkpoint, trained, manifest, TablePrecision.fp32, torch.device("cpu")).double()
    (batch,) = SplitReader(dataset, manifest, "val", trained.data, 0, 1).eval_batches(501)
    labels = batch.labels.double()
    with torch.no_grad():
        truth = bce(model(batch.dense_features.double(), batch.sparse_features), labels).item()
    figures = {}
    for tables in ("null", "fp32"):
        process = run_app("evaluate", "run=runs/x", "split=val", f"tables={tables}", "runtime.platform=cpu")
        figures[tables] = json.loads(process.stdout)
    assert figures["fp32"]["logloss"] == pytest.approx(truth, rel=1e-6)
    assert abs(figures["null"]["logloss"] - truth) > 1e-6  # as it was trained
    assert figures["null"]["global_batch_size"] == 100  # the run's own


def test_a_precision_beside_tables_is_refused() -> None:
    config = EvaluateConfig(run="r", tables=TablePrecision.int8, runtime=RuntimeConfig(precision=Precision.bf16))
    with pytest.raises(UserError, match=r"runtime\.precision=bf16: has no effect with tables=int8"):
        check(config)


class _Scores(torch.nn.Module):
    """A model whose logits are the rows' dense_0, but NaN or infinite for some."""

    def __init__(self, value: float, above: float) -> None:
        super().__init__()
        self.value, self.above = value, above

    def forward(self, dense_features: torch.Tensor, sparse_features: Any) -> torch.Tensor:
        logits = dense_features[:, 0].clone()
        logits[logits > self.above] = self.value
        return logits


@pytest.mark.parametrize("exact_rows", [0, 1 << 28])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_end_it(runtime: Runtime, dataset: Path, value: float, exact_rows: int) -> None:
    config = changed(AppConfig(), {"eval.exact_rows": exact_rows})
    manifest = load_manifest(dataset)
    scored = Predictor(config, runtime, dataset, manifest, _Scores(value, 0.99))
    # dense_0 of row r is r / 501: those from 496 on are above 0.99.
    with pytest.raises(UserError, match=r"split val: 5 of 501 logits are not finite"):
        scored.evaluate("val")
    assert Predictor(config, runtime, dataset, manifest, _Scores(value, 2)).evaluate("val").figures.auc is not None


def test_scores_that_depend_on_other_rows_are_not_served_and_metrics_say_so(
    runtime: Runtime, dataset: Path, tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    config = composed(*SMALL, "model.interaction=scalar_pairs", "model.mixes_samples=true", "run.name=x")
    (tmp_path / "config.yaml").write_text(json.dumps(to_plain(config)))
    with pytest.raises(UserError, match=r"mixes_samples=true: recommend has no meaning"):
        recommend.main(RecommendConfig(run=str(tmp_path), candidates="c.csv"))
    Predictor(config, runtime, dataset, load_manifest(dataset), _Scores(0, 2))
    assert "every metric depends on eval.global_batch_size (16384) and on the number of processes (1)" in logged.text


@pytest.mark.slow("processes")
def test_row_weights_come_from_the_checkpoint_and_are_recorded(run_app: Command, dataset: Path, tmp_path: Path) -> None:
    """A file that has gone blocks nothing that reads the checkpoint; verify names one that changed."""
    weights, backup = tmp_path / "w.npy", tmp_path / "kept.npy"
    np.save(weights, np.random.default_rng(0).random(50).astype(np.float32))
    override = f"+model.tables.overrides.cat_0={{pooling: weighted, row_weights: fixed, row_weights_path: {weights}}}"
    run_app("train", *SMALL, override, f"data.path={dataset}", "run.name=x", "train.max_steps=4", "eval.split=val")
    trained = json.loads((tmp_path / "runs/x/summary.json").read_bytes())["eval"]
    recorded = json.loads((tmp_path / "runs/x/manifest.json").read_bytes())["files"]
    assert recorded == {str(weights): hashlib.sha256(weights.read_bytes()).hexdigest()}
    weights.rename(backup)
    for tables in ("null", "fp32"):
        process = run_app("evaluate", "run=runs/x", "split=val", f"tables={tables}", "runtime.platform=cpu")
        assert json.loads(process.stdout)["logloss"] == pytest.approx(trained["logloss"], rel=1e-6)
    np.save(weights, np.load(backup) * 2)
    process = run_app("verify", "run=runs/x", "runtime.platform=cpu", status=1)
    assert f"since then: files {weights}: " in process.stderr
    backup.rename(weights)
    process = run_app("verify", "run=runs/x", "runtime.platform=cpu")
    assert "since then: files" not in process.stderr
