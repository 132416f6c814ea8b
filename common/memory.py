"""Memory that is available, and the C library's treatment of what is freed."""

import ctypes
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # <malloc.h>
CGROUP = Path("/sys/fs/cgroup")


def host_bytes_available() -> int:
    """Host memory available without swapping: the kernel's figure, or less by this container's limit."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        usage = int((CGROUP / "memory.current").read_text())
    except OSError:
        return available
    return available if limit == "max" else min(available, int(limit) - usage)


def keep_freed_memory() -> bool:
    """Reuse the memory of freed large arrays. Returns whether the C library can (glibc can).

    glibc returns large blocks to the system when they are freed, so the next array of that size gets fresh pages,
    which the system clears first: 27 % of over_arch's time at a batch of 65,536 (docs/performance.md). Processes forked
    from this one inherit the setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, -1))


def share_allocator_with_arrow() -> None:
    """Have Arrow take memory from the C library, as NumPy does, so that what one has freed the other can use."""
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())


def give_back_freed_memory() -> None:
    """Return freed memory to the system, if the C library can (glibc can)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
