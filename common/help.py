"""Help on keys: each with its value, its choices and its meaning."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common.keys import choices, declaration, keys_of, shown


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
    last = ""
    for key, owner, field, kind in keys_of(schema):
        group = key.rpartition(".")[0]
        if group != last:
            yield ""
        last = group
        line = f"  {key}={shown(_value(values, key))}"
        notes = [" | ".join(choices(kind)), declaration(owner, field).meaning]
        note = "; ".join(filter(None, notes))
        yield f"{line:<46}  # {note}" if note else line


def key_table(schema: type, values: Mapping[str, Any]) -> Iterator[str]:
    """Rows of a Markdown table of every key, its default and its meaning; arguments as of `describe`."""
    yield "| key | default | |"
    yield "|---|---|---|"
    for key, owner, field, kind in keys_of(schema):
        value = _value(values, key)
        default = f"{value:.4g}" if isinstance(value, float) and len(repr(value)) > 8 else shown(value) or " "
        allowed = ", ".join(f"`{choice}`" for choice in choices(kind))
        yield f"| `{key}` | `{default}` | {': '.join(filter(None, (allowed, declaration(owner, field).meaning)))} |"


def _value(values: Mapping[str, Any], key: str) -> Any:
    value: Any = values
    for part in key.split("."):
        value = value[part]
    return value
