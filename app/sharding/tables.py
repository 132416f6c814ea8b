"""Access to the tables of a sharded model, whatever the plan."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec.distributed import DistributedModelParallel

from app.sharding.collections import table_of


class TableShard(NamedTuple):
    """The part of a table that lies on this process: its first row and column, and its values in place."""

    row: int
    column: int
    values: Tensor


def fill_tables(model: DistributedModelParallel, rows: Callable[[str, int, int], NDArray[np.float32]]) -> None:
    """Overwrite each table in place; `rows(table, start, stop)` gives values [stop - start, d]."""
    with torch.no_grad():
        for table, weight in table_weights(model):
            for shard in local_shards(weight):
                height, width = shard.values.shape
                values = torch.from_numpy(rows(table, shard.row, shard.row + height))
                shard.values.copy_(values[:, shard.column : shard.column + width])


def table_weights(model: DistributedModelParallel) -> Iterator[tuple[str, Tensor]]:
    """Each table's name and its (sharded) weight, in the order of the tables' declaration on every process."""
    weights = {table_of(key): value for key, value in model.state_dict().items()}
    for table in model.module.sparse_arch.tables:
        yield table.name, weights[table.name]


def local_shards(weight: Tensor) -> list[TableShard]:
    """This process's parts of a (sharded) weight."""
    if not isinstance(weight, ShardedTensor):
        return [TableShard(0, 0, weight)]
    return [
        TableShard(shard.metadata.shard_offsets[0], shard.metadata.shard_offsets[1], shard.tensor)
        for shard in weight.local_shards()
    ]


def whole_table(weight: Tensor) -> Tensor | None:
    """A table on rank 0's CPU, [num_embeddings, d], as float32 whatever it is stored as; None on other ranks.

    A collective call.
    """
    if not isinstance(weight, ShardedTensor):
        return weight.detach().cpu().float() if dist.get_rank() == 0 else None
    whole = None
    if dist.get_rank() == 0:
        whole = torch.empty(weight.size(), dtype=weight.dtype, device=_device_of(weight))
    weight.gather(dst=0, out=whole, dtype=weight.dtype)
    return None if whole is None else whole.cpu().float()


def _device_of(weight: ShardedTensor) -> torch.device:
    shards = weight.local_shards()
    return shards[0].tensor.device if shards else torch.device("cpu")
