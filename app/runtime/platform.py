"""A process and its device: threads, seeds, process group, agreement of values, logging, and its end."""

import atexit
import contextlib
import ctypes
import datetime
import importlib.metadata
import itertools
import logging
import os
import pickle
import re
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.rendezvous import rendezvous
from tqdm import tqdm

from app.config.app_config import AppConfig
from app.config.train import LAYOUT, Platform, Precision, RuntimeConfig
from app.runtime import environment
from app.runtime.environment import HAS_MET, LAUNCHER_VARIABLES, REFUSAL_SECONDS
from common.cli import EXIT_BAD_INPUT, exit_status
from common.command import RedactingFormatter, log
from common.errors import LostPeerError, OwnError, UserError
from common.machine import keep_freed_memory, usable_cpus
from common.signals import Interrupted, discard_native_stdout, erase_sequence, is_launched

ScalarT = TypeVar("ScalarT", bound=np.generic)
T = TypeVar("T")

ALL_MODES, STRICT_MODE = -1, 1 << 16  # MKL_CBWR_ALL, MKL_CBWR_STRICT of mkl_types.h
PROBED_WIDTHS = ((13, 20, 64, 256, 367, 512, 1024), (1, 16, 64, 256, 512, 2048))  # inputs and outputs of layers
PROBED_ROWS = 256  # rows of the inputs of `are_equal_on_threads`


