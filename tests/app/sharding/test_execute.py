"""Processes that have no row of a table, since there are more of them than rows."""

from pathlib import Path

import numpy as np
import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from torch import Tensor, nn
from torchrec.optim import RowWiseAdagrad

from app.runtime.library_patches import count_empty_shards
from app.sharding.documents import PlanFile
from app.sharding.plan import Plan
from common.documents import convert
from tests.app.conftest import SMALL
from tests.app.group import run_group

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
    _surround(tables, 2**40)
    count_empty_shards(nn.ModuleList([tables]))
    weights, generator = tables.split_embedding_weights(), torch.Generator().manual_seed(0)
    assert [tuple(weight.shape) for weight in weights] == shapes
    for weight in weights:
        weight.copy_(torch.rand(weight.shape, generator=generator))
    expected = [nn.Parameter(weight.clone()) for weight in weights]
    torchs = OPTIMIZERS[kind](expected, lr=LR, **({} if kind is EmbOptimType.EXACT_SGD else {"eps": 1e-8}))
    ids = [torch.tensor([0, rows - 1, 0] if rows else [], dtype=torch.int64) for rows, _ in shapes]
    offsets = torch.tensor([0, *torch.cat([_ends(part) for part in ids]).cumsum(0).tolist()])
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


def _surround(tables: SplitTableBatchedEmbeddingBagsCodegen, number: int) -> None:
    """What a kernel finds that looks beyond the end of the tables' sizes."""
    sizes = tables.hash_size_cumsum
    tables.hash_size_cumsum = torch.cat([sizes, torch.full((4,), number)])[: len(sizes)]


def _ends(ids: Tensor) -> Tensor:
    """The lengths of two bags: the first id alone, then the rest."""
    return torch.tensor([min(1, len(ids)), max(0, len(ids) - 1)])


def _pooled(rows: Tensor) -> Tensor:
    return torch.stack([rows[:1].sum(dim=0), rows[1:].sum(dim=0)])


@pytest.mark.slow("processes")
def test_more_processes_than_rows_train_as_one(ragged: Path, tmp_path: Path) -> None:
    """The third of three processes has no row of the remainders: 8 wide before others, 4 wide; or alone, by id."""
    in_rows = ["t_user_q", "t_user_r", "t_item", "t_tags_r"]
    config = [*SMALL, "run.name=x", f"data.path={ragged}", "train.max_steps=8", "train.global_batch_size=48"]
    config += ["optimizer=adagrad", "+model.tables.overrides.user.kind=qr"]
    config += ["+model.tables.overrides.user.qr_operation=concat", "+model.tables.overrides.item.kind=mixed_dimension"]
    config += ["+model.tables.overrides.item.dim=4", "+model.tables.overrides.tags.kind=qr"]
    config += [*(f"+sharding.tables.{table}.types=row_wise" for table in in_rows)]
    (alone,), (three,) = (run_group([config], size, tmp_path / f"{size}.json") for size in (1, 3))
    plan = Plan.from_document(convert(three["plan"], PlanFile))
    for table in ("t_user_r", "t_tags_r"):
        assert [shard.rows for shard in plan.tables[table].shards] == [2, 2, 0]
    np.testing.assert_allclose(three["losses"], alone["losses"], rtol=1e-5)
    for name, total in alone["sums"].items():
        assert three["sums"][name] == pytest.approx(total, abs=1e-3), name
