"""Help on keys: each with its value, its choices and the meaning that stands beside its field or in the docstring."""

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

FIELD_COMMENT = re.compile(r"^    (\w+): .*?  # (.*)$", re.MULTILINE)
ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)  # of a docstring's section "Attributes"
MISSING = "???"  # OmegaConf's mark of a value that must be given


def keys_of(schema: type, prefix: str = "") -> Iterator[tuple[str, type, str, Any]]:
    """(dotted key, dataclass that has it, field name, type) of every key below a dataclass, in order."""
    types = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        kind = types[field.name]
        if dataclasses.is_dataclass(kind):
            yield from keys_of(typing.cast(type, kind), f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", schema, field.name, kind


def groups_of(config_dir: Path) -> dict[str, list[str]]:
    """Groups of ready-made values, as Hydra finds them: group -> the names that group=NAME takes."""
    return {
        directory.name: sorted(path.stem for path in directory.glob("*.yaml"))
        for directory in sorted(config_dir.iterdir())
        if directory.is_dir()
    }


def describe(schema: type, values: Mapping[str, Any], groups: Mapping[str, list[str]]) -> Iterator[str]:
    """Lines of help.

    Args:
        schema: the dataclass of the whole configuration; values: the same as nested plain values.
        groups: groups that the configuration uses.
    """
    if groups:
        yield "Ready-made values, as in group=name:"
        yield from (f"  {group}: {', '.join(names)}" for group, names in groups.items())
        yield ""
    yield "Every key can be given as key=value; what is in force now:"
    last = None
    for key, owner, field, kind in keys_of(schema):
        group = key.rpartition(".")[0]
        if group != last and group:
            yield ""
        last = group
        line = f"  {key}={_shown(_value(values, key))}"
        notes = [" | ".join(choices(kind)), meanings(owner).get(field)]
        note = "; ".join(filter(None, notes))
        yield f"{line:<46}  # {note}" if note else line


def key_table(schema: type, values: Mapping[str, Any]) -> Iterator[str]:
    """Rows of a Markdown table of every key, its default and its meaning; arguments as of `describe`."""
    yield "| key | default | |"
    yield "|---|---|---|"
    for key, owner, field, kind in keys_of(schema):
        value = _value(values, key)
        default = f"{value:.4g}" if isinstance(value, float) and len(repr(value)) > 8 else _shown(value) or " "
        allowed = ", ".join(f"`{choice}`" for choice in choices(kind))
        yield f"| `{key}` | `{default}` | {': '.join(filter(None, (allowed, meanings(owner).get(field))))} |"


@functools.cache
def meanings(schema: type) -> dict[str, str]:
    """Field -> the comment on its line, or its entry in the docstring's section "Attributes"."""
    found: dict[str, str] = {}
    for owner in filter(dataclasses.is_dataclass, reversed(schema.__mro__)):
        attributes = inspect.cleandoc(owner.__doc__ or "").partition("Attributes:\n")[2]
        found |= {name: " ".join(text.split()).removesuffix(".") for name, text in ATTRIBUTE.findall(attributes)}
        found |= FIELD_COMMENT.findall(inspect.getsource(owner))
    return found


def choices(kind: Any) -> list[str]:
    """The values of an enumeration, or an optional one."""
    for candidate in (kind, *typing.get_args(kind)):
        if isinstance(candidate, type) and issubclass(candidate, Enum):
            return [member.name for member in candidate]
    return []


def _value(values: Mapping[str, Any], key: str) -> Any:
    found: Any = values
    for part in key.split("."):
        found = found[part]
    return found


def _shown(value: Any) -> str:
    """Format a value as it would be typed."""
    if value is None:
        return "null"
    if value == MISSING:
        return "(must be given)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_shown, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_shown(item)}" for key, item in value.items()) + "}"
    return str(value)
