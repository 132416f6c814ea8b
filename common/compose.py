"""The configuration of a command: ready-made values and the command line's, composed by Hydra into a dataclass."""

import dataclasses
import difflib
import functools
import io
import itertools
import pickle
import re
import shlex
import typing
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from common.config_file import format_override, given_keys, parse_override, quote, read_overrides
from common.errors import UserError
from common.extensions import directories_of_values
from common.keys import check_keys, choices, declaration, group_class, keys_of, ready_made_groups

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
REFUSED = (
    HydraException,
    OmegaConfBaseException,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    AssertionError,
    RecursionError,
)

SCHEMA = "schema"  # name of the dataclass in the defaults lists of conf/
FILE_OPTION = "config="
RECIPE_FILE = re.compile(r"recipe=.*\.ya?ml[\"']?", re.IGNORECASE)
RECIPE_OF_FILE = "recipe_of_file"
INTERPOLATION = re.compile(r"\$\{([\w.]+)\}")  # stands for another key's value

ConfigT = TypeVar("ConfigT")


def compose_config(
    schema: type[ConfigT], config_dir: Path, overrides: Sequence[str] = (), name: str = "config"
) -> ConfigT:
    """Compose `config_dir`/<name>.yaml, if there is one, with Hydra overrides into an instance of `schema`.

    A schema may have `implied`: functions of the composed values and the dotted keys that were given, on the command
    line or in a file. Each returns further values by dotted key, or a group's choice; they apply in turn, below what
    was given. Texts are taken as they are typed.
    """
    composed = compose_partly(schema, config_dir, overrides, name)
    try:
        missing = sorted(map(str, OmegaConf.missing_keys(composed)))
        if missing:
            raise UserError(f"configuration: {missing[0]} has no value; add {missing[0]}=...")
        config = _make_instance(schema, OmegaConf.to_object(composed))
    except REFUSED as error:  # an interpolation, as in ${run.name}, whose value is of the wrong type
        raise UserError(_join_lines(error)) from error
    check_keys(config)
    return config


