"""Step times on the device's own clock, throughput, memory in use. Only training after the warm-up counts."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from app.metrics.documents import StepTimeHistogram, Throughput

PHASES = ("forward", "backward", "optimizer")
SAMPLED_EVERY = {"cpu": 1, "cuda": 16}  # phase marks cost nothing compared with a step on a CPU, and a little on a GPU
STEP_TIME_BINS = 60


class StepTimes(NamedTuple):
    """Seconds of steps [steps] float32, their total wait for input, and seconds by phase, summed over sampled steps."""

    seconds: NDArray[np.float32]
    input_wait: float
    phase_steps: int
    phases: dict[str, float]


class StepTimer:
    """Times steps on the device's own clock (CUDA events on GPUs, so that no step waits for the host).

    A step lasts from the end of the step before and includes its wait for input; after an interruption (evaluation,
    checkpoint) it lasts from the end of the interruption. Phases are timed within some of the steps.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[Any] = []
        self._input_wait = 0.0
        self.seconds = {"train": 0.0, "eval": 0.0, "checkpoint": 0.0}
        self._began = time.perf_counter()
        self._every, self._count = SAMPLED_EVERY.get(device.type, 1), 0
        self._phase_marks: list[tuple[str, Any]] = []  # marks of the sampled steps: "", then each completed phase

    def step_begins(self) -> None:
        """Note that the step's batch has arrived."""
        self._count += 1
        self.phase_done("")

    def phase_done(self, phase: str) -> None:
        """Note that the step has completed one of PHASES."""
        if self._count % self._every == 0:
            self._phase_marks.append((phase, self._mark()))

    def step_done(self, input_wait: float) -> None:
        """Note the end of a step, and that it waited `input_wait` seconds for its batch."""
        self._input_wait += input_wait
        self._marks.append(self._mark())

    def start(self) -> None:
        """Begin (again) to time steps from now on."""
        self._synchronise()
        self._began = time.perf_counter()
        self._marks = [self._mark()]
        self._input_wait = 0.0

    def take(self) -> StepTimes:
        """Return the times of the steps since the last call; synchronises."""
        self._synchronise()
        seconds = np.array([self._between(a, b) for a, b in pairwise(self._marks)], dtype=np.float32)
        wait, self._input_wait = self._input_wait, 0.0
        self._marks = self._marks[-1:]
        now = time.perf_counter()
        self.seconds["train"] += now - self._began
        self._began = now
        return StepTimes(seconds, wait, *self._phase_sums())

    @contextmanager
    def apart(self, kind: str) -> Iterator[None]:
        """Count the time inside as `kind` (eval or checkpoint), not as training; call after `take`."""
        began = time.perf_counter()
        if self._marks:
            self.seconds["train"] += began - self._began
        try:
            yield
        finally:
            self.seconds[kind] += time.perf_counter() - began
            if self._marks:
                self.start()

    def _phase_sums(self) -> tuple[int, dict[str, float]]:
        """Return the number of sampled steps since the last call, and their seconds by phase."""
        totals: dict[str, float] = {}
        marks, self._phase_marks = self._phase_marks, []
        for (_, before), (name, after) in pairwise(marks):
            if name:
                totals[name] = totals.get(name, 0.0) + self._between(before, after)
        return sum(name == "" for name, _ in marks), totals

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, a: Any, b: Any) -> float:
        return b - a if self._device.type != "cuda" else a.elapsed_time(b) / 1e3

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def memory_in_use(device: torch.device) -> tuple[int | None, int | None]:
    """Return this process's resident memory and its tensors' memory on its GPU, in bytes; None if unknown."""
    try:
        host = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        host = None
    return host, torch.cuda.memory_allocated(device) if device.type == "cuda" else None


def step_time_histogram(step_seconds: NDArray[np.float32]) -> StepTimeHistogram:
    """Count step times, ms, in 60 bins from min to max, with logarithmic edges."""
    if not len(step_seconds):
        return StepTimeHistogram([], [])
    low, high = float(step_seconds.min()) * 1e3, float(step_seconds.max()) * 1e3
    edges = np.geomspace(low * 0.999, high * 1.001, STEP_TIME_BINS + 1)
    counts, _ = np.histogram(step_seconds.astype(np.float64) * 1e3, edges)
    return StepTimeHistogram([float(f"{edge:.5g}") for edge in edges], counts.tolist())


def throughput(
    step_seconds: NDArray[np.float32],
    input_wait: float,
    global_batch_size: float,
    devices: float,
    excluded: int,
) -> Throughput:
    """Return the figures of summary.json from the seconds of every measured step; None if there were none.

    devices: number that computed; a mean over time if it changed.
    `excluded` steps were warm-up, after the start and after each resumption; they are not among `step_seconds`.
    """
    figures = Throughput(warmup_steps_excluded=excluded, steps_measured=len(step_seconds))
    if len(step_seconds):
        total = float(step_seconds.astype(np.float64).sum())
        rate = len(step_seconds) / total
        figures.samples_per_second = rate * global_batch_size
        figures.samples_per_second_per_device = rate * global_batch_size / devices
        figures.steps_per_second = rate
        figures.step_ms_p50 = float(np.percentile(step_seconds, 50)) * 1e3
        figures.step_ms_p95 = float(np.percentile(step_seconds, 95)) * 1e3
        figures.input_wait_fraction = input_wait / total
    return figures
