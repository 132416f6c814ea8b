"""Extensions: folders of `extensions` whose function `register` adds rows to tables of the core.

The core imports no extension by name. If a folder is deleted, its commands, keys and kinds disappear with it.
Rows name what they would import too early as text, "module:object".
"""

import dataclasses
import importlib
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple, TypeVar

from common.errors import UserError

DIRECTORY = Path(__file__).parents[1] / "extensions"

Row = TypeVar("Row")
Keys = TypeVar("Keys")


class ReadyMadeValues(NamedTuple):
    """A directory of ready-made values with the same layout as `conf/` of the package that it extends."""

    package: str
    directory: Path


class KeyGroup(NamedTuple):
    """A group of keys that an extension adds to a configuration of the core, such as `AppConfig`.

    configuration: name of its dataclass. name: of the group, which is the extension's; "": the keys join those of the
    configuration itself. keys: a frozen dataclass of keys that all have defaults. validate: raises UserError for values
    of the whole configuration that cannot work. sample_keys: keys that select the evaluated samples of a dataset.
    """

    configuration: str
    name: str
    keys: type
    validate: Callable[[Any], None] = lambda config: None
    sample_keys: tuple[str, ...] = ()


class FilesBesideRun(NamedTuple):
    """Names of an extension's files in a run's directory.

    is_of_run: True if the files belong to the run; a run that starts afresh then removes them.
    """

    names: re.Pattern[str]
    is_of_run: bool = False


class Core:
    """The rows that extensions add to the core. The type of a row selects its table."""

    def __init__(self) -> None:
        self.rows: list[object] = []

    def add(self, *rows: object) -> None:
        """Add rows of any types."""
        self.rows += rows


@cache
def _load_extensions() -> Core:
    """Import every extension and collect its rows. `register` may import neither torch nor Hydra."""
    core = Core()
    # File systems list directories in different orders.
    for path in sorted(DIRECTORY.glob("*/__init__.py")):
        importlib.import_module(f"extensions.{path.parent.name}").register(core)
    return core


def absence(name: str) -> str | None:
    """Return why a key for the extension `name` has no effect, or None if the extension is present."""
    is_present = (DIRECTORY / name / "__init__.py").exists()
    return None if is_present else f"there is no folder {DIRECTORY.name}/{name}"


def rows_of_extensions(kind: type[Row]) -> list[Row]:
    """Return the rows of one type, such as `Command`, sorted by the names of their extensions."""
    return [row for row in _load_extensions().rows if isinstance(row, kind)]


def directories_of_values(config_dir: Path) -> list[Path]:
    """Return `config_dir`, a package's ready-made values, then the extensions' directories for that package."""
    added = [row.directory for row in rows_of_extensions(ReadyMadeValues) if row.package == config_dir.parent.name]
    return [config_dir, *added]


def key_groups(configuration: type) -> list[KeyGroup]:
    """Return the groups that extensions add to a configuration or to one of its base classes."""
    names = {base.__name__ for base in configuration.__mro__}
    return [row for row in rows_of_extensions(KeyGroup) if row.configuration in names]


def add_key_groups(configuration: type[Keys]) -> type[Keys]:
    """Return the dataclass with a field more for each group of keys that an extension adds, or with its keys."""
    rows, name = key_groups(configuration), configuration.__name__
    fields = [(row.name, row.keys, dataclasses.field(default_factory=row.keys)) for row in rows if row.name]
    joined = [row.keys for row in rows if not row.name and row.configuration == name]
    whole: type = dataclasses.make_dataclass(name, fields, bases=(configuration, *joined), frozen=True)
    whole.__module__, whole.__doc__ = configuration.__module__, configuration.__doc__
    return whole


def keys_of_extension(config: Any, keys: type[Keys]) -> Keys:
    """Return the group of this type from a configuration."""
    return next(value for value in vars(config).values() if isinstance(value, keys))


def row_constructor(attribute: str) -> Callable[..., Any]:
    """Return `__new__` for an Enum whose members are NAME = "name", contents.

    A member's `value` is then the name, and its attribute `attribute` the contents.
    """

    def make_member(cls: type, name: str, contents: object) -> Any:
        row: Any = object.__new__(cls)
        # Otherwise the pair of name and contents would be the member's value.
        row._value_ = name
        setattr(row, attribute, contents)
        return row

    return make_member


# Packages that every command needs; pyproject.toml says why torchrec is in no extra.
REMEDIES = {
    "torch": 'in its checkout: pip install ".[cpu]"',
    "fbgemm_gpu": 'in its checkout: pip install ".[cpu]"',
    "torchrec": "pip install --no-deps torchrec==1.8.0",
    "isal": "pip install isal",
}


def load(name: str | Callable[..., Any]) -> Any:
    """Import the object named "module:object"; return a function as it is.

    Raises UserError: its module needs a package that is not installed.
    """
    if not isinstance(name, str):
        return name
    try:
        return resolve_name(name)
    except ModuleNotFoundError as error:
        if error.name not in REMEDIES:
            raise
        raise UserError(f"{error.name} is not installed beside clickwork; {REMEDIES[error.name]}") from error


def later(name: str) -> Callable[..., Any]:
    """Return a function that imports "module:function" only when called: `register` may not import torch or Hydra."""
    return partial(_call, name)


def _call(name: str, *arguments: Any) -> Any:
    """Import the function of this name, and call it."""
    return load(name)(*arguments)
