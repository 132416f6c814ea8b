"""Execution of a plan by TorchRec's DistributedModelParallel, and access to the tables of a sharded model."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec import EmbeddingBagCollection, EmbeddingCollection
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.comm_ops import set_gradient_division
from torchrec.distributed.embedding import EmbeddingCollectionSharder, ShardedEmbeddingCollection
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper
from torchrec.distributed.types import (
    CommOp,
    EmbeddingModuleShardingPlan,
    ModuleSharder,
    QuantizedCommCodecs,
    ShardingEnv,
    ShardingPlan,
)

from app.config.sharding import KERNELS, SHARDING_TYPES, CommPrecision, QCommConfig, kernels_of
from app.model.tables import table_of
from app.runtime.library_patches import count_empty_shards, replace_narrow_lookups
from app.sharding.plan import BY_ID_TYPES, Plan
from common.streams import without_native_stdout

BLOCK_BYTES = 1 << 26  # size of a block of a table that travels to rank 0


class EverySharder(EmbeddingBagCollectionSharder):
    """Offers every sharding type and kernel that was configured.

    TorchRec hides row-wise types on CPU, though they work there on gloo, and offers kernels that nobody asked for.
    """

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return list(SHARDING_TYPES)

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return kernels_of(sharding_type, list(KERNELS))


class EveryByIdSharder(EmbeddingCollectionSharder):
    """Sharder of tables that are looked up id by id, data-parallel ones included."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return list(BY_ID_TYPES)

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return kernels_of(sharding_type, list(KERNELS))


def make_sharders(
    fused_params: dict[str, Any], registry: dict[str, QuantizedCommCodecs] | None
) -> list[ModuleSharder[nn.Module]]:
    """Return a sharder for each kind of table collection."""
    return [
        kind(fused_params=fused_params, qcomm_codecs_registry=registry) for kind in (EverySharder, EveryByIdSharder)
    ]


def distribute(
    model: nn.Module,
    plan: Plan,
    fused_params: dict[str, Any],
    qcomm: QCommConfig,
    device: torch.device,
    averages: bool = True,
) -> DistributedModelParallel:
    """Shard the model's tables over the process group as planned and replicate the rest; a collective call.

    averages: whether TorchRec and DistributedDataParallel average the processes' gradients.
    """
    set_gradient_division(averages)
    tables = plan.to_torchrec(device.type)
    parts = {
        path: EmbeddingModuleShardingPlan({name: tables[name] for name in names})
        for path, names in table_collections(model).items()
    }
    with without_native_stdout():  # some sharding types make process groups
        sharded = DistributedModelParallel(
            model,
            device=device,
            plan=ShardingPlan(plan=parts),
            sharders=make_sharders(fused_params, codecs(qcomm)),
            data_parallel_wrapper=_ReplicateAmongMany(averages),
        )
    for module in sharded.modules():
        if isinstance(module, ShardedEmbeddingBagCollection | ShardedEmbeddingCollection):
            if not averages:  # TorchRec wraps data-parallel tables' lookups in DDP
                module._lookups = [getattr(lookup, "module", lookup) for lookup in module._lookups]
            for lookup in module._lookups:
                count_empty_shards(lookup)
                replace_narrow_lookups(lookup)
    return sharded


def table_collections(model: nn.Module) -> dict[str, list[str]]:
    """Return the names of the tables in each collection of an unsharded model, by the collection's path."""
    collections = {}
    for path, module in model.named_modules():
        if isinstance(module, EmbeddingBagCollection):
            collections[path] = list(module.embedding_bags)
        elif isinstance(module, EmbeddingCollection):
            collections[path] = list(module.embeddings)
    return collections


def codecs(qcomm: QCommConfig) -> dict[str, QuantizedCommCodecs] | None:
    """Return codecs that compress embeddings and their gradients for exchange between processes; None for fp32.

    They are put together here because TorchRec's own function turns bf16 into fp16 on CPU, although gloo now carries
    bf16.
    """
    if (qcomm.forward, qcomm.backward) == (CommPrecision.fp32, CommPrecision.fp32):
        return None
    config = QCommsConfig(CommType(qcomm.forward.value), CommType(qcomm.backward.value))
    return {operation.name: get_qcomm_codecs(config) for operation in CommOp}


