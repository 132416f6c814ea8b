"""What the C library does with memory that is freed."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # <malloc.h>


def keep_freed_memory() -> bool:
    """Let large arrays use the memory of those before them; whether the C library can (glibc's can).

    glibc gives large blocks back to the system as they are freed, so that the next array of that size is given fresh
    pages, which the system clears first: a third of a training step at a batch of 65,536 (docs/performance.md).
    Processes forked from this one do the same.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, -1))


def give_back_freed_memory() -> None:
    """Give memory that was freed, and kept, back to the system, where the C library can (glibc's can)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
