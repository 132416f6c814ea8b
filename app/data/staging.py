"""Room for the batches that loaders keep in page-locked memory, which the kernel can neither move nor write out."""

import logging
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import torch

from app.data.batch import BATCHES_AHEAD, Batch
from common.errors import UserError
from common.numa import NODES, PCI_DEVICES, memory_nodes, node_of_gpu

log = logging.getLogger("clickwork")

PINNED_BATCHES = BATCHES_AHEAD + 2  # plus the batch that is copied and the batch in use
ROUNDING = 2  # torch's allocator of page-locked memory rounds a block up to a power of two
GIB = 1 << 30


def checked_room(
    batches: Iterator[Batch], gpu: str, processes: int, mapped_bytes: int, nodes: Path = NODES, pci: Path = PCI_DEVICES
) -> Iterator[Batch]:
    """Return the batches, after checking that the memory to be pinned for them is free on a NUMA node.

    Args:
        batches: in ordinary memory, for a GPU.
        gpu: its PCI address.
        processes: number on this machine, which its nodes share equally.
        mapped_bytes: size of the shards; they are read through the page cache, so it is logged and refuses nothing.
        nodes, pci: directories below /sys.
    """
    first, memory = next(batches, None), memory_nodes(nodes)
    if first is None or not memory:
        return chain([first] if first else [], batches)
    own, freest = node_of_gpu(gpu, pci), max(memory, key=lambda node: node.free_bytes)
    node = next((node for node in memory if node.number == own), freest)
    processes = -(-processes // len(memory))
    pinned = PINNED_BATCHES * ROUNDING * first.num_bytes * processes
    room = (
        f"{pinned / GIB:.2f} GiB of batches are pinned for {processes} process(es) on NUMA node {node.number}, which "
        f"has {node.free_bytes / GIB:.2f} of {node.total_bytes / GIB:.2f} GiB free"
    )
    if pinned > node.free_bytes:
        raise UserError(f"{room}: give a smaller train.global_batch_size, or end what else uses this memory")
    log.info("memory: %s; %.2f GiB of shards are read through the page cache", room, mapped_bytes / GIB)
    return chain([first], batches)


def gpu_address(device: torch.device) -> str:
    """Return a GPU's PCI address; if torch does not tell it, an address that no device has."""
    properties = torch.cuda.get_device_properties(device)
    parts = [getattr(properties, f"pci_{part}_id", 0) for part in ("domain", "bus", "device")]
    return "{:04x}:{:02x}:{:02x}.0".format(*parts)
