"""Enumerations whose members are rows of a table."""

from collections.abc import Callable
from typing import Any


def row_with(attribute: str) -> Callable[..., Any]:
    """Return `__new__` for members NAME = "name", contents: `value` is the name, `attribute` the contents."""

    def make(cls: type, name: str, contents: object) -> Any:
        row: Any = object.__new__(cls)
        row._value_ = name
        setattr(row, attribute, contents)
        return row

    return make