class _ReplicateAmongMany(DefaultDataParallelWrapper):
    """Replicates only among several processes: DDP would copy the gradients of a single one to and fro."""

    def __init__(self, averages: bool) -> None:
        super().__init__()
        self._averages = averages

    def wrap(self, dmp: DistributedModelParallel, env: ShardingEnv, device: torch.device) -> None:
        if env.world_size > 1 and self._averages:
            super().wrap(dmp, env, device)
        else:
            dmp._dmp_wrapped_module = dmp._dmp_wrapped_module.to(device)


class TableShard(NamedTuple):
    """A part of a table on this process: its first row and column, and its values in place."""

    row: int
    column: int
    values: Tensor


def fill_tables(model: DistributedModelParallel, rows: Callable[[str, int, int], NDArray[np.float32]]) -> None:
    """Overwrite each table in place; `rows(table, start, stop)` returns values [stop - start, d]."""
    with torch.no_grad():
        for table, weight in table_weights(model):
            for shard in local_shards(weight):
                height, width = shard.values.shape
                values = torch.from_numpy(rows(table, shard.row, shard.row + height))
                shard.values.copy_(values[:, shard.column : shard.column + width])


def table_weights(model: DistributedModelParallel) -> Iterator[tuple[str, Tensor]]:
    """Yield each table's name and its (sharded) weight, in the order of declaration, which all processes share."""
    weights = {table_of(key): value for key, value in model.state_dict().items()}
    for table in model.module.sparse_arch.tables:
        yield table.name, weights[table.name]


def local_shards(weight: Tensor) -> list[TableShard]:
    """Return this process's parts of a (sharded) weight."""
    if not isinstance(weight, ShardedTensor):
        return [TableShard(0, 0, weight)]
    return [
        TableShard(shard.metadata.shard_offsets[0], shard.metadata.shard_offsets[1], shard.tensor)
        for shard in weight.local_shards()
    ]


def table_blocks(weight: Tensor) -> Iterator[Tensor]:
    """Yield a table as consecutive blocks of rows on rank 0's CPU, [rows, d] float32 however it is stored.

    A collective call: every process must exhaust the iterator; only rank 0's yields. No process holds more than one
    block of BLOCK_BYTES besides its own shards, and shards travel as CPU tensors, so any backend can carry them.
    """
    num_rows, width = weight.shape
    height = max(1, BLOCK_BYTES // (width * weight.dtype.itemsize))
    for start in range(0, num_rows, height):
        block = _rows_on_rank_0(weight, start, min(start + height, num_rows))
        if block is not None:
            yield block


def _rows_on_rank_0(weight: Tensor, start: int, stop: int) -> Tensor | None:
    """Return rows start to stop of a table on rank 0; None on other ranks."""
    rank = dist.get_rank()
    if not isinstance(weight, ShardedTensor):
        return weight.detach()[start:stop].cpu().float() if rank == 0 else None
    block = torch.empty((stop - start, weight.size(1)), dtype=weight.dtype) if rank == 0 else None
    local = {(shard.row, shard.column): shard.values for shard in local_shards(weight)}
    for shard in weight.metadata().shards_metadata:
        row, column = shard.shard_offsets
        first, last = max(start, row), min(stop, row + shard.shard_sizes[0])
        if first >= last:
            continue
        owner = shard.placement.rank()  # type: ignore[union-attr]
        if rank == owner:
            piece = local[row, column].detach()[first - row : last - row].cpu().contiguous()
            if block is None:
                dist.send(piece, dst=0)
        elif block is not None:
            piece = torch.empty((last - first, shard.shard_sizes[1]), dtype=weight.dtype)
            dist.recv(piece, src=owner)
        if block is not None:
            block[first - start : last - start, column : column + shard.shard_sizes[1]] = piece
    return None if block is None else block.float()
