"""Checks of GPUs: the system's, those that torch sees, and whether torch's kernels were built for them."""

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from app.checks.check import Check, fail, ok, warn

NVIDIA_DEVICE, AMD_DEVICE = Path("/dev/nvidiactl"), Path("/dev/kfd")
RENDER_NODES = Path("/dev/dri")
DRM = Path("/sys/class/drm")
AMD_LOCKED = ("low", "manual", "perf_determinism", "profile_standard", "profile_min_sclk", "profile_min_mclk")
NVIDIA_DRIVER, AMD_DRIVER = Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version")
MIN_DRIVERS = {"12": 525, "13": 580}  # NVIDIA's CUDA compatibility: first driver branch for each CUDA major release


class ProbedDevice(Struct):
    """A GPU that torch sees; memory in bytes; fault: how its lookup failed, if it did."""

    name: str
    memory: int
    architecture: str
    fault: str | None


class Probe(Struct):
    """Findings of an import of the stack: releases, kernels, faults, devices."""

    cuda: str | None
    hip: str | None
    kernels: list[str]
    cpu_fault: str | None
    devices: list[ProbedDevice]
    nccl: str | None
    gloo: bool


def check_devices(probe: Probe) -> Iterator[Check]:
    """Check the GPUs that the probe of the stack found."""
    built_for = f"CUDA {probe.cuda}" if probe.cuda else f"ROCm {probe.hip}" if probe.hip else None
    devices = probe.devices
    if not devices:
        yield _without_devices(built_for)
        if NVIDIA_DRIVER.exists():
            yield _check_driver(probe.cuda)  # too old a driver can be why torch sees nothing
        return
    for index, device in enumerate(devices):
        name = f"gpu {index}"
        description = f"{device.name}, {device.architecture}, {device.memory / 2**30:.0f} GiB, {built_for}"
        if not has_kernels_for(device.architecture, probe.kernels):
            kernels = " ".join(probe.kernels)
            yield fail(name, f"{description}; torch has kernels for {kernels}", "install a torch built for this GPU")
        elif device.fault:
            remedy = "install an fbgemm_gpu built for this GPU and this torch"
            yield fail(name, f"{description}; FBGEMM's lookup fails: {device.fault}", remedy)
        else:
            yield ok(name, description)
    library = "RCCL" if probe.hip else "NCCL"
    if probe.nccl:
        yield ok(library.lower(), probe.nccl)
    elif len(devices) > 1:
        yield fail(library.lower(), "torch was built without it", "several GPUs need it: install another torch")
    yield _check_driver(probe.cuda)


def _without_devices(built_for: str | None) -> Check:
    present = "NVIDIA" if NVIDIA_DEVICE.exists() else "AMD" if AMD_DEVICE.exists() else None
    if present and built_for is None:
        remedy = f"install torch, fbgemm_gpu and torchrec for {present} GPUs, or start its container"
        return warn("gpu", f"an {present} GPU is there, but torch is the CPU build", remedy)
    if present:
        remedy = "check the driver, CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES, and the groups below"
        return fail("gpu", f"torch is built for {built_for}, an {present} GPU is there, but torch sees none", remedy)
    if built_for:
        remedy = "give the container its devices (docker compose --profile cuda or rocm), or use runtime.platform=cpu"
        return warn("gpu", f"torch is built for {built_for}, but this machine shows no GPU", remedy)
    return ok("gpu", "none, and torch is the CPU build")


def has_kernels_for(architecture: str, kernels: Sequence[str]) -> bool:
    """Return whether kernels built for these architectures run on a GPU.

    AMD: the name without its features, such as gfx942. NVIDIA: sm_XY runs on the same major version with a minor
    version no smaller; compute_XY is compiled for anything newer.
    """
    if architecture.startswith("gfx"):
        return architecture.split(":")[0] in kernels
    major, minor = _capability(architecture)
    for kernel in kernels:
        kind, _, _ = kernel.partition("_")
        built = _capability(kernel)
        if kind == "sm" and built[0] == major and built[1] <= minor:
            return True
        if kind == "compute" and built <= (major, minor):
            return True
    return False


def _capability(name: str) -> tuple[int, int]:
    digits = "".join(character for character in name.partition("_")[2] if character.isdigit())
    return int(digits[:-1] or 0), int(digits[-1:] or 0)


def _check_driver(cuda: str | None) -> Check:
    for path in (NVIDIA_DRIVER, AMD_DRIVER):
        try:
            driver = path.read_text().splitlines()[0].strip()
        except (OSError, IndexError):
            continue
        version = re.search(r"\b(\d{3,})\.\d+", driver)
        min_release = MIN_DRIVERS.get((cuda or "").split(".")[0], 0)
        if path == NVIDIA_DRIVER and version and int(version[1]) < min_release:
            remedy = f"install the driver's release {min_release} or later, or packages built for an older CUDA"
            return fail("driver", f"{driver}: too old for CUDA {cuda}", remedy)
        return ok("driver", driver)
    return warn("driver", "its version cannot be read", "not needed to run; the run's manifest will lack it")


def check_clocks(drm: Path = DRM) -> Iterator[Check]:
    """Warn of GPUs whose clock is locked below its maximum, since no figure of a run shows that."""
    query = "index,clocks.applications.graphics,clocks.max.graphics"
    try:
        command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
        output = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        output = ""
    for line in output.splitlines():
        index, *clocks = (field.strip() for field in line.split(","))
        if len(clocks) == 2 and all(clock.isdigit() for clock in clocks) and int(clocks[0]) < int(clocks[1]):
            remedy = "sudo nvidia-smi --reset-applications-clocks (and --reset-gpu-clocks)"
            yield warn(f"clock of gpu {index}", f"set to {clocks[0]} MHz of at most {clocks[1]}", remedy)
    for path in sorted(drm.glob("card*/device/power_dpm_force_performance_level")):
        level = path.read_text().strip()
        if level in AMD_LOCKED:
            remedy = "sudo amd-smi reset --clocks (rocm-smi --resetclocks), which sets it to auto"
            yield warn(f"clock of {path.parts[-3]}", f"performance level {level}, not auto", remedy)


def check_groups(kfd: Path = AMD_DEVICE, nodes: Path = RENDER_NODES) -> Iterator[Check]:
    """Check whether this user may open AMD's devices."""
    if not kfd.exists():
        return
    paths = [kfd, *sorted(nodes.glob("renderD*"))]
    if len(paths) == 1:
        yield fail("render nodes", f"no {nodes}/renderD*", "give the container --device /dev/dri")
    for path in paths:
        if os.access(path, os.R_OK | os.W_OK):
            yield ok(str(path), "may be opened")
        else:
            group = path.stat().st_gid
            remedy = f"add the user to its group (sudo usermod -aG {group} $USER; docker: --group-add {group})"
            yield fail(str(path), f"no permission; it belongs to group {group}", remedy)
