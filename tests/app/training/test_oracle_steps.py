"""Some steps of drawn models, against the naive program in float64: interaction, tables, optimizer, schedule."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from app.config.kinds import OptimizerName, ScheduleName
from app.config.model import Interaction, Pooling, QROperation, TableKind
from app.config.train import ScheduleConfig
from app.model.embeddings import Embedding
from app.optimizer import learning_rate
from app.runtime.platform import Runtime
from tests.app import loops
from tests.app.conftest import built
from tests.app.datasets import RAGGED, RAGGED_EMBEDDINGS
from tests.covering import stable_choice
from tests.oracles.dlrm import INTERACTIONS, Feature, OracleDLRM
from tests.oracles.schedules import rates

STEPS, BATCH = 6, 16
BY_STEP = [name for name in ScheduleName if not name.schedule.by_metric]
# Overrides of an interaction that are not its name alone.
VARIANTS = {
    "dot_itself": ["model.interaction=dot", "model.interaction_itself=true"],
    "mixed_pairs": ["model.interaction=scalar_pairs", "model.mixes_samples=true"],
}
CASES = [(interaction, number) for interaction in INTERACTIONS for number in range(3)]
FAST = [(interaction, 0) for interaction in ("dot", "dot_itself", "dcn", "projection")]


class Drawn(NamedTuple):
    """A drawn model and its training."""

    optimizer: OptimizerName
    schedule: ScheduleName
    overrides: list[str]


def draw(interaction: str, number: int, layout: bool = False) -> Drawn:
    """All that a case decides, but for a case of another name. layout: what train.deterministic=layout allows.

    Optimizers that torch updates whole tables by have none that is looked up id by id.
    """
    case: tuple[object, ...] = (interaction, number, *(["layout"] if layout else []))
    rng = np.random.default_rng(list(repr(case).encode()))
    optimizer = OptimizerName(stable_choice([each.value for each in OptimizerName], "optimizer", *case))
    schedule = ScheduleName(stable_choice([each.value for each in BY_STEP], "schedule", *case))
    overrides = [*VARIANTS.get(interaction, [f"model.interaction={interaction}"]), f"optimizer={optimizer.value}"]
    overrides += [f"optimizer.lr={0.005 if 'beta1' in optimizer.algorithm.settings else 0.05}"]
    overrides += [f"optimizer.sparse_lr={rng.choice([0.02, 0.004])}"]
    overrides += [] if optimizer is OptimizerName.sgd else ["optimizer.eps=1e-3"]
    overrides += ["train.deterministic=layout", "train.micro_batch_size=5"] * layout
    overrides += ["optimizer.max_grad_norm=0.05"] * int(rng.integers(2))
    lengths = {"warmup_steps": rng.integers(1, 4), "decay_start_step": rng.integers(3, 5), "decay_steps": 4}
    keys = {"constant": [], "warmup": ["warmup_steps"]}.get(schedule.value, list(lengths))
    overrides += [f"schedule.name={schedule.value}", *(f"schedule.{key}={lengths[key]}" for key in keys)]
    overrides += ["schedule.end_factor=0.2"] * (schedule is ScheduleName.cosine)
    for feature in RAGGED_EMBEDDINGS:
        by_id = (optimizer.algorithm.fused_on_cpu or feature not in RAGGED) and not layout
        pooling = rng.choice([each.value for each in Pooling if by_id or each is not Pooling.weighted])
        kinds = [each for each in TableKind if not (layout and each is TableKind.mixed_dimension)]
        kind = rng.choice([each.value for each in kinds])
        settings = [f"pooling: {pooling}", f"kind: {kind}"]
        if kind == "qr":
            operations = [each for each in QROperation if by_id or each is not QROperation.mult]
            settings += [f"qr_operation: {rng.choice([each.value for each in operations])}", "qr_collisions: 3"]
        settings += ["dim: 4"] * (kind == "mixed_dimension")
        overrides.append(f"+model.tables.overrides.{feature}={{{', '.join(settings)}}}")
    return Drawn(optimizer, schedule, overrides)


def feature_of(embedding: Embedding, parameters: dict[str, Any]) -> Feature:
    """Weighted bags are sums of w_i e_i, so that there pooled_mult is the product of each id's rows."""
    names = {part: f"sparse_arch.{part}.{embedding.key}.weight" for part in ("row_weights", "projections")}
    weighted = embedding.pooling is Pooling.weighted
    operation = "" if embedding.operation is None else embedding.operation.value
    return Feature(
        [table.name for table in embedding.tables],
        "mult" if weighted and "mult" in operation else operation or "plain",
        embedding.pooling.value,
        names["row_weights"] if names["row_weights"] in parameters else None,
        names["projections"] if names["projections"] in parameters else None,
    )


