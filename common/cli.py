"""Entry points of commands: compose the configuration, run the command, return its exit status."""

import functools
import hashlib
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, NoReturn

from common import signals
from common.command import Command, end_without_package, redact_message
from common.errors import DISK_FULL, LostPeerError, OwnError, UserError
from common.extensions import load, rows_of_extensions
from common.keys import describe, ready_made_groups

DIRECTORIES = ("app", "common", "data_prep", "extensions")
ROOT = Path(__file__).parents[1]  # installed, in a checkout, or in an image
CHECKOUT = ROOT / "checkout"  # mounted into containers by docker-compose.yml


@functools.cache
def sources_digest(root: Path = ROOT) -> str:
    """Return the SHA-256 over paths and contents of the modules below `root`; equal in checkout, image and wheel."""
    sha256 = hashlib.sha256()
    for directory in DIRECTORIES:
        for path in sorted((root / directory).rglob("*.py")):
            # The size separates a file from the next one, so no other division into files has this digest.
            sha256.update(f"{path.relative_to(root).as_posix()}\0{path.stat().st_size}\0".encode())
            sha256.update(path.read_bytes())
    return sha256.hexdigest()


def outdated_sentence(root: Path = ROOT, checkout: Path = CHECKOUT) -> str | None:
    """Return a warning if the modules of an image and of the checkout mounted into it differ; else None."""
    try:
        if not any((checkout / "app").glob("*.py")) or sources_digest(checkout) == sources_digest(root):
            return None
    except OSError:  # this user may not read the checkout
        return None
    return (
        "this image holds other code than the checkout, which has changed since: `docker compose up --build`, "
        "`docker compose build` or `make up` takes the checkout's"
    )


try:
    from common.compose import compose_config, compose_partly
except ModuleNotFoundError as error:  # the system's Python lacks it; every command imports this module first
    end_without_package(error)

EXIT_DONE = 0
EXIT_BAD_INPUT = 2
# EX_UNAVAILABLE: other processes were lost, and there is no checkpoint.
EXIT_LOST = 69
# EX_TEMPFAIL: stopped by a signal, or other processes were lost, with a checkpoint; the same command resumes.
EXIT_STOPPED = 75

SECONDS_FOR_FIRST_ERROR = 10.0  # for local rank 0 to print the error that every rank raises, before one ends them all
SECONDS: dict[str, float] = {}  # spent before the command's function is called, by section


def run(command: Command) -> NoReturn:
    """Run a command as the command line configures it, or print its help, and end the process with its exit status."""
    status = run_command(command)
    load(command.leave)(status)
    raise AssertionError(f"{command.leave} returned")


def run_of_extension(module: str) -> NoReturn:
    """Run the extension's command whose `python -m` has this name; status 2 without the extension."""
    name = module.rpartition(".")[2]
    command = next((row for row in rows_of_extensions(Command) if row.module == module), None)
    if command is None:
        sys.stderr.write(
            f"error: {module}: is a command of the extension {name}, and there is no folder extensions/{name}; "
            "restore it (`git checkout extensions`)\n"
        )
        sys.exit(EXIT_BAD_INPUT)
    run(command)