class ConversionError(ValueError):
    """Values that do not fit a dataclass of keys, in one line."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error).splitlines()[0] if str(error) else type(error).__name__)


def convert(schema: type[ConfigT], *levels: Any) -> ConfigT:
    """Make an instance of the dataclass `schema` from nested plain values; later ones take precedence.

    Raises:
        ConversionError: an unknown key or a value of the wrong type.
    """
    try:
        return _make_instance(
            schema, OmegaConf.to_object(OmegaConf.merge(_schema_node(typing.cast(Any, schema)), *levels))
        )
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        raise ConversionError(error) from error


def plain_values(config: Any) -> dict[str, Any]:
    """Convert a partly composed configuration, or a dataclass of keys, to nested plain values."""
    node = _schema_node(config) if isinstance(config, type) else config
    values = OmegaConf.to_container(node, resolve=True, throw_on_missing=False, enum_to_str=True)
    assert isinstance(values, dict)
    return values  # type: ignore[return-value]


def compose_partly(schema: type, config_dir: Path, overrides: Sequence[str], name: str) -> Any:
    """Compose into OmegaConf's representation, in which keys may still lack values; see `compose_config`.

    config=FILE stands for the keys in a YAML file, below those of the command line; recipe=FILE.yaml for a recipe.
    """
    overrides = add_file_keys(schema, config_dir, overrides, name)
    overrides = _register_recipe_file(schema, config_dir, overrides, name)
    for override, next_word in itertools.zip_longest(overrides, overrides[1:], fillvalue=""):
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
            _refuse_removed_group(override, config_dir)
    for override in overrides:
        _refuse_unquoted(schema, override)
        _refuse_value_of_group(schema, config_dir, override)
    command_line, overrides = overrides, _to_hydra_form(schema, overrides)
    name = (
        name
        if any((directory / f"{name}.yaml").is_file() for directory in directories_of_values(config_dir))
        else SCHEMA
    )
    try:
        composed, defaults = _compose_values(schema, config_dir, name, overrides), list[str]()
        # Each function sees the values that those before it have implied.
        for implied in getattr(schema, "implied", ()):
            values = implied(composed, list(given_keys(overrides)))
            groups = ready_made_groups(config_dir)
            # A group's choice takes no sign in Hydra's grammar, and ++ also sets a name that a mapping lacks.
            defaults += [
                f"{'' if key in groups else '++'}{key}={format_override(value)}" for key, value in values.items()
            ]
            composed = _compose_values(schema, config_dir, name, [*defaults, *overrides]) if values else composed
        if any(override.startswith("+") for override in overrides):  # it may have added an unknown key
            composed = OmegaConf.merge(_register_schema(schema), OmegaConf.to_container(composed, resolve=True))
        OmegaConf.to_container(composed, resolve=True, throw_on_missing=False)
        return composed
    except REFUSED as error:
        fault = _unknown_choice(schema, config_dir, command_line, isinstance(error, MissingConfigException))
        raise UserError(fault or _join_lines(error) + _suggest_key(schema, config_dir, command_line)) from error


def _compose_values(schema: type, config_dir: Path, name: str, overrides: Sequence[str]) -> Any:
    """Compose by Hydra: the choices of groups once per process, as that takes most of the time, then the values."""
    parsed, groups = [*map(parse_override, overrides)], ready_made_groups(config_dir)
    choices_of_groups = [
        line for line, override in zip(overrides, parsed, strict=True) if override.key_or_group in groups
    ]
    values = [override for override in parsed if override.key_or_group not in groups]
    recipe = ""
    # The name stays the same for every file, so the content has to be part of the cache's key.
    if f"recipe={RECIPE_OF_FILE}" in overrides:
        recipe = OmegaConf.to_yaml(ConfigStore.instance().load(f"recipe/{RECIPE_OF_FILE}.yaml").node)
    # Adding and removing keys follow rules of Hydra's own.
    if not any(override.is_add() or override.is_delete() for override in values):
        composed = _cache_groups(schema, config_dir, name, tuple(choices_of_groups), recipe)()
        try:
            for override in values:
                key, value = override.key_or_group, override.value()
                if isinstance(value, dict) and "." in key:  # only its outer group can merge into a group that is null
                    key, _, name = key.rpartition(".")
                    value = {name: value}
                OmegaConf.update(composed, key, value, merge=True, force_add=override.is_force_add())
            return composed
        except OmegaConfBaseException:
            pass  # Hydra's own error names the override
    return _compose_groups(schema, config_dir, name, overrides)


@functools.lru_cache(maxsize=64)
def _cache_groups(
    schema: type, config_dir: Path, name: str, overrides: tuple[str, ...], recipe: str
) -> Callable[[], Any]:
    """Compose once, and return a function that returns a copy. Unpickling takes 1 ms, copy.deepcopy 30 ms.

    recipe: content of the recipe of a file, which has the same name for every file.
    """
    # Classes are kept apart, as OmegaConf's have no module in which pickle would find them.
    classes: list[type] = []

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> int | None:
            if not isinstance(value, type):
                return None
            classes.append(value)
            return len(classes) - 1

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, number: int) -> type:
            return classes[number]

    content = io.BytesIO()
    Pickler(content).dump(_compose_groups(schema, config_dir, name, overrides))
    return lambda: Unpickler(io.BytesIO(content.getvalue())).load()


def _compose_groups(schema: type, config_dir: Path, name: str, overrides: Sequence[str]) -> Any:
    """Compose by Hydra from the start."""
    _register_schema(schema)
    # Hydra keeps its state in a singleton, which the previous composition has left behind.
    GlobalHydra.instance().clear()
    directories = directories_of_values(config_dir)
    # Hydra reads the command's own file before it knows the search path.
    first = next((directory for directory in directories if (directory / f"{name}.yaml").is_file()), config_dir)
    others = ",".join(quote(f"file://{directory}") for directory in directories if directory != first)
    search_path = f"hydra.searchpath=[{others}]"
    with initialize_config_dir(str(first), version_base="1.3"):
        return compose(name, overrides=[*overrides, search_path])


def _unknown_choice(schema: type, config_dir: Path, overrides: Sequence[str], is_group: bool) -> str:
    """Describe the first GROUP=NAME or KEY=NAME with an unknown name; "" if there is none."""
    known = ready_made_groups(config_dir) if is_group else {key: choices(kind) for key, *_, kind in keys_of(schema)}
    for override in overrides:
        group, _, name = override.lstrip("+").partition("=")
        name = name.strip("\"'")
        names = known.get(group) or [name]
        if name not in (*names, RECIPE_OF_FILE, "null"):
            fault = f"configuration: {override}: not one of {', '.join(names)}"
            close = difflib.get_close_matches(name.lower(), names, n=1)
            return f"{fault}; did you mean {group}={close[0]}?" if close else f"{fault}; give one of these"
    return ""


def add_file_keys(schema: type, config_dir: Path, overrides: Sequence[str], name: str = "config") -> list[str]:
    """Return the overrides of the command line, and before them the keys of each config=FILE.

    Of a file, groups that the command line names too are left out, and keys that follow from keys given there.
    """
    options = [override for override in overrides if override.startswith(FILE_OPTION)]
    command_line = [override for override in overrides if not override.startswith(FILE_OPTION)]
    groups = ready_made_groups(config_dir)
    group_overrides = [override for override in command_line if override.partition("=")[0] in groups]
    group_names = {override.partition("=")[0] for override in group_overrides}
    keys: list[str] = []
    for option in options:
        path = Path(option.removeprefix(FILE_OPTION).strip("\"'"))
        file_keys = read_overrides(option, path, _mapping_keys(schema), _whole_value_keys(schema))
        follows = _find_following_keys(schema, file_keys, {override.partition("=")[0] for override in command_line})
        keys += [override for override in file_keys if override.partition("=")[0] not in group_names | follows]
        with _name_option(option):
            _check_limits(schema, compose_partly(schema, config_dir, [*keys, *group_overrides], name))
    return [*keys, *command_line]


def _find_following_keys(schema: type, overrides: Sequence[str], names: Set[str]) -> set[str]:
    """Return the keys of a file that follow from keys in `names`: they have their default's interpolation of others.

    In a recorded run, run.dir follows from run.name, so that a new name on the command line gives a new directory.
    """
    values = {key: value.strip('"') for key, _, value in (override.partition("=") for override in overrides)}
    follows = set()
    for key, owner, name, _ in keys_of(schema):
        default = getattr(owner, name, None)
        if not isinstance(default, str) or names.isdisjoint(INTERPOLATION.findall(default)):
            continue
        if values.get(key) == INTERPOLATION.sub(lambda match: values.get(match[1], ""), default):
            follows.add(key)
    return follows


@contextmanager
def _name_option(option: str) -> Iterator[None]:
    """Context in which an error of a configuration gets the option before it whose file has the fault."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{option}: {str(error).removeprefix('configuration: ')}") from error


