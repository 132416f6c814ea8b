"""Tables of every kind against the oracle: what they give, how they are trained, where they begin; runs with them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor

from app.config.model import (
    ModelConfig,
    Pooling,
    QROperation,
    RowWeights,
    Storage,
    TableInit,
    TableKind,
    TableOverride,
    TablesConfig,
    table_faults,
)
from app.model.embeddings import (
    SparseArch,
    alpha_rule,
    initial_rows,
    make_embeddings,
    make_sparse_arch,
    storable_width,
    table_of,
)
from app.runtime.platform import Runtime
from app.sharding.plan import local_shards, table_weights
from app.training import session
from common.errors import UserError
from common.keys import refuse
from data_prep.dataset.format import Manifest
from tests import reference
from tests.app.conftest import SMALL, Command, Refusal, composed
from tests.app.run_files import losses, summary
from tests.changed import changed
from tests.error_lines import refused

FEATURES = {"a": 50, "b": 30, "c": 23, "d": 10, "e": 12}
DIM, BATCH = 16, 12
QR, MIXED = TableKind.qr, TableKind.mixed_dimension

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


def test_a_width_never_exceeds_the_vectors() -> None:
    assert max(alpha_rule([3, 4, 5], 24, 0.0, power_of_2=True)) == 24  # the nearest power of 2 is 32


CASES = {
    "plain": TableOverride(),
    "mean": TableOverride(pooling=Pooling.mean),
    "mult": TableOverride(kind=QR),
    "mult by 7, mean": TableOverride(kind=QR, qr_collisions=7, pooling=Pooling.mean),
    "add": TableOverride(kind=QR, qr_operation=QROperation.add),
    "add, mean": TableOverride(kind=QR, qr_operation=QROperation.add, pooling=Pooling.mean),
    "concat": TableOverride(kind=QR, qr_operation=QROperation.concat, qr_collisions=5),
    "pooled_mult": TableOverride(kind=QR, qr_operation=QROperation.pooled_mult),
    "mixed": TableOverride(kind=MIXED, dim=4),
    "mixed, mean": TableOverride(kind=MIXED, dim=8, pooling=Pooling.mean),
    "weighted": TableOverride(pooling=Pooling.weighted),
    "weighted mult": TableOverride(kind=QR, pooling=Pooling.weighted),
    "weighted concat": TableOverride(kind=QR, qr_operation=QROperation.concat, pooling=Pooling.weighted),
    "weighted mixed": TableOverride(kind=MIXED, dim=8, pooling=Pooling.weighted),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("neighbour", "multi_hot"), [("plain", True), ("add", True), ("plain", False)])
def test_vectors_and_gradients_equal_the_oracle(case: str, neighbour: str, multi_hot: bool) -> None:
    config = _config({"b": CASES[case], "d": CASES[neighbour]})
    module = make_sparse_arch(config, FEATURES, list(FEATURES) if multi_hot else [])
    assert multi_hot or not module.rows  # one id is pooled where it lies
    _draw(module)
    batch = _bags(seed=1, multi_hot=multi_hot)
    outputs = module(_as_kjt(batch))().values
    vectors = _oracle_vectors(module, batch)
    expected = torch.stack([vectors[feature] for feature in FEATURES], dim=1)
    torch.testing.assert_close(outputs, expected)
    weights, parameters = torch.randn_like(outputs), list(module.parameters())
    torch.testing.assert_close(
        torch.autograd.grad((outputs * weights).sum(), parameters),
        torch.autograd.grad((expected * weights).sum(), parameters),
    )


def test_shared_tables_take_the_gradients_of_all_their_features() -> None:
    config = _config({"s": TableOverride(kind=QR, qr_operation=QROperation.add), "a": CASES["weighted"]})
    config = changed(config, {"tables.shared": {"s": ["c", "d"], "w": ["a", "e"]}})
    config.tables.overrides["w"] = config.tables.overrides.pop("a")
    module = make_sparse_arch(config, FEATURES)
    sizes = {table.name: table.num_embeddings for table in module.tables}
    assert sizes == {"t_w": 50, "t_b": 30, "t_s_q": 6, "t_s_r": 4}
    _draw(module)
    batch = _bags(seed=2)
    outputs, vectors = module(_as_kjt(batch))().values, _oracle_vectors(module, batch)
    expected = torch.stack([vectors[feature] for feature in FEATURES], dim=1)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(
        torch.autograd.grad(outputs.square().sum(), list(module.parameters())),
        torch.autograd.grad(expected.square().sum(), list(module.parameters())),
    )


def test_fixed_row_weights_come_from_their_file_and_stay(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).random(FEATURES["b"])
    np.save(tmp_path / "b.npy", weights)
    override = TableOverride(
        pooling=Pooling.weighted, row_weights=RowWeights.fixed, row_weights_path=str(tmp_path / "b.npy")
    )
    module = make_sparse_arch(_config({"b": override}), FEATURES)
    _draw(module)
    assert not [name for name, _ in module.named_parameters() if "row_weights" in name]
    batch = _bags(seed=3)
    expected = reference.pool(batch["b"], [_weight(module, "t_b")], "plain", "sum", torch.from_numpy(weights).float())
    torch.testing.assert_close(module(_as_kjt(batch))().values[:, 1], expected)
    np.save(tmp_path / "b.npy", weights[:-1])
    with pytest.raises(UserError, match=r"b.npy: float64 \(29,\); the row weights of b must be 30 finite"):
        make_sparse_arch(_config({"b": override}), FEATURES)
    (tmp_path / "b.npy").unlink()
    loaded = make_sparse_arch(_config({"b": override}), FEATURES, initial=False)  # as a checkpoint's model is made
    _draw(loaded)
    loaded.load_state_dict(module.state_dict())
    torch.testing.assert_close(loaded(_as_kjt(batch))().values[:, 1], expected)


def test_a_feature_may_be_called_as_a_method_is() -> None:
    tables = TablesConfig(kind=MIXED, dim=8, pooling=Pooling.weighted, min_rows=0)
    module = make_sparse_arch(ModelConfig(embedding_dim=DIM, tables=tables), {"keys": 9, "type": 9})
    assert len(module.projections) == len(module.row_weights) == 2


def test_tables_and_their_sizes_follow_the_formulas() -> None:
    tables = TablesConfig(kind=QR, min_rows=20, qr_collisions=8, alpha=1.0, overrides={"b": TableOverride(kind=MIXED)})
    embeddings = make_embeddings(ModelConfig(embedding_dim=DIM, tables=tables), FEATURES)
    shapes = {table.name: (table.num_embeddings, table.embedding_dim) for one in embeddings for table in one.tables}
    width = storable_width(reference.mixed_dimension(list(FEATURES.values()), DIM, 1.0, True)[1], DIM)
    assert width == 4
    expected = {"t_a_q": (7, DIM), "t_a_r": (8, DIM), "t_b": (30, width), "t_c_q": (3, DIM), "t_c_r": (8, DIM)}
    assert shapes == expected | {"t_d": (10, DIM), "t_e": (12, DIM)}


def test_initial_values_are_a_function_of_seed_table_and_row() -> None:
    rows = 70_000
    config = ModelConfig(embedding_dim=4, tables=TablesConfig(overrides={"b": TableOverride(init=TableInit.normal)}))
    (a,), (b,) = (one.tables for one in make_embeddings(config, {"a": rows, "b": rows}))
    for table, low, high, std in ((a, -1 / rows**0.5, 1 / rows**0.5, 1 / (3 * rows) ** 0.5), (b, -0.1, 0.1, 0.01)):
        whole = initial_rows(5, table, 0, rows)
        assert low <= whole.min() < 0 < whole.max() <= high
        assert whole.std() == pytest.approx(std, rel=0.01)
        np.testing.assert_array_equal(initial_rows(5, table, 65_000, 66_000), whole[65_000:66_000])
        assert not np.array_equal(initial_rows(6, table, 0, 9), whole[:9])


def test_facebookresearch_draws_quotients_and_remainders_between_its_bounds() -> None:
    tables = TablesConfig(kind=QR, min_rows=0, init=TableInit.facebookresearch)
    (one,) = make_embeddings(ModelConfig(embedding_dim=16, tables=tables), {"a": 10_000})
    for table in one.tables:
        values = initial_rows(0, table, 0, table.num_embeddings)
        assert values.min() >= np.float32(0.01)
        assert 0.9 < values.max() <= 1


def test_half_precision_tables_are_trained_as_fp16(runtime: Runtime) -> None:
    model = ["model.dense_arch=[16]", "model.over_arch=[1]", "model.tables.storage=fp16"]
    config = composed(*model, "optimizer=sgd", "optimizer.lr=0.5", f"train.global_batch_size={BATCH}")
    schema = {"label": "label", "dense": ["int_0"], "sparse": list(FEATURES), "ragged": list(FEATURES)}
    manifest = Manifest(schema, {}, FEATURES, {}, [], 0, 0.0, "test")
    this = session.build(config, runtime, Path("half"), manifest)
    weights = {name: local_shards(weight)[0].values for name, weight in table_weights(this.model)}
    before = {name: weight.clone() for name, weight in weights.items()}
    assert all(weight.dtype is torch.float16 for weight in weights.values())
    first = initial_rows(0, this.model.module.sparse_arch.tables[0], 0, 50)
    assert torch.equal(before["t_a"], torch.from_numpy(first).half())
    bags = _bags(seed=0)
    this.optimizer.zero_grad()
    leaves = {name: weight.float().requires_grad_() for name, weight in before.items()}
    vectors = torch.stack([reference.pool(bags[f], [leaves[f"t_{f}"]], "plain", "sum") for f in FEATURES], dim=1)
    outputs = this.model.module.sparse_arch(_as_kjt(bags))().values
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
        (TablesConfig(qr_collisions=4), "model.tables.qr_collisions=4: has no effect without kind=qr"),
        (TablesConfig(dim=8), "model.tables.dim=8: has no effect without kind=mixed_dimension"),
        (TablesConfig(kind=MIXED, dim=8, alpha=0.1), "model.tables.alpha=0.1: has no effect"),
        (TablesConfig(min_rows=8), "model.tables.min_rows=8: has no effect"),
        (TablesConfig(row_weights=RowWeights.learned), "has no effect without pooling=weighted"),
        (TablesConfig(init_std=0.1), "has no effect without init=normal"),
        (TablesConfig(kind=QR, qr_collisions=1), "model.tables.qr_collisions=1: must be at least 2"),
        (TablesConfig(kind=MIXED, dim=20), "model.tables.dim=20: must be a multiple of 4"),
        (TablesConfig(kind=QR, overrides={"a": TableOverride(dim=8)}), "model.tables.overrides.a.dim=8: has no effect"),
        (TablesConfig(QR, qr_operation=QROperation.pooled_mult, pooling=Pooling.weighted), "use qr_operation=mult"),
        (TablesConfig(overrides={"z": TableOverride()}), "no sparse feature z; it has a, b, c, d, e"),
        (TablesConfig(shared={"s": ["a", "z"]}), "model.tables.shared.s: the dataset has no sparse feature z"),
        (TablesConfig(shared={"s": ["a"]}), "at least two features"),
        (TablesConfig(shared={"a": ["b", "c"]}), "a feature has this name"),
        (TablesConfig(shared={"s": ["a", "b"], "t": ["b", "c"]}), "model.tables.shared.t: b is in s already"),
        (TablesConfig(shared={"s": ["a", "b"]}, overrides={"a": TableOverride()}), "give model.tables.overrides.s"),
        (TablesConfig(pooling=Pooling.weighted, row_weights=RowWeights.fixed), "which is pooling=sum"),
        (TablesConfig(storage=Storage.bf16), "FBGEMM trains no bf16 tables"),
    ],
)
def test_is_refused(tables: TablesConfig, message: str) -> None:
    def make() -> None:
        refuse(table_faults(tables, DIM))
        make_sparse_arch(ModelConfig(embedding_dim=DIM, tables=tables), FEATURES)

    refused(message, make)


def test_a_name_that_would_stand_for_two_tables_is_refused() -> None:
    tables = TablesConfig(overrides={"a": TableOverride(kind=QR)})
    with pytest.raises(UserError, match="t_a_r would have two meanings"):
        make_embeddings(ModelConfig(embedding_dim=DIM, tables=tables), {"a": 50, "a_r": 50})


def _config(overrides: dict[str, TableOverride]) -> ModelConfig:
    return ModelConfig(embedding_dim=DIM, tables=TablesConfig(overrides=overrides))


def _bags(seed: int, multi_hot: bool = True) -> dict[str, list[Tensor]]:
    """Up to four ids a bag, sometimes none; or always one."""
    draw = torch.Generator().manual_seed(seed)
    return {
        feature: [
            torch.randint(0, rows, (int(n) if multi_hot else 1,), generator=draw)
            for n in torch.randint(0, 5, (BATCH,), generator=draw)
        ]
        for feature, rows in FEATURES.items()
    }


def _as_kjt(bags: dict[str, list[Tensor]]) -> KeyedJaggedTensor:
    every = [ids for of_feature in bags.values() for ids in of_feature]
    lengths = torch.tensor([len(ids) for ids in every], dtype=torch.int32)
    return KeyedJaggedTensor(list(bags), torch.cat(every).int(), lengths=lengths)


def _draw(module: SparseArch) -> None:
    """Give an unsharded module's tables memory and values, and its row weights other ones than 1."""
    torch.manual_seed(0)
    for part in (module.bags, module.rows):
        if part is not None:
            part.to_empty(device="cpu")
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)


