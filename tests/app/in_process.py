"""Commands in the test's own process group, as they run between joining and leaving one."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app import train, verify
from app.config import CONFIG_DIR, AppConfig, VerifyConfig, validate_new_run
from app.record.directory import RunDirectory
from app.runtime import process_group
from app.runtime.platform import Runtime
from common.cli import compose_config

NOTHING_TO_DO = "nothing to do"
LOG = logging.getLogger("clickwork")


class Killed(BaseException):
    """Ends a run where it is, without a summary."""


@contextmanager
def _directory(config: AppConfig, rank: int) -> Iterator[RunDirectory]:
    """A run's directory that is given free at the end, as the end of a process does."""
    record, handlers = RunDirectory(Path(config.run.dir), rank), list(LOG.handlers)
    try:
        yield record
    finally:
        record.release()
        if record._lock is not None:
            record._lock.release()
        for handler in [handler for handler in LOG.handlers if handler not in handlers]:
            LOG.removeHandler(handler)
            handler.close()


def train_here(here: Runtime, *overrides: str) -> str:
    """Train to the end or a stop; return the run's status, or NOTHING_TO_DO. Raises UserError as the command does."""
    config = compose_config(AppConfig, CONFIG_DIR, list(overrides))
    validate_new_run(config)
    with _directory(config, here.rank) as record:
        run = train._set_up(config, here, record, time.perf_counter())
        return NOTHING_TO_DO if run is None else run.train()


def verify_here(here: Runtime, run: Path, *overrides: str) -> int:
    """Replay and compare; return the exit status. The report goes to stdout."""

    @contextmanager
    def joined(*_: object) -> Iterator[Runtime]:
        yield here

    config = compose_config(VerifyConfig, CONFIG_DIR, [f"run={run}", *overrides], "verify")
    handlers = list(LOG.handlers)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(process_group, "joined", joined)
        status = verify.main(config)
    for handler in [handler for handler in LOG.handlers if handler not in handlers]:
        LOG.removeHandler(handler)
        handler.close()
    return status
