"""Steps of the field's models (batch norm, dropout, L2, clipping, shapes) against a naive program; and whole runs."""

import json
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from app.runtime.platform import Runtime
from app.training import session
from common.documents import Json
from tests.app import loops
from tests.app.conftest import SMALL, Command, built
from tests.app.group import run_whole
from tests.app.in_process import train_here
from tests.app.run_files import summary
from tests.oracles.field_models import Model, Perceptron

BATCH, STEPS, SEED = 48, 10, 5
EPS = 1e-4  # with less, Adam makes steps of the rounding in gradients that are 0, those of biases before a batch norm
VECTORS = ["model.numeric=vectors", "model.dense_arch=[]"]
CROSS = ["model.interaction=dcn", "model.dcn_full_rank=true", *VECTORS, "model.over_arch=[1]"]
SHAPES = {  # overrides; FuxiCTR's name for it
    "dlrm": ["model.interaction=dot", "model.dense_arch=[12,9,10]", "model.over_arch=[16,8,1]"],
    "dlrm_cat": ["model.interaction=cat", "model.dense_arch=[12,10]", "model.over_arch=[16,1]"],
    "dlrm_vectors": ["model.interaction=dot", *VECTORS, "model.over_arch=[16,1]"],
    "dcnv2": [*CROSS, "model.dcn_num_layers=2", "model.deep_arch=[14,12]"],
    "crossnetv2": CROSS,
    "dnn": ["model.interaction=cat", *VECTORS, "model.over_arch=[16,12,1]"],
    "lr": ["model.interaction=sum", *VECTORS, "model.over_arch=[]", "model.embedding_dim=1"],
}


class Settings(NamedTuple):  # what a case adds to a shape
    batch_norm: bool = False
    dropout: float = 0.0
    l2: float = 0.0
    max_norm: float | None = None
    micro_batch: int | None = None

    def overrides(self) -> list[str]:
        keys = [f"model.batch_norm={str(self.batch_norm).lower()}", f"optimizer.sparse_weight_decay={self.l2}"]
        keys += [f"model.dropout={self.dropout}"] if self.dropout else []
        if self.micro_batch is not None:
            keys += ["train.deterministic=layout", f"train.micro_batch_size={self.micro_batch}"]
        if self.max_norm is not None:
            keys += [f"optimizer.max_grad_norm={self.max_norm}", "optimizer.clip_tables=true"]
        return keys


def naive(shape: str, settings: Settings, this: session.Session) -> Model:
    model, values = this.config.model, {name: torch.from_numpy(np.array(array)) for name, array in this.parameters()}
    statistics = {name: values.pop(name) for name in [*values] if "running_" in name}
    tables = [table.name for table in this.model.module.sparse_arch.tables]

    def stack(name: str, widths: list[int] | None, final_relu: bool, rate: float) -> Perceptron | None:
        if not widths:
            return None
        num_hidden = len(widths) if name == "interaction.deep_arch" else len(widths) - 1
        return Perceptron(name, len(widths), num_hidden, settings.batch_norm, [rate] * len(widths), final_relu)

    decayed = [*tables, "dense_arch.weight" if "dense_arch.weight" in values else "", "over_arch.bias"]
    dense = stack("dense_arch", model.dense_arch, True, 0.0)
    over = stack("over_arch", model.over_arch, False, settings.dropout)
    deep = stack("interaction.deep_arch", model.deep_arch, True, settings.dropout)
    of_parts = partial(Model, values, statistics, tables, model.interaction.value, dense, over, deep)
    decay, layers = dict.fromkeys(decayed, settings.l2), model.dcn_num_layers or 3
    return of_parts(layers, SEED, decay, settings.max_norm, 0.01, EPS, settings.micro_batch)


EVERYTHING = Settings(batch_norm=True, dropout=0.3, l2=0.05, max_norm=0.5)
LAYOUT = EVERYTHING._replace(micro_batch=10)
CASES: list[Any] = [("dlrm", EVERYTHING), ("dcnv2", EVERYTHING), ("lr", Settings(l2=0.02)), ("dlrm", Settings())]
CASES += [("dcnv2", LAYOUT)]
LINEAR = ("lr", "crossnetv2")  # have no layers to normalise or to drop values of
CASES += [
    pytest.param(shape, settings, marks=pytest.mark.slow)
    for shape in SHAPES
    for settings in (EVERYTHING, LAYOUT, EVERYTHING._replace(batch_norm=False), Settings(l2=0.1, max_norm=0.1))
    if (shape in LINEAR) == (settings.dropout == 0) and (shape, settings) not in CASES
]


