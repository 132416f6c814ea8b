"""Composition: a command's part in its process group, from its start to its end."""

from collections.abc import Iterator
from contextlib import contextmanager

from app.config import AppConfig
from app.record import progress
from app.runtime import failures, platform
from app.runtime.platform import Runtime


@contextmanager
def joined(config: AppConfig, advice: failures.Advice) -> Iterator[Runtime]:
    """Within it this process is one of the group's; rank 0 tells what happens, and losses are told in one line.

    Raises:
        UserError: as app.runtime.platform.start, or memory is not enough.
        LostPeerError: another process is gone.
    """
    here = platform.start(config.runtime, config.train.seed, config.train.deterministic)
    progress.log_to_terminal(here.rank)
    try:
        with failures.clear_words(here.rank, config.runtime.timeout_minutes, advice):
            yield here
    finally:
        platform.stop()
