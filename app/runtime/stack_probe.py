"""Describes torch, FBGEMM and TorchRec, and tests a lookup; writes JSON to stdout.

This runs in a process of its own, since a broken package may crash it.
"""

import json
import sys

import torch
import torchrec  # noqa: F401
from fbgemm_gpu.split_table_batched_embeddings_ops_common import ComputeDevice, EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen as Tables


def lookup(device: torch.device) -> None:
    """Look up two bags and run a layer's backward. Raises RuntimeError for wrong values."""
    on_gpu = device.type == "cuda"
    location = (EmbeddingLocation.DEVICE, ComputeDevice.CUDA) if on_gpu else (EmbeddingLocation.HOST, ComputeDevice.CPU)
    tables = Tables([(8, 4, *location)], device=device)
    with torch.no_grad():
        for weight in tables.split_embedding_weights():
            weight.fill_(0.5)
    ids, offsets = torch.tensor([1, 2, 3], device=device), torch.tensor([0, 1, 3], device=device)
    pooled = tables(ids, offsets)
    if pooled.tolist() != [[0.5] * 4, [1.0] * 4]:
        raise RuntimeError(f"bags of 1 and 2 rows of 0.5 were looked up as {pooled.tolist()}")
    torch.nn.Linear(4, 4, device=device)(pooled).sum().backward()


def fault_of(device: str) -> str | None:
    """Return in one line what is wrong with a lookup on a device; None if nothing is."""
    try:
        lookup(torch.device(device))
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the fault to report
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return None


def describe(index: int) -> dict[str, str | int | None]:
    """Describe a GPU, and what is wrong with a lookup there."""
    properties = torch.cuda.get_device_properties(index)
    return {
        "name": properties.name,
        "memory": properties.total_memory,
        "architecture": properties.gcnArchName if torch.version.hip else f"sm_{properties.major}{properties.minor}",
        "fault": fault_of(f"cuda:{index}"),
    }


if __name__ == "__main__":
    devices = [describe(index) for index in range(torch.cuda.device_count())]
    figures = {
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cpu_fault": fault_of("cpu"),
        "devices": devices,
    }
    json.dump(figures, sys.stdout)
