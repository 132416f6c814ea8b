"""Files that one machine writes and others look for: a network file system may show them late."""

import time
from collections.abc import Callable

SHARED_SECONDS = 60.0  # NFS keeps names for so long


def wait_until(condition: Callable[[], bool]) -> bool:
    """Whether a condition came true within SHARED_SECONDS."""
    until = time.monotonic() + SHARED_SECONDS
    while not (is_true := condition()) and time.monotonic() < until:
        time.sleep(0.2)
    return is_true
