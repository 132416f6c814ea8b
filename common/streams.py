"""The process's own streams, where libraries written in C++ go past Python's."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def without_native_stdout() -> Iterator[None]:
    """Drop what C and C++ write to standard output meanwhile.

    For the gloo of torch up to 2.10, which tells there whom it met: on the stdout that is a command's JSON.
    """
    sys.stdout.flush()
    flush_native = getattr(ctypes.CDLL(None), "fflush", lambda _: None)
    flush_native(None)
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        # What waits in C's buffer would come out behind our back otherwise.
        flush_native(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