def _check_limits(schema: type, composed: Any) -> None:
    """Raise UserError for the first key whose value exceeds its limits, unless a key still lacks its value."""
    if not OmegaConf.missing_keys(composed):
        check_keys(_make_instance(schema, OmegaConf.to_object(composed)))


@functools.cache
def _key_types(schema: type) -> dict[str, Any]:
    """Return the type of each key's value, by dotted key."""
    return {key: kind for key, _, _, kind in keys_of(schema)}


def _mapping_keys(schema: type) -> frozenset[str]:
    """Return the keys whose values are mappings of any names."""
    return frozenset(key for key, kind in _key_types(schema).items() if typing.get_origin(kind) is dict)


def _whole_value_keys(schema: type) -> frozenset[str]:
    """Return the keys whose values may be mappings: those of any type, and groups that may be null."""
    return frozenset(key for key, kind in _key_types(schema).items() if kind is Any or group_class(kind) is not None)


def _register_recipe_file(schema: type, config_dir: Path, overrides: Sequence[str], name: str) -> list[str]:
    """Register the file of recipe=FILE.yaml as a recipe that Hydra finds; return overrides with that recipe's name."""
    options = [override for override in overrides if RECIPE_FILE.fullmatch(override)]
    if not options or "recipe" not in ready_made_groups(config_dir):
        return list(overrides)
    path = Path(options[-1].removeprefix("recipe=").strip("\"'"))
    option, recipe = f"recipe={path}", f"recipe={RECIPE_OF_FILE}"
    keys = read_overrides(option, path, _mapping_keys(schema), _whole_value_keys(schema))
    # A recipe's list of defaults is Hydra's own, not a key, and is added below.
    keys = [key for key in keys if not key.startswith("defaults=")]
    content = OmegaConf.create({})
    with _name_option(option):
        keys = _to_hydra_form(schema, keys)
    try:
        for key in keys:
            parsed = parse_override(key)
            OmegaConf.update(content, parsed.key_or_group, parsed.value(), merge=True)
        OmegaConf.merge(_register_schema(schema), content)
        OmegaConf.update(content, "defaults", OmegaConf.select(OmegaConf.load(path), "defaults") or [])
    except REFUSED as error:
        suggestion = _suggest_key(schema, config_dir, keys)
        raise UserError(
            f"{option}: {getattr(error, 'full_key', '')}: {str(error).splitlines()[0]}{suggestion}"
        ) from error
    # The keys of a recipe are those of the whole configuration, not of a group named recipe.
    ConfigStore.instance().store(group="recipe", name=RECIPE_OF_FILE, node=content, package="_global_")
    with _name_option(option):
        try:
            run_name = [override for override in overrides if override.startswith("run.name=")]
            _check_limits(
                schema, compose_partly(schema, config_dir, [recipe, *run_name], name)
            )  # its list of defaults, too
        except UserError as error:
            if (lacking := re.search(r"Missing mandatory value: (\S+)", str(error))) is None:
                raise
            raise UserError(f"lacks {lacking[1]}; add it to the file, or {lacking[1]}=...") from error
    return [recipe if RECIPE_FILE.fullmatch(override) else override for override in overrides]