@pytest.mark.parametrize(("shape", "settings"), CASES)
def test_steps_are_those_of_the_naive_program(shape: str, settings: Settings, runtime: Runtime, dataset: Path) -> None:
    keys = ["optimizer=adam", "optimizer.lr=0.01", f"optimizer.eps={EPS}", "model.embedding_dim=10"]
    keys += ["model.dense_init=xavier_normal", f"train.global_batch_size={BATCH}", f"train.seed={SEED}"]
    this = built(runtime, dataset, *keys, *SHAPES[shape], *settings.overrides())
    oracle = naive(shape, settings, this)
    batches = list(zip(range(STEPS), this.predictor.split("train").train_batches(BATCH, 3, 0, 0), strict=False))
    for step, batch in batches:
        loss = loops.step(this, batch, step)
        rows = slice(batch.num_valid)
        expected = oracle.step(batch.dense_features[rows], ids_of(batch)[rows], batch.labels[rows], step)
        assert loss == pytest.approx(expected, rel=1e-5), f"step {step}"
    for name, values in this.parameters():
        other = oracle.statistics[name] if "running_" in name else oracle.parameters[name].detach()
        atol = 1e-4 if settings.batch_norm else 2e-5  # gradients of biases before a batch norm are rounding alone
        np.testing.assert_allclose(values, other.numpy(), atol=atol, err_msg=name)
    batch = batches[0][1]
    this.model.eval()
    logits = this.forward(batch).detach()
    this.model.train()
    expected_logits = oracle.logits(batch.dense_features.double(), ids_of(batch), None).detach()
    np.testing.assert_allclose(logits.numpy(), expected_logits.numpy(), atol=1e-4)
    assert bool(oracle.statistics) is settings.batch_norm


def ids_of(batch: Any) -> Tensor:
    return batch.sparse_features.values().view(len(batch.sparse_features.keys()), -1).T.long()


REGULARISED = ["optimizer=adam", "optimizer.eps=1e-4", "optimizer.max_grad_norm=1", "optimizer.clip_tables=true"]
REGULARISED += ["optimizer.weight_decay=0.001", "optimizer.sparse_weight_decay=0.01", "model.batch_norm=true"]
REGULARISED += ["model.dropout=0.3", "model.dense_dropout=[0.1]", "model.embedding_dim=10", "model.dense_arch=[12,10]"]
REGULARISED += ["model.over_arch=[16,8,1]"]
BRIEF = ["train.max_steps=14", "train.eval_every_steps=5", "record.tensorboard=false", "train.log_every_steps=1"]


@pytest.fixture
def base(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return [*SMALL, *REGULARISED, *BRIEF, f"data.path={dataset}"]


@pytest.mark.slow("processes")
def test_two_processes_learn_as_one(base: list[str], runtime: Runtime, tmp_path: Path) -> None:
    """Over an epoch's last batch, too, of 16 rows."""
    base += ["train.drop_last=false", "train.max_steps=34"]
    assert train_here(runtime, *base, "run.name=one") == "completed"
    one, (two,) = summary(Path("runs/one")), run_whole([[*base, f"run.dir={tmp_path}/two"]], 2, tmp_path / "two.json")
    assert two["eval"]["auc"] == pytest.approx(one["eval"]["auc"], abs=1e-5)
    assert two["eval"]["logloss"] == pytest.approx(one["eval"]["logloss"], rel=1e-5)


@pytest.mark.slow("processes")
def test_verify_and_evaluate_serve_the_statistics(base: list[str], runtime: Runtime, run_app: Command) -> None:
    assert train_here(runtime, *base, "run.name=run") == "completed"
    run = summary(Path("runs/run"))
    run_app("verify", "run=runs/run")
    for precision in ("fp32", "int8"):
        evaluated = run_app("evaluate", "run=runs/run", "split=val", f"tables={precision}")
        figures: Json = json.loads(evaluated.stdout)
        assert figures["auc"] == pytest.approx(run["eval"]["auc"], abs=1e-6 if precision == "fp32" else 0.01)


def test_a_plain_model_has_no_new_arrays(dataset: Path, runtime: Runtime) -> None:
    """What is digested of a model without batch norm are its parameters alone."""
    plain = built(runtime, dataset)
    names = [name for name, _ in plain.parameters()]
    assert not any("running" in name for name in names)
    assert len(names) == len({name for name, _ in plain.model.named_parameters()})
    assert all(np.asarray(values).dtype == np.float32 for _, values in plain.parameters())
