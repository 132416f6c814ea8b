"""A user's file of keys, read as if they were typed: nested or dotted, a plain value as on the command line."""

import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from common.errors import UserError

PLAIN_NULLS = ("", "~", "null", "Null", "NULL")


def read_overrides(option: str, path: Path) -> list[str]:
    """The `key=value` of each key in a YAML file, in order.

    Args:
        option: how the user named the file, for errors.

    Raises:
        UserError: not readable, not YAML, no mapping of keys, or a key that is given twice.
    """
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{option}: {error.strerror}; give a YAML file of keys") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{option}: not readable as YAML: {' '.join(str(error).split())}") from error
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{option}: not a mapping; write one `key: value` a line")
    overrides: dict[str, str] = {}
    for key, node in _leaves("", root):
        if key in overrides:
            raise UserError(f"{option}: line {node.start_mark.line + 1}: {key} is given twice; leave one of them out")
        overrides[key] = f"{key}={_text(node)}"
    return list(overrides.values())


def quoted(value: str) -> str:
    """A value as Hydra takes it literally."""
    bare = value.strip()
    if len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "\"'":
        bare = bare[1:-1]
    return _escaped(bare)


def _escaped(text: str) -> str:
    return '"' + re.sub(r'(\\*)("|$)', lambda match: match[1] * 2 + ('\\"' if match[2] else ""), text) + '"'


def _leaves(prefix: str, mapping: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node]]:
    for key, node in mapping.value:
        name = f"{prefix}{key.value}"
        if isinstance(node, yaml.MappingNode) and node.value:
            yield from _leaves(f"{name}.", node)
        else:
            yield name, node


def _text(node: yaml.Node) -> str:
    """A value in Hydra's grammar."""
    if isinstance(node, yaml.SequenceNode):
        return f"[{','.join(map(_text, node.value))}]"
    if isinstance(node, yaml.MappingNode):
        return "{" + ",".join(f"{key.value}:{_text(value)}" for key, value in node.value) + "}"
    text = str(node.value)
    if node.style is not None:
        return _escaped(text)
    return "null" if text in PLAIN_NULLS else text if _is_one_value(text) else _escaped(text)


def _is_one_value(text: str) -> bool:
    """Return whether Hydra reads a plain value as one, within a list, too."""
    if set(text) & set(",[]{}"):
        return False
    try:
        OverridesParser.create().parse_override(f"key=[{text}]")
    except HydraException:
        return False
    return True
