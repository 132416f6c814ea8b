"""Repeated timing of work, and this machine's measured limits: memory bandwidth and the rate of matrix products."""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from msgspec import Struct

WARM_UP_RUNS = 3
MIN_SAMPLES, MAX_SAMPLES = 5, 10_000
# Shorter work is timed several runs at a time: reading the clock takes time, and on a GPU each block ends with a wait.
BLOCK_SECONDS = {"cpu": 0.002, "cuda": 0.05}
STREAM_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}  # size of each array: well beyond the caches
MATRIX_ROWS = {"cpu": 1536, "cuda": 8192}


class WorkTiming(NamedTuple):
    """Seconds of one run: percentiles over `samples` samples of `runs_per_sample` runs each."""

    median: float
    p10: float
    p90: float
    samples: int
    runs_per_sample: int


def time_work(
    work: Callable[[], Any],
    device: torch.device,
    seconds: float,
    agree: Callable[[float], float] = lambda number: number,
) -> WorkTiming:
    """Run `work` for about `seconds` and time it; on a GPU by CUDA events, so that no run waits for the host.

    agree: maps this process's number to the one that all processes take, since they must run `work` equally often.
    """
    # The first runs load kernels and allocate memory.
    for _ in range(WARM_UP_RUNS):
        work()
    once = max(agree(_time_runs(work, device, 1)), 1e-9)
    together = max(1, math.ceil(BLOCK_SECONDS[device.type] / once))
    count = max(min(math.ceil(seconds / (together * once)), MAX_SAMPLES), MIN_SAMPLES)
    samples = [_time_runs(work, device, together) / together for _ in range(count)]
    median, p10, p90 = (float(np.percentile(samples, q)) for q in (50, 10, 90))
    return WorkTiming(median, p10, p90, len(samples), together)


def _time_runs(work: Callable[[], Any], device: torch.device, runs: int) -> float:
    """Return the seconds that this number of runs takes."""
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(runs):
            work()
        return time.perf_counter() - began
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(runs):
        work()
    last.record()
    torch.cuda.synchronize(device)
    return float(first.elapsed_time(last)) / 1e3


class Ceilings(Struct):
    """Bytes per second of a = b + s * c over arrays beyond the caches (STREAM's triad); FLOP/s of a square product."""

    bytes_per_second: float
    flops_per_second: float
    dtype: str


def measure_ceilings(
    device: torch.device, dtype: torch.dtype, seconds: float, agree: Callable[[float], float] = lambda number: number
) -> Ceilings | None:
    """Measure both on this process's device with its threads; None if a process's GPU has too little free memory.

    The triad is McCalpin's (STREAM) and counted in the same way: two arrays read, one written. The product is in
    `dtype`, like the dense layers'; float32 follows torch's TF32 setting. `agree` is as for `time_work`. All processes
    measure at once, so that each gets its part of what they share.
    """
    kind = device.type
    num_bytes = 3 * (STREAM_BYTES[kind] + MATRIX_ROWS[kind] ** 2 * dtype.itemsize)
    if kind == "cuda":
        # What torch can allocate: the driver's free memory, and torch's own that holds no tensor.
        reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        if agree(num_bytes - torch.cuda.mem_get_info(device)[0] - reserve) > 0:
            return None
    triad_sum, addend, factor = (torch.ones(STREAM_BYTES[kind] // 4, device=device) for _ in range(3))
    triad = time_work(lambda: torch.add(addend, factor, alpha=3.0, out=triad_sum), device, seconds, agree)
    rows = MATRIX_ROWS[kind]
    left, right = (torch.randn(rows, rows, device=device, dtype=dtype) for _ in range(2))
    product = torch.empty(rows, rows, device=device, dtype=dtype)
    multiplied = time_work(lambda: torch.mm(left, right, out=product), device, seconds, agree)
    return Ceilings(
        # Nearly the fastest sample, as this is a ceiling.
        bytes_per_second=3 * triad_sum.nbytes / triad.p10,
        flops_per_second=2 * rows**3 / multiplied.p10,
        dtype=str(dtype).removeprefix("torch."),
    )


def higher(a: Ceilings, b: Ceilings | None) -> Ceilings:
    """Return the higher of each figure: a disturbance of one measurement may have spared the other."""
    if b is None:
        return a
    return Ceilings(max(a.bytes_per_second, b.bytes_per_second), max(a.flops_per_second, b.flops_per_second), a.dtype)
