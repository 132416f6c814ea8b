"""The configuration of a command: Hydra composes plain values, and msgspec converts them to frozen dataclasses.

A user's file of keys, nested or dotted, has values as on the command line.
"""

import contextlib
import dataclasses
import difflib
import functools
import hashlib
import itertools
import json
import re
import shlex
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_origin

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from msgspec import ValidationError
from msgspec import convert as read_as
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from common.errors import UserError
from common.extensions import directories_of_values
from common.keys import (
    MISSING,
    check_keys,
    choices,
    declaration,
    field_types,
    flat_values,
    flatten,
    keys_of,
    merge,
    nest,
    ready_made_groups,
    shown,
)

KEY = re.compile(r"[A-Za-z_][\w./@:-]*")
FILE_KEY = "config"  # key that names a file on the command line
PLAIN_NULLS = ("", "~", "null", "Null", "NULL")


def read_overrides(option: str, path: Path, kinds: Mapping[str, Any] | None = None) -> list[str]:
    """Return `key=value` for each key of a YAML file, in order.

    option: the user's name of the file, for errors. kinds: types of keys: a mapping of a key of any type is one value,
    and so is a dotted name in a key's mapping.
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
        # A mapping is one value, not a group, for a key of any type and where its names have dots.
        if names and kinds.get(name) is not Any and not has_dots:
            yield from _iterate_leaves(option, f"{name}.", node, kinds)
        else:
            yield name, node


def given_keys(overrides: Sequence[str]) -> Iterator[str]:
    """Yield the dotted keys of overrides; for a mapping, the keys inside it."""
    for override in map(parse_override, overrides):
        yield from (key for key, _ in flatten(override.value(), override.key_or_group))


@functools.lru_cache(maxsize=1024)
def parse_override(text: str) -> Override:
    """Parse KEY=VALUE by Hydra's grammar. Cached, because a configuration is composed in several rounds.

    Raises HydraException: the text does not follow the grammar.
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
    """Format a node's value in Hydra's grammar, so that Hydra reads what YAML means by it."""
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


# Keys by the names that other programs have for them.
ELSEWHERE = {
    "learning_rate": "optimizer.lr",
    "lr": "optimizer.lr",
    "steps": "train.max_steps",
    "num_steps": "train.max_steps",
    "batch_size": "train.global_batch_size",
    "num_epochs": "train.epochs",
    "max_epochs": "train.epochs",
    "num_workers": "data.workers",
    "threads": "runtime.num_threads",
    "output_dir": "run.dir",
    "embedding_size": "model.embedding_dim",
}
# Errors that Hydra and OmegaConf raise for an override that does not fit.
REFUSED: tuple[type[Exception], ...] = (HydraException, OmegaConfBaseException, ValueError, TypeError)
REFUSED += (AttributeError, LookupError, AssertionError, RecursionError)

_NOISE = ("full_key:", "object_type=", "Set the env", "Config search", "provider=", "See https://")

SCHEMA = "schema"  # name of the dataclass in the defaults lists of conf/
FILE_OPTION = "config="
RECIPE_FILE = re.compile(r"recipe=.*\.ya?ml[\"']?", re.IGNORECASE)
RECIPE_OF_FILE = "recipe_of_file_"  # beginning of its name; its content's digest follows
INTERPOLATION = re.compile(r"\$\{([\w.]+)\}")  # stands for another key's value
TRUTH = {"yes": True, "on": True, "no": False, "off": False}  # YAML's, besides true and false
FORMS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}

ConfigT = TypeVar("ConfigT")


def compose_config(
    schema: type[ConfigT], config_dir: Path, overrides: Sequence[str] = (), name: str = "config"
) -> ConfigT:
    """Compose `config_dir`/<name>.yaml, if there is one, with Hydra overrides into an instance of `schema`.

    A schema may have `implied`: functions of the composed values and the dotted keys that were given, on the command
    line or in a file. Each returns further values by dotted key, or a group's choice; they apply in turn, below what
    was given. Texts are taken as they are typed.
    """
    config = compose_partly(schema, config_dir, overrides, name)
    missing = sorted(key for key, value in flat_values(config).items() if value == MISSING)
    if missing:
        raise UserError(f"configuration: {missing[0]} has no value; add {missing[0]}=...")
    check_keys(config)
    return config


class ConversionError(ValueError):
    """A key or value that does not fit a dataclass of keys, in one line."""


