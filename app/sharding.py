"""Tables over processes: the plan, TorchRec's DistributedModelParallel, and access to the shards in place."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec import EmbeddingBagCollection
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    row_wise,
    table_wise,
)
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingEnv, ShardingPlan

from app.config import ShardingConfig, sharding_type

FUSED_KERNEL = "fused"


class TableShard(NamedTuple):
    """The part of a table that lies on this process: its first row and column, and its values in place."""

    row: int
    column: int
    values: Tensor


def distribute(
    model: nn.Module,
    config: ShardingConfig,
    fused_params: dict[str, Any],
    device: torch.device,
    world_size: int,
    local_world_size: int,
) -> DistributedModelParallel:
    """Shard `model.sparse_arch` over the process group and replicate the rest; a collective call.

    The plan is explicit: TorchRec's default one makes small tables data-parallel, and those ignore the sparse
    optimizer in silence.
    """
    collection: EmbeddingBagCollection = model.sparse_arch
    sharder = _EverySharder(fused_params=fused_params)
    plan = construct_module_sharding_plan(
        collection,
        per_param_sharding=_per_table(collection, sharding_type(config), world_size),
        sharder=sharder,
        local_size=local_world_size,
        world_size=world_size,
        device_type=device.type,
    )
    return DistributedModelParallel(
        model,
        device=device,
        plan=ShardingPlan(plan={"sparse_arch": plan}),
        sharders=[sharder],
        data_parallel_wrapper=_ReplicateAmongMany(),
    )


def fill_tables(model: DistributedModelParallel, rows: Callable[[str, int, int], NDArray[np.float32]]) -> None:
    """Overwrite each table in place; `rows(table, start, stop)` gives values [stop - start, D]."""
    with torch.no_grad():
        for table, weight in table_weights(model):
            for shard in local_shards(weight):
                height, width = shard.values.shape
                values = torch.from_numpy(rows(table, shard.row, shard.row + height))
                shard.values.copy_(values[:, shard.column : shard.column + width])


def table_weights(model: DistributedModelParallel) -> Iterator[tuple[str, Tensor]]:
    """Each table's name and its (sharded) weight, in the order of the tables' declaration on every process."""
    weights = {}
    for key, value in model.state_dict().items():
        if ".embedding_bags." in key:
            weights[key.split(".embedding_bags.")[1].removesuffix(".weight")] = value
    for feature in model.module.feature_names:
        yield f"t_{feature}", weights[f"t_{feature}"]


def local_shards(weight: Tensor) -> list[TableShard]:
    """This process's parts of a (sharded) weight."""
    if not isinstance(weight, ShardedTensor):
        return [TableShard(0, 0, weight)]
    return [
        TableShard(shard.metadata.shard_offsets[0], shard.metadata.shard_offsets[1], shard.tensor)
        for shard in weight.local_shards()
    ]


def whole_table(weight: Tensor) -> Tensor | None:
    """A table on rank 0's CPU, [num_embeddings, D] float32; None on other ranks. A collective call."""
    if not isinstance(weight, ShardedTensor):
        return weight.detach().cpu() if dist.get_rank() == 0 else None
    whole = torch.empty(weight.size(), device=_device_of(weight)) if dist.get_rank() == 0 else None
    weight.gather(dst=0, out=whole)
    return None if whole is None else whole.cpu()


def plan_summary(model: DistributedModelParallel) -> dict[str, dict[str, Any]]:
    """What lies where: sharding type, kernel and ranks of each table."""
    tables: EmbeddingModuleShardingPlan = model.plan.plan["sparse_arch"]
    return {
        name: {
            "type": sharding.sharding_type,
            "kernel": sharding.compute_kernel,
            "ranks": list(sharding.ranks or []),
        }
        for name, sharding in tables.items()
    }


class _ReplicateAmongMany(DefaultDataParallelWrapper):
    """A process alone has nobody to average gradients with: DDP would only copy them to and fro."""

    def wrap(self, dmp: DistributedModelParallel, env: ShardingEnv, device: torch.device) -> None:
        if env.world_size > 1:
            super().wrap(dmp, env, device)
        else:
            dmp._dmp_wrapped_module = dmp._dmp_wrapped_module.to(device)


class _EverySharder(EmbeddingBagCollectionSharder):
    """TorchRec hides row-wise kinds on CPU, though they run there on gloo."""

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return [FUSED_KERNEL]


def _per_table(collection: EmbeddingBagCollection, kind: str, world_size: int) -> dict[str, Any]:
    """A plan entry for each table; whole tables go, largest first, to the process that holds the least."""
    tables = collection.embedding_bag_configs()
    if kind == "data_parallel":
        return {table.name: data_parallel() for table in tables}
    if kind == "row_wise":
        return {table.name: row_wise(compute_kernel=FUSED_KERNEL) for table in tables}
    if kind == "column_wise":
        ranks = list(range(world_size))
        return {table.name: column_wise(ranks=ranks, compute_kernel=FUSED_KERNEL) for table in tables}
    load = [0] * world_size
    rank_of = {}
    for table in sorted(tables, key=lambda table: -table.num_embeddings * table.embedding_dim):
        rank = load.index(min(load))
        rank_of[table.name] = rank
        load[rank] += table.num_embeddings * table.embedding_dim
    return {table.name: table_wise(rank=rank_of[table.name], compute_kernel=FUSED_KERNEL) for table in tables}


def _device_of(weight: ShardedTensor) -> torch.device:
    shards = weight.local_shards()
    return shards[0].tensor.device if shards else torch.device("cpu")
