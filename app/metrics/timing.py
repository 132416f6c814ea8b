"""Step times on the device's own clock, throughput, memory, energy, traces of the profiler; a machine's limits."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch.profiler import ProfilerActivity, profile, tensorboard_trace_handler

from app.metrics.documents import StepTimeHistogram
from common.command import log
from common.documents import Figures

RAPL = Path("/sys/class/powercap")
Counter = Callable[[], float]  # returns joules since an arbitrary time


class EnergyMeter:
    """Joules of this process's device, or of the whole machine's processors."""

    def __init__(self, device: torch.device, rapl: Path = RAPL) -> None:
        self.source, self._counter = _find_counter(device, rapl)
        self._last: tuple[float, float] | None = None

    def start(self) -> None:
        """Start counting."""
        self._last = self._read_counter()

    def lap(self) -> tuple[float, float] | None:
        """Return the joules since the last call or the start, and the seconds since then; None if not measured."""
        before, self._last = self._last, self._read_counter()
        if before is None or self._last is None or self._last[0] <= before[0]:
            return None
        return self._last[1] - before[1], self._last[0] - before[0]

    def _read_counter(self) -> tuple[float, float] | None:
        """Return the time in seconds and the joules so far; None without a counter, and from its first error on."""
        if self._counter is None:
            return None
        try:
            return time.perf_counter(), self._counter()
        except Exception as error:  # noqa: BLE001  # NVML's and AMD SMI's errors derive only from Exception
            log.warning("power: %s can no longer be read (%s)", self.source, error)
            self._counter = None
            return None


def _find_counter(device: torch.device, rapl: Path) -> tuple[str, Counter | None]:
    """Return what measures a device's energy, and the function that reads its joules; None if it cannot be read."""
    if device.type != "cuda":
        # The packages' counters in sysfs, which only root can read.
        counters = []
        for zone in sorted(rapl.glob("*rapl:*")):
            with suppress(OSError, ValueError):
                # Zones below a package count a part of its energy once more.
                if zone.name.count(":") == 1 and (zone / "name").read_text(encoding="utf-8").startswith("package"):
                    counters.append(_package_counter(zone))
        total = (lambda: sum(joules() for joules in counters)) if counters else None
        return "RAPL: processor packages of all machines", total
    source, find = ("AMD SMI", _amd) if torch.version.hip else ("NVML", _nvml)
    counter = None
    try:
        counter = find(torch.cuda.get_device_properties(device))
        # The first call fails on a GPU without such a counter, so this is known before training.
        counter()
    except Exception as error:  # noqa: BLE001  # not installed, no driver, no such counter: each its own exception
        log.info("power: not measured (%s: %s)", source, error)
        counter = None
    return f"{source}: the GPUs of all processes", counter


def _package_counter(zone: Path) -> Counter:
    """Return the reader of one counter of microjoules, which wraps around at max_energy_range_uj."""
    file, wraps_at = zone / "energy_uj", int((zone / "max_energy_range_uj").read_text(encoding="utf-8"))
    last, wraps = int(file.read_text(encoding="utf-8")), 0

    def joules() -> float:
        nonlocal last, wraps
        now = int(file.read_text(encoding="utf-8"))
        wraps, last = wraps + (now < last), now
        return (wraps * wraps_at + now) / 1e6

    return joules


def _nvml(properties: Any) -> Counter:
    """Return NVML's energy counter by nvidia-ml-py; finds the GPU by UUID, as CUDA's indices differ."""
    import pynvml

    pynvml.nvmlInit()
    uuid = str(properties.uuid)
    handle = pynvml.nvmlDeviceGetHandleByUUID((uuid if uuid.startswith("GPU-") else f"GPU-{uuid}").encode())
    return lambda: float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3  # millijoules


def _amd(properties: Any) -> Counter:
    """Return AMD SMI's energy accumulator by ROCm's amdsmi; finds the GPU by its bus, as the numbers may differ."""
    import amdsmi

    amdsmi.amdsmi_init()
    handles, bus = amdsmi.amdsmi_get_processor_handles(), properties.pci_bus_id
    handle = next(h for h in handles if int(amdsmi.amdsmi_get_gpu_device_bdf(h).split(":")[1], 16) == bus)

    def joules() -> float:
        energy = amdsmi.amdsmi_get_energy_count(handle)
        return float(energy["energy_accumulator"]) * float(energy["counter_resolution"]) / 1e6  # microjoules

    return joules


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
        """End the profile, and take from it the seconds of exchanges or log where its trace is."""
        # Kernels of the last step may still be running.
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._running.stop()
        if self._last == self._sampled and self._running.on_trace_ready is None:
            # gloo's collectives as the host sees them, NCCL's and RCCL's by their kernels.
            self.communication_seconds = sum(
                (event.device_time_total if event.key.startswith("nccl") else event.cpu_time_total) / 1e6
                for event in self._running.key_averages()
                if event.key.startswith(("gloo:", "ncclDevKernel", "ncclKernel"))
            )
        elif self._rank == 0:
            log.info("profile: traces for TensorBoard and ui.perfetto.dev are in %s", self._directory)
        self._running = None


