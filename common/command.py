"""A command as a row of a registry: what is known of it before Hydra, torch or its own module is imported."""

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

# Of packages without which no command begins; pyproject.toml says why torchrec is in no extra.
REMEDIES = {
    "torch": 'in its checkout: pip install ".[cpu]"',
    "fbgemm_gpu": 'in its checkout: pip install ".[cpu]"',
    "torchrec": "pip install --no-deps torchrec==1.8.0",
    "isal": "pip install isal",
}


class Command(NamedTuple):
    """A command by names: objects stand as "module:object" and are imported when they are needed.

    Attributes:
        name: as in `clickwork NAME`.
        module: as in `python -m MODULE`.
        function: takes the configuration, or the list of arguments where there is no schema; returns an exit status.
        summary: one line of help.
        schema: the dataclass of the configuration; None: the function reads its own arguments.
        config: name of the file of values in `config_dir`, without .yaml; schema: those of the dataclass.
        config_dir: the directory of the values.
        has_groups: whether groups of ready-made values, as recipe=NAME, are taken.
        check: a function of the configuration that raises UserError, called before the command's module is imported.
        leave: a function that ends the process with an exit status.
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
        """The file of the function's module, which is not imported for it."""
        spec = importlib.util.find_spec(self.function.partition(":")[0])
        assert spec is not None
        assert spec.origin is not None
        return Path(spec.origin)

    def description(self) -> str:
        """The docstring of the function's module."""
        return inspect.cleandoc(ast.get_docstring(ast.parse(self.path().read_text(encoding="utf-8"))) or "")


def by_name(*commands: Command) -> dict[str, Command]:
    """A registry: rows by the commands' names."""
    return {command.name: command for command in commands}


def load(name: str | Callable[..., Any]) -> Any:
    """Import the object that "module:object" names; a function is returned as it is.

    Raises:
        UserError: a package that its module needs is not installed.
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
    """End the process with exit status 2 and one line: the package that this Python lacks, and what to type instead."""
    words = sys.orig_argv[1:]  # `-m` and the module are in no other place while a module is imported
    command = redact_arguments(words[words.index("-m") :] if "-m" in words else words)
    sys.stderr.write(
        f"error: {error.name} is not installed for {sys.executable}; run `make environment`, then "
        f"`.venv/bin/python {shlex.join(command)}`\n"
    )
    sys.exit(2)
