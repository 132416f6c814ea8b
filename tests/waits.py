"""Waiting for what other processes do."""

import time
from collections.abc import Callable

MOST_SECONDS = 240  # a slow, busy machine takes a minute for what takes seconds elsewhere


def wait_until(holds: Callable[[], object], goes_on: Callable[[], bool] = lambda: True) -> None:
    """Wait until a condition is true; fail where that takes too long, or what is waited for has ended before."""
    deadline = time.monotonic() + MOST_SECONDS
    while not holds():
        assert goes_on(), "ended before it was stopped"
        assert time.monotonic() < deadline
        time.sleep(0.01)
