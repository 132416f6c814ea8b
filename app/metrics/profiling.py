"""torch.profiler on some steps: traces of configured steps, and the time that processes spend in collectives."""

import logging
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, tensorboard_trace_handler

log = logging.getLogger("clickwork")


class StepProfiler:
    """Starts and stops torch.profiler at the configured steps.

    steps: first and last step of a trace, counted from 1, or None. sampled: the step whose collectives are timed, or
    None.
    """

    def __init__(
        self, device: torch.device, directory: Path, rank: int, steps: list[int] | None, sampled: int | None
    ) -> None:
        self._activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
        self._directory, self._rank, self._device = directory, rank, device
        self._steps, self._sampled = steps, sampled
        self._running: Any = None
        self._last = 0
        self.communication_seconds: float | None = None  # seconds of the sampled step's collectives

    def step_begins(self, step: int) -> None:
        """Begin or end a profile, as step number `step`, counted from 1, is about to begin."""
        if self._running is not None and step > self._last:
            self._stop()
        if self._running is None and self._steps is not None and self._steps[0] <= step <= self._steps[1]:
            self._start(self._steps[1], trace=True)
        elif self._running is None and step == self._sampled:
            self._start(step, trace=False)

    def close(self) -> None:
        """Stop a trace that is still running."""
        if self._running is not None:
            self._stop()

    def _start(self, last: int, trace: bool) -> None:
        handler = tensorboard_trace_handler(str(self._directory), f"rank{self._rank}", use_gzip=True) if trace else None
        self._running, self._last = profile(activities=self._activities, on_trace_ready=handler, acc_events=True), last
        self._running.start()

    def _stop(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._running.stop()
        if self._last == self._sampled and self._running.on_trace_ready is None:
            self.communication_seconds = _exchanged(self._running)
        elif self._rank == 0:
            log.info("profile: traces for TensorBoard and ui.perfetto.dev are in %s", self._directory)
        self._running = None


def _exchanged(profiler: Any) -> float:
    """Return the seconds of collectives: gloo's as the host sees them, NCCL's and RCCL's by their kernels."""
    return (
        sum(
            event.device_time_total if event.key.startswith("nccl") else event.cpu_time_total
            for event in profiler.key_averages()
            if event.key.startswith(("gloo:", "ncclDevKernel", "ncclKernel"))
        )
        / 1e6
    )