def _weight(module: torch.nn.Module, table: str) -> Tensor:
    (weight,) = (parameter for name, parameter in module.named_parameters() if table_of(name) == table)
    return weight


def _oracle_vectors(module: SparseArch, bags: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    """Vectors [B, D] by feature from the module's own parameters."""
    parameters: dict[str, Tensor] = dict(module.named_parameters())
    vectors = {}
    for one in module.embeddings:
        kind = "plain" if one.operation is None else one.operation.value
        weights = parameters.get(f"row_weights.{one.key}.weight")
        projection = parameters.get(f"projections.{one.key}.weight")
        for feature in one.features:
            matrices = [_weight(module, table.name) for table in one.tables]
            vector = reference.pool(bags[feature], matrices, kind, one.pooling.value, weights)
            vectors[feature] = vector if projection is None else vector @ projection.T
    return vectors


# user and item have one id a row, genres two, tags none to many
KINDS = ["+model.tables.overrides.user.kind=qr", "+model.tables.overrides.user.qr_operation=concat"]
KINDS += ["+model.tables.overrides.tags.kind=qr", "+model.tables.overrides.tags.pooling=mean"]
KINDS += ["+model.tables.overrides.item.kind=mixed_dimension", "model.tables.alpha=0.6"]
KINDS += ["+model.tables.overrides.item.storage=fp16", "+model.tables.overrides.genres.pooling=weighted"]
KINDS += ["train.global_batch_size=32"]


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


QR_TAGS = "+model.tables.overrides.tags.kind=qr"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (f"{QR_TAGS} sharding=data_parallel", "t_tags_q is looked up id by id"),
        (f"{QR_TAGS} optimizer=adam", "by id, such as t_tags_q; use optimizer=sgd or adagrad or rowwise_adagrad"),
        ("model.tables.storage=fp16 sharding=data_parallel", "t_user is not stored as fp32"),
        ("+model.tables.overrides.tags.kidn=qr", "kidn"),
        ("model.tables.kind=round", "plain, qr, mixed_dimension"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    overrides: str, message: str, refused_command: Refusal, ragged: Path
) -> None:
    assert message in refused_command("train", *SMALL, f"data.path={ragged}", "run.name=no", *overrides.split())
