"""Declarations of keys: meaning, unit, limits and default of each; their help.

    max_steps: int | None = key(None, "stop after this number of steps; 0 builds the run and ends", at_least=0)

Help, the reference and checks use these declarations.
"""

import dataclasses
import functools
import re
import textwrap
import typing
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from common.command import redact
from common.errors import UserError
from common.extensions import directories_of_values

MISSING: Any = "???"  # default of a key that must be given
MAX_FLOAT32 = 3.4028234e38
MAX_INT64 = 2**63 - 1
INTERVAL = re.compile(r"([\[(])(\S+), (\S+)([])])")
DECLARATION = "key"  # name of the declaration in a field's metadata

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Key:
    """Declaration of a key besides its type. Null and the default are always allowed."""

    default: Any = None  # value unless one is given; MISSING: one must be given
    meaning: str = ""  # meaning with the unit, for `--help` and the reference
    # Smallest allowed number, or item of a list; `at_most`, `above` and `below` likewise. `above` alone also refuses
    # numbers that are infinite in single precision.
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    within: str | None = None  # an interval in place of these, such as "[0, 1)"
    # Other keys, dotted below the group, each with the value, or a tuple of values, beside which this key has an
    # effect; the key is refused beside others. A name alone: any value but null, false and 0.
    only_with: Mapping[str, Any] | str = ""
    is_name: bool = False  # a text must not be empty or blank
    is_file: bool = False  # a text names a file to write, whose missing directories are made
    is_common: bool = False  # `--help` lists it; `--help all` lists the others
    example: str = ""  # example for `--help`, for a key without a default
    # Whether another value gives another result, so that a run cannot resume with it. Keys that change only rounding,
    # such as threads, do not. None: take the group's class attribute of this name, then that of the enclosing group,
    # and so on; true if none has it.
    decides_bits: bool | None = None

    @property
    def rule(self) -> str:
        """Return the limits of a number in words; empty if there are none."""
        if self.within is not None:
            return f"in {self.within}"
        if self.above is not None and self.below is None and self.at_most is None:
            return f"a finite number above {self.above}"
        bounds = {"above": self.above, "at least": self.at_least, "below": self.below, "at most": self.at_most}
        return " and ".join(f"{words} {bound}" for words, bound in bounds.items() if bound is not None)

    def allows(self, value: Any) -> bool:
        """Return whether a number, or each of a nonempty list, is within all limits; NaN never is."""
        if isinstance(value, list):
            return len(value) > 0 and all(map(self.allows, value))
        if self.within is not None:
            match = INTERVAL.fullmatch(self.within)
            assert match is not None, self.within
            opening, low, high, closing = match.groups()
            is_above = value > float(low) if opening == "(" else value >= float(low)
            return bool(is_above and (value < float(high) if closing == ")" else value <= float(high)))
        return bool(
            (self.at_least is None or value >= self.at_least)
            and (self.at_most is None or value <= self.at_most)
            and (self.above is None or self.above < value <= MAX_FLOAT32)
            and (self.below is None or value < self.below)
        )


def key(default: T, meaning: str, **limits: Any) -> T:
    """Declare a key as a field of a dataclass; limits: further attributes of `Key`. A list or dict is copied."""
    declared = {DECLARATION: Key(default, meaning, **limits)}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=default.copy, metadata=declared)  # type: ignore[return-value]
    return dataclasses.field(default=default, metadata=declared)


def declaration(schema: Any, name: str) -> Key:
    """Return the declaration of a field of a dataclass or of its instance; `Key()` for a field not made by `key`."""
    return next(field.metadata.get(DECLARATION, Key()) for field in dataclasses.fields(schema) if field.name == name)


