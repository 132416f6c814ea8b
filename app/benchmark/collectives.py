"""What processes exchange in a step: gradients of the dense parameters, pooled vectors of the tables."""

from collections.abc import Iterator

import torch
import torch.distributed as dist

from app.benchmark.case import Case
from app.benchmark.shape import Shape

FLOAT_BYTES = 4


def cases(shape: Shape, dense_parameters: int, device: torch.device) -> Iterator[Case]:
    """All-reduce of the dense gradients, all-to-all of the pooled vectors; none for a process alone.

    Bytes are what a process must send and receive: 2 (W - 1) / W of the array for an all-reduce, (W - 1) / W of it
    each way for an all-to-all.
    """
    world_size = dist.get_world_size()
    if world_size == 1:
        return
    gradients = torch.ones(dense_parameters, device=device)
    moved = 2 * FLOAT_BYTES * dense_parameters * (world_size - 1) // world_size
    yield Case("collective/all_reduce", f"{dense_parameters:,} float32, {world_size} processes",
               lambda: dist.all_reduce(gradients), 0, 2 * moved, 0)  # fmt: skip
    elements = -(-shape.pooled // world_size) * world_size
    sent, received = torch.ones(elements, device=device), torch.empty(elements, device=device)
    moved = FLOAT_BYTES * elements * (world_size - 1) // world_size
    yield Case("collective/all_to_all", f"{elements:,} float32, {world_size} processes",
               lambda: dist.all_to_all_single(received, sent), 0, 2 * moved, 0)  # fmt: skip
