"""Settings of the C library for freed memory."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # <malloc.h>


def keep_freed_memory() -> bool:
    """Reuse the memory of freed large arrays. Return whether the C library can (glibc can).

    glibc returns large blocks to the system when they are freed, so the next array of that size gets fresh pages,
    which the system clears first: 27 % of over_arch's time at a batch of 65,536 (docs/performance.md). Processes forked
    from this one inherit the setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
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