def keys_of(schema: type, prefix: str = "") -> Iterator[tuple[str, type, str, Any]]:
    """Yield (dotted key, its dataclass, field name, type) of every key below a dataclass, in order."""
    for name, kind in field_types(schema).items():
        if dataclasses.is_dataclass(kind):
            yield from keys_of(typing.cast(type, kind), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", schema, name, kind


@functools.cache
def field_types(schema: Any) -> dict[str, Any]:
    """Return the type of each field of a dataclass, in order."""
    kinds = typing.get_type_hints(schema)
    return {field.name: kinds[field.name] for field in dataclasses.fields(schema)}


def choices(kind: Any) -> list[str]:
    """Return the values of a choice of texts, or the names of an enumeration, also of optional ones; else none."""
    for candidate in (kind, *typing.get_args(kind)):
        if typing.get_origin(candidate) is typing.Literal:
            return [*typing.get_args(candidate)]
        if isinstance(candidate, type) and issubclass(candidate, Enum):
            return [member.name for member in candidate]
    return []


def check(config: Any) -> None:
    """Refuse what `check_keys` refuses; then the first message that `faults` of a group yields, inner groups first."""

    def faults(group: Any) -> Iterator[str]:
        for value in vars(group).values():
            if dataclasses.is_dataclass(value):
                yield from faults(value)
        yield from group.faults() if hasattr(group, "faults") else ()

    check_keys(config)
    refuse(faults(config))


def refuse(messages: Iterable[str]) -> None:
    """Raise UserError with the first message, if there is one."""
    for message in messages:
        raise UserError(message)


def _walk(config: Any, prefix: str = "", outer_decides: bool = True) -> Iterator[tuple[str, Any, Key, Any, bool]]:
    """Yield of every key its dotted name, its group, its declaration, its value, and whether it decides a run's bits.

    outer_decides: default for groups that do not say whether their keys decide bits.
    """
    group_decides = getattr(config, "decides_bits", outer_decides)
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from _walk(value, f"{name}.", group_decides)
        else:
            declared: Key = field.metadata.get(DECLARATION, Key())
            decides = group_decides if declared.decides_bits is None else declared.decides_bits
            yield name, config, declared, value, decides


def check_keys(config: Any, prefix: str = "") -> None:
    """Refuse values outside their keys' limits, and keys without effect beside others of their group.

    config: an instance of a dataclass of keys. prefix: of its keys, such as "train.".
    """
    for name, group, declared, value, _ in _walk(config, prefix):
        # A default may lie outside the limits of what can be given.
        if value is None or value == declared.default:
            continue
        if declared.rule and not declared.allows(value):
            numbers = "a list of numbers " if isinstance(value, list) else ""
            numbers += "of " if numbers and not declared.rule.startswith("in ") else ""
            raise UserError(f"{name}={value}: must be {numbers}{declared.rule}")
        # Larger integers would fail later, inside NumPy or torch, with a traceback.
        if isinstance(value, int) and abs(value) > MAX_INT64:
            raise UserError(f"{name}={value}: must be below 2^63")
        if declared.is_name and (not value.strip() or "\0" in value):
            raise UserError(f"{name}={value.strip()}: must be a name, not empty and without null characters")
        if declared.is_file:
            require_place(name, value)
        # Null, false and 0 turn a key off, unless its default is true.
        if declared.only_with and (value or declared.default is True):
            _refuse_without_others(group, name[: name.rfind(".") + 1], f"{name}={shown(value)}", declared.only_with)


def require_place(key: str, out: str) -> None:
    """Raise UserError if `out` is a directory, or a path below a file; key: the key that names this file to write."""
    if Path(out).is_dir():
        raise UserError(f"{key}={out}: is a directory; give a file in it")
    if not (existing := next(parent for parent in Path(out).parents if parent.exists())).is_dir():
        raise UserError(f"{key}={out}: {existing} is a file; choose another directory")


def _refuse_without_others(config: Any, prefix: str, setting: str, only_with: Mapping[str, Any] | str) -> None:
    """Refuse a key beside other keys' values that leave it without effect.

    config: the key's group; prefix: of its keys, such as "train."; setting: the key with its value.
    """
    for other, value in ({only_with: ()} if isinstance(only_with, str) else only_with).items():
        allowed, present = value if isinstance(value, tuple) else (value,), attrgetter(other)(config)
        # Without allowed values, any but null, false and 0 will do.
        if present in allowed if allowed else present:
            continue
        group = prefix.rstrip(".") if other == "name" else f"{prefix}{other}"
        remedy = " or ".join(f"{group}={shown(value)}" for value in allowed) or group
        if not present:
            raise UserError(f"{setting}: has no effect without {remedy}; leave it out")
        raise UserError(f"{setting}: has no effect with {group}={shown(present)}; leave it out, or use {remedy}")


def shown(value: Any) -> str:
    """Format a key's value as a user would type it on the command line."""
    if value is None:
        return "null"
    if value == MISSING:
        return "(must be given)"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(shown, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{shown(item)}" for key, item in value.items()) + "}"
    return str(value)


def values_that_decide_bits(config: Any) -> dict[str, Any]:
    """Return the keys that decide a run's bits, by dotted name, with values from `plain`."""
    from common.documents import plain  # imports msgspec, which registering keys does not need

    return {name: plain(value) for name, _, _, value, decides in _walk(config) if decides}


def flat_values(config: Any) -> dict[str, Any]:
    """Return the values of all keys of a configuration by dotted name, from `plain`."""
    from common.documents import plain  # as above

    return {name: plain(value) for name, _, _, value, _ in _walk(config)}


def nest(item: tuple[str, Any]) -> dict[str, Any]:
    """Return nested dictionaries with the value of a dotted key; item: the pair of both, for `map`."""
    key, value = item
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


def flatten(content: object, name: str = "", separator: str = ".") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested mappings, named by their keys below `name`; an empty mapping is a leaf."""
    if not isinstance(content, Mapping) or not content:
        yield name, content
        return
    for key, value in content.items():
        yield from flatten(value, f"{name}{separator}{key}" if name else str(key), separator)


def merge(below: Any, above: Any) -> Any:
    """Return the nested mapping `below` with the values of `above` in it; any other `above` replaces `below`."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{key: merge(below.get(key), value) for key, value in above.items()}}


WIDTH, NOTE = 120, 48  # characters of a line; column at which its note begins
MANY_KEYS = 30  # above this, help lists only the common keys


def ready_made_groups(config_dir: Path) -> dict[str, list[str]]:
    """Return the groups of ready-made values, as Hydra finds them, with the names that GROUP=NAME takes."""
    directories = [entry for path in directories_of_values(config_dir) for entry in path.iterdir() if entry.is_dir()]
    names: dict[str, list[str]] = {group: [] for group in sorted(directory.name for directory in directories)}
    for directory in directories:
        names[directory.name] += [path.stem for path in directory.glob("*.yaml")]
    return {group: sorted(group_names) for group, group_names in names.items()}


def describe(config: Any, groups: Mapping[str, list[str]], whole: bool = True) -> Iterator[str]:
    """Yield lines of help, at most WIDTH wide except for longer values, which have no secrets.

    config: may have keys that are MISSING. groups: names of ready-made values, by group. whole: list every key;
    otherwise, if there are many, only the required and the common ones.
    """
    values = redact(flat_values(config))
    keys = [(key, declaration(owner, field), kind) for key, owner, field, kind in keys_of(type(config))]
    required = {key for key, value in values.items() if value == MISSING}
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
        value = values[key]
        line = f"  {key}={shown(value)}"
        example = f"e.g. {key}={declared.example}" if declared.example and value in (None, MISSING) else ""
        note = "; ".join(filter(None, [" | ".join(choices(kind)), declared.meaning, example]))
        first, *rest = textwrap.wrap(note, WIDTH - NOTE - 2, break_long_words=False, break_on_hyphens=False) or [""]
        yield f"{line:<{NOTE - 2}}  # {first}" if first else line
        yield from (f"{'':{NOTE}}# {words}" for words in rest)
    if is_short:
        yield f"\n--help all lists all {len(keys)} keys."
