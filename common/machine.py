"""Resources of this machine: processors, memory, limits of a container; the build of FBGEMM."""

import ctypes
import importlib.metadata
import json
import mmap
import os
import platform
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from common.errors import UserError

MIN_MEMORY_BYTES = 512 << 20
CGROUP = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
MEMORY_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


def usable_cpus() -> int:
    """Return how many whole CPUs this process may keep busy: its affinity, or fewer by its quota, at least one."""
    return max(1, min(affinity(), int(cpu_quota() or affinity())))


def affinity() -> int:
    """Return the number of CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota() -> float | None:
    """Return the CPUs that the control groups grant, such as 0.5; None if they grant the whole affinity."""
    quotas = []
    for directory in _cgroup_directories("cpu"):
        # Version 2 of control groups has one file for the quota, version 1 two.
        texts = _read_text(directory / "cpu.max").split() or [
            _read_text(directory / "cpu.cfs_quota_us"),
            _read_text(directory / "cpu.cfs_period_us"),
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

    Raises UserError: names the limit, and how to raise it.
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
    """Return the bytes of host memory available without swapping: by the kernel, or fewer by control groups' limits."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return min([available, *(limit - usage for limit, usage in _memory_limits())])


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Yield the limit and usage in bytes of each control group that has a limit."""
    for directory in _cgroup_directories("memory"):
        for limit_file, usage_file in MEMORY_FILES:
            limit, usage = _read_text(directory / limit_file), _read_text(directory / usage_file)
            if limit.isdigit() and usage.isdigit():
                yield int(limit), int(usage)


def _cgroup_directories(controller: str) -> Iterator[Path]:
    """Yield a controller's directories: of this process's control group, its parents, and the container's."""
    # A container may see its own group as the root of the hierarchy.
    yield CGROUP
    yield CGROUP / controller
    for line in _read_text(OWN_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        # A line of version 2 names no controllers, as its one hierarchy has them all.
        if controllers and controller not in controllers.split(","):
            continue
        root = CGROUP / controller if controllers else CGROUP
        directory = root / path.strip("/")
        # A group outside the process's namespace is shown by "..", and cannot be read.
        while directory != root and root in directory.parents and ".." not in directory.parts:
            yield directory
            directory = directory.parent


def _read_text(path: Path) -> str:
    """Return a file's stripped text; empty if the file is missing or not readable."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # <malloc.h>


def keep_freed_memory() -> bool:
    """Reuse the memory of freed large arrays. Return whether the C library can (glibc can).

    glibc returns large blocks to the system when they are freed, so the next array of that size gets fresh pages,
    which the system clears first: 27 % of over_arch's time at a batch of 65,536 (docs/performance.md). Processes forked
    from this one inherit the setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # Large blocks lie in the heap if mmap is not used, and the heap's free end must then be kept, too.
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, -1))


def share_allocator_with_arrow() -> None:
    """Let Arrow allocate from the C library, as NumPy does, so that each can reuse the other's freed memory."""
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())


def give_back_freed_memory() -> None:
    """Return freed memory to the system, if the C library can (glibc can)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


CPUINFO = Path("/proc/cpuinfo")
# push rbx; mov eax, 0x1d; mov ecx, 1; cpuid; pop rbx; ret -- eax: bytes of all tiles and, above bit 15, of one
_SIZE_OF_TILES = bytes.fromhex("53 b81d000000 b901000000 0fa2 5b c3")


def announces_missing_tiles(cpuinfo: Path = CPUINFO) -> bool:
    """Return whether an x86 processor announces AMX but has no tiles to compute in, as some virtual machines do.

    oneDNN believes the announcement: its products then fail, or end the process by SIGILL
    (https://github.com/uxlfoundation/oneDNN/issues/5689). False if it cannot be determined.
    """
    try:
        with cpuinfo.open(encoding="utf-8") as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")
        return "amx_tile" in flags.split() and platform.machine() == "x86_64" and not _bytes_of_tiles()
    except OSError:  # another system, or one that does not run generated code
        return False


def _bytes_of_tiles() -> int:
    """Return the bytes of all tiles of AMX's first palette, from CPUID's leaf 0x1D; 0 if there is none."""
    # No function of C or file of Linux gives this leaf of CPUID, so six instructions are written to a page and called.
    with mmap.mmap(-1, len(_SIZE_OF_TILES), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(_SIZE_OF_TILES)
        start = ctypes.c_char.from_buffer(page)
        register = ctypes.CFUNCTYPE(ctypes.c_uint32)(ctypes.addressof(start))()
        del start  # Otherwise the page could not be closed.
    return int(register) & 0xFFFF


NAMES = ("fbgemm-gpu", "fbgemm-gpu-cpu", "fbgemm-gpu-genai", "fbgemm-gpu-nightly", "fbgemm-gpu-nightly-cpu")
IMAGE_MANIFEST = Path("/workspace/.manifest/Dockerfile")  # Dockerfile that built the image rocm/primus
IMAGE_COMMIT = re.compile(r"(?m)^\s*(?:ARG|ENV)\s+FBGEMM_COMMIT[=\s]\s*[\"']?([0-9a-f]{7,40})\b")
DATED = re.compile(r"20\d\d\.\d+\.\d+")  # a version of a build from source: the date of the build, not of the sources


def installed_commit(names: Iterable[str] = NAMES, image_manifest: Path = IMAGE_MANIFEST) -> str | None:
    """Return the commit that the installed FBGEMM was built from; None if neither pip nor the image recorded it.

    pip records the commit of a package installed from a repository (PEP 610). A version that is a date is a build from
    source; in rocm/primus the image's own Dockerfile names its commit.
    """
    for name in names:
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        origin = json.loads(package.read_text("direct_url.json") or "{}")
        if commit := origin.get("vcs_info", {}).get("commit_id"):
            return str(commit)
        if DATED.match(package.version) and image_manifest.is_file():
            stated = IMAGE_COMMIT.search(image_manifest.read_text(encoding="utf-8", errors="replace"))
            return stated and stated[1]
    return None
