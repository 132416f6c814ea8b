"""Commands as rows of a registry, readable before Hydra, torch or the command's module is imported."""

import ast
import importlib
import importlib.util
import inspect
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from common.errors import UserError
from common.redact import redact_arguments

# Packages that every command needs; pyproject.toml says why torchrec is in no extra.
REMEDIES = {
    "torch": 'in its checkout: pip install ".[cpu]"',
    "fbgemm_gpu": 'in its checkout: pip install ".[cpu]"',
    "torchrec": "pip install --no-deps torchrec==1.8.0",
    "isal": "pip install isal",
}


class Command(NamedTuple):
    """A command. Objects are named as "module:object" and imported when needed.

    Attributes:
        name: NAME of `clickwork NAME`.
        module: MODULE of `python -m MODULE`.
        function: takes the configuration or, without a schema, the list of arguments; returns an exit status.
        summary: one line of help.
        schema: dataclass of the configuration; None: the function parses its own arguments.
        config: file of values in `config_dir`, without .yaml; schema: the dataclass's defaults.
        config_dir: directory of the values.
        has_groups: whether the command takes groups of ready-made values, such as recipe=NAME.
        check: checks the configuration before the command's module is imported; raises UserError.
        leave: function that ends the process with an exit status.
    """

    name: str
    module: str
    function: str
    summary: str
    schema: str | None = None
    config: str = "config"
    config_dir: Path = Path()
    has_groups: bool = False
    check: str | None = None
    leave: str = "sys:exit"

    def path(self) -> Path:
        """Return the file of the function's module without importing it."""
        spec = importlib.util.find_spec(self.function.partition(":")[0])
        assert spec is not None
        assert spec.origin is not None
        return Path(spec.origin)

    def description(self) -> str:
        """Return the docstring of the function's module."""
        return inspect.cleandoc(ast.get_docstring(ast.parse(self.path().read_text(encoding="utf-8"))) or "")


def by_name(*commands: Command) -> dict[str, Command]:
    """Return a registry: the rows by name."""
    return {command.name: command for command in commands}


def load(name: str | Callable[..., Any]) -> Any:
    """Import the object named "module:object"; return a function as it is.

    Raises:
        UserError: its module needs a package that is not installed.
    """
    if not isinstance(name, str):
        return name
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name not in REMEDIES:
            raise
        raise UserError(f"{error.name} is not installed beside clickwork; {REMEDIES[error.name]}") from error


def end_without_package(error: ModuleNotFoundError) -> NoReturn:
    """End the process with exit status 2 and a line with the missing package and what to type instead."""
    words = sys.orig_argv[1:]  # During an import, `-m` and the module are in no other place.
    command = redact_arguments(words[words.index("-m") :] if "-m" in words else words)
    sys.stderr.write(
        f"error: {error.name} is not installed for {sys.executable}; run `make environment`, then "
        f"`.venv/bin/python {shlex.join(command)}`\n"
    )
    sys.exit(2)
