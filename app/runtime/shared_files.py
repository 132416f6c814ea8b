"""Files that one machine writes and others look for: a network file system may show them late."""

import time
from collections.abc import Callable

SHARED_SECONDS = 60.0  # NFS keeps names for so long


def patience(timeout_minutes: float) -> float:
    """Seconds to wait for a file while other processes wait for this one: half their time-out at most."""
    return min(SHARED_SECONDS, 30 * timeout_minutes)


def wait_until(condition: Callable[[], bool], seconds: float | None = None) -> bool:
    """Whether a condition came true within some seconds; None: SHARED_SECONDS."""
    until = time.monotonic() + (SHARED_SECONDS if seconds is None else seconds)
    while not (is_true := condition()) and time.monotonic() < until:
        time.sleep(0.2)
    return is_true
