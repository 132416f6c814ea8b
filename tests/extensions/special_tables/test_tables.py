"""Tables of every kind against the oracle: what they give, how they are trained, where they begin; runs with them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from app.config.model import ModelConfig, TableOverride, TablesConfig
from app.model.embeddings import make_sparse_arch
from common.errors import UserError
from extensions.special_tables.arch import SpecialEmbedding, SpecialSparseArch, alpha_rule, storable_width
from tests import reference
from tests.app.conftest import SMALL, Command
from tests.app.model.test_tables import DIM, FEATURES, as_kjt, draw_bags, draw_values, make_checked, weight_of
from tests.app.run_files import losses, summary
from tests.app.training.test_resumption import KINDS
from tests.error_lines import refused

QR, MIXED = "qr", "mixed_dimension"


def override(**keys: Any) -> TableOverride:
    """An override with keys of the core and of the extension."""
    return TableOverride(**keys)


def tables_of(**keys: Any) -> TablesConfig:
    """Settings of all tables with keys of the core and of the extension."""
    return TablesConfig(**keys)


def make(tables: TablesConfig, multi_hot: bool = True, initial: bool = True) -> SpecialSparseArch:
    """The lookup of these tables."""
    config = ModelConfig(embedding_dim=DIM, tables=tables)
    module = make_sparse_arch(config, FEATURES, list(FEATURES) if multi_hot else [], initial)
    assert isinstance(module, SpecialSparseArch)
    return module


# Rows by feature of Criteo's Kaggle days, and widths by facebookresearch/dlrm's md_solver (run once).
KAGGLE = [1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10]
KAGGLE += [5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572]
SOLVED = {
    (16, 0.3, True): [4, 4, 1, 1, 4, 8, 1, 4, 16, 1, 2, 1, 2, 8, 1, 1, 8, 2, 2, 16, 1, 8, 8, 1, 8, 1],
    (16, 0.3, False): [3, 3, 1, 1, 4, 9, 1, 3, 16, 1, 2, 1, 2, 8, 1, 1, 11, 2, 2, 15, 1, 9, 10, 1, 6, 1],
    (64, 0.5, True): [4, 4, 1, 1, 8, 32, 1, 4, 64, 1, 1, 1, 2, 16, 1, 1, 32, 1, 2, 64, 1, 32, 32, 1, 8, 1],
}
WIDE = [37, 45, 6, 9, 51, 84, 24, 44, 128, 16, 28, 7, 32, 82, 23, 7, 101, 28, 34, 121, 7, 89, 93, 13, 63, 15]
SOLVED[128, 0.2, False] = WIDE


@pytest.mark.parametrize(("base", "alpha", "power_of_2"), SOLVED)
def test_widths_follow_the_alpha_rule(base: int, alpha: float, power_of_2: bool) -> None:
    dims = alpha_rule(KAGGLE, base, alpha, power_of_2)
    assert dims == SOLVED[base, alpha, power_of_2]
    assert dims == reference.mixed_dimension(KAGGLE, base, alpha, power_of_2)
    assert [storable_width(dim, base) for dim in (1, 4, 5, base)] == [4, 4, 8, base]


CASES = {
    "plain": override(),
    "mult": override(kind=QR),
    "mult by 7, mean": override(kind=QR, qr_collisions=7, pooling="mean"),
    "add": override(kind=QR, qr_operation="add"),
    "add, mean": override(kind=QR, qr_operation="add", pooling="mean"),
    "concat": override(kind=QR, qr_operation="concat", qr_collisions=5),
    "pooled_mult": override(kind=QR, qr_operation="pooled_mult"),
    "mixed": override(kind=MIXED, dim=4),
    "mixed, mean": override(kind=MIXED, dim=8, pooling="mean"),
    "weighted": override(row_weights="learned"),
    "weighted mult": override(kind=QR, row_weights="learned"),
    "weighted concat": override(kind=QR, qr_operation="concat", row_weights="learned"),
    "weighted mixed": override(kind=MIXED, dim=8, row_weights="learned"),
}


@pytest.mark.parametrize("case", sorted(CASES.keys() - {"plain"}))
@pytest.mark.parametrize(("neighbour", "multi_hot"), [("plain", True), ("add", True), ("plain", False)])
def test_vectors_and_gradients_equal_the_oracle(case: str, neighbour: str, multi_hot: bool) -> None:
    module = make(TablesConfig(overrides={"b": CASES[case], "d": CASES[neighbour]}), multi_hot)
    assert multi_hot or not module.rows  # one id is pooled where it lies
    draw_values(module)
    batch = draw_bags(seed=1, multi_hot=multi_hot)
    outputs = module(as_kjt(batch))()[0]
    vectors = _oracle_vectors(module, batch)
    expected = torch.stack([vectors[feature] for feature in FEATURES], dim=1)
    torch.testing.assert_close(outputs, expected)
    weights, parameters = torch.randn_like(outputs), list(module.parameters())
    torch.testing.assert_close(
        torch.autograd.grad((outputs * weights).sum(), parameters),
        torch.autograd.grad((expected * weights).sum(), parameters),
    )


def test_fixed_row_weights_come_from_their_file_and_stay(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).random(FEATURES["b"])
    np.save(tmp_path / "b.npy", weights)
    tables = tables_of(overrides={"b": {"row_weights": "fixed", "row_weights_path": str(tmp_path / "b.npy")}})
    module = make(tables)
    draw_values(module)
    assert not [name for name, _ in module.named_parameters() if "row_weights" in name]
    batch = draw_bags(seed=3)
    expected = reference.pool(batch["b"], [weight_of(module, "t_b")], "plain", "sum", torch.from_numpy(weights).float())
    torch.testing.assert_close(module(as_kjt(batch))()[0][:, 1], expected)
    np.save(tmp_path / "b.npy", weights[:-1])
    with pytest.raises(UserError, match=r"b.npy: float64 \(29,\); the row weights of b must be 30 finite"):
        make(tables)
    (tmp_path / "b.npy").unlink()
    loaded = make(tables, initial=False)  # as a checkpoint's model is made
    draw_values(loaded)
    loaded.load_state_dict(module.state_dict())
    torch.testing.assert_close(loaded(as_kjt(batch))()[0][:, 1], expected)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"qr_collisions": 4}, "model.tables.qr_collisions=4: has no effect without kind=qr"),
        ({"dim": 8}, "model.tables.dim=8: has no effect without kind=mixed_dimension"),
        ({"overrides": {"a": {"row_weights_path": "w.npy"}}}, "has no effect without row_weights"),
        ({"kind": QR, "overrides": {"a": {"dim": 8}}}, "model.tables.overrides.a.dim=8: has no effect"),
        ({"kind": QR, "qr_operation": "pooled_mult", "row_weights": "learned"}, "use qr_operation=mult"),
        ({"row_weights": "learned", "pooling": "mean"}, "not with pooling=mean; use pooling=sum"),
    ],
)
def test_is_refused(keys: dict[str, Any], message: str) -> None:
    refused(message, make_checked, tables_of(**keys))


def _oracle_vectors(module: SpecialSparseArch, bags: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    """Vectors [B, D] by feature from the module's own parameters."""
    parameters: dict[str, Tensor] = dict(module.named_parameters())
    vectors = {}
    for one in module.embeddings:
        operation = one.operation if isinstance(one, SpecialEmbedding) else None
        kind, pooling = "plain" if operation is None else operation, "mean" if one.tables[0].mean else "sum"
        weights = parameters.get(f"row_weights.{one.key}.weight")
        projection = parameters.get(f"projections.{one.key}.weight")
        for feature in one.features:
            matrices = [weight_of(module, table.name) for table in one.tables]
            vector = reference.pool(bags[feature], matrices, kind, pooling, weights)
            vectors[feature] = vector if projection is None else vector @ projection.T
    return vectors


