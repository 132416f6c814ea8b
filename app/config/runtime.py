"""`runtime` and `environment`: platform, threads, precision; environment variables as named profiles."""

import re
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from common.errors import UserError
from common.keys import key
from common.limits import usable_cpus

THREADS_PER_CORE = 4  # a few more threads than cores only slow a run down; many stop the machine


class Platform(Enum):
    """Devices to compute on; `auto` takes the GPUs that torch was built for, if it sees any."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    rocm = "rocm"


class Precision(Enum):
    """Arithmetic of the dense layers; tables and losses stay fp32."""

    fp32 = "fp32"
    tf32 = "tf32"
    bf16 = "bf16"


class Compile(Enum):
    """Execution of DLRM's dense layers and interaction in training: kernel by kernel, or as programs."""

    none = "none"
    dense = "dense"  # torch.compile
    step = "step"  # CUDA graphs of the kernels of `none`


@dataclass(frozen=True)
class RuntimeConfig:
    """Platform, threads, precision, and limits of waiting."""

    platform: Platform = key(
        Platform.auto,
        "devices to compute on; auto: the GPUs that torch was built for, if it sees any",
        is_common=True,
        decides_bits=False,
    )
    num_threads: int | None = key(
        None,
        "torch's threads per process, which change bits on CPUs; null: cores / processes here",
        at_least=1,
        at_most=4_096,
        is_common=True,
        decides_bits=False,
    )
    precision: Precision | None = key(
        None, "arithmetic of dense layers; null: fp32, or an existing run's own", is_common=True
    )
    compile: Compile | None = key(
        None,
        "execution of dense layers in training; null: none, or an existing run's own; dense changes bits",
        decides_bits=False,
    )
    timeout_minutes: float = key(
        30.0, "longest wait of a process for another, in minutes", above=0, at_most=100_000, decides_bits=False
    )
    different_releases: bool = key(
        False, "let machines of a job have other releases of torch, TorchRec, FBGEMM, NumPy", decides_bits=False
    )
    profile_steps: list[int] | None = key(
        None, "first and last step, counted from 1, of a torch.profiler trace", decides_bits=False
    )


def validate_runtime(runtime: RuntimeConfig) -> None:
    """Raise UserError for values that cannot work."""
    steps = runtime.profile_steps
    if steps is not None and not (len(steps) == 2 and 1 <= steps[0] <= steps[1]):
        raise UserError(f"runtime.profile_steps={steps}: must be the first and the last step, such as [20,25]")


def require_graphs(runtime: RuntimeConfig, device_type: str) -> None:
    """Raise UserError if training is to replay CUDA graphs on a device that has none."""
    if runtime.compile is Compile.step and device_type == "cpu":
        raise UserError(
            "runtime.compile=step: CUDA graphs need a GPU; give runtime.compile=none, or runtime.compile=dense"
        )


def validate_threads(runtime: RuntimeConfig) -> None:
    """Raise UserError if a new run asks for so many threads that this machine can only lose time."""
    cores = usable_cpus()
    if (runtime.num_threads or 0) > THREADS_PER_CORE * cores:
        raise UserError(
            f"runtime.num_threads={runtime.num_threads}: {cores} cores are usable here; give "
            f"runtime.num_threads={cores}"
        )


@dataclass(frozen=True)
class EnvironmentConfig:
    """Environment variables set before the process group is made, unless the user has set them."""

    decides_bits: ClassVar[bool] = False

    name: str = key("none", "name of the profile, set by environment=NAME")
    variables: dict[str, str] = key({}, "values by variable")
    reasons: dict[str, str] = key({}, "purposes by variable")


def validate_environment(environment: EnvironmentConfig) -> None:
    """Raise UserError for invalid names of variables."""
    for name in environment.variables:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UserError(f"environment.variables.{name}: not a name of an environment variable")