def convert(schema: type[ConfigT], *levels: Any) -> ConfigT:
    """Make an instance of the dataclass `schema` from nested plain values; later ones take precedence.

    Raises ConversionError: an unknown key or a value of the wrong type.
    """
    return _convert_group(schema, functools.reduce(merge, levels), "")


def convert_override(schema: type[ConfigT], values: object, key: str) -> ConfigT:
    """Make an instance of `schema` from the values of a key whose type is a mapping by name. key: with the name."""
    try:
        return convert(schema, values)
    except ConversionError as error:
        keys = ", ".join(field.name for field in dataclasses.fields(typing.cast(Any, schema)))
        raise UserError(f"{key}={values}: {error}; its keys are {keys}") from error


def _convert_group(schema: Any, group: Any, prefix: str) -> Any:
    """Make an instance of a group's dataclass from its values by name. prefix: dotted key of the group, with a dot."""
    if not isinstance(group, Mapping):
        raise ConversionError(f"{prefix.rstrip('.') or 'the configuration'}: {shown(group)} is no group of keys")
    kinds, values = field_types(schema), {}
    for name, value in group.items():
        if name not in kinds:
            raise ConversionError(f"'{prefix}{name}': Key '{name}' not in '{schema.__name__}'")
        key, kind = f"{prefix}{name}", kinds[name]
        if dataclasses.is_dataclass(kind):
            values[name] = _convert_group(kind, value, f"{key}.")
        elif value == MISSING:
            values[name] = value
        else:
            is_one = _is_list(kind) and value is not None and not isinstance(value, (list, dict))
            try:
                values[name] = read_as(_spell([value] if is_one else value, _leaf(kind)), kind, strict=False)
            except ValidationError:
                rule = "must be a mapping of names" if typing.get_origin(kind) is dict else ""
                if names := choices(kind):
                    rule = _not_one_of(names, key, str(value))
                elif _is_list(kind):
                    item = "text" if _leaf(kind) is str else "number"
                    rule = f"must be a {item} or a list of {item}s: {declaration(schema, name).meaning}"
                raise ConversionError(f"{key}={shown(value)}: {rule or f'must be {FORMS[_leaf(kind)]}'}") from None
    return schema(**values)


def _spell(value: Any, leaf: Any) -> Any:
    """Return a value as msgspec needs it for a key whose single values have the type `leaf`.

    A number becomes text for a text key, and a word such as yes a boolean for a key of true and false.
    """
    if isinstance(value, list):
        return [_spell(item, leaf) for item in value]
    if isinstance(value, dict):
        return {name: _spell(item, leaf) for name, item in value.items()}
    if leaf is bool and isinstance(value, str):
        return TRUTH.get(value.lower(), value)
    return shown(value) if leaf is str and isinstance(value, (bool, int, float)) else value


def _is_list(kind: Any) -> bool:
    """Return whether a key's type is a list, or an optional one."""
    return any(typing.get_origin(part) is list for part in (kind, *typing.get_args(kind)))


def _leaf(kind: Any) -> Any:
    """Return the type of the single values in a key's type, such as int of list[int] | None."""
    if get_origin(kind) is typing.Literal:
        return str
    parts = [part for part in typing.get_args(kind) if part is not type(None)]
    return _leaf(parts[-1]) if parts else kind


def compose_partly(schema: type[ConfigT], config_dir: Path, overrides: Sequence[str], name: str) -> ConfigT:
    """Compose an instance of `schema` in which keys may still be MISSING; see `compose_config`.

    config=FILE stands for the keys in a YAML file, below those of the command line; recipe=FILE.yaml for a recipe.
    """
    overrides = add_file_keys(schema, config_dir, overrides, name)
    overrides = _store_recipe_file(schema, config_dir, overrides, name)
    groups = ready_made_groups(config_dir)
    for override, next_word in itertools.zip_longest(overrides, overrides[1:], fillvalue=""):
        _refuse_sign(schema, config_dir, override, next_word)
    for override in overrides:
        _refuse_unquoted(schema, override)
        _refuse_value_of_group(schema, config_dir, override)
    with _explain(schema, config_dir, overrides):
        # Hydra chooses from groups, and names what it cannot place, such as key@package.
        parsed = [(line, parse_override(line)) for line in overrides]
        selections = [
            line for line, override in parsed if override.key_or_group in groups or override.package is not None
        ]
        given = [_given_item(schema, override) for line, override in parsed if line not in selections]
        config = _compose_values(schema, config_dir, name, selections, given)
        # Each function sees the values that those before it have implied.
        defaults: dict[str, Any] = {}
        for implied in getattr(schema, "implied", ()):
            if values := implied(config, list(given_keys(overrides))):
                defaults |= values
                lines = [f"{key}={value}" for key, value in defaults.items() if key in groups]
                items = [(key, value) for key, value in defaults.items() if key not in groups]
                config = _compose_values(schema, config_dir, name, [*lines, *selections], [*items, *given])
        return config