@pytest.mark.slow("processes")
def test_two_processes_with_three_sharding_types_train_as_one(run_app: Command, ragged: Path, tmp_path: Path) -> None:
    types = {"t_user_q": "column_wise", "t_user_r": "row_wise", "t_tags_q": "row_wise", "t_tags_r": "column_wise"}
    types |= {"t_item": "row_wise", "t_genres": "column_wise"}
    overrides = [*SMALL, *KINDS, f"data.path={ragged}", "train.max_steps=40", "model.interaction=projection"]
    overrides += [*(f"+sharding.tables.{table}.types={kind}" for table, kind in types.items())]
    for name, processes in (("alone", 1), ("pair", 2)):
        run_app("train", *overrides, f"run.name={name}", processes=processes)
    alone, pair = tmp_path / "runs/alone", tmp_path / "runs/pair"
    plan = json.loads((pair / "manifest.json").read_bytes())["plan"]
    assert {name: entry["type"] for name, entry in plan.items()} == types
    np.testing.assert_allclose(losses(pair), losses(alone), rtol=2e-5)
    result = run_app("evaluate", "run=runs/pair", "split=val", "runtime.num_threads=1")
    assert json.loads(result.stdout)["logloss"] == pytest.approx(summary(pair)["eval"]["logloss"], abs=1e-6)
