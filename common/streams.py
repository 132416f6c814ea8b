"""The process's file descriptors, which C++ libraries write to directly."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def without_native_stdout() -> Iterator[None]:
    """Discard what C and C++ code writes to standard output within the context.

    gloo of torch up to 2.10 logs its connections there, and a command's JSON goes to standard output.
    """
    sys.stdout.flush()
    flush_native = getattr(ctypes.CDLL(None), "fflush", lambda _: None)
    flush_native(None)
    stdout_copy, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        # Flush, or C's buffer would be printed later.
        flush_native(None)
        os.dup2(stdout_copy, 1)
        os.close(stdout_copy)
        os.close(nowhere)
