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


class TableShard(NamedTuple):
    """The part of a table that lies on this process: its first row and column, and its values in place."""

    row: int
    column: int
    values: Tensor


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


def _device_of(weight: ShardedTensor) -> torch.device:
    shards = weight.local_shards()
    return shards[0].tensor.device if shards else torch.device("cpu")