def _given_item(schema: type, override: Override) -> tuple[str, Any]:
    """Return an override's dotted key and value; a text key gets what was typed where Hydra reads a number: 007."""
    key, value, kinds = override.key_or_group, override.value(), _key_types(schema)
    typed = str(override.input_line).partition("=")[2].strip()
    # A key inside a mapping of names has no type of its own, but that of the mapping's values.
    if _leaf(kinds.get(key, kinds.get(key.rpartition(".")[0]))) is not str:
        return key, value
    if isinstance(value, list) and any(isinstance(item, (bool, int, float)) for item in value):
        return key, [item.strip().strip("\"'") for item in typed[1:-1].split(",")]
    return key, typed if isinstance(value, (bool, int, float)) else value


def _compose_values(
    schema: type[ConfigT], config_dir: Path, name: str, selections: Sequence[str], given: Iterable[tuple[str, Any]]
) -> ConfigT:
    """Compose the selected choices of groups with the given keys above them; resolve ${KEY} and convert the values."""
    composed = _compose_groups(typing.cast(Any, schema), config_dir, name, tuple(selections))
    values = functools.reduce(merge, map(nest, given), composed)
    return convert(schema, OmegaConf.to_container(OmegaConf.create(values), resolve=True))


@functools.lru_cache(maxsize=64)
def _compose_groups(schema: type, config_dir: Path, name: str, selections: tuple[str, ...]) -> Any:
    """Compose the choices of groups by Hydra, once per process, as that takes most of the time."""
    from common.documents import plain  # reads the version, which help does not need

    ConfigStore.instance().store(name=SCHEMA, node=plain(schema()))
    # Hydra keeps its state in a singleton, which the previous composition has left behind.
    GlobalHydra.instance().clear()
    directories = directories_of_values(config_dir)
    having = [directory for directory in directories if (directory / f"{name}.yaml").is_file()]
    # Hydra reads the command's own file before it knows the search path.
    first = having[0] if having else config_dir
    others = ",".join(quote(f"file://{directory}") for directory in directories if directory != first)
    with initialize_config_dir(str(first), version_base="1.3"):
        composed = compose(name if having else SCHEMA, overrides=[*selections, f"hydra.searchpath=[{others}]"])
    return OmegaConf.to_container(composed)


@contextmanager
def _explain(schema: type, config_dir: Path, overrides: Sequence[str]) -> Iterator[None]:
    """Context in which errors of composition become one line, with the key or choice that was probably meant."""
    try:
        yield
    except REFUSED as error:
        # Hydra found no file for a choice GROUP=NAME, so the group's choices are named. null takes a group away, and a
        # recipe that was read from a file has a name that the user did not type.
        groups = ready_made_groups(config_dir) if isinstance(error, MissingConfigException) else {}
        for override in overrides:
            group, _, name = override.lstrip("+").partition("=")
            name, names = name.strip("\"'"), groups.get(group, [])
            if names and name not in (*names, "null") and not name.startswith(RECIPE_OF_FILE):
                raise UserError(f"configuration: {override}: {_not_one_of(names, group, name)}") from error
        # The many lines of a Hydra or OmegaConf error and its causes become one, outermost first.
        parts: list[str] = []
        cause: BaseException | None = error
        while cause is not None:
            lines = [line for line in map(str.strip, str(cause).splitlines()) if line and not line.startswith(_NOISE)]
            parts += [line for line in dict.fromkeys(lines) if line not in parts]
            cause = cause.__cause__
        suggestion = _suggest_key(schema, config_dir, overrides)
        raise UserError(f"configuration: {' '.join(parts)}{suggestion}") from error


def _not_one_of(names: Sequence[str], key: str, value: str) -> str:
    """Return the end of an error: the allowed values of a key, and the one that is nearest to the given value."""
    close = difflib.get_close_matches(value.lower(), names, n=1)
    return f"not one of {', '.join(names)}; {f'did you mean {key}={close[0]}?' if close else 'give one of these'}"


