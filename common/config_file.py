"""Reader of a user's file of keys, nested or dotted, with values as on the command line."""

import functools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from common.errors import UserError

KEY = re.compile(r"[A-Za-z_][\w./@:-]*")
FILE_KEY = "config"  # key that names a file on the command line
PLAIN_NULLS = ("", "~", "null", "Null", "NULL")


def read_overrides(option: str, path: Path, mappings: Collection[str] = (), whole: Collection[str] = ()) -> list[str]:
    """Return `key=value` for each key of a YAML file, in order.

    Args:
        option: the user's name of the file, for errors.
        mappings: keys whose value is a mapping in which a dotted name is one name.
        whole: keys whose value may be a mapping; the mapping is one value.
    """
    try:
        # Nodes keep the line and the characters of each value; loading would turn 007 into 7.
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
    try:
        for key, node in _iterate_leaves("", root, mappings, whole):
            if key in overrides:
                line = node.start_mark.line + 1
                raise UserError(f"{option}: line {line}: {key} is given twice; leave one of them out")
            overrides[key] = f"{key}={_format_node(node)}"
    except _NoKeyError as error:
        raise UserError(f"{option}: {error}") from error
    except RecursionError as error:
        raise UserError(f"{option}: a value contains itself, by an alias; write it out") from error
    return list(overrides.values())


def given_keys(overrides: Sequence[str]) -> Iterator[str]:
    """Yield the dotted keys of overrides; for a mapping, the keys inside it."""
    for override in map(parse_override, overrides):
        yield from _keys_within(override.key_or_group, override.value())


@functools.lru_cache(maxsize=1024)
def parse_override(text: str) -> Override:
    """Parse KEY=VALUE by Hydra's grammar. Cached, because a configuration is composed in several rounds.

    Raises:
        HydraException: the text does not follow the grammar.
    """
    return OverridesParser.create().parse_override(text)


def _keys_within(key: str, value: object) -> Iterator[str]:
    """Yield the dotted keys of a value: of a mapping those inside it."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _keys_within(f"{key}.{name}", inner)
    else:
        yield key


def format_override(value: object) -> str:
    """Format a plain value in Hydra's grammar, which allows no quotes around names in a mapping."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{format_override(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{','.join(map(format_override, value))}]"
    return json.dumps(value)


class _NoKeyError(ValueError):
    """Raised for an invalid key."""


def _key_name(key: yaml.Node) -> str:
    """Return a key's name. Raise _NoKeyError for a list, a mapping, or an invalid name."""
    if not isinstance(key, yaml.ScalarNode) or not KEY.fullmatch(key.value):
        text = repr(key.value) if isinstance(key, yaml.ScalarNode) else "a list or a mapping"
        raise _NoKeyError(f"line {key.start_mark.line + 1}: {text} is no key")
    return str(key.value)


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


def _iterate_leaves(
    prefix: str, mapping: yaml.MappingNode, mappings: Collection[str], whole: Collection[str]
) -> Iterator[tuple[str, yaml.Node]]:
    """Yield the dotted key and the node of each value below a mapping.

    prefix: dotted key of the mapping, with a dot at its end. mappings, whole: as for `read_overrides`.
    """
    for key, node in mapping.value:
        name = f"{prefix}{_key_name(key)}"
        if name == FILE_KEY:
            raise _NoKeyError(f"line {key.start_mark.line + 1}: a file takes no other file; type both")
        is_whole = name in whole or (
            name in mappings
            and isinstance(node, yaml.MappingNode)
            and any("." in str(inner.value) for inner, _ in node.value)
        )
        if isinstance(node, yaml.MappingNode) and node.value and not is_whole:
            yield from _iterate_leaves(f"{name}.", node, mappings, whole)
        else:
            yield name, node


def _format_node(node: yaml.Node) -> str:
    """Format a node's value in Hydra's grammar."""
    if isinstance(node, yaml.SequenceNode):
        return f"[{','.join(map(_format_node, node.value))}]"
    if isinstance(node, yaml.MappingNode):
        return "{" + ",".join(f"{key.value}:{_format_node(value)}" for key, value in node.value) + "}"
    text = str(node.value)
    # A value in quotes is a text, whatever Hydra would read in it.
    if node.style is not None:
        return quote_literally(text)
    return "null" if text in PLAIN_NULLS else text if _is_one_value(text) else quote_literally(text)


def _is_one_value(text: str) -> bool:
    """Return whether Hydra reads a plain value as one value, also within a list."""
    if set(text) & set(",[]{}"):
        return False
    try:
        parse_override(f"key=[{text}]")
    except HydraException:
        return False
    return True
