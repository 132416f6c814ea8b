"""What this machine can do at most, measured where it is used: memory bandwidth and the rate of matrix products."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from app.benchmark.timing import measure

STREAM_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}  # of each array: well beyond the caches
MATRIX_ROWS = {"cpu": 1536, "cuda": 8192}


class Ceilings(NamedTuple):
    """Bytes a second of a = b + s * c over arrays beyond the caches (STREAM's triad); FLOP/s of a square product."""

    bytes_per_second: float
    flops_per_second: float
    dtype: str


def measure_ceilings(
    device: torch.device, dtype: torch.dtype, seconds: float, agree: Callable[[float], float] = lambda number: number
) -> Ceilings:
    """Measure both on this process's device with its threads.

    The triad is McCalpin's (STREAM), counted as it counts: two arrays read, one written. The product is in `dtype`,
    as the dense layers' are; float32 follows torch's TF32 setting. `agree` as for `measure`: all processes measure at
    once, so that each gets its part of what they share.
    """
    kind = device.type
    a, b, c = (torch.ones(STREAM_BYTES[kind] // 4, device=device) for _ in range(3))
    triad = measure(lambda: torch.add(b, c, alpha=3.0, out=a), device, seconds, agree)
    rows = MATRIX_ROWS[kind]
    left, right = (torch.randn(rows, rows, device=device, dtype=dtype) for _ in range(2))
    product = torch.empty(rows, rows, device=device, dtype=dtype)
    multiplied = measure(lambda: torch.mm(left, right, out=product), device, seconds, agree)
    return Ceilings(
        bytes_per_second=3 * a.numel() * a.element_size() / triad.p10,  # the best, nearly: it is a ceiling
        flops_per_second=2 * rows**3 / multiplied.p10,
        dtype=str(dtype).removeprefix("torch."),
    )


def higher(a: Ceilings, b: Ceilings) -> Ceilings:
    """The higher of each: what disturbed one measurement may have spared another."""
    return Ceilings(max(a.bytes_per_second, b.bytes_per_second), max(a.flops_per_second, b.flops_per_second), a.dtype)
