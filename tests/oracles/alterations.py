"""Alterations of a run's record, one at a time: each value of its JSON files, each line, each small file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

JSON_FILES = ("summary.json", "manifest.json", "curves.json")
REMOVED = object()


class Alteration(NamedTuple):
    """New content of a file, None: it is removed. name: of the value, with dots between its parts; empty: the file.

    is_empty: the value that is removed was null, or an empty object or list.
    """

    file: str
    name: str
    what: str
    content: bytes | None
    is_empty: bool = False

    def apply(self, run: Path) -> None:
        path = run / self.file
        if self.content is None:
            path.unlink()
        else:
            path.write_bytes(self.content)


def places(content: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values of nested dictionaries and lists that are neither."""
    entries = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in entries:
        if isinstance(value, (dict, list)) and value:
            yield from places(value, (*prefix, key))
        else:
            yield (*prefix, key)


def other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 1.01 + 0.001
    if isinstance(value, str):
        return f"{value}x"
    return {} if value is None else None


def changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy in which the value at a path is another, or removed; it shares what is not on the path."""
    key, *below = path
    result = content.copy()
    if below:
        result[key] = changed(content[key], tuple(below), value)
    elif value is REMOVED:
        del result[key]
    else:
        result[key] = value
    return result


def of_document(content: Any) -> Iterator[tuple[str, str, Any]]:
    """Names of a document's values, what is done to each, and the altered document."""
    for path in places(content):
        value = content
        for key in path:
            value = value[key]
        name = ".".join(map(str, path))
        yield name, "altered", changed(content, path, other(value))
        yield name, "empty removed" if value in (None, {}, []) else "removed", changed(content, path, REMOVED)


def of_json(run: Path) -> Iterator[Alteration]:
    files = [*JSON_FILES, *(str(path.relative_to(run)) for path in sorted((run / "scores").glob("*.json")))]
    for file in files:
        content = json.loads((run / file).read_text())
        for name, what, result in of_document(content):
            yield Alteration(file, name, what, json.dumps(result).encode(), what == "empty removed")


def of_lines(run: Path) -> Iterator[Alteration]:
    """Alterations of each value of metrics.jsonl; removed, repeated and exchanged lines."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    for number, line in enumerate(lines):
        event = json.loads(line)
        before, after = lines[:number], lines[number + 1 :]

        def joined(*middle: str, before: list[str] = before, after: list[str] = after) -> bytes:
            return "".join(f"{each}\n" for each in (*before, *middle, *after)).encode()

        place = f"{event['event']}.{event['step']}"
        for name, what, result in of_document(event):
            yield Alteration("metrics.jsonl", f"{place}.{name}", what, joined(json.dumps(result)))
        yield Alteration("metrics.jsonl", f"{place}", "line removed", joined())
        yield Alteration("metrics.jsonl", f"{place}", "line repeated", joined(line, line))


def of_files(run: Path) -> Iterator[Alteration]:
    """Files that are removed; a kept score that is another."""
    for file in ("curves.json", *(str(each.relative_to(run)) for each in (run / "scores").iterdir())):
        yield Alteration(file, "", "file removed", None)
    for path in (run / "scores").glob("*.npy"):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        yield Alteration(str(path.relative_to(run)), "", "a bit flipped", bytes(content))
