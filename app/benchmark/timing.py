"""Time on the device's own clock, many times over."""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

WARM_UP_RUNS = 3
LEAST_SAMPLES, MOST_SAMPLES = 5, 10_000
BLOCK_SECONDS = 0.002  # shorter work is timed several runs together: the clock has a price too


class Timing(NamedTuple):
    """Seconds of one run: percentiles over `samples` samples of `runs_per_sample` runs each.

    The 95th and 99th are there where runs were timed one by one: a mean over several has no tail.
    """

    median: float
    p10: float
    p90: float
    samples: int
    runs_per_sample: int
    p95: float | None = None
    p99: float | None = None


def measure(
    work: Callable[[], Any],
    device: torch.device,
    seconds: float,
    agree: Callable[[float], float] = lambda number: number,
    one_by_one: int | None = None,
) -> Timing:
    """Run `work` for about `seconds` and time it; on a GPU between CUDA events, so that no run waits for the host.

    agree: this process's number to the one that all processes take: they must run `work` equally often.
    one_by_one: time each run by itself, at least so many of them.
    """
    for _ in range(WARM_UP_RUNS):
        work()
    once = max(agree(_sample(work, device, 1)), 1e-9)
    together = max(1, math.ceil(BLOCK_SECONDS / once)) if one_by_one is None else 1
    count = max(min(math.ceil(seconds / (together * once)), MOST_SAMPLES), one_by_one or LEAST_SAMPLES)
    samples = [_sample(work, device, together) / together for _ in range(count)]
    median, p10, p90, p95, p99 = (float(np.percentile(samples, q)) for q in (50, 10, 90, 95, 99))
    timing = Timing(median, p10, p90, len(samples), together)
    return timing if one_by_one is None else timing._replace(p95=p95, p99=p99)


def _sample(work: Callable[[], Any], device: torch.device, runs: int) -> float:
    """Seconds of so many runs."""
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
