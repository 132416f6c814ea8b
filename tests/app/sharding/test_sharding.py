"""However the tables are spread, the losses are those of one process, also of more processes than there are rows."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from torch import Tensor, nn
from torchrec.optim import RowWiseAdagrad

from app.config.sharding import COLUMN_TYPES, SHARDING_TYPES, CommPrecision, QCommConfig
from app.runtime.library_patches import count_empty_shards
from app.sharding.documents import PlanFile
from app.sharding.plan import Plan, codecs
from common.documents import convert
from tests.app.conftest import SMALL
from tests.app.group import run_group
from tests.once import made_once

STEPS = 20
CASES = [
    (algorithm, kind)
    for algorithm in ("sgd", "adagrad", "rowwise_adagrad")
    for kind in SHARDING_TYPES
    if not (algorithm == "rowwise_adagrad" and kind in COLUMN_TYPES)
]
ADAGRAD = [(algorithm, kind) for algorithm, kind in CASES if algorithm == "adagrad"]


def case(dataset: Path, algorithm: str, *overrides: str) -> list[str]:
    keys = ["run.name=x", f"data.path={dataset}", f"optimizer={algorithm}", f"train.max_steps={STEPS}"]
    return [*SMALL, *keys, *overrides]


@pytest.fixture(scope="module")
def alone(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Each optimizer's run of one process."""
    algorithms = ["sgd", "adagrad", "rowwise_adagrad"]

    def train(directory: Path) -> None:
        run_group([case(dataset, name) for name in algorithms], 1, directory / "results.json")

    results = json.loads((made_once(tmp_path_factory, "alone", train) / "results.json").read_text())
    return dict(zip(algorithms, results, strict=True))


@pytest.mark.slow("processes")
@pytest.mark.parametrize(("world_size", "combinations"), [(2, CASES), (4, ADAGRAD)])
def test_every_type_trains_as_one_process(
    world_size: int, combinations: list[tuple[str, str]], alone: dict[str, Any], dataset: Path, tmp_path: Path
) -> None:
    """Two to a machine, so four are two machines. fp32 sums in another order differ by 1e-5 at the most."""
    cases = [case(dataset, algorithm, f"sharding.types={kind}") for algorithm, kind in combinations]
    of_tables = ["+sharding.tables.cat_2.types=[column_wise,row_wise]", "+sharding.tables.t_cat_1.types=table_row_wise"]
    mixed = case(dataset, "adagrad", "sharding.types=auto", *of_tables)
    *results, auto_result = run_group([*cases, mixed], world_size, tmp_path / "results.json", local_world_size=2)
    np.testing.assert_allclose(auto_result["losses"], alone["adagrad"]["losses"], rtol=1e-5)
    types = {name: table["type"] for name, table in auto_result["plan"]["tables"].items()}
    assert types["t_cat_1"] == "table_row_wise"
    assert types["t_cat_2"] in ("column_wise", "row_wise")
    for (algorithm, kind), result in zip(combinations, results, strict=True):
        assert {table["type"] for table in result["plan"]["tables"].values()} == {kind}
        assert result["initial_digest"] == alone[algorithm]["initial_digest"], (algorithm, kind)
        assert len(result["losses"]) == STEPS
        one = alone[algorithm]
        np.testing.assert_allclose(result["losses"], one["losses"], rtol=1e-5, err_msg=f"{algorithm} {kind}")
        for name, total in one["sums"].items():
            assert result["sums"][name] == pytest.approx(total, abs=1e-3), (algorithm, kind, name)


def test_codecs_are_those_asked_for() -> None:
    values = torch.randn(64, generator=torch.Generator().manual_seed(0))
    registry = codecs(QCommConfig(CommPrecision.bf16, CommPrecision.fp16))
    assert registry is not None
    for codec in registry.values():
        assert torch.equal(codec.forward.encode(values), values.bfloat16())
        assert torch.equal(codec.backward.encode(values), values.half())
    assert codecs(QCommConfig()) is None