PHASES = ("forward", "backward", "optimizer")
SAMPLED_EVERY = {"cpu": 1, "cuda": 16}  # phase marks cost nothing compared with a step on a CPU, and a little on a GPU
STEP_TIME_BINS = 60


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
        """Note that the step has completed one of PHASES, if it is one of the sampled steps."""
        if self._count % self._every == 0:
            self._phase_marks.append((phase, self._mark_time()))

    def step_done(self, input_wait: float) -> None:
        """Note the end of a step, and that it waited `input_wait` seconds for its batch."""
        self._input_wait += input_wait
        self._marks.append(self._mark_time())

    def start(self) -> None:
        """Begin to time steps from now on: before the first step, and after each interruption."""
        # Kernels of an evaluation or a save must not count as part of the next step.
        self._synchronise()
        self._began = time.perf_counter()
        self._marks = [self._mark_time()]
        self._input_wait = 0.0

    def take(self) -> tuple[NDArray[np.float32], float, int, dict[str, float]]:
        """Return the times of the steps since the last call; synchronises.

        In order: seconds [steps], seconds of all their waits for input, the number of steps whose phases were timed,
        and the seconds of these by phase.
        """
        self._synchronise()
        seconds = np.array([self._between(a, b) for a, b in pairwise(self._marks)], dtype=np.float32)
        wait, self._input_wait = self._input_wait, 0.0
        # The end of the last step is the beginning of the next.
        self._marks = self._marks[-1:]
        now = time.perf_counter()
        self.seconds["train"] += now - self._began
        self._began = now
        # The number of sampled steps since the last call, and their seconds by phase.
        totals: dict[str, float] = {}
        marks, self._phase_marks = self._phase_marks, []
        for (_, before), (name, after) in pairwise(marks):
            if name:
                totals[name] = totals.get(name, 0.0) + self._between(before, after)
        return seconds, wait, sum(name == "" for name, _ in marks), totals

    @contextmanager
    def apart(self, kind: str) -> Iterator[None]:
        """Count the time inside as `kind` (eval or checkpoint); call after `take`, as it forgets the steps before."""
        began = time.perf_counter()
        # Before the first step no time is that of training.
        if self._marks:
            self.seconds["train"] += began - self._began
        try:
            yield
        finally:
            self.seconds[kind] += time.perf_counter() - began
            if self._marks:
                self.start()

    def _mark_time(self) -> Any:
        """Return a mark of now: seconds, or on a GPU an event among its kernels."""
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, a: Any, b: Any) -> float:
        """Return the seconds between two marks; events tell milliseconds."""
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
    # The outer edges lie a little outside, so that rounding leaves no step out.
    edges = np.geomspace(low * 0.999, high * 1.001, STEP_TIME_BINS + 1)
    counts, _ = np.histogram(step_seconds.astype(np.float64) * 1e3, edges)
    return StepTimeHistogram([float(f"{edge:.5g}") for edge in edges], counts.tolist())


def throughput(
    step_seconds: NDArray[np.float32], input_wait: float, global_batch_size: float, devices: float, excluded: int
) -> Figures:
    """Return the figures of summary.json from the seconds of every measured step; None if there were none.

    global_batch_size: samples of a step, of all processes; devices: number that computed. Both are means if they vary.
    `excluded` steps were warm-up, after the start and after each resumption; they are not among `step_seconds`.
    """
    total = float(step_seconds.astype(np.float64).sum())
    rate = len(step_seconds) / total if len(step_seconds) else None
    return {
        "samples_per_second": rate and rate * global_batch_size,
        "samples_per_second_per_device": rate and rate * global_batch_size / devices,
        "steps_per_second": rate,
        "step_ms_p50": rate and float(np.percentile(step_seconds, 50)) * 1e3,
        "step_ms_p95": rate and float(np.percentile(step_seconds, 95)) * 1e3,
        "input_wait_fraction": rate and input_wait / total,
        "warmup_steps_excluded": excluded,
        "steps_measured": len(step_seconds),
    }


WARM_UP_RUNS = 3
MIN_SAMPLES, MAX_SAMPLES = 5, 10_000  # of a timing, each of one or more runs
# Shorter work is timed several runs at a time: reading the clock takes time, and on a GPU each block ends with a wait.
BLOCK_SECONDS = {"cpu": 0.002, "cuda": 0.05}
STREAM_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}  # size of each of the triad's arrays: well beyond the caches
MATRIX_ROWS = {"cpu": 1536, "cuda": 8192}  # rows and columns of each matrix of the product


class WorkTiming(NamedTuple):
    """Seconds of one run: median, 10th and 90th percentile over `samples` samples of `runs_per_sample` runs each."""

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
    """Return the seconds of this number of runs together, on a GPU between CUDA events."""
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
    # The triad takes three arrays, and the product three matrices.
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
