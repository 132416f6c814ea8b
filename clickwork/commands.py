"""The commands that make datasets and runs, each in a process of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clickwork.dataset import Dataset
from clickwork.errors import BAD_INPUT, Error, convert_errors
from clickwork.own_packages import ROOT
from clickwork.run import Run
from common.errors import UserError, last_line

# As the command `clickwork`, in a directory with packages of the same names, too; it ends with this process.
PROGRAM = f"""import sys
sys.path[0] = {str(ROOT)!r}
from app.__main__ import main
from common.signals import end_with_parent
end_with_parent()
main()
"""
ERROR = "error: "
INTERRUPTED = 75


def prepare(overrides: Sequence[str] = (), **data: Any) -> Dataset:
    """Make a dataset as `python -m data_prep` does, and show its progress.

    Args:
        overrides: keys as on the command line, such as "data.workers=2".
        data: keys of the group `data` with their values: raw="clicks.csv", path="data/ads".

    Raises:
        Error: with the error line of the command and status 2, or its last line and another status.
    """
    from common.config_file import format_override

    values = {key: str(value) if isinstance(value, Path) else value for key, value in data.items()}
    typed = [f"data.{key}={format_override(value)}" for key, value in values.items()]
    return Dataset(_run("preprocess", [*overrides, *typed]).data.root)


def train(overrides: Sequence[str] = ()) -> Run:
    """Train as `python -m app.train` does, and show its log.

    An interrupt (the notebook's stop button, Ctrl-C) lets it save a checkpoint; the same call resumes.

    Args:
        overrides: keys as on the command line, such as "run.name=ads".

    Raises:
        Error: with the error line of the command and status 2; 75 if it was interrupted; or its last line and another
            status.
    """
    return Run(_run("train", overrides).run.dir)


@convert_errors()
def _run(name: str, overrides: Sequence[str]) -> Any:
    """Run a command to its end with its output passed on, and return its configuration."""
    from app.commands import COMMANDS
    from common.command import load
    from common.compose import compose_config

    if isinstance(overrides, (str, Mapping)):
        raise UserError(f'overrides: {type(overrides).__name__}; give a list of keys, such as ["run.name=ads"]')
    command = COMMANDS[name]
    config: Any = compose_config(load(command.schema or ""), command.config_dir, list(overrides), command.config)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, name, *overrides],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # so that an interrupt reaches it once, through this process
    )
    assert process.stdout is not None
    shown, line = [], None
    while line != "":
        try:
            line = process.stdout.readline()
        except KeyboardInterrupt:
            # The command saves a checkpoint before it ends, and the lines until then are shown, too.
            process.send_signal(signal.SIGINT)
            continue
        sys.stdout.write(line)
        sys.stdout.flush()
        shown.append(line)
    status = process.wait()
    if status:
        errors = [line.removeprefix(ERROR) for line in shown if line.startswith(ERROR)]
        if status == BAD_INPUT and errors:
            raise Error(errors[-1].rstrip())
        if status == INTERRUPTED:
            raise Error(f"{name} was interrupted, with a checkpoint; the same call resumes it", status)
        raise Error(last_line("".join(shown), f"{name} ended with exit status {status}"), status)
    return config
