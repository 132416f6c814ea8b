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

BLOCK_BYTES = 1 << 26  # of a table, as it travels to rank 0


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


def table_blocks(weight: Tensor) -> Iterator[Tensor]:
    """A table as consecutive blocks of rows on rank 0's CPU, [rows, d] float32 whatever it is stored as.

    A collective call: every process must exhaust the iterator; only rank 0's yields. No process holds more than one
    block of BLOCK_BYTES besides its own shards, and shards travel as CPU tensors, so any backend can carry them.
    """
    num_rows, width = weight.shape
    height = max(1, BLOCK_BYTES // (width * weight.dtype.itemsize))
    for start in range(0, num_rows, height):
        block = _block(weight, start, min(start + height, num_rows))
        if block is not None:
            yield block


def _block(weight: Tensor, start: int, stop: int) -> Tensor | None:
    """Rows start to stop of a table, on rank 0; None on other ranks."""
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
