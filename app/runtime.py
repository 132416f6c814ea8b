"""The machine's part: platform, threads, process group, seeds, and agreement between processes."""

import datetime
import importlib.metadata
import logging
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from app.config import Platform, Precision, RuntimeConfig
from common.cli import EXIT_BAD_INPUT
from common.errors import UserError

log = logging.getLogger("clickwork")

ScalarT = TypeVar("ScalarT", bound=np.generic)


@dataclass(frozen=True)
class Runtime:
    """One process of the job. `device` is where it computes; collectives of small values go over the CPU."""

    platform: Platform
    device: torch.device
    rank: int
    world_size: int
    local_world_size: int
    num_threads: int

    def highest(self, value: float) -> float:
        """The highest of all processes' values, on all of them."""
        return max(float(values[0]) for values in self.gather(np.array([value])))

    def gather(self, values: NDArray[ScalarT]) -> list[NDArray[ScalarT]]:
        """Every process's array, in order of rank; all of one shape and dtype."""
        if self.world_size == 1:
            return [values]
        mine = torch.from_numpy(np.ascontiguousarray(values))
        everyones = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(everyones, mine)
        return [theirs.numpy() for theirs in everyones]

    def on_rank_0(self, action: Callable[[], None]) -> None:
        """Do something on rank 0 while the others wait; what is wrong with the input there ends all.

        Raises:
            UserError, SystemExit: what the action raised, on rank 0.
            SystemExit: on the others, without a word.
        """
        problem: BaseException | None = None
        if self.rank == 0:
            try:
                action()
            except (UserError, SystemExit) as error:
                problem = error
        failed = self.highest(float(problem is not None))
        if problem is not None:
            raise problem
        if failed:
            raise SystemExit(EXIT_BAD_INPUT)


def start(config: RuntimeConfig, seed: int, deterministic: bool) -> Runtime:
    """Join the process group that torchrun describes, or make one of a single process; seed everything.

    Raises:
        UserError: a platform that is not here, or a precision that it has not.
    """
    _quieten_third_parties()
    platform = _platform(config.platform)
    if config.precision is Precision.tf32 and platform is Platform.cpu:
        raise UserError("runtime.precision=tf32: CPUs have no such arithmetic; use fp32 or bf16")
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local_rank, local_world_size = (
        int(os.environ.get("LOCAL_RANK", "0")),
        int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    )
    device, backend = torch.device("cpu"), "gloo"
    if platform is not Platform.cpu:
        if local_world_size > torch.cuda.device_count():
            raise UserError(f"{local_world_size} processes for {torch.cuda.device_count()} GPUs: start one for each")
        device, backend = torch.device("cuda", local_rank), "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(device)
    num_threads = config.num_threads or max(1, len(os.sched_getaffinity(0)) // local_world_size)
    torch.set_num_threads(num_threads)
    torch.set_float32_matmul_precision("high" if config.precision is Precision.tf32 else "highest")
    torch.use_deterministic_algorithms(deterministic or platform is Platform.cpu)
    torch.manual_seed(seed)
    # A single process needs no port: its store lives in its own memory.
    store = None if "RANK" in os.environ else dist.HashStore()
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(minutes=config.timeout_minutes),
    )
    return Runtime(platform, device, rank, world_size, local_world_size, num_threads)


def stop() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _platform(wanted: Platform) -> Platform:
    here = Platform.cpu
    if torch.cuda.is_available() and _fbgemm_has_gpu_code():
        here = Platform.rocm if torch.version.hip else Platform.cuda
    if wanted in (Platform.auto, Platform.cpu):
        return here if wanted is Platform.auto else Platform.cpu
    if wanted is not here:
        raise UserError(
            f"runtime.platform={wanted.value}: torch {torch.__version__} and this FBGEMM offer {here.value} here; "
            "use runtime.platform=auto, or install the releases for that platform"
        )
    return here


def _fbgemm_has_gpu_code() -> bool:
    """Whether FBGEMM can follow torch onto the GPU: PyPI's CUDA torch comes beside a CPU-only FBGEMM, too."""
    try:
        importlib.metadata.version("fbgemm_gpu-cpu")
    except importlib.metadata.PackageNotFoundError:
        return True
    log.warning("platform: this FBGEMM is the CPU build, so the GPU that torch sees is not used")
    return False


def _quieten_third_parties() -> None:
    """Silence, one by one, warnings about libraries' own insides that nobody here can act on."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    warnings.filterwarnings("ignore", message=".*ShardedTensor.*")
    warnings.filterwarnings("ignore", message=".*broadcast_buffers.*")
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    logging.getLogger("torchrec").setLevel(logging.ERROR)
