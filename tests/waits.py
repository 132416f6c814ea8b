"""Waiting for what other processes do."""

import time
from collections.abc import Callable

MOST_SECONDS = 240  # a slow, busy machine takes a minute for what takes seconds elsewhere


def wait_until(holds: Callable[[], object], is_alive: Callable[[], bool] = lambda: True) -> None:
    """Wait until a condition is true; fail if that takes too long, or if the awaited process is no longer alive."""
    deadline = time.monotonic() + MOST_SECONDS
    while not holds():
        assert is_alive(), "ended before it was stopped"
        assert time.monotonic() < deadline
        time.sleep(0.01)
