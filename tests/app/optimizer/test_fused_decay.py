"""FBGEMM's weight decay against plain arithmetic, and refused where FBGEMM would ignore it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.distributed._shard.sharded_tensor import ShardedTensor

from app.data.split import SplitReader
from app.model.tables import table_of
from app.runtime.platform import Runtime
from app.sharding.execute import table_weights
from app.training import session
from data_prep.dataset.format import load_manifest
from tests.app.conftest import SMALL, Refusal, composed

LR, EPS, DECAY = 0.1, 1e-4, 0.5
SETTINGS = ["optimizer=rowwise_adagrad", f"optimizer.lr={LR}", f"optimizer.eps={EPS}", "optimizer.dense=sgd"]
FUSED = [f"optimizer.fused_weight_decay={DECAY}", "optimizer.fused_weight_decay_mode=l2"]


def whole(weight: Any) -> torch.Tensor:
    """The values [E, D] of a table that lies in one process."""
    return weight.local_shards()[0].tensor if isinstance(weight, ShardedTensor) else weight.data


def one_step(
    runtime: Runtime, dataset: Path, *overrides: str
) -> tuple[session.Session, dict[str, NDArray[np.float32]]]:
    """A session after the backward of its first batch, and its tables before it."""
    manifest = load_manifest(dataset)
    config = composed(*SMALL, *SETTINGS, *overrides, "run.name=x", f"data.path={dataset}")
    this = session.build(config, runtime, dataset, manifest)
    before = {}
    for name, weight in table_weights(this.model):
        values = whole(weight)
        values.copy_(values.half())  # the same in both storages
        before[name] = values.float().clone().numpy()
    batch = next(SplitReader(dataset, manifest, "train", config.data, 0, 1).eval_batches(64))
    this.begin_step(0)
    this.optimizer.zero_grad()
    logits = this.model(batch.dense_features, batch.sparse_features)
    torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels.float().view_as(logits)).backward()
    return this, before


@pytest.mark.parametrize("mode", ["l2", "decouple"])
def test_rows_of_the_batch_decay_as_documented(runtime: Runtime, dataset: Path, mode: str) -> None:
    plain, before = one_step(runtime, dataset, "sharding.types=data_parallel")
    decay = [f"optimizer.fused_weight_decay={DECAY}", f"optimizer.fused_weight_decay_mode={mode}"]
    fused, same = one_step(runtime, dataset, "model.tables.storage=fp16", *decay)
    after = {name: whole(weight).float().numpy() for name, weight in table_weights(fused.model)}
    moved = 0
    gradients = {table_of(key): each.grad for key, each in plain.model.named_parameters() if table_of(key)}
    assert set(gradients) == set(before)
    for name, values in before.items():
        np.testing.assert_array_equal(values, same[name])
        gradient = gradients[name].numpy()
        in_batch = np.abs(gradient).sum(axis=1) > 0
        decayed = gradient + DECAY * values * (mode == "l2")
        scale = LR / (np.sqrt((decayed**2).mean(axis=1, keepdims=True)) + EPS)
        expected = values * (1 - LR * DECAY * (mode == "decouple")) - scale * decayed
        np.testing.assert_allclose(after[name][in_batch], expected[in_batch], rtol=2e-3, atol=2e-4, err_msg=name)
        np.testing.assert_array_equal(after[name][~in_batch], values[~in_batch])
        moved += int(in_batch.sum())
    assert moved > 50


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "on CPU FBGEMM ignores it for fp32 tables of one feature, such as t_"),
        (["sharding.types=data_parallel"], "is data_parallel, so that torch updates it"),
        (
            ["model.tables.storage=fp16", "optimizer.name=sgd", "optimizer.eps=null"],
            "FBGEMM's sgd has none; use one of",
        ),
        (
            [
                "optimizer.name=adam",
                "optimizer.beta1=0.9",
                "optimizer.beta2=0.999",
                "optimizer.fused_weight_decay_mode=decouple",
            ],
            "FBGEMM has no adam on cpu; use optimizer=rowwise_adagrad, or optimizer.sparse_weight_decay, or leave it",
        ),
        (["optimizer.fused_weight_decay_mode=null"], "give optimizer.fused_weight_decay_mode=l2 or decouple"),
        (["optimizer.sparse_weight_decay=0.1"], "FBGEMM updates no table with optimizer.sparse_weight_decay"),
        (["optimizer.fused_weight_decay=null"], "has no effect without optimizer.fused_weight_decay"),
    ],
)
def test_a_decay_without_effect_is_refused(refused: Refusal, dataset: Path, overrides: list[str], message: str) -> None:
    fused = [*SMALL, *SETTINGS, *FUSED]
    assert message in refused("train", *fused, f"data.path={dataset}", "run.name=x", *overrides)
