"""Copies of configurations, which are frozen."""

import copy
from dataclasses import replace
from typing import Any, TypeVar

T = TypeVar("T")


def changed(config: T, values: dict[str, Any]) -> T:
    """A copy of a dataclass with other values of some of its keys, which are dotted."""
    copied: Any = copy.deepcopy(config)
    for key, value in values.items():
        name, _, below = key.partition(".")
        copied = replace(copied, **{name: changed(getattr(copied, name), {below: value}) if below else value})
    return copied
