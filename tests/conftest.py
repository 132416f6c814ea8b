"""What all tests share."""

import pytest
from hypothesis import settings

from data_prep.kernels import compile_kernels

# A test that fails must fail again when it is run again, and a slow machine is not a bug.
settings.register_profile("clickwork", derandomize=True, deadline=None)
settings.load_profile("clickwork")


def pytest_sessionstart(session: pytest.Session) -> None:
    """On a fresh checkout, once: else each of the processes that run tests compiles the same kernels."""
    if not hasattr(session.config, "workerinput"):
        compile_kernels()
