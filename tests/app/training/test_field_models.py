"""Steps of the field's models (batch norm, dropout, L2, clipping, shapes) against a naive program in float64."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from app.runtime.platform import Runtime
from app.training import session
from data_prep.dataset.format import load_manifest
from tests.app.conftest import SMALL, composed
from tests.oracles.field_models import Model, Perceptron

BATCH, STEPS, SEED = 48, 10, 5
EPS = 1e-4  # with less, Adam makes steps of the rounding in gradients that are 0, those of biases before a batch norm
SHAPES = {  # overrides; FuxiCTR's name for it
    "dlrm": ["model.interaction=dot", "model.dense_arch=[12,9,10]", "model.over_arch=[16,8,1]"],
    "dlrm_cat": ["model.interaction=cat", "model.dense_arch=[12,10]", "model.over_arch=[16,1]"],
    "dlrm_vectors": ["model.interaction=dot", "model.numeric=vectors", "model.dense_arch=[]", "model.over_arch=[16,1]"],
    "dcnv2": [
        "model.interaction=dcn",
        "model.dcn_full_rank=true",
        "model.dcn_num_layers=2",
        "model.deep_arch=[14,12]",
        "model.numeric=vectors",
        "model.dense_arch=[]",
        "model.over_arch=[1]",
    ],
    "crossnetv2": [
        "model.interaction=dcn",
        "model.dcn_full_rank=true",
        "model.numeric=vectors",
        "model.dense_arch=[]",
        "model.over_arch=[1]",
    ],
    "dnn": ["model.interaction=cat", "model.numeric=vectors", "model.dense_arch=[]", "model.over_arch=[16,12,1]"],
    "lr": [
        "model.interaction=sum",
        "model.numeric=vectors",
        "model.dense_arch=[]",
        "model.over_arch=[]",
        "model.embedding_dim=1",
    ],
}


class Settings(NamedTuple):
    """What a case adds to a shape."""

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


def built(shape: str, settings: Settings, runtime: Runtime, dataset: Path) -> session.Session:
    overrides = [*SMALL, "optimizer=adam", "optimizer.lr=0.01", f"optimizer.eps={EPS}", "model.embedding_dim=10"]
    overrides += ["model.dense_init=xavier_normal", *SHAPES[shape], *settings.overrides(), "run.name=x"]
    overrides += [f"data.path={dataset}", f"train.global_batch_size={BATCH}", f"train.seed={SEED}"]
    config = composed(*overrides)
    return session.build(config, runtime, dataset, load_manifest(dataset))


def naive(shape: str, settings: Settings, this: session.Session) -> Model:
    model, values = this.config.model, {name: torch.from_numpy(np.array(array)) for name, array in this.parameters()}
    statistics = {name: values.pop(name) for name in [*values] if "running_" in name}
    tables = [table.name for table in this.model.module.sparse_arch.tables]

    def stack(name: str, widths: list[int], final_relu: bool, rate: float) -> Perceptron | None:
        num_hidden = len(widths) if name == "interaction.deep_arch" else len(widths) - 1
        return Perceptron(name, len(widths), num_hidden, settings.batch_norm, [rate] * len(widths), final_relu)

    decayed = [*tables, "dense_arch.weight" if "dense_arch.weight" in values else "", "over_arch.bias"]
    return Model(
        values,
        statistics,
        tables,
        model.interaction.value,
        stack("dense_arch", model.dense_arch, True, 0.0) if model.dense_arch else None,
        stack("over_arch", model.over_arch, False, settings.dropout) if model.over_arch else None,
        stack("interaction.deep_arch", model.deep_arch, True, settings.dropout) if model.deep_arch else None,
        model.dcn_num_layers or 3,
        SEED,
        dict.fromkeys(decayed, settings.l2),
        settings.max_norm,
        0.01,
        EPS,
        settings.micro_batch,
    )


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
    this = built(shape, settings, runtime, dataset)
    oracle = naive(shape, settings, this)
    batches = list(zip(range(STEPS), this.predictor.split("train").train_batches(BATCH, 3, 0, 0), strict=False))
    for step, batch in batches:
        this.begin_step(step)
        this.optimizer.zero_grad()
        loss = this.loss_of(this.forward(batch), batch)
        this.backward(loss)
        this.optimizer.step()
        rows = slice(batch.num_valid)
        expected = oracle.step(batch.dense_features[rows], ids_of(batch)[rows], batch.labels[rows], step)
        assert loss.item() == pytest.approx(expected, rel=1e-5), f"step {step}"
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