def run_command(command: Command) -> int:
    """Run a command as `run` does, and return its exit status.

    The configuration is checked before the command's module is imported, which may take seconds.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a locale's codec may lack characters of help and file names
    if command.schema is None:
        # Such a command parses its own arguments and handles signals itself.
        arguments = sys.argv[1:]
        try:
            _require_temporary_directory()
            status: int = load(command.function)(arguments) or EXIT_DONE
        except UserError as error:
            _print_error(str(error))
            status = EXIT_BAD_INPUT
        signals.finish(status)
        return status
    schema = command.schema
    return exit_status(lambda: _run_configured(command, load(schema), sys.argv[1:]))


def _run_configured(command: Command, schema: type, arguments: list[str]) -> int | None:
    """Print help if the arguments ask for it; otherwise compose the configuration, and call the command's function."""
    config: Any
    if any(argument in ("-h", "--help") for argument in arguments):
        typed = [argument for argument in arguments if not argument.startswith("-") and argument != "all"]
        config = compose_partly(schema, command.config_dir, typed, command.config)
        print(command.description(), end="\n\n")
        groups = ready_made_groups(command.config_dir) if command.has_groups else {}
        recipe = "; recipe=FILE.yaml is a recipe" if "recipe" in groups else ""
        print(f"config=FILE.yaml takes keys from a file; typed keys override them{recipe}.\n")
        print("\n".join(describe(config, groups, "all" in arguments)))
        return EXIT_DONE
    _require_temporary_directory()
    # `make` sets up the environment before it starts the command, but not before runs that the command starts.
    if started := os.environ.pop("MAKE_STARTED", ""):
        SECONDS["set-up"] = time.time() - float(started)
    if os.environ.get("RANK", "0") == "0" and (sentence := outdated_sentence()):
        sys.stderr.write(f"warning: {sentence}\n")  # first, as the checkout's keys may be unknown here
    config = compose_config(schema, command.config_dir, arguments, command.config)
    if command.check is not None:
        load(command.check)(config)
    signals.end_at_once()  # an interrupted import leaves nothing to clean up
    began = time.perf_counter()
    main: Callable[[Any], int | None] = load(command.function)
    SECONDS["imports"] = time.perf_counter() - began
    signals.raise_interrupted()
    return main(config)


def _require_temporary_directory() -> None:
    """Raise UserError if there is none: torch's import and data_prep's workers need it."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise UserError(
            "no directory for temporary files can be written: set TMPDIR (docker run --read-only: add --tmpfs /tmp)"
        ) from error


def exit_status(work: Callable[[], int | None]) -> int:
    """Call `work` and return its exit status, which later signals do not change. Print errors as one line.

    Under torchrun all processes of a machine raise the same UserError, so only local rank 0 prints it, except an
    OwnError.
    """
    signals.raise_interrupted()
    try:
        status = _run_to_status(work)
    except signals.Interrupted as error:
        signals.say(str(error))
        status = error.status
    signals.finish(status)
    return status


def _run_to_status(work: Callable[[], int | None]) -> int:
    """Return the exit status of `work`, 0 for None; print the errors that end a command in one line."""
    try:
        return work() or EXIT_DONE
    except UserError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0" or isinstance(error, OwnError):
            _print_error(str(error))
        else:
            # Local rank 0 prints the same error, and torchrun ends all processes when one ends.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            time.sleep(SECONDS_FOR_FIRST_ERROR)
        return EXIT_BAD_INPUT
    except LostPeerError as error:
        _print_error(str(error))
        return EXIT_STOPPED if error.resumable else EXIT_LOST
    except SystemExit as error:  # the reason was printed elsewhere
        return error.code if isinstance(error.code, int) else EXIT_DONE
    except BrokenPipeError:
        sys.stdout = None  # the reader, such as `head`, has ended, and a flush at the end would fail again
        return EXIT_DONE
    except UnicodeEncodeError as error:  # of a path: what is written names its encoding, or replaces characters
        _print_error(
            f"{error.object}: charset {error.encoding} of the locale cannot name this file; set LC_ALL=C.UTF-8"
        )
        return EXIT_BAD_INPUT
    except OSError as error:
        if error.filename is None and error.errno not in DISK_FULL:
            raise
        _print_error(f"{error.filename or 'an output file'}: {error.strerror}")
        return EXIT_BAD_INPUT


def _print_error(message: str) -> None:
    """Print an error in one line, without secrets and control characters."""
    if "no such file" in message.lower() and os.environ.get("CLICKWORK_BASE_DIGEST"):  # an image's variable
        message += "; of the host's files this container sees those in its data and runs folders alone"
    # A file's name may contain line ends and codes that control a terminal.
    line = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", redact_message(message, sys.argv[1:]))
    sys.stderr.write(f"error: {line}\n")  # one write, since several processes share a terminal


CODES = {"green": 32, "yellow": 33, "red": 31, "bold": 1, "dim": 2}


def colour_text(text: str, colour: str, stream: IO[str]) -> str:
    """Return the text in a colour of CODES if `stream` is a terminal and NO_COLOR (no-color.org) is not set."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    return f"\x1b[{CODES[colour]}m{text}\x1b[0m"
