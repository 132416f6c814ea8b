"""Schedules against golden numbers; that the learning rate reaches tables and dense parameters alike."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from app import optimizer, session, sharding
from app.config import (
    AppConfig,
    ModelConfig,
    OptimizerConfig,
    OptimizerName,
    RunConfig,
    ScheduleConfig,
    ScheduleName,
    ShardingConfig,
    TrainConfig,
)
from app.data import Split
from app.runtime import Runtime
from data_prep.format import load_manifest
from tests import reference

GOLDEN = Path(os.environ.get("CLICKWORK_SHARED", Path(__file__).parents[3] / "shared")) / "golden/lr_policy.npz"


@pytest.mark.skipif(not GOLDEN.is_file(), reason=f"no golden numbers at {GOLDEN}; set CLICKWORK_SHARED")
def test_schedule_equals_facebookresearch() -> None:
    golden = np.load(GOLDEN)
    assert len(golden) == 3
    for key in golden:
        match = re.fullmatch(r"lr_w(\d+)_s(\d+)_d(\d+)", key)
        assert match
        warmup, start, steps = map(int, match.groups())
        config = ScheduleConfig(ScheduleName.warmup_poly, warmup, start, steps)
        ours = [optimizer.learning_rate(1.0, config, step) for step in range(len(golden[key]))]
        np.testing.assert_array_equal(ours, golden[key], err_msg=key)


def test_constant_schedule_is_the_base_rate() -> None:
    assert optimizer.learning_rate(0.3, ScheduleConfig(ScheduleName.constant), 1_000) == 0.3


@pytest.mark.parametrize("kind", ["table_wise", "data_parallel"])
@pytest.mark.parametrize("algorithm", list(OptimizerName))
def test_steps_at_changing_rates_equal_the_oracle(
    algorithm: OptimizerName, kind: str, here: Runtime, dataset: Path
) -> None:
    """Tables (fused, or replicated) and dense parameters follow a schedule exactly as plain torch does."""
    config = AppConfig(
        run=RunConfig(name="rates"),
        model=ModelConfig(embedding_dim=8, dense_arch=[16, 8], over_arch=[16, 1]),
        optimizer=OptimizerConfig(algorithm, 0.05, eps=None if algorithm is OptimizerName.sgd else 1e-8),
        schedule=ScheduleConfig(ScheduleName.warmup_poly, warmup_steps=3, decay_start_step=5, decay_steps=6),
        sharding=ShardingConfig(types=kind),
        train=TrainConfig(global_batch_size=128),
    )
    manifest = load_manifest(dataset)
    this = session.build(config, here, dataset, manifest)
    split = Split(dataset, manifest, "train", config.data, rank=0, world_size=1)
    names = [name for name, _ in sharding.table_weights(this.model)]
    tables = [w.clone().double().requires_grad_() for w in _tables(this)]
    dense = [p.detach().clone().double().requires_grad_() for p in _dense(this)]
    layers = list(zip(dense[::2], dense[1::2], strict=True))
    oracle = reference.Optimizer(algorithm.value, tables, dense, eps=1e-8)
    features = [name.removeprefix("t_") for name in names]
    for step, batch in enumerate(split.train_batches(128, seed=5, epoch=0, first=0)):
        lr = optimizer.learning_rate(config.optimizer.lr, config.schedule, step)
        optimizer.set_learning_rate(this.optimizer, lr)
        this.optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(this.forward(batch), batch.labels)
        loss.backward()
        this.optimizer.step()
        ids = [batch.sparse_features[feature].values().long() for feature in features]
        bags = [list(torch.split(values, 1)) for values in ids]
        logits = reference.dlrm_logits(batch.dense_features.double(), bags, tables, layers[:2], layers[2:])
        expected = reference.bce(logits, batch.labels.double())
        expected.backward()
        oracle.step(lr)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    # Adagrad divides a first gradient by its own size: where that is almost 0, rounding decides (fp32, float64).
    for ours, theirs in zip([*_tables(this), *_dense(this)], [*tables, *dense], strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), atol=1e-4)


def _tables(this: session.Session) -> list[torch.Tensor]:
    tables = [sharding.whole_table(weight) for _, weight in sharding.table_weights(this.model)]
    return [table for table in tables if table is not None]


def _dense(this: session.Session) -> list[torch.nn.Parameter]:
    model = this.model.module
    return [*model.dense_arch.parameters(), *model.over_arch.parameters()]