def add_file_keys(schema: type, config_dir: Path, overrides: Sequence[str], name: str = "config") -> list[str]:
    """Return the overrides of the command line, and before them the keys of each config=FILE.

    Of a file, groups that the command line names too are left out, and keys that follow from keys given there.
    """
    command_line = [override for override in overrides if not override.startswith(FILE_OPTION)]
    names = {override.partition("=")[0] for override in command_line}
    groups = names & ready_made_groups(config_dir).keys()
    group_overrides = [override for override in command_line if override.partition("=")[0] in groups]
    keys: list[str] = []
    for option in (override for override in overrides if override.startswith(FILE_OPTION)):
        file_keys = read_overrides(option, Path(option.removeprefix(FILE_OPTION).strip("\"'")), _key_types(schema))
        left_out = groups | _find_following_keys(schema, file_keys, names)
        keys += [override for override in file_keys if override.partition("=")[0] not in left_out]
        with _name_option(option):
            _check_limits(compose_partly(schema, config_dir, [*keys, *group_overrides], name))
    return [*keys, *command_line]


def _find_following_keys(schema: type, overrides: Sequence[str], names: Set[str]) -> set[str]:
    """Return the keys of a file that follow from keys in `names`: they have their default's interpolation of others.

    In a recorded run, run.dir follows from run.name, so that a new name on the command line gives a new directory.
    """
    values = {key: value.strip('"') for key, _, value in (override.partition("=") for override in overrides)}
    defaults = {key: str(getattr(owner, name, "")) for key, owner, name, _ in keys_of(schema)}
    return {
        key
        for key, default in defaults.items()
        if not names.isdisjoint(INTERPOLATION.findall(default))
        and values.get(key) == INTERPOLATION.sub(lambda match: values.get(match[1], ""), default)
    }


@contextmanager
def _name_option(option: str) -> Iterator[None]:
    """Context that puts `option`, which names the faulty file, before the message of a configuration's error."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{option}: {str(error).removeprefix('configuration: ')}") from error


def _check_limits(config: Any) -> None:
    """Check the keys' limits unless a key has no value yet, which the command line may still give."""
    if MISSING not in flat_values(config).values():
        check_keys(config)


@functools.cache
def _key_types(schema: type) -> dict[str, Any]:
    """Return the type of each key's value, by dotted key."""
    return {key: kind for key, _, _, kind in keys_of(schema)}


def _store_recipe_file(schema: type, config_dir: Path, overrides: Sequence[str], name: str) -> list[str]:
    """Store the file of recipe=FILE.yaml as a recipe that Hydra finds; return overrides with that recipe's name."""
    options = [override for override in overrides if RECIPE_FILE.fullmatch(override)]
    if not options or "recipe" not in ready_made_groups(config_dir):
        return list(overrides)
    path = Path(options[-1].removeprefix("recipe=").strip("\"'"))
    option = f"recipe={path}"
    # A recipe's list of defaults is Hydra's own, not a key.
    lines = [line for line in read_overrides(option, path, _key_types(schema)) if not line.startswith("defaults=")]
    with _name_option(option), _explain(schema, config_dir, lines):
        content: Any = functools.reduce(merge, (nest(_given_item(schema, parse_override(line))) for line in lines), {})
        convert(schema, content)
        content["defaults"] = OmegaConf.select(OmegaConf.load(path), "defaults") or []
    recipe = f"{RECIPE_OF_FILE}{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    # The keys of a recipe are those of the whole configuration, not of a group named recipe.
    ConfigStore.instance().store(group="recipe", name=recipe, node=content, package="_global_")
    run_name = [override for override in overrides if override.startswith("run.name=")]
    with _name_option(option):
        try:
            _check_limits(compose_partly(schema, config_dir, [f"recipe={recipe}", *run_name], name))
        except UserError as error:
            if (lacking := re.search(r"Missing mandatory value: (\S+)", str(error))) is None:
                raise
            raise UserError(f"lacks {lacking[1]}; add it to the file, or {lacking[1]}=...") from error
    return [f"recipe={recipe}" if RECIPE_FILE.fullmatch(override) else override for override in overrides]


