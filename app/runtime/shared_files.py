"""Files that one machine writes and others wait for: a network file system may show them late."""

import time
from collections.abc import Callable

SHARED_SECONDS = 60.0  # NFS may cache names for this long


def patience(timeout_minutes: float) -> float:
    """Return the seconds to wait for a file while other processes wait for this one: at most half their time-out."""
    return min(SHARED_SECONDS, 30 * timeout_minutes)


def wait_until(condition: Callable[[], bool], seconds: float | None = None) -> bool:
    """Return whether a condition came true within some seconds; None: SHARED_SECONDS."""
    until = time.monotonic() + (SHARED_SECONDS if seconds is None else seconds)
    while not (is_true := condition()) and time.monotonic() < until:
        time.sleep(0.2)
    return is_true
