"""Extensions: each is a folder of `extensions`, whose function `register` adds rows to tables of the core.

The core imports no extension by name: where the folder is deleted, its commands, keys and kinds are gone with it.
"""

import dataclasses
import functools
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

DIRECTORY = Path(__file__).parents[1] / "extensions"

Row = TypeVar("Row")
Keys = TypeVar("Keys")


class ReadyMadeValues(NamedTuple):
    """A directory of ready-made values, which has groups and commands' files as conf/ of a package of the core has."""

    package: str
    directory: Path


class KeyGroup(NamedTuple):
    """A group of keys that an extension adds to a configuration of the core, such as `AppConfig`.

    Attributes:
        configuration: the name of the dataclass.
        name: of the group, the extension's own.
        keys: a frozen dataclass of keys, which needs no value to be given.
        validate: raises UserError for values of the whole configuration that cannot work.
        sample_keys: keys that choose which samples of a dataset are evaluated.
    """

    configuration: str
    name: str
    keys: type
    validate: Callable[[Any], None] = lambda config: None
    sample_keys: tuple[str, ...] = ()


class FilesBesideRun(NamedTuple):
    """Names of files that an extension keeps in a run's directory, beside the run's own.

    is_of_run: they belong to the run, and are removed where it begins afresh.
    """

    names: re.Pattern[str]
    is_of_run: bool = False


class Core:
    """The rows that extensions add to the core's tables, each of the type that the table has."""

    def __init__(self) -> None:
        self._rows: list[object] = []

    def add(self, *rows: object) -> None:
        self._rows += rows

    def rows(self, kind: type[Row]) -> list[Row]:
        return [row for row in self._rows if isinstance(row, kind)]


@functools.cache
def _core() -> Core:
    """The rows of all extensions that are present. Their modules import neither torch nor Hydra to register."""
    core = Core()
    for path in sorted(DIRECTORY.glob("*/__init__.py")):
        importlib.import_module(f"extensions.{path.parent.name}").register(core)
    return core


def absence(name: str) -> str | None:
    """Why a key of the core has no effect, where it is for an extension that has been deleted; None: it is present."""
    is_present = (DIRECTORY / name / "__init__.py").exists()
    return None if is_present else f"there is no folder {DIRECTORY.name}/{name}"


def rows_of_extensions(kind: type[Row]) -> list[Row]:
    """The rows of one type, such as `Command`, by the names of the extensions."""
    return _core().rows(kind)


def directories_of_values(config_dir: Path) -> list[Path]:
    """The directory of a package's ready-made values, then those that extensions add to it."""
    added = [row.directory for row in rows_of_extensions(ReadyMadeValues) if row.package == config_dir.parent.name]
    return [config_dir, *added]


def key_groups(configuration: type) -> list[KeyGroup]:
    """The groups that extensions add to a configuration, or to that which it is made of."""
    names = {each.__name__ for each in configuration.__mro__}
    return [row for row in rows_of_extensions(KeyGroup) if row.configuration in names]


def with_key_groups(configuration: type[Keys]) -> type[Keys]:
    """The dataclass with a field for each group of keys that extensions add to it."""
    fields = [(row.name, row.keys, dataclasses.field(default_factory=row.keys)) for row in key_groups(configuration)]
    whole: type = dataclasses.make_dataclass(configuration.__name__, fields, bases=(configuration,), frozen=True)
    whole.__module__, whole.__doc__ = configuration.__module__, configuration.__doc__
    return whole


def keys_of_extension(config: Any, keys: type[Keys]) -> Keys:
    """The group of keys of this type in a configuration."""
    return next(value for value in vars(config).values() if isinstance(value, keys))