def _refuse_sign(schema: type, config_dir: Path, override: str, next_word: str) -> None:
    """Raise UserError for dashes before a key, for a key to be removed, and for Hydra's own.

    next_word: the argument that follows, which may be the value of a key with dashes.
    """
    if override.startswith("-"):
        bare = override.lstrip("-")
        if "=" not in bare:
            bare += "=..." if "=" in next_word or not next_word else f"={next_word}"
        line = bare if bare.endswith("=...") else shlex.quote(bare)
        remedy = _suggest_key(schema, config_dir, [bare]) or f"; write {line}"
        raise UserError(f"configuration: {override}: keys have no dashes{remedy}")
    if override.lstrip("+~").startswith("hydra"):
        raise UserError(
            f"configuration: {override}: Hydra's own settings have no effect here; use run.dir and run.name"
        )
    if override.startswith("~"):
        group, groups = override.lstrip("~").partition("=")[0], ready_made_groups(config_dir)
        if group not in groups:
            raise UserError(f"configuration: {override}: no key can be removed; leave it out, or give {group}=null")
        raise UserError(
            f"configuration: {override}: {group} is always one of {', '.join(groups[group])}; leave {override} out "
            f"for the usual one, or give {group}=NAME"
        )


def _refuse_value_of_group(schema: type, config_dir: Path, override: str) -> None:
    """Raise UserError for GROUP=VALUE of a group of keys that has no ready-made values, such as data=NAME."""
    group, _, value = override.lstrip("+").partition("=")
    kinds = {key: kind for key, kind in _key_types(schema).items() if key.startswith(f"{group}.")}
    if not kinds or group in ready_made_groups(config_dir) or value.startswith("{"):
        return
    keys = {choice: key for key in reversed(kinds) for choice in choices(kinds[key])}
    close = difflib.get_close_matches(value, keys, n=1, cutoff=0.7)
    remedy = f"{keys[close[0]]}={close[0]}" if close else f"one of them, such as {next(iter(kinds))}"
    raise UserError(f"configuration: {override}: {group} is a group of keys; give {remedy}")


def _refuse_unquoted(schema: type, override: str) -> None:
    """Raise UserError for a value that Hydra's grammar refuses or reads as several, with the form to type."""
    key, is_given, value = override.partition("=")
    try:
        if not parse_override(override).is_sweep_override():
            return
        kinds = _key_types(schema)
        kind = kinds.get(key)
        if choices(kind) or (_leaf(kind) in (int, float, bool) and not _is_list(kind)):
            values = value.replace(",", " ")
            loop = f": for value in {values}; do python -m app.train {key}=$value run.name=value_$value; done"
            loop = loop if "train.max_steps" in kinds else ""
            raise UserError(f"configuration: {override}: takes one value; start a run for each{loop}")
    except HydraException as error:
        if not is_given:
            keys = [key for key, *_ in keys_of(schema) if key in ("run", "runs")]
            form = f"{keys[0]}={override}" if keys else "key=value"
            raise UserError(f"configuration: {override}: give it as {form}") from error
    if value.startswith("[") and value.endswith("]"):
        quoted_override = f"{key}=[{','.join(quote(item) for item in value[1:-1].split(','))}]"
    else:
        quoted_override = f"{key}={quote(value)}"
    raise UserError(f"configuration: {override}: not readable without quotes; write {shlex.quote(quoted_override)}")


def _suggest_key(schema: type, config_dir: Path, overrides: Sequence[str]) -> str:
    """Return the nearest known key for the first unknown one, as the end of a sentence; "" without one."""
    kinds, groups = _key_types(schema), ready_made_groups(config_dir)
    # The keys of a choice are below its group: model.hstu.dim needs model=hstu.
    for override in overrides:
        group, _, name = override.partition("=")[0].rpartition(".")[0].rpartition(".")
        if name in groups.get(group, ()) and f"{group}={name}" not in overrides:
            return f"; give {group}={name} instead"
    names = [*kinds, FILE_OPTION.rstrip("="), *groups]
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0].replace("-", "_")
        if key not in names and not any(known.startswith(f"{key}.") for known in names):
            head, _, tail = key.rpartition(".")
            # Other tools' names for keys, then a key with the same last word, are nearer than one that is spelt alike.
            full_key = ELSEWHERE.get(tail, tail)
            if full_key in names:
                return f"; did you mean {full_key}?"
            tail = full_key.rpartition(".")[2]
            ends = [known for known in names if known.rpartition(".")[2] == tail]
            ends = [known for known in ends if known.rpartition(".")[0] == head] or ends
            close = ends if len(ends) == 1 else difflib.get_close_matches(key, names, n=1)
            return f"; did you mean {close[0]}?" if close else "; --help all lists the keys"
    return ""
