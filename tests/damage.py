"""A JSON document with one key deleted, added or of another value, every key in turn."""

import copy
from collections.abc import Iterator
from typing import Any

OTHER_VALUES: tuple[Any, ...] = (None, [], {}, "x", -1)


def damaged(document: Any) -> Iterator[tuple[str, str, Any]]:
    """The dotted name of a key, what became of it ("deleted", "added", or its value's repr), and the document then."""
    for place in [(), *_places(document)]:
        if isinstance(_at(document, place), dict):
            yield from _changed(document, (*place, "surprise"), "added", 1)
        if place:
            yield from _changed(document, place, "deleted", None)
            for value in OTHER_VALUES:
                yield from _changed(document, place, repr(value), value)


def _changed(document: Any, place: tuple[Any, ...], change: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    variant = copy.deepcopy(document)
    parent = _at(variant, place[:-1])
    if change == "deleted":
        del parent[place[-1]]
    else:
        parent[place[-1]] = value
    if variant != document:
        yield ".".join(map(str, place)), change, variant


def _at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*place, key)
        yield from _places(value[key], (*place, key))
