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
EXIT_INTERRUPTED = 130
EXIT_STOPPED = 75  # EX_TEMPFAIL: stopped by a signal after a clean checkpoint; the same command goes on

ConfigT = TypeVar("ConfigT")


def compose_config(
    schema: type[ConfigT], config_dir: Path, overrides: Sequence[str] = (), name: str = "config"
) -> ConfigT:
    """Compose `config_dir`/<name>.yaml with Hydra overrides into an instance of the dataclass `schema`.

    Raises:
        UserError: an unknown key or option, a value of the wrong type, or an override that does not parse.
    """
    for override in overrides:
        if override.lstrip("+~").startswith("hydra"):
            raise UserError(
                f"configuration: {override}: Hydra's own settings have no effect here; use run.dir and run.name"
            )
    ConfigStore.instance().store(name="schema", node=schema)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_dir), version_base="1.3"):
            composed = compose(name, overrides=list(overrides))
        # Merged into the schema once more, since an override that begins with + may add a key of its own.
        config = OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.to_container(composed))
        return OmegaConf.to_object(config)  # type: ignore[return-value]
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(_one_line(error)) from error


def run_command(
    main: Callable[[ConfigT], int | None],
    schema: type[ConfigT],
    config_dir: Path,
    name: str = "config",
) -> int:
    """Run one entry point and return its exit status; print a UserError as one line on stderr.

    Under torchrun all processes of a machine meet the same error, so one of them prints it.
    """
    arguments = sys.argv[1:]
    try:
        if any(argument in ("-h", "--help") for argument in arguments):
            overrides = [argument for argument in arguments if not argument.startswith("-")]
            _print_help(main, compose_config(schema, config_dir, overrides, name))
            return EXIT_DONE
        return main(compose_config(schema, config_dir, arguments, name)) or EXIT_DONE
    except UserError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except BrokenPipeError:
        sys.stdout = None  # `... | head`: nobody reads any more
        return EXIT_DONE
    except OSError as error:
        if error.filename is None:
            raise
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED  # before the command took care of signals itself


def _print_help(main: Callable[..., int | None], config: object) -> None:
    module = sys.modules[main.__module__]
    print((module.__doc__ or "").strip())
    print("\nEvery key can be given as key=value; the values now in force:\n")
    print(OmegaConf.to_yaml(OmegaConf.structured(config)))


_NOISE = ("full_key:", "object_type=", "reference_type=", "Set the env", "To append to your config", "Config search",
          "provider=", "See https://")  # fmt: skip


def _one_line(error: Exception) -> str:
    """Hydra's and OmegaConf's messages run over many lines; the causes, from the outside in, on one."""
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        for line in map(str.strip, str(cause).splitlines()):
            if line and not line.startswith(_NOISE) and line not in parts:
                parts.append(line)
        cause = cause.__cause__
    return "configuration: " + " ".join(parts)