def _to_hydra_form(schema: type, overrides: Sequence[str]) -> list[str]:
    """Return overrides in Hydra's form: + before keys that a user may add; lists and texts written as such."""
    mappings, kinds = _mapping_keys(schema), _key_types(schema)
    opened = tuple(f"{key}." for key in mappings)
    canonical = []
    for override in overrides:
        matched = re.fullmatch(r"([+~]*)([^=]*)(.*)", override, re.DOTALL)
        assert matched is not None
        sign, key, rest = map(str, matched.groups())
        is_open = key.startswith(opened) or (key in mappings and rest.startswith("={"))
        sign = "++" if is_open and sign != "~" else sign
        rest = _quote_as_typed(rest) if _is_text(schema, key) else rest
        if _is_list(kinds.get(key)):
            rest = _to_list_form(rest)
            if rest.lower() in ("=[true]", "=[false]"):
                owner, field = next((owner, field) for each, owner, field, _ in keys_of(schema) if each == key)
                meaning = declaration(owner, field).meaning
                raise UserError(f"configuration: {override}: must be a number or a list of numbers: {meaning}")
        canonical.append(f"{sign}{key}{rest}" if key else override)
    return canonical


def _is_text(schema: type, key: str) -> bool:
    """Return whether the values of a key are texts, or lists of them."""
    kinds = _key_types(schema)
    group = kinds.get(key.rpartition(".")[0])
    kind = kinds.get(key, typing.get_args(group)[1] if typing.get_origin(group) is dict else None)
    return kind in (str, str | None, list[str], list[str] | None)


def _is_list(kind: Any) -> bool:
    """Return whether a key's type is a list, or an optional one."""
    return any(typing.get_origin(part) is list for part in (kind, *typing.get_args(kind)))


def _to_list_form(rest: str) -> str:
    """Return `=VALUE` of a key of lists, in which a single value becomes a list of one."""
    if not rest.startswith("="):
        return rest
    parsed = parse_override(f"key{rest}").value()
    return rest if parsed is None or isinstance(parsed, (list, dict)) else f"=[{rest[1:]}]"


