"""Reader of a user's file of keys, nested or dotted, with values as on the command line."""

import contextlib
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from common.errors import UserError

KEY = re.compile(r"[A-Za-z_][\w./@:-]*")
FILE_KEY = "config"  # key that names a file on the command line
PLAIN_NULLS = ("", "~", "null", "Null", "NULL")


def read_overrides(option: str, path: Path, kinds: Mapping[str, Any] | None = None) -> list[str]:
    """Return `key=value` for each key of a YAML file, in order.

    Args:
        option: the user's name of the file, for errors.
        kinds: types of keys: a mapping of a key of any type is one value, and so is a dotted name in a key's mapping.
    """
    try:
        # Nodes keep the line and the characters of each value; loading would turn 007 into 7.
        root = yaml.compose(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{option}: {error.strerror}; give a YAML file of keys") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{option}: not readable as YAML: {' '.join(str(error).split())}") from error
    if root is not None and not isinstance(root, yaml.MappingNode):
        raise UserError(f"{option}: not a mapping; write one `key: value` a line")
    overrides: dict[str, str] = {}
    try:
        for key, node in _iterate_leaves(option, "", root, kinds or {}) if root is not None else ():
            if key in overrides:
                line = node.start_mark.line + 1
                raise UserError(f"{option}: line {line}: {key} is given twice; leave one of them out")
            overrides[key] = f"{key}={_format_node(node)}"
    except RecursionError as error:
        raise UserError(f"{option}: a value contains itself, by an alias; write it out") from error
    return list(overrides.values())


def _iterate_leaves(
    option: str, prefix: str, mapping: yaml.MappingNode, kinds: Mapping[str, Any]
) -> Iterator[tuple[str, yaml.Node]]:
    """Yield the dotted key and the node of each value below a mapping, whose own key is the prefix, with a dot."""
    for key, node in mapping.value:
        line = f"{option}: line {key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode) or not KEY.fullmatch(key.value):
            text = repr(key.value) if isinstance(key, yaml.ScalarNode) else "a list or a mapping"
            raise UserError(f"{line}: {text} is no key")
        name = f"{prefix}{key.value}"
        if name == FILE_KEY:
            raise UserError(f"{line}: a file takes no other file; type both")
        names = [str(inner.value) for inner, _ in node.value] if isinstance(node, yaml.MappingNode) else []
        has_dots = get_origin(kinds.get(name)) is dict and any("." in inner for inner in names)
        if names and kinds.get(name) is not Any and not has_dots:
            yield from _iterate_leaves(option, f"{name}.", node, kinds)
        else:
            yield name, node


def given_keys(overrides: Sequence[str]) -> Iterator[str]:
    """Yield the dotted keys of overrides; for a mapping, the keys inside it."""

    def within(key: str, value: object) -> Iterator[str]:
        if isinstance(value, dict) and value:
            for name, inner in value.items():
                yield from within(f"{key}.{name}", inner)
        else:
            yield key

    for override in map(parse_override, overrides):
        yield from within(override.key_or_group, override.value())


@functools.lru_cache(maxsize=1024)
def parse_override(text: str) -> Override:
    """Parse KEY=VALUE by Hydra's grammar. Cached, because a configuration is composed in several rounds.

    Raises:
        HydraException: the text does not follow the grammar.
    """
    return OverridesParser.create().parse_override(text)


def format_override(value: object) -> str:
    """Format a plain value in Hydra's grammar, which allows no quotes around names in a mapping."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{format_override(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{','.join(map(format_override, value))}]"
    return json.dumps(value)


def quote(value: str) -> str:
    """Return a typed value in quotes, which it may have already, so that Hydra takes it literally."""
    bare = value.strip()
    if len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "\"'":
        bare = bare[1:-1]
    return quote_literally(bare)


def quote_literally(text: str) -> str:
    """Return a text in quotes of Hydra's grammar, with its own spaces and quotes."""
    # Hydra takes a backslash literally unless a quote follows, so only those before a quote are doubled.
    return '"' + re.sub(r'(\\*)("|$)', lambda match: match[1] * 2 + ('\\"' if match[2] else ""), text) + '"'


def _format_node(node: yaml.Node) -> str:
    """Format a node's value in Hydra's grammar."""
    if isinstance(node, yaml.SequenceNode):
        return f"[{','.join(map(_format_node, node.value))}]"
    if isinstance(node, yaml.MappingNode):
        return "{" + ",".join(f"{key.value}:{_format_node(value)}" for key, value in node.value) + "}"
    text = str(node.value)
    if node.style is None and text in PLAIN_NULLS:
        return "null"
    # A value in quotes is a text, whatever Hydra would read in it; and so is what it would not read as one value.
    if node.style is None and not set(text) & set(",[]{}"):
        with contextlib.suppress(HydraException):
            parse_override(f"key=[{text}]")
            return text
    return quote_literally(text)
