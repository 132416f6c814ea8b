"""Runs with batch norm, dropout, L2 and clipped tables: stopped, spread over processes, verified, served."""

import json
from pathlib import Path

import numpy as np
import pytest

from app.runtime.platform import Runtime
from app.training import session
from common.documents import Json
from data_prep.dataset.format import load_manifest
from tests.app.conftest import SMALL, Command, composed
from tests.app.group import run_whole
from tests.app.in_process import train_here
from tests.app.run_files import summary

EVERYTHING = ["optimizer=adam", "optimizer.eps=1e-4", "optimizer.max_grad_norm=1", "optimizer.clip_tables=true"]
EVERYTHING += ["optimizer.weight_decay=0.001", "optimizer.sparse_weight_decay=0.01", "model.batch_norm=true"]
EVERYTHING += ["model.dropout=0.3", "model.dense_dropout=[0.1]", "model.embedding_dim=10", "model.dense_arch=[12,10]"]
EVERYTHING += ["model.over_arch=[16,8,1]"]
BRIEF = ["train.max_steps=14", "train.eval_every_steps=5", "record.tensorboard=false", "train.log_every_steps=1"]


@pytest.fixture
def base(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return [*SMALL, *EVERYTHING, *BRIEF, f"data.path={dataset}"]


@pytest.mark.slow("processes")
def test_two_processes_learn_as_one(base: list[str], runtime: Runtime, tmp_path: Path) -> None:
    """Over an epoch's last batch, too, of 16 rows."""
    base += ["train.drop_last=false", "train.max_steps=34"]
    assert train_here(runtime, *base, "run.name=one") == "completed"
    (two,) = run_whole([[*base, f"run.dir={tmp_path}/two"]], 2, tmp_path / "two.json")
    assert two["eval"]["auc"] == pytest.approx(summary(Path("runs/one"))["eval"]["auc"], abs=1e-5)
    assert two["eval"]["logloss"] == pytest.approx(summary(Path("runs/one"))["eval"]["logloss"], rel=1e-5)


@pytest.mark.slow("processes")
def test_verify_and_evaluate_serve_the_statistics(base: list[str], runtime: Runtime, run_app: Command) -> None:
    assert train_here(runtime, *base, "run.name=run") == "completed"
    run = summary(Path("runs/run"))
    run_app("verify", "run=runs/run")
    for precision in ("fp32", "int8"):
        evaluated = run_app("evaluate", "run=runs/run", "split=val", f"tables={precision}")
        figures: Json = json.loads(evaluated.stdout)
        assert figures["auc"] == pytest.approx(run["eval"]["auc"], abs=1e-6 if precision == "fp32" else 0.01)


def test_a_plain_model_has_no_new_arrays(dataset: Path, runtime: Runtime, tmp_path: Path) -> None:
    """What is digested of a model without batch norm are its parameters alone."""
    config = composed(*SMALL, "run.name=x", f"data.path={dataset}")
    plain = session.build(config, runtime, dataset, load_manifest(dataset))
    names = [name for name, _ in plain.parameters()]
    assert not any("running" in name for name in names)
    assert len(names) == len({name for name, _ in plain.model.named_parameters()})
    assert all(np.asarray(values).dtype == np.float32 for _, values in plain.parameters())