@dataclass(frozen=True)
class Runtime:
    """One process of the job. `device` computes; collectives of small values run on the CPU.

    local_world_size: processes on this machine. num_threads: torch's in this one. store: exchanges without a time-out.
    """

    platform: Platform
    device: torch.device
    rank: int
    world_size: int
    local_world_size: int
    num_threads: int
    store: dist.Store
    calls: Iterator[int] = field(default_factory=itertools.count)  # numbers the exchanges through the store

    def highest(self, value: float) -> float:
        """Return the highest of all processes' values, on all of them."""
        return max(float(values[0]) for values in self.gather(np.array([value])))

    def mean(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the mean over processes of arrays of one shape; sums in order of rank, whatever the network does."""
        total = np.zeros(values.shape, np.float64)
        for values_of_rank in self.gather(values):
            total += values_of_rank
        return (total / self.world_size).astype(np.float32)

    def gather(self, values: NDArray[ScalarT]) -> list[NDArray[ScalarT]]:
        """Return every process's array, in order of rank; all have one shape and dtype."""
        if self.world_size == 1:
            return [values]
        # The tensor shares the array's memory, and torch warns of memory that must not be written.
        local_tensor = torch.from_numpy(np.require(values, requirements=["C", "W"]))
        tensors = [torch.empty_like(local_tensor) for _ in range(self.world_size)]
        dist.all_gather(tensors, local_tensor)
        return [tensor.numpy() for tensor in tensors]

    def gather_objects(self, value: Any) -> list[Any]:
        """Return every process's value, which pickle must be able to carry, in order of rank."""
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values

    def total(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sum over processes of arrays of one shape, in place; integers may be added in any order."""
        if self.world_size > 1:
            dist.all_reduce(torch.from_numpy(values))
        return values

    def join(self, values: Tensor) -> Tensor:
        """Return every process's tensor [n, ...] (n may differ), joined in order of rank on all processes."""
        if self.world_size == 1:
            return values
        counts = [int(count[0]) for count in self.gather(np.array([len(values)]))]
        # The collective all_gather takes equal shapes only.
        padded = values.new_zeros(max(counts), *values.shape[1:])
        padded[: len(values)] = values
        gathered = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(gathered, padded)
        return torch.cat([tensor[:count] for tensor, count in zip(gathered, counts, strict=True)])

    def to_rank_0(self, values: NDArray[ScalarT]) -> NDArray[ScalarT]:
        """Return every process's values [n] (n may differ), joined in order of rank on rank 0; empty elsewhere."""
        counts = [int(count[0]) for count in self.gather(np.array([len(values)]))]
        if self.world_size == 1:
            return values
        joined = np.empty(sum(counts) if self.rank == 0 else 0, values.dtype)
        if self.rank == 0:
            joined[: counts[0]] = values
        # Each part is received into its place, which takes neither padding nor a second copy.
        for peer, count in enumerate(counts[1:], 1):
            if count and self.rank == 0:
                start = sum(counts[:peer])
                dist.recv(torch.from_numpy(joined[start : start + count]), peer)
            elif count and self.rank == peer:
                dist.send(torch.from_numpy(np.require(values, requirements=["C", "W"])), 0)
        return joined

    def on_rank_0(self, action: Callable[[], T]) -> T:
        """Run `action` on rank 0, however long it takes, and return its result, which pickle can carry, on all ranks.

        Raises UserError, SystemExit, Interrupted: on rank 0, what the action raised. Raises SystemExit: on the other
        ranks in that case, without a message.
        """
        # Calls are numbered alike in all processes, so a number identifies one exchange.
        key = f"on_rank_0/{next(self.calls)}"
        if self.rank == 0:
            try:
                value = action()
            except (UserError, SystemExit, Interrupted) as error:
                status = error.status if isinstance(error, Interrupted) else getattr(error, "code", EXIT_BAD_INPUT)
                self.store.set(key, pickle.dumps((status, None)))  # type: ignore[arg-type]
                # Let the others read an outcome before a store that is not torchrun's ends with this process.
                until = time.monotonic() + REFUSAL_SECONDS
                if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
                    while self.store.add(f"{key}/heard", 0) < self.world_size - 1 and time.monotonic() < until:
                        time.sleep(0.05)
                raise
            self.store.set(key, pickle.dumps((None, value)))  # type: ignore[arg-type]  # stores take bytes, too
            return value
        self._poll(lambda: self.store.check([key]))
        outcome: tuple[int | None, T] = pickle.loads(self.store.get(key))
        if outcome[0] is not None:
            self.store.add(f"{key}/heard", 1)
            raise SystemExit(outcome[0])
        return outcome[1]

    def wait_for_all(self) -> None:
        """Return once all processes have called this, however long that takes."""
        # The store waits for as long as it takes, while a barrier would end at the time-out of the process group.
        key = f"all/{next(self.calls)}"
        self.store.add(key, 1)
        self._poll(lambda: self.store.add(key, 0) >= self.world_size)

    @staticmethod
    def _poll(condition: Callable[[], bool]) -> None:
        """Return once the condition is true. No signal would end the store's own wait()."""
        # The pauses grow, so that short waits end at once and long ones hardly load the store.
        pause = 0.01
        while not condition():
            time.sleep(pause)
            pause = min(2 * pause, 0.5)


def start(config: RuntimeConfig, seed: int, deterministic: bool | str) -> Runtime:
    """Join the process group that torchrun describes, or make one of a single process; seed all generators."""
    launched = _has_launcher()
    os.environ.setdefault("LOCAL_WORLD_SIZE", "1")  # TorchRec reads it too
    local_world_size = int(os.environ["LOCAL_WORLD_SIZE"])
    # Bad settings end this process before it meets the others, which then learn of its refusal.
    platform, device, num_threads = _set_up(config, seed, deterministic, launched, local_world_size)
    if deterministic == LAYOUT and platform == "cpu":
        # One thread where products depend on their number, unless it is given.
        if config.num_threads is None and num_threads > 1 and not are_equal_on_threads(num_threads):
            log.info("runtime.num_threads: 1 instead of %d, as this processor's products depend on it", num_threads)
            num_threads = 1
        torch.set_num_threads(num_threads)
        require_strict_products(num_threads)
    timeout = datetime.timedelta(minutes=config.timeout_minutes)
    # A single process needs no port: its store lives in its own memory.
    store, rank, world_size = next(rendezvous("env://", timeout=timeout)) if launched else (dist.HashStore(), 0, 1)
    if launched:
        store = _store_of_this_start(store, rank, world_size, timeout)
    # Values on the host travel by gloo, also beside GPUs. The backend nccl stands for RCCL, too.
    backend = "gloo" if platform == "cpu" else "cpu:gloo,cuda:nccl"
    with discard_native_stdout():
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    HAS_MET.set()
    return Runtime(
        platform, device, rank, world_size, local_world_size, num_threads, dist.PrefixStore("clickwork", store)
    )


def start_within(config: RuntimeConfig, seed: int, deterministic: bool | str) -> Runtime:
    """Do what `start` does in a process that is not a command's; use and keep a process group that exists."""
    if _has_launcher() or (dist.is_initialized() and dist.get_world_size() > 1):
        raise UserError("this process is one of several of a job; score in a process of its own, or by app.recommend")
    if not dist.is_initialized():
        atexit.register(stop)
        return start(config, seed, deterministic)
    platform, device, num_threads = _set_up(config, seed, deterministic, False, 1)
    return Runtime(platform, device, 0, 1, 1, num_threads, dist.PrefixStore("clickwork", dist.HashStore()))


def _set_up(
    config: RuntimeConfig, seed: int, deterministic: bool | str, launched: bool, local_world_size: int
) -> tuple[Platform, torch.device, int]:
    """Set this process's platform, arithmetic, threads and seed; return the platform, device and number of threads."""
    # Imported lazily: this imports TorchRec and FBGEMM, without which doctor must work.
    from app.runtime import library_patches

    quieten_third_parties()
    library_patches.apply()
    platform = available_platform(config.platform)
    check_precision(config.precision, platform)
    local_rank, device = int(os.environ.get("LOCAL_RANK", "0")), torch.device("cpu")
    if platform != "cpu":
        if local_world_size > torch.cuda.device_count():
            raise UserError(
                f"{local_world_size} processes for {torch.cuda.device_count()} GPUs; start one process per GPU"
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    else:
        # Fresh memory must be cleared page by page, and glibc would return large blocks to the system in every step.
        keep_freed_memory()
    # The user's OMP_NUM_THREADS (a 1 may be torchrun's own), else an equal share of the cores.
    variable = os.environ.get("OMP_NUM_THREADS", "")
    by_user = int(variable) if variable.isdigit() and (not launched or int(variable) > 1) else 0
    num_threads = config.num_threads or by_user or max(1, usable_cpus() // local_world_size)
    set_arithmetic(config, platform, num_threads, deterministic)
    torch.manual_seed(seed)
    return platform, device, num_threads


def set_arithmetic(config: RuntimeConfig, platform: Platform, num_threads: int, deterministic: bool | str) -> None:
    """Set those of torch's settings that decide bits: threads, TF32, and kernels that add in a fixed order."""
    torch.set_num_threads(num_threads)
    torch.set_float32_matmul_precision("high" if config.precision == "tf32" else "highest")
    torch.use_deterministic_algorithms(bool(deterministic) or platform == "cpu")


def require_strict_products(num_threads: int) -> None:
    """Raise UserError if products depend on the number of threads, as MKL's do outside its strict mode.

    `app` sets MKL_CBWR, which MKL reads at its first product. That is too late if torchrec was imported before.
    """
    setting = f"train.deterministic={LAYOUT}"
    # The variable shows what was requested of MKL, and MKL itself what is in force: it reads the variable once, early.
    try:
        mode = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libtorch_cpu.so")).mkl_serv_cbwr_get(ALL_MODES)
    except (OSError, AttributeError):  # torch uses another library for products
        mode = STRICT_MODE
    if mode & STRICT_MODE == 0:
        raise UserError(
            f"MKL_CBWR={os.environ.get('MKL_CBWR')}: is not in force or not strict, so products depend on the number "
            f"of threads: not with {setting}; start the process with MKL_CBWR=AUTO,STRICT in its environment"
        )
    if num_threads > 1 and not are_equal_on_threads(num_threads):
        raise UserError(
            f"runtime.num_threads={num_threads}: not with {setting}, as this processor's products depend on the number "
            "of threads; give runtime.num_threads=1, and more processes instead"
        )


def are_equal_on_threads(num_threads: int) -> bool:
    """Return whether this many threads multiply layers of several widths with the bits of one; sets the number.

    MKL divides outputs and gradients among threads if it may.
    """
    results: list[list[Tensor]] = [[], []]
    for threads, products in zip((1, num_threads), results, strict=True):
        torch.set_num_threads(threads)
        # The inputs are computed, not drawn, so that this trial leaves the run's generators as they are.
        for num_in, num_out in itertools.product(*PROBED_WIDTHS):
            inputs, weight = (
                torch.linspace(-1, 1, rows * num_in).sin().view(rows, num_in).requires_grad_()
                for rows in (PROBED_ROWS, num_out)
            )
            outputs = torch.nn.functional.linear(inputs, weight)
            products += [outputs.detach(), *torch.autograd.grad(outputs, (inputs, weight), outputs.detach().cos())]
    return all(map(torch.equal, *results))


def check_precision(precision: Precision | None, platform: Platform) -> None:
    """Raise UserError for tf32, which CPUs lack; warn of bf16 if this processor computes it more slowly than fp32."""
    if platform != "cpu":
        return
    if precision == "tf32":
        raise UserError("runtime.precision=tf32: CPUs do not support it; give runtime.precision=fp32, or bf16")
    if precision == "bf16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        log.warning(
            "runtime.precision=bf16: this processor does not support products in bf16; they take several times as long "
            "as in fp32"
        )


def stop(failed: bool = False) -> None:
    """Leave the process group; after a failure, do not wait for GPU collectives, which peers may never join."""
    if not dist.is_initialized():
        return
    if failed and dist.get_world_size() > 1 and "nccl" in dist.get_backend_config():
        dist.distributed_c10d._abort_process_group()
    else:
        dist.destroy_process_group()


def _has_launcher() -> bool:
    """Return whether a launcher's variables are set. Raise UserError if only some of them are."""
    variables = [name for name in LAUNCHER_VARIABLES if os.environ.get(name)]
    if variables and len(variables) < len(LAUNCHER_VARIABLES):
        missing = ", ".join(name for name in LAUNCHER_VARIABLES if name not in variables)
        raise UserError(f"environment: {variables[0]} is set but not {missing}; unset it, or start with torchrun")
    return bool(variables)


def _store_of_this_start(store: dist.Store, rank: int, world_size: int, timeout: datetime.timedelta) -> dist.Store:
    """Return a namespace of the store that only the processes of this start use.

    torchrun restarts a job with the store of the lost processes, which holds their addresses; gloo would try to reach
    them. So rank 0 draws a name, and answers each process's request for it until all have confirmed.

    Raises RuntimeError: not all processes joined within the timeout. Raises UserError: a process of another machine
    refused its settings.
    """
    meeting, until = dist.PrefixStore("meeting", store), time.monotonic() + timeout.total_seconds()
    name = uuid.uuid4().hex
    waiting = set(range(1, world_size)) if rank == 0 else set()
    if rank > 0:
        meeting.set(f"ask/{rank}", name)
        while not meeting.check([f"answer/{name}"]):
            _pause_or_raise(until, rank, meeting)
        answer = meeting.get(f"answer/{name}").decode()
        meeting.set(f"heard/{answer}/{rank}", "")
        return dist.PrefixStore(answer, store)
    while waiting:
        # A request may be left from before the restart, so requests are answered until each process has confirmed.
        for peer in waiting:
            if meeting.check([f"ask/{peer}"]):
                meeting.set(f"answer/{meeting.get(f'ask/{peer}').decode()}", name)
        waiting = {peer for peer in waiting if not meeting.check([f"heard/{name}/{peer}"])}
        _pause_or_raise(until, rank, meeting)
    return dist.PrefixStore(name, store)


def _pause_or_raise(until: float, rank: int, meeting: dist.Store) -> None:
    """Sleep a little while processes meet. Raise if one of them refused to start, or after time.monotonic() `until`."""
    if meeting.check(["refused"]):
        HAS_MET.set()
        meeting.set(f"refusal heard/{rank}", "")
        host = meeting.get("refused").decode()
        raise UserError(f"{host} refused its settings or its input, and has printed why; nothing was started")
    if time.monotonic() > until:
        raise RuntimeError(f"process {rank}: timed out waiting for the other processes to start")
    time.sleep(0.02)


def available_platform(platform: Platform) -> Platform:
    """Return the platform that `auto` means here, or the given one. Raises UserError if it does not work here."""
    if platform == "cpu":
        return platform
    has_gpu = torch.cuda.is_available()
    built: Platform = "rocm" if torch.version.hip else "cuda" if torch.version.cuda or has_gpu else "cpu"
    if platform == "auto":
        return built if has_gpu and _fbgemm_has_gpu_code() else "cpu"
    if built != platform:
        reason = f"torch {torch.__version__} is built for {built}; install the releases for {platform}"
    elif not has_gpu:
        reason = f"torch {torch.__version__} sees no GPU; `python -m app.doctor` looks for the reason"
    elif not _fbgemm_has_gpu_code():
        reason = "the installed FBGEMM is its CPU build"
    else:
        return platform
    raise UserError(f"runtime.platform={platform}: {reason}; runtime.platform=auto takes what is there")


def _fbgemm_has_gpu_code() -> bool:
    """Return whether FBGEMM has GPU kernels: a CUDA build of torch may be installed beside a CPU-only FBGEMM."""
    try:
        importlib.metadata.version("fbgemm_gpu-cpu")
    except importlib.metadata.PackageNotFoundError:
        return True
    log.warning("platform: this FBGEMM is the CPU build, so the GPU is not used; install an fbgemm_gpu for it")
    return False


def quieten_third_parties() -> None:
    """Silence warnings about libraries' internals, on which users cannot act."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    warnings.filterwarnings("ignore", module="torch.distributed.checkpoint")  # about its own deprecated storage calls
    # TorchRec 1.4 asks torch for its group's device in a way that torch 2.10 deprecates.
    warnings.filterwarnings("ignore", category=UserWarning, module="torchrec.distributed.types")
    # The third is about data-parallel tables; a test against plain torch shows that their gradients are right. By the
    # last FBGEMM 1.6 tells which kernel it takes.
    for words in (
        "ShardedTensor",
        "broadcast_buffers",
        "dense_embedding_codegen_lookup_function",
        "TBE B200 optimization",
    ):
        warnings.filterwarnings("ignore", message=f".*{words}.*")
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    logging.getLogger("torchrec").setLevel(logging.ERROR)
    # This program reports failures in one line.
    logging.getLogger("torch.distributed.checkpoint").setLevel(logging.CRITICAL)


# Phrases by which gloo, NCCL, RCCL and torch's store report that a peer is gone.
_LOST = re.compile(
    r"connection closed by peer|connection reset by peer|connection (?:was )?(?:likely )?closed|broken pipe|"
    r"socket closed|timed out waiting|application timeout|wait timeout|remote process exited|socket timeout|"
    r"no route to host|network is unreachable|failed to recv|nccl (?:remote|system) error|ncclremoteerror|"
    r"software caused connection abort|connection timed out|connection refused",
    re.IGNORECASE,
)


# What to do when memory runs out; and a function that returns whether a checkpoint exists to resume from and, to end a
# line, what the same command would do.
FailureAdvice: TypeAlias = tuple[str, Callable[[], tuple[bool, str]]]
# Of commands that read a run and train none; `joined` recognises them by it.
READING: FailureAdvice = (
    "use more processes, and a smaller batch where the command has one",
    lambda: (False, "start the same command again"),
)

NO_MEMORY = ("not enough memory", "Cannot allocate memory", "can't allocate memory", "std::bad_alloc")


@contextlib.contextmanager
def reporting_failures(rank: int, timeout_minutes: float, advice: FailureAdvice) -> Iterator[None]:
    """Report failures from outside this program in one line: lack of memory, or the loss of another process.

    Raises OwnError: there was not enough memory. Raises LostPeerError: a collective operation failed because of another
    process or the way to it.
    """
    less_memory, resumption = advice
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        text = str(error)
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(sign in text for sign in NO_MEMORY):
            reason, (_, remedy) = (text or "Python").splitlines()[0][:200], resumption()
            message = f"out of memory ({reason}, process {rank}): {less_memory}; {remedy}"
            raise OwnError(message) from error
        match = _LOST.search(text) if isinstance(error, RuntimeError) else None
        if not match:
            raise
        resumable, remedy = resumption()
        raise LostPeerError(
            f"process {rank}: another process is lost or unreachable ({match.group().lower()}; "
            f"runtime.timeout_minutes={timeout_minutes:g}), perhaps killed for lack of memory; {remedy}",
            resumable,
        ) from error


@contextlib.contextmanager
def joined(config: AppConfig, advice: FailureAdvice) -> Iterator[Runtime]:
    """Context with a process group: rank 0 logs, and a lost peer is reported in one line.

    The configuration's environment is applied first: a run's commands compute as its training did. A command that reads
    a run (READING), unless a launcher has started it, leaves out variables of networks, which it does not use.

    Raises UserError: as `app.runtime.platform.start`, or there is not enough memory. Raises LostPeerError: another
    process is gone.
    """
    settings = environment.apply(config.environment, with_networks=advice is not READING or is_launched())
    runtime = start(config.runtime, config.train.seed, config.train.deterministic)
    log_to_terminal(runtime.rank)
    for line in settings:
        log.info("%s", line)
    try:
        with reporting_failures(runtime.rank, config.runtime.timeout_minutes, advice):
            yield runtime
    except KeyboardInterrupt:
        raise  # the process ends: the others may be inside a collective operation
    except BaseException:
        stop(failed=True)
        raise
    stop()


def log_to_terminal(rank: int) -> None:
    """Log to stderr, above the progress bar: everything on rank 0, warnings on the others."""

    def emit(record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone
            tqdm.write(erase_sequence(2) + handler.format(record), file=sys.stderr)

    handler = logging.StreamHandler()
    handler.emit = emit  # type: ignore[method-assign]
    handler.setFormatter(RedactingFormatter("%(message)s", is_terminal=True))
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO if rank == 0 else logging.WARNING)
    log.propagate = False


if __name__ == "__main__":

    def look_for_gpu() -> None:
        """Refuse a platform, the first argument, that does not work here."""
        available_platform(cast(Platform, sys.argv[1]))

    # Containers run this before they prepare data (docker-compose.yml): status 2 and one line without a GPU.
    sys.exit(exit_status(look_for_gpu))
