"""Describes torch, FBGEMM and TorchRec, and tests a lookup; writes JSON to stdout.

This runs in a process of its own, since a broken package may crash it.
"""

import json
import sys

import torch
import torchrec  # noqa: F401
from fbgemm_gpu.split_table_batched_embeddings_ops_common import ComputeDevice, EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen as Tables


def fault_of(device: str) -> str | None:
    """Look up two bags and run a layer's backward; return in one line what went wrong, or None."""
    location = (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
    if device == "cpu":
        location = (EmbeddingLocation.HOST, ComputeDevice.CPU)
    try:
        tables = Tables([(8, 4, *location)], device=torch.device(device))
        with torch.no_grad():
            for weight in tables.split_embedding_weights():
                weight.fill_(0.5)
        pooled = tables(torch.tensor([1, 2, 3], device=device), torch.tensor([0, 1, 3], device=device))
        if pooled.tolist() != [[0.5] * 4, [1.0] * 4]:
            raise RuntimeError(f"bags of 1 and 2 rows of 0.5 were looked up as {pooled.tolist()}")
        torch.nn.Linear(4, 4, device=device)(pooled).sum().backward()
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the fault to report
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return None


if __name__ == "__main__":
    devices = []
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        architecture = gpu.gcnArchName if torch.version.hip else f"sm_{gpu.major}{gpu.minor}"
        known = {"name": gpu.name, "memory": gpu.total_memory, "architecture": architecture}
        devices.append({**known, "fault": fault_of(f"cuda:{index}")})
    versions = {"cuda": torch.version.cuda, "hip": torch.version.hip}
    json.dump({**versions, "cpu_fault": fault_of("cpu"), "devices": devices}, sys.stdout)