def _quote_as_typed(rest: str) -> str:
    """Return `=VALUE` of a key of texts, quoted if Hydra would read a number or truth value: 2026_11_24, 1e3, 007."""
    if not rest:
        return rest
    value = rest[1:]
    parsed = parse_override(f"key{rest}").value()
    if isinstance(parsed, (bool, int, float)):
        return f"={quote(value)}"
    if isinstance(parsed, list) and any(isinstance(item, (bool, int, float)) for item in parsed):
        return f"=[{','.join(quote(item) for item in value.strip()[1:-1].split(','))}]"
    return rest


def _refuse_removed_group(override: str, config_dir: Path) -> None:
    """Raise UserError for ~GROUP, since each group needs one of its values."""
    group, groups = override.lstrip("~").partition("=")[0], ready_made_groups(config_dir)
    if group in groups:
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
        if kinds.get(key) in NUMBERS or choices(kinds.get(key)):
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


@functools.lru_cache(maxsize=1)
def _register_schema(schema: type) -> Any:
    """Register the schema where Hydra looks for it, and return it as OmegaConf's representation."""
    node = _schema_node(schema)
    ConfigStore.instance().store(name=SCHEMA, node=node)
    return node


@functools.cache
def _schema_node(schema: type) -> Any:
    """Return OmegaConf's representation of a schema; callers copy it before they change it."""
    return OmegaConf.structured(_unfrozen_twin(schema))


@functools.cache
def _unfrozen_twin(schema: type) -> type:
    """Return a dataclass with the fields of `schema` that is not frozen: OmegaConf sets no value in a frozen one."""
    kinds = typing.get_type_hints(schema)
    members: list[Any] = []
    for field in dataclasses.fields(schema):
        kind: Any = kinds[field.name]
        default, factory = field.default, field.default_factory
        if (group := group_class(kind)) is not None:
            twin: Any = _unfrozen_twin(group)
            kind, factory = (twin, twin) if kind is group else (twin | None, factory)
        members.append((field.name, kind, dataclasses.field(default=default, default_factory=factory)))
    return dataclasses.make_dataclass(schema.__name__, members)


def _make_instance(schema: type[ConfigT], twin: Any) -> ConfigT:
    """Make an instance of the schema from an instance of its twin, and so on for its groups."""
    kinds = typing.get_type_hints(schema)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(typing.cast(Any, schema)):
        value, group = getattr(twin, field.name), group_class(kinds[field.name])
        values[field.name] = value if group is None or value is None else _make_instance(group, value)
    return schema(**values)


def _suggest_key(schema: type, config_dir: Path, overrides: Sequence[str]) -> str:
    """Return the nearest known key for the first unknown one, as the end of a sentence; "" without one."""
    kinds, groups = _key_types(schema), ready_made_groups(config_dir)
    for override in overrides:
        group, _, name = override.partition("=")[0].rpartition(".")[0].rpartition(".")
        if name in groups.get(group, ()) and f"{group}={name}" not in overrides:
            return f"; give {group}={name} instead"
    names = [*kinds, FILE_OPTION.rstrip("="), *groups]
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0].replace("-", "_")
        if key not in names and not any(known.startswith(f"{key}.") for known in names):
            head, _, tail = key.rpartition(".")
            full_key = ELSEWHERE.get(tail, tail)
            if full_key in names:
                return f"; did you mean {full_key}?"
            tail = full_key.rpartition(".")[2]
            ends = [known for known in names if known.rpartition(".")[2] == tail]
            ends = [known for known in ends if known.rpartition(".")[0] == head] or ends
            close = ends if len(ends) == 1 else difflib.get_close_matches(key, names, n=1)
            return f"; did you mean {close[0]}?" if close else "; --help all lists the keys"
    return ""


NUMBERS = (int, float, bool, int | None, float | None, bool | None)
_NOISE = (
    "full_key:",
    "object_type=",
    "reference_type=",
    "Set the env",
    "To append to your config",
    "Config search",
    "provider=",
    "See https://",
)


def _join_lines(error: Exception) -> str:
    """Join the many lines of a Hydra or OmegaConf error and its causes into one, outermost first."""
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        for line in map(str.strip, str(cause).splitlines()):
            if line and not line.startswith(_NOISE) and line not in parts:
                parts.append(line)
        cause = cause.__cause__
    return "configuration: " + " ".join(parts)
