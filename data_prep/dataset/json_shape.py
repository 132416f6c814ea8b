"""What a JSON document must look like; where one does not, the first such place is named."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

SHOWN_CHARACTERS = 60
UNKNOWN = "is unknown; another version of the tool may have written it"


@dataclass(frozen=True)
class Value:
    """A single value: what it is called, and what tells whether one is of that kind."""

    kind: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class OrNull:
    """Null, or something of a shape."""

    shape: "Shape"


@dataclass(frozen=True)
class ListOf:
    """A list, all of whose entries have one shape."""

    entry: "Shape"


@dataclass(frozen=True)
class MapOf:
    """An object whose keys are names of one kind, and whose values have one shape."""

    name: Value
    entry: "Shape"


@dataclass(frozen=True)
class Record:
    """An object with these keys, those of `optional` or not, and no others unless it `is_open`."""

    keys: Mapping[str, "Shape"]
    optional: Mapping[str, "Shape"] = field(default_factory=dict)
    is_open: bool = False


Shape: TypeAlias = Value | OrNull | ListOf | MapOf | Record


def find_fault(value: Any, shape: Shape, key: str) -> str | None:
    """The first place where a value has not the shape, as "key 'a.b[2]' is …"; None if there is none.

    Args:
        key: the dotted name of the value, "" for a whole document.
    """
    if isinstance(shape, OrNull):
        return None if value is None else find_fault(value, shape.shape, key)
    if isinstance(shape, Value):
        return None if shape.holds(value) else f"key {key!r} is {_shown(value)}, not {shape.kind}"
    if isinstance(shape, ListOf):
        if not isinstance(value, list):
            return f"key {key!r} is {_shown(value)}, not a list"
        return _first(find_fault(entry, shape.entry, f"{key}[{number}]") for number, entry in enumerate(value))
    if not isinstance(value, dict):
        return f"key {key!r} is {_shown(value)}, not an object"
    if isinstance(shape, MapOf):
        for name in value:
            if not shape.name.holds(name):
                return f"key {key!r} has the key {_shown(name)}, which is not {shape.name.kind}"
        return _first(find_fault(entry, shape.entry, _below(key, name)) for name, entry in value.items())
    return _fault_of_record(value, shape, key)


def _fault_of_record(value: dict[str, Any], shape: Record, key: str) -> str | None:
    for name in shape.keys:
        if name not in value:
            return f"key {_below(key, name)!r} is missing"
    known = {**shape.keys, **shape.optional}
    for name in value:
        if name not in known and not shape.is_open:
            return f"key {_below(key, name)!r} {UNKNOWN}"
    return _first(find_fault(value[name], known[name], _below(key, name)) for name in value if name in known)


def _first(faults: Iterable[str | None]) -> str | None:
    return next((fault for fault in faults if fault is not None), None)


def _below(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
