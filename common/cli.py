"""Entry points: compose the configuration from the command line, run a command, return its exit status."""

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from common import signals
from common.compose import compose_config, compose_partly, plain_values
from common.errors import DISK_FULL, LostPeerError, OwnError, UserError
from common.help import describe, groups_of
from common.redact import redact, redact_message

EXIT_DONE = 0
EXIT_BAD_INPUT = 2
# EX_UNAVAILABLE: other processes were lost, and there is no checkpoint
EXIT_LOST = 69
# EX_TEMPFAIL: stopped by a signal, or lost other processes, and a checkpoint is there; the same command resumes
EXIT_STOPPED = 75

SECONDS_FOR_FIRST_ERROR = 10.0
ConfigT = TypeVar("ConfigT")


def _wait_for_first_error() -> None:
    """Wait while local rank 0 prints the same error: torchrun ends all processes as soon as one has ended."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(SECONDS_FOR_FIRST_ERROR)


def run_command(
    main: Callable[[ConfigT], int | None],
    schema: type[ConfigT],
    config_dir: Path,
    name: str = "config",
) -> int:
    """Run one entry point as the command line configures it, or print its help, and return its exit status."""
    arguments = sys.argv[1:]

    def run() -> int | None:
        if any(argument in ("-h", "--help") for argument in arguments):
            overrides = [argument for argument in arguments if not argument.startswith("-")]
            _print_help(main, schema, config_dir, compose_partly(schema, config_dir, overrides, name), name)
            return EXIT_DONE
        return main(compose_config(schema, config_dir, arguments, name))

    return exit_status(run)


def exit_status(run: Callable[[], int | None]) -> int:
    """Call `run` and return its exit status, which signals do not change from then on; print errors as one line.

    Under torchrun all processes of a machine raise the same UserError but an OwnError, so only local rank 0 prints it.
    """
    signals.raise_interrupted()
    try:
        status = _status(run)
    except signals.Interrupted as error:
        signals.say(str(error))
        status = error.status
    signals.finish(status)
    return status


def _status(run: Callable[[], int | None]) -> int:
    try:
        return run() or EXIT_DONE
    except UserError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0" or isinstance(error, OwnError):
            _print_error(str(error))
        else:
            _wait_for_first_error()
        return EXIT_BAD_INPUT
    except LostPeerError as error:
        _print_error(str(error))
        return EXIT_STOPPED if error.resumable else EXIT_LOST
    except SystemExit as error:  # the reason was printed elsewhere
        return error.code if isinstance(error.code, int) else EXIT_DONE
    except BrokenPipeError:
        sys.stdout = None  # the reader, such as `head`, has ended
        return EXIT_DONE
    except OSError as error:
        if error.filename is None and error.errno not in DISK_FULL:
            raise
        _print_error(f"{error.filename or 'an output file'}: {error.strerror}")
        return EXIT_BAD_INPUT


def _print_error(message: str) -> None:
    """Print an error without secrets, in one line whatever control characters a name in it has."""
    line = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", redact_message(message, sys.argv[1:]))
    sys.stderr.write(f"error: {line}\n")  # one write: several processes share a terminal


def _print_help(main: Callable[..., int | None], schema: type, config_dir: Path, config: Any, name: str) -> None:
    module = sys.modules[main.__module__]
    print((module.__doc__ or "").strip(), end="\n\n")
    groups = groups_of(config_dir) if name == "config" else {}  # only the main configuration uses groups
    print("\n".join(describe(schema, redact(plain_values(config)), groups)))
