"""Help on keys: each with its value, choices and meaning."""

import textwrap
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from common.extensions import directories_of_values
from common.keys import MISSING, choices, declaration, keys_of, shown

WIDTH, NOTE = 120, 48  # characters of a line; column at which its note begins
MANY_KEYS = 30  # above this, help lists only the common keys


def groups_of(config_dir: Path) -> dict[str, list[str]]:
    """Return the groups of ready-made values as Hydra finds them: group -> the names that group=NAME takes."""
    directories = [each for path in directories_of_values(config_dir) for each in path.iterdir() if each.is_dir()]
    names: dict[str, list[str]] = {group: [] for group in sorted(each.name for each in directories)}
    for directory in directories:
        names[directory.name] += [path.stem for path in directory.glob("*.yaml")]
    return {group: sorted(each) for group, each in names.items()}


def describe(
    schema: type, values: Mapping[str, Any], groups: Mapping[str, list[str]], whole: bool = True
) -> Iterator[str]:
    """Yield lines of help, at most WIDTH wide except for longer values.

    Args:
        schema: dataclass of the whole configuration; values: the configuration as nested plain values.
        groups: groups that the configuration uses.
        whole: list every key; otherwise, if there are many, only the required and the common ones.
    """
    keys = [(key, declaration(owner, field), kind) for key, owner, field, kind in keys_of(schema)]
    required = {key for key, *_ in keys if _value(values, key) == MISSING}
    keys.sort(key=lambda row: row[0] not in required)
    is_short = not whole and len(keys) > MANY_KEYS
    common = [row for row in keys if row[1].is_common or row[0] in required] if is_short else keys
    if groups:
        yield "Ready-made values, as in group=name:"
        for group, names in groups.items():
            yield from textwrap.wrap(
                f"  {group}: {', '.join(names)}", WIDTH, subsequent_indent="    ", break_on_hyphens=False
            )
        yield ""
    yield "Every key can be given as key=value; what is in force now:"
    last = ""
    for key, declared, kind in common:
        group = key.rpartition(".")[0]
        if group != last:
            yield ""
        last = group
        value = _value(values, key)
        line = f"  {key}={shown(value)}"
        example = f"e.g. {key}={declared.example}" if declared.example and value in (None, MISSING) else ""
        note = "; ".join(filter(None, [" | ".join(choices(kind)), declared.meaning, example]))
        first, *rest = textwrap.wrap(note, WIDTH - NOTE - 2, break_long_words=False, break_on_hyphens=False) or [""]
        yield f"{line:<{NOTE - 2}}  # {first}" if first else line
        yield from (f"{'':{NOTE}}# {words}" for words in rest)
    if is_short:
        yield f"\n--help all lists all {len(keys)} keys."


def key_table(schema: type, values: Mapping[str, Any], leave_out: Collection[str] = ()) -> Iterator[str]:
    """Yield rows of a Markdown table with each key, its default and its meaning. Arguments as for `describe`.

    leave_out: names of groups of keys, and of choices, to omit.
    """
    yield "| key | default | |"
    yield "|---|---|---|"
    for key, owner, field, kind in keys_of(schema):
        if not set(key.split(".")).isdisjoint(leave_out):
            continue
        value = _value(values, key)
        default = f"{value:.4g}" if isinstance(value, float) and len(repr(value)) > 8 else shown(value) or " "
        allowed = ", ".join(f"`{choice}`" for choice in choices(kind) if choice not in leave_out)
        yield f"| `{key}` | `{default}` | {': '.join(filter(None, (allowed, declaration(owner, field).meaning)))} |"


def _value(values: Mapping[str, Any], key: str) -> Any:
    value: Any = values
    for part in key.split("."):
        value = value[part]
    return value
