"""CPUs and memory for this process, from its affinity and the limits of its control groups (versions 1 and 2)."""

import os
from collections.abc import Iterator
from pathlib import Path

from common.errors import UserError

MIN_MEMORY_BYTES = 512 << 20
CGROUP = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
MEMORY_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


def usable_cpus() -> int:
    """Return the whole CPUs that this process may keep busy: its affinity, or fewer by its container's quota."""
    return max(1, min(affinity(), int(cpu_quota() or affinity())))


def affinity() -> int:
    """Return the number of CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota() -> float | None:
    """Return the CPUs that the control groups grant, such as 0.5; None if they grant the whole affinity."""
    quotas = []
    for directory in _groups("cpu"):
        texts = _read(directory / "cpu.max").split() or [
            _read(directory / "cpu.cfs_quota_us"),
            _read(directory / "cpu.cfs_period_us"),
        ]
        if texts[0].isdigit() and texts[1].isdigit():  # neither "max" nor -1
            quotas.append(int(texts[0]) / int(texts[1]))
    quota = min(quotas, default=None)
    return quota if quota is not None and quota < affinity() else None


def memory_limit() -> int | None:
    """Return the bytes that the control groups grant; None if they grant all memory of the machine."""
    limit = min((limit for limit, _ in _memory_limits()), default=None)
    return limit if limit is not None and limit < memory_of_machine() else None


def require_memory(work: str) -> None:
    """Refuse a container whose memory the libraries alone would take, since the kernel would kill it without a message.

    Raises:
        UserError: names the limit, and how to raise it.
    """
    limit = memory_limit()
    if limit is not None and limit < MIN_MEMORY_BYTES:
        raise UserError(
            f"this container may use {limit >> 20} MiB of memory, and {work} needs at least {MIN_MEMORY_BYTES >> 20}: "
            "raise the limit (docker run --memory; memory of a Kubernetes or Slurm job)"
        )


def memory_of_machine() -> int:
    """Return the bytes of memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def host_bytes_available() -> int:
    """Return host memory available without swapping: the kernel's figure, or less by the control groups' limits."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return min([available, *(limit - usage for limit, usage in _memory_limits())])


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Yield the limit and usage in bytes of each control group that has a limit."""
    for directory in _groups("memory"):
        for limit_file, usage_file in MEMORY_FILES:
            limit, usage = _read(directory / limit_file), _read(directory / usage_file)
            if limit.isdigit() and usage.isdigit():
                yield int(limit), int(usage)


def _groups(controller: str) -> Iterator[Path]:
    """Yield a controller's directories: of this process's control group, its parents, and the container's."""
    yield CGROUP
    yield CGROUP / controller
    for line in _read(OWN_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = CGROUP / controller if controllers else CGROUP
        directory = root / path.strip("/")
        while directory != root and root in directory.parents and ".." not in directory.parts:
            yield directory
            directory = directory.parent


def _read(path: Path) -> str:
    """Return a file's stripped text; empty if the file is missing."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
