"""Commands in the test's own process group, as they run between joining and leaving one."""

import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp

from app import train
from app.checkpoint import files
from app.commands import COMMANDS
from app.config.app_config import CONFIG_DIR, AppConfig, validate_new_run
from app.record import provenance
from app.record.directory import RunDirectory
from app.runtime import platform
from app.runtime.platform import Runtime
from app.training import checkpointer, session
from common.compose import compose_config
from common.errors import UserError
from common.extensions import load
from tests.app import inject

NOTHING_TO_DO = "nothing to do"
LOG = logging.getLogger("clickwork")


class Killed(BaseException):
    """Ends a run where it is, without a summary."""


@contextmanager
def _environment() -> Iterator[None]:
    """Without what other tests, or Dask in them, have set for this process: runs record it."""
    with pytest.MonkeyPatch.context() as environment:
        for name in [name for name in os.environ if name.startswith(provenance.ENVIRONMENT_PREFIXES)]:
            environment.delenv(name)
        yield


@contextmanager
def _logging() -> Iterator[None]:
    """The files of the log that are opened are closed at the end, as the end of a process does."""
    handlers = list(LOG.handlers)
    try:
        yield
    finally:
        for handler in [handler for handler in LOG.handlers if handler not in handlers]:
            LOG.removeHandler(handler)
            handler.close()


@contextmanager
def _directory(config: AppConfig, rank: int) -> Iterator[RunDirectory]:
    """A run's directory that is given free at the end."""
    record = RunDirectory(Path(config.run.dir), rank)
    try:
        yield record
    finally:
        record.release()
        if record._lock is not None:
            record._lock.release()


def train_here(runtime: Runtime, *overrides: str) -> str:
    """Train to the end or a stop; return the run's status, or NOTHING_TO_DO. Raises UserError as the command does."""
    config = compose_config(AppConfig, CONFIG_DIR, list(overrides))
    validate_new_run(config)
    with _environment(), _logging(), _directory(config, runtime.rank) as record:
        run = train._set_up(config, runtime, record, time.perf_counter(), {})
        return NOTHING_TO_DO if run is None else run.train()


def train_until(runtime: Runtime, fault: str, *overrides: str) -> str:
    """Train with a fault of tests.app.inject; a kill is an exception that nothing catches.

    Returns the run's status, NOTHING_TO_DO, "killed" or "refused".
    """
    replaced = (
        (session.Session, "begin_step"),
        (dcp, "save"),
        (files, "publish"),
        (files, "write_atomically"),
        (os, "rename"),
        (os, "replace"),
        (shutil, "rmtree"),
        (checkpointer.Checkpointer, "stop_requested"),
    )

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(inject, "kill_job", killed)
        for module, name in replaced:
            patched.setattr(module, name, getattr(module, name))  # puts back at the end what `inject` replaces
        inject.install(fault)
        try:
            return train_here(runtime, *overrides)
        except Killed:
            return "killed"
        except UserError:
            return "refused"


def command_here(runtime: Runtime, name: str, *overrides: str) -> int:
    """Run a command; return the exit status. Raises UserError as the command does."""

    @contextmanager
    def joined(*_: object) -> Iterator[Runtime]:
        yield runtime

    command = COMMANDS[name]
    config: Any = compose_config(load(command.schema or ""), command.config_dir, list(overrides), command.config)
    if command.check is not None:
        load(command.check)(config)
    with _environment(), _logging(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(platform, "joined", joined)
        patched.setattr(sys, "argv", [f"app.{name}", *overrides])
        return load(command.function)(config) or 0
