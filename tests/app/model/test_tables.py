"""Plain tables against torch: what they give, how they are trained, where they begin, what is refused."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor

from app.config.model import ModelConfig, Pooling, TableOverride, TablesConfig, table_faults
from app.model.embeddings import SparseArch, initial_rows, make_embeddings, make_sparse_arch, table_of
from app.runtime.platform import Runtime
from app.sharding.plan import local_shards, table_weights
from app.training import session
from common.keys import refuse
from data_prep.dataset.format import Manifest
from tests import reference
from tests.app.conftest import composed
from tests.error_lines import refused

FEATURES = {"a": 50, "b": 30, "c": 23, "d": 10, "e": 12}
DIM, BATCH = 16, 12


@pytest.mark.parametrize("multi_hot", [True, False])
@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_vectors_and_gradients_are_torchs(pooling: Pooling, multi_hot: bool) -> None:
    tables = TablesConfig(overrides={"b": TableOverride(pooling=pooling)}, shared={"s": ["c", "d"]})
    module = make_sparse_arch(
        ModelConfig(embedding_dim=DIM, tables=tables), FEATURES, list(FEATURES) if multi_hot else []
    )
    assert {table.name: table.num_embeddings for table in module.tables} == {"t_a": 50, "t_b": 30, "t_s": 23, "t_e": 12}
    draw_values(module)
    bags = draw_bags(seed=1, multi_hot=multi_hot)
    owners = {feature: one for one in module.embeddings for feature in one.features}
    vectors = [
        reference.pool(
            bags[name], [weight_of(module, f"t_{owners[name].name}")], "plain", pooling if name == "b" else "sum"
        )
        for name in FEATURES
    ]
    outputs, expected = module(as_kjt(bags))()[0], torch.stack(vectors, dim=1)
    torch.testing.assert_close(outputs, expected)
    parameters = list(module.parameters())
    gradients, expected_gradients = (
        torch.autograd.grad(vectors.square().sum(), parameters) for vectors in (outputs, expected)
    )
    torch.testing.assert_close(gradients, expected_gradients)


def test_initial_values_are_a_function_of_seed_table_and_row() -> None:
    rows = 70_000
    config = ModelConfig(embedding_dim=4, tables=TablesConfig(overrides={"b": TableOverride(init="normal")}))
    (a,), (b,) = (one.tables for one in make_embeddings(config, {"a": rows, "b": rows}))
    for table, low, high, std in ((a, -1 / rows**0.5, 1 / rows**0.5, 1 / (3 * rows) ** 0.5), (b, -0.1, 0.1, 0.01)):
        whole = initial_rows(5, table, 0, rows)
        assert low <= whole.min() < 0 < whole.max() <= high
        assert whole.std() == pytest.approx(std, rel=0.01)
        np.testing.assert_array_equal(initial_rows(5, table, 65_000, 66_000), whole[65_000:66_000])
        assert not np.array_equal(initial_rows(6, table, 0, 9), whole[:9])


def test_half_precision_tables_are_trained_as_fp16(runtime: Runtime) -> None:
    model = ["model.dense_arch=[16]", "model.over_arch=[1]", "model.tables.storage=fp16"]
    config = composed(*model, "optimizer=sgd", "optimizer.lr=0.5", f"train.global_batch_size={BATCH}")
    schema = {"label": "label", "dense": ["int_0"], "sparse": list(FEATURES), "ragged": list(FEATURES)}
    manifest = Manifest(schema, {}, FEATURES, {}, [], 0, 0.0, "test")
    this = session.build(config, runtime, Path("half"), manifest)
    weights = {name: local_shards(weight)[0][1] for name, weight in table_weights(this.model)}
    before = {name: weight.clone() for name, weight in weights.items()}
    assert all(weight.dtype is torch.float16 for weight in weights.values())
    first = initial_rows(0, this.model.module.sparse_arch.tables[0], 0, 50)
    assert torch.equal(before["t_a"], torch.from_numpy(first).half())
    bags = draw_bags(seed=0)
    this.optimizer.zero_grad()
    leaves = {name: weight.float().requires_grad_() for name, weight in before.items()}
    vectors = torch.stack([reference.pool(bags[f], [leaves[f"t_{f}"]], "plain", "sum") for f in FEATURES], dim=1)
    outputs = this.model.module.sparse_arch(as_kjt(bags))()[0]
    torch.testing.assert_close(outputs, vectors)
    (outputs.square().sum()).backward()
    vectors.square().sum().backward()
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        expected = (before[name].float() - 0.5 * leaf.grad).half()
        torch.testing.assert_close(weights[name], expected, rtol=2e-3, atol=1e-4)  # an id may be rounded to twice
    assert all(values.dtype == np.float32 for _, values in this.parameters())


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (TablesConfig(init_std=0.1), "has no effect without init=normal"),
        (TablesConfig(overrides={"z": TableOverride()}), "no sparse feature z; it has a, b, c, d, e"),
        (TablesConfig(shared={"a": ["b", "c"]}), "a feature has this name"),
        (TablesConfig(shared={"s": ["a", "b"], "t": ["b", "c"]}), "model.tables.shared.t: b is in s already"),
        (TablesConfig(storage="bf16"), "FBGEMM trains no bf16 tables"),
    ],
)
def test_is_refused(tables: TablesConfig, message: str) -> None:
    refused(message, make_checked, tables)


def make_checked(tables: TablesConfig) -> SparseArch:
    """The lookup of tables that the configuration's checks accept."""
    refuse(table_faults(tables, DIM))
    return make_sparse_arch(ModelConfig(embedding_dim=DIM, tables=tables), FEATURES)


def draw_bags(seed: int, multi_hot: bool = True) -> dict[str, list[Tensor]]:
    """Up to four ids a bag, sometimes none; or always one."""
    draw = torch.Generator().manual_seed(seed)
    return {
        feature: [
            torch.randint(0, rows, (int(n) if multi_hot else 1,), generator=draw)
            for n in torch.randint(0, 5, (BATCH,), generator=draw)
        ]
        for feature, rows in FEATURES.items()
    }


def as_kjt(bags: dict[str, list[Tensor]]) -> KeyedJaggedTensor:
    every = [ids for of_feature in bags.values() for ids in of_feature]
    lengths = torch.tensor([len(ids) for ids in every], dtype=torch.int32)
    return KeyedJaggedTensor(list(bags), torch.cat(every).int(), lengths=lengths)


def draw_values(module: SparseArch) -> None:
    """Give an unsharded module's tables memory and values, and its row weights other ones than 1."""
    torch.manual_seed(0)
    for part in (module.bags, module.rows):
        if part is not None:
            part.to_empty(device="cpu")
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)


def weight_of(module: torch.nn.Module, table: str) -> Tensor:
    (weight,) = (parameter for name, parameter in module.named_parameters() if table_of(name) == table)
    return weight
