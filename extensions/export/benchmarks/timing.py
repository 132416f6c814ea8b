"""Inputs and clock of serving.py, which the process of another program imports, too."""

import os
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch

from benchmarks.peers.rows import NUM_DENSE, NUM_SPARSE

FEATURES = [f"cat_{number}" for number in range(NUM_SPARSE)]
WARM_UP = 5


def use_one_core() -> None:
    """Keep this process on its first core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def encoded(rows: int, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense features [B, N] and ids [B, F] int64."""
    draw = torch.Generator().manual_seed(batch)
    return torch.rand(batch, NUM_DENSE, generator=draw), torch.randint(rows, (batch, NUM_SPARSE), generator=draw)


def timed(forms: Mapping[str, Callable[[], object]], batch: int, seconds: float) -> dict[str, dict[str, float]]:
    """Milliseconds of a call, and rows a second, by form; calls alternate until each form had its seconds."""
    calls: dict[str, list[float]] = {name: [] for name in forms}
    for form in forms.values():
        for _ in range(WARM_UP):
            form()
    while min(sum(each) for each in calls.values()) < seconds:
        for name, form in forms.items():
            begin = time.perf_counter()
            form()
            calls[name].append(time.perf_counter() - begin)
    return {
        name: {
            "p50_ms": round(float(np.percentile(each, 50)) * 1e3, 3),
            "p99_ms": round(float(np.percentile(each, 99)) * 1e3, 3),
            "rows_per_s": round(batch * len(each) / sum(each)),
            "calls": len(each),
        }
        for name, each in calls.items()
    }