LR = 0.1
OPTIMIZERS = {
    EmbOptimType.EXACT_SGD: torch.optim.SGD,
    EmbOptimType.EXACT_ADAGRAD: torch.optim.Adagrad,
    EmbOptimType.EXACT_ROWWISE_ADAGRAD: RowWiseAdagrad,
}
LAYOUTS = {  # rows and width of each table
    "the last is empty": [(5, 4), (3, 4), (0, 4), (0, 4)],
    "the narrower is empty": [(0, 4), (5, 8)],
    "one between two is empty": [(5, 8), (0, 4), (3, 8)],
    "all are empty": [(0, 4), (0, 8)],
}


@pytest.mark.parametrize("by_id", [False, True], ids=["pooled", "by id"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_fbgemm_trains_tables_beside_empty_ones_as_torch_does(kind: EmbOptimType, layout: str, by_id: bool) -> None:
    shapes = [(rows, 4) for rows, _ in LAYOUTS[layout]] if by_id else LAYOUTS[layout]
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(*shape, EmbeddingLocation.HOST, ComputeDevice.CPU) for shape in shapes],
        optimizer=kind,
        learning_rate=LR,
        eps=1e-8,
        pooling_mode=PoolingMode.NONE if by_id else PoolingMode.SUM,
    )
    sizes = tables.hash_size_cumsum  # a kernel that looks beyond their end finds large ones
    tables.hash_size_cumsum = torch.cat([sizes, torch.full((4,), 2**40)])[: len(sizes)]
    count_empty_shards(nn.ModuleList([tables]))
    weights, generator = tables.split_embedding_weights(), torch.Generator().manual_seed(0)
    assert [tuple(weight.shape) for weight in weights] == shapes
    for weight in weights:
        weight.copy_(torch.rand(weight.shape, generator=generator))
    expected = [nn.Parameter(weight.clone()) for weight in weights]
    torchs = OPTIMIZERS[kind](expected, lr=LR, **({} if kind is EmbOptimType.EXACT_SGD else {"eps": 1e-8}))
    ids = [torch.tensor([0, rows - 1, 0] if rows else [], dtype=torch.int64) for rows, _ in shapes]
    lengths = [number for part in ids for number in (min(1, len(part)), max(0, len(part) - 1))]  # two bags of each
    offsets = torch.tensor([0, *itertools.accumulate(lengths)])
    for _ in range(2):
        outputs = tables(torch.cat(ids), offsets)
        looked_up = [weight[part] for weight, part in zip(expected, ids, strict=True)]
        expected_outputs = torch.cat(looked_up) if by_id else torch.cat([_pooled(rows) for rows in looked_up], dim=1)
        torch.testing.assert_close(outputs, expected_outputs)
        factors = torch.arange(1.0, outputs.numel() + 1).view_as(outputs)
        (outputs * factors).sum().backward()
        torchs.zero_grad()
        (expected_outputs * factors).sum().backward()
        torchs.step()
    for weight, other in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight, other.detach())


def _pooled(rows: Tensor) -> Tensor:
    return torch.stack([rows[:1].sum(dim=0), rows[1:].sum(dim=0)])


@pytest.mark.slow("processes")
def test_more_processes_than_rows_train_as_one(ragged: Path, tmp_path: Path) -> None:
    """The third of three processes has no row of the remainders: 8 wide before others, 4 wide; or alone, by id."""
    in_rows = ["t_user_q", "t_user_r", "t_item", "t_tags_r"]
    tables = {"user": "{kind: qr, qr_operation: concat}", "item": "{kind: mixed_dimension, dim: 4}"}
    tables["tags"] = "{kind: qr}"
    config = [*SMALL, "run.name=x", f"data.path={ragged}", "train.max_steps=8", "train.global_batch_size=48"]
    config += ["optimizer=adagrad", *(f"+model.tables.overrides.{name}={keys}" for name, keys in tables.items())]
    config += [*(f"+sharding.tables.{table}.types=row_wise" for table in in_rows)]
    (alone,), (three,) = (run_group([config], size, tmp_path / f"{size}.json") for size in (1, 3))
    plan = Plan.from_document(convert(three["plan"], PlanFile))
    for table in ("t_user_r", "t_tags_r"):
        assert [shard.rows for shard in plan.tables[table].shards] == [2, 2, 0]
    np.testing.assert_allclose(three["losses"], alone["losses"], rtol=1e-5)
    for name, total in alone["sums"].items():
        assert three["sums"][name] == pytest.approx(total, abs=1e-3), name
