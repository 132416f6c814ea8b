"""Provenance of a run: code, versions, hardware, environment; digests of its parameters."""

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from app.record.documents import Provenance
from common import cli, machine
from common.command import redact, redact_arguments
from common.machine import affinity, cpu_quota, memory_limit, memory_of_machine

PACKAGES = ("torch", "torchrec", "fbgemm-gpu", "fbgemm_gpu-cpu", "numpy", "hydra-core", "omegaconf", "torchmetrics")
FBGEMM_COMMIT = "fbgemm commit"  # listed with the versions; the version of a build from source is only a date
ENVIRONMENT_PREFIXES = (
    *("OMP_", "GOMP_", "MKL_", "KMP_", "ONEDNN_", "NCCL_", "RCCL_", "HSA_", "HIP_", "ROCR_", "CUDA_", "GPU_"),
    *("TORCH_", "PYTORCH_", "HIPBLASLT_", "GLOO_", "CLICKWORK_"),
)
ENVIRONMENT_NAMES = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_JOB_ID", "LD_PRELOAD")
REPOSITORY = Path(__file__).parents[2]


def describe_run(variables: Collection[str] = ()) -> Provenance:
    """Return the part of a run's manifest that this machine and checkout determine, without secrets.

    variables: environment variables that matter besides the libraries', such as those that a profile sets.
    """
    # Only libraries' variables are recorded: others decide no result, and may be private.
    environment = {
        name: value
        for name, value in sorted(os.environ.items())
        if name in ENVIRONMENT_NAMES or name in variables or name.startswith(ENVIRONMENT_PREFIXES)
    }
    devices = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        # AMD names a GPU by its architecture, NVIDIA by its compute capability.
        architecture = properties.gcnArchName if torch.version.hip else f"sm_{properties.major}{properties.minor}"
        memory = properties.total_memory
        devices.append({"name": properties.name, "memory_bytes": memory, "architecture": architecture})
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    drivers = [*_lines("/proc/driver/nvidia/version")[:1], *_lines("/sys/module/amdgpu/version")[:1]]
    return Provenance(
        code=code(),
        # Docker Compose sets unknown variables to the empty string.
        image=os.environ.get("CLICKWORK_IMAGE_DIGEST") or None,
        base_image=os.environ.get("CLICKWORK_BASE_DIGEST") or None,
        versions={
            "python": platform.python_version(),
            **versions(),
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
        },
        hardware={
            "machine": platform.machine(),
            "system": f"{platform.system()} {platform.release()}",
            "cpu": names[0] if names else platform.processor(),
            "cpu_instructions": torch.backends.cpu.get_cpu_capability(),
            "cores": affinity(),
            "cpu_quota": cpu_quota(),
            "memory_bytes": memory_of_machine(),
            "memory_limit_bytes": memory_limit(),
            "devices": devices,
            "driver": drivers[0].strip() if devices and drivers else None,
        },
        # Passwords in addresses must not reach the files of a run.
        environment=redact(environment),
        argv=[Path(sys.argv[0]).name, *redact_arguments(sys.argv[1:])],
    )


def host_peak_bytes() -> int:
    """Return the largest resident set of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def parameters_digest(parameters: Iterable[NDArray[np.float32]]) -> str:
    """Return the SHA-256 over the bytes of arrays, in their order."""
    sha256 = hashlib.sha256()
    for values in parameters:
        # The blocks of a table have its bytes in a row, so the digest does not depend on the blocks.
        sha256.update(np.ascontiguousarray(values).data)
    return sha256.hexdigest()


def code() -> dict[str, str | None]:
    """Return `code` of Provenance; dirty_diff_sha256 is None if the checkout equals its commit, or without git."""
    digest = {"sources_sha256": cli.sources_digest()}
    commit = _run_git("rev-parse", "HEAD")
    # Without its own repository, the code may be inside another one; only at a root --show-prefix prints an empty line.
    if commit is None or _run_git("rev-parse", "--show-prefix") != b"\n":
        without_git = _commit_without_git() if shutil.which("git") is None else None
        git_sha = os.environ.get("CLICKWORK_GIT_SHA") or without_git
        return {"git_sha": git_sha, "dirty_diff_sha256": None, **digest}
    diff = _run_git("diff", "HEAD") or b""
    sha256, differs = hashlib.sha256(diff), bool(diff)
    # Untracked files are part of the program, too, so they are part of the hash.
    for name in (_run_git("ls-files", "--others", "--exclude-standard", "-z") or b"").split(b"\0"):
        path = Path(os.fsdecode(name))
        if name and path.parts[0] in (*cli.DIRECTORIES, "clickwork"):
            differs = True
            sha256.update(name)
            with contextlib.suppress(OSError):  # it is gone, or not readable
                path = REPOSITORY / path
                sha256.update(os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes())
    return {"git_sha": commit.decode().strip(), "dirty_diff_sha256": sha256.hexdigest() if differs else None, **digest}


def _commit_without_git() -> str | None:
    """Return the commit of a checkout in a container that lacks git; the sources' digest covers differences from it."""
    directory = REPOSITORY / ".git"
    try:
        head = (directory / "HEAD").read_text(encoding="utf-8").strip()
        name = head.removeprefix("ref: ")
        if name == head:  # a detached head
            return head
        if (directory / name).exists():
            return (directory / name).read_text(encoding="utf-8").strip()
        lines = (directory / "packed-refs").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), None)


def _run_git(*arguments: str) -> bytes | None:
    """Return what git prints about the checkout; None if git is missing or fails."""
    try:
        # In a container the checkout may belong to another user, for whom git refuses to work without this setting.
        git = subprocess.run(
            ["git", "-c", "safe.directory=*", "-C", str(REPOSITORY), *arguments],
            capture_output=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return git.stdout if git.returncode == 0 else None


def versions() -> dict[str, str | None]:
    """Return the releases of packages that may affect a run's result, and FBGEMM's commit; None where unknown."""
    releases: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            releases[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            releases[package] = None
    releases[FBGEMM_COMMIT] = machine.installed_commit()
    return releases


def _lines(path: str) -> list[str]:
    """Return the lines of a file of Linux; none if there is no such file."""
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
