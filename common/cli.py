"""Entry points: Hydra overrides from the command line in, an exit status out."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from common.errors import UserError

EXIT_DONE = 0
EXIT_BAD_INPUT = 2
EXIT_STOPPED = 75  # EX_TEMPFAIL: stopped by a signal after a clean checkpoint; the same command goes on

ConfigT = TypeVar("ConfigT")


def compose_config(schema: type[ConfigT], config_dir: Path, overrides: Sequence[str] = ()) -> ConfigT:
    """Compose `config_dir`/config.yaml with Hydra overrides into an instance of the dataclass `schema`.

    Raises:
        UserError: an unknown key or option, a value of the wrong type, or an override that does not parse.
    """
    ConfigStore.instance().store(name="schema", node=schema)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_dir), version_base="1.3"):
            config = compose("config", overrides=list(overrides))
        return OmegaConf.to_object(config)  # type: ignore[return-value]
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_one_line(error)) from error


def run_command(
    main: Callable[[ConfigT], int | None],
    schema: type[ConfigT],
    config_dir: Path,
    arguments: Sequence[str] | None = None,
) -> int:
    """Run one entry point and return its exit status; print a UserError as one line on stderr.

    Under torchrun every process composes the same configuration, so a configuration error is printed once.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if any(argument in ("-h", "--help") for argument in arguments):
            overrides = [argument for argument in arguments if not argument.startswith("-")]
            _print_help(main, compose_config(schema, config_dir, overrides))
            return EXIT_DONE
        try:
            config = compose_config(schema, config_dir, arguments)
        except UserError as error:
            return _fail(error, silent=os.environ.get("RANK", "0") != "0")
        return main(config) or EXIT_DONE
    except UserError as error:
        return _fail(error)
    except BrokenPipeError:
        sys.stdout = None  # type: ignore[assignment]  # `... | head`: nobody reads any more
        return EXIT_DONE


def _fail(error: UserError, silent: bool = False) -> int:
    if not silent:
        print(f"error: {error}", file=sys.stderr)
    return EXIT_BAD_INPUT


def _print_help(main: Callable[..., int | None], config: object) -> None:
    module = sys.modules[main.__module__]
    print((module.__doc__ or "").strip())
    print("\nEvery key can be given as key=value; the values now in force:\n")
    print(OmegaConf.to_yaml(OmegaConf.structured(config)))


def _one_line(error: Exception) -> str:
    """Hydra's and OmegaConf's messages run over many lines; the causes, from the outside in, on one."""
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        for line in str(cause).splitlines():
            line = line.strip()
            noise = not line or line.startswith(("full_key:", "object_type=", "reference_type=", "Set the env"))
            if not noise and line not in parts:
                parts.append(line)
        cause = cause.__cause__
    return "configuration: " + " ".join(parts)
