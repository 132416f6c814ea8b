"""Extensions: each is a folder of `extensions`, whose function `register` adds rows to tables of the core.

The core imports no extension by name: where the folder is deleted, its commands, keys and kinds are gone with it.
"""

import functools
import importlib
from pathlib import Path
from typing import NamedTuple, TypeVar

DIRECTORY = Path(__file__).parents[1] / "extensions"

Row = TypeVar("Row")


class ReadyMadeValues(NamedTuple):
    """A directory of ready-made values, which has groups and commands' files as conf/ of a package of the core has."""

    package: str
    directory: Path


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


def rows_of_extensions(kind: type[Row]) -> list[Row]:
    """The rows of one type, such as `Command`, by the names of the extensions."""
    return _core().rows(kind)


def directories_of_values(config_dir: Path) -> list[Path]:
    """The directory of a package's ready-made values, then those that extensions add to it."""
    added = [row.directory for row in rows_of_extensions(ReadyMadeValues) if row.package == config_dir.parent.name]
    return [config_dir, *added]