@pytest.mark.parametrize(
    ("interaction", "number"),
    [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES if case not in FAST)],
)
def test_drawn_models_train_as_the_naive_program(interaction: str, number: int, runtime: Runtime, ragged: Path) -> None:
    train_beside_the_oracle(draw(interaction, number), interaction, runtime, ragged)


@pytest.mark.medium
@pytest.mark.parametrize("interaction", sorted(set(INTERACTIONS) - {"mixed_pairs"}))
def test_micro_batches_train_as_the_naive_program(interaction: str, runtime: Runtime, ragged: Path) -> None:
    """train.deterministic=layout, with micro-batches of 5 of 16 rows: the last one has one."""
    train_beside_the_oracle(draw(interaction, 0, layout=True), interaction, runtime, ragged)


def train_beside_the_oracle(case: Drawn, interaction: str, runtime: Runtime, ragged: Path) -> None:
    """Train a few steps; compare each loss and, at the end, all parameters."""
    print(*case.overrides)
    overrides = [*case.overrides, f"train.global_batch_size={BATCH}"]
    overrides += ["model.embedding_dim=8", "model.dense_arch=[6,8]", "model.over_arch=[5,1]"]
    this = built(runtime, ragged, *overrides)
    parameters = {name: torch.from_numpy(np.array(values)) for name, values in this.parameters()}
    embeddings = this.model.module.sparse_arch.embeddings
    features = {one.features[0]: feature_of(one, parameters) for one in embeddings}
    schedule, optimizer = this.config.schedule, this.config.optimizer
    lengths = (STEPS, schedule.warmup_steps, schedule.decay_start_step, schedule.decay_steps, schedule.end_factor)
    lr, table_lr = (rates(schedule.name.value, base, *lengths) for base in (optimizer.lr, optimizer.table_lr))
    settings = (optimizer.eps or 0.0, (optimizer.beta1 or 0.9, optimizer.beta2 or 0.999), optimizer.max_grad_norm)
    oracle = OracleDLRM(parameters, features, interaction, lr, table_lr, case.optimizer.value, *settings)
    for step, batch in zip(range(STEPS), this.predictor.split("train").train_batches(BATCH, 3, 0, 0), strict=False):
        loss = loops.step(this, batch, step)
        bags = {name: jagged.to_dense() for name, jagged in batch.sparse_features.to_dict().items()}
        rows = slice(batch.num_valid)  # micro-batches are padded
        bags = {name: [ids.long() for ids in of_feature[rows]] for name, of_feature in bags.items()}
        oracle.step(batch.dense_features[rows], bags, batch.labels[rows])
        assert loss == pytest.approx(oracle.losses[-1], rel=2e-5), f"step {step}"
    for name, values in this.parameters():
        np.testing.assert_allclose(values, oracle.parameters[name].detach().numpy(), atol=2e-5, err_msg=name)


def test_every_part_is_drawn() -> None:
    cases = [draw(*case) for case in CASES]
    assert {case.optimizer for case in cases} == set(OptimizerName)
    assert {case.schedule for case in cases} == set(BY_STEP)
    text = " ".join(override for case in cases for override in case.overrides)
    for word in (*(each.value for kind in (Pooling, TableKind, QROperation) for each in kind), "max_grad_norm"):
        assert word in text
    exclusions = {Interaction.sum}  # tests/app/training/test_field_models.py
    assert {each.value for each in set(Interaction) - exclusions} == set(INTERACTIONS) - set(VARIANTS)


def test_one_more_name_changes_only_the_draws_that_it_wins() -> None:
    before, after = ([stable_choice(names, number) for number in range(60)] for names in ("abcd", "abcde"))
    assert set(before) == set("abcd")
    assert set(after) == set("abcde")
    assert all(new in (old, "e") for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", BY_STEP)
def test_schedules_are_the_schedulers(name: ScheduleName, seed: int) -> None:
    rng = np.random.default_rng(seed)
    base, warmup = float(rng.uniform(1e-3, 9)), int(rng.integers(1, 30))
    start, decay, end = warmup + int(rng.integers(0, 9)), int(rng.integers(1, 40)), float(rng.uniform(0, 1))
    keys: dict[str, Any] = {"warmup_steps": warmup, "decay_start_step": start, "decay_steps": decay}
    if name is ScheduleName.constant:
        keys = {}
    elif name is ScheduleName.warmup:
        keys = {"warmup_steps": warmup}
    elif name is ScheduleName.cosine:
        keys["end_factor"] = end
    config = ScheduleConfig(name, **keys)
    actual = [learning_rate(base, config, step) for step in range(120)]
    lengths = (config.warmup_steps, config.decay_start_step, config.decay_steps, config.end_factor)
    assert actual == pytest.approx(rates(name.value, base, 120, *lengths), rel=1e-12)
