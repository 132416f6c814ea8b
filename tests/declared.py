"""The reference of all commands, keys and documents, from their declarations, which `make reference` writes."""

import dataclasses
import importlib
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from app.commands import COMMANDS
from common.command import Command
from common.compose import compose_partly
from common.documents import REST, OpenDocument
from common.extensions import load
from common.keys import choices, declaration, flat_values, keys_of, ready_made_groups, shown
from data_prep.dataset.format import JsonObject

ROOT = Path(__file__).parents[1]
PACKAGES = ("app", "data_prep", "extensions")
DECLARES = re.compile(r"^class .*\b(?:Struct|OpenDocument|JsonObject|Provenance|Plan)\b", re.MULTILINE)
FILE = re.compile(r"\S+\.jsonl?( of an? \w+)?(?=: )")  # how the docstring of a whole file's document begins


def row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def table(head: tuple[str, ...], rows: list[str]) -> list[str]:
    return ["", row(*head), "|---" * len(head) + "|", *rows] if rows else []


def commands() -> Iterator[str]:
    """The targets of make, and each command with the keys that no command before it has."""
    targets = re.findall(r"^([a-z-]+):.*?## (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    yield from ["# Commands", *table(("target", "does"), [row(f"`make {name}`", text) for name, text in targets])]
    first: dict[tuple[str, type], str] = {}  # the command under which a key of a group is listed
    for name, command in COMMANDS.items():
        yield from ["", f"## python -m {command.module}", "", f"`clickwork {name}`: {command.summary}."]
        yield from ["```", command.description(), "```"]
        keys = list(keys_of(load(command.schema))) if command.schema else []
        elsewhere = {first[key, owner] for key, owner, *_ in keys if (key, owner) in first}
        yield from [
            f"\nKeys of `python -m {module}` that `--help all` lists here, too." for module in sorted(elsewhere)
        ]
        new = [each for each in keys if first.setdefault((each[0], each[1]), command.module) == command.module]
        yield from table(("key", "values", "default", "meaning"), key_rows(command, new) if new else [])
        groups = ready_made_groups(command.config_dir) if command.has_groups else {}
        yield from table(
            ("ready-made values", "names"), [row(f"`{group}=`", ", ".join(groups[group])) for group in groups]
        )


def key_rows(command: Command, keys: list[tuple[str, type, str, Any]]) -> list[str]:
    values = flat_values(compose_partly(load(str(command.schema)), command.config_dir, [], command.config))
    rows = []
    for key, owner, field, kind in keys:
        declared = declaration(owner, field)
        allowed = " or ".join(choices(kind)) or f"{type_text(kind)} {declared.rule}"
        rows.append(row(f"`{key}`", allowed, f"`{shown(values[key])}`", declared.meaning))
    return rows


def type_text(kind: Any) -> str:
    """A type without the names of modules; "absent" is a field that a document may leave out."""
    text = str(kind) if typing.get_args(kind) else kind.__name__
    text = re.sub(r"(?:\w+\.)+_?(?=\w)|\b_(?=[A-Z])", "", text)
    return text.replace("NoneType", "None").replace("UnsetType", "absent")


def documents() -> Iterator[str]:
    """Every document, those first that are a file, and the records in it."""
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        if DECLARES.search(path.read_text(encoding="utf-8")):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    known = [each for each in subclasses(Struct) if issubclass(each, (OpenDocument, JsonObject)) or file_of(each)]
    known = [each for each in known if fields_of(each) and each.__module__.startswith(PACKAGES)]
    yield from ["", "# Documents"]
    tops = sorted(known, key=lambda kind: (not file_of(kind), file_of(kind)))
    for kind in dict.fromkeys(record for top in tops for record in records(top)):
        file, meanings = file_of(kind), dict[str, str]()
        yield from ["", f"## {file} ({type_text(kind)})" if file else f"### {type_text(kind)}", ""]
        for text in docstrings(kind):
            about, *parts = divided(kind, text)
            yield about.removesuffix("Attributes:")
            for names, meaning in zip(parts[::2], parts[1::2], strict=True):
                meanings = {**dict.fromkeys(names.split(", "), meaning.removesuffix(";")), **meanings}
        rows = [row(f"`{name}`", type_text(each), meanings.get(name, "")) for name, each in fields_of(kind).items()]
        yield from table(("field", "type", "meaning"), rows)


def subclasses(kind: type) -> Iterator[type]:
    below: list[type] = type.__subclasses__(kind)
    for each in below:
        yield from [each, *subclasses(each)]


def records(kind: Any, above: tuple[type, ...] = ()) -> Iterator[type]:
    """The records in a type: itself, and those in its fields."""
    parts = typing.get_args(kind)
    if isinstance(kind, type) and kind not in above and (issubclass(kind, Struct) or dataclasses.is_dataclass(kind)):
        yield kind
        parts, above = tuple(fields_of(kind).values()), (*above, kind)
    for part in parts:
        yield from records(part, above)


def fields_of(kind: Any) -> dict[str, Any]:
    names = kind.__struct_fields__ if issubclass(kind, Struct) else [field.name for field in dataclasses.fields(kind)]
    types = typing.get_type_hints(kind)
    return {name: types[name] for name in names if name != REST}


def docstrings(kind: type) -> list[str]:
    """The docstrings of a record and of its bases, each in one line."""
    bases = [each for each in kind.__mro__ if each not in (object, *Struct.__mro__, OpenDocument, JsonObject)]
    return [" ".join((each.__doc__ or "").split()) for each in bases]


def file_of(kind: type) -> str:
    """The file that a document is, as its docstring begins; empty for a record in one."""
    return next((found[0] for text in docstrings(kind) if (found := FILE.match(text))), "")


def divided(kind: type, docstring: str) -> list[str]:
    """A docstring's text before `name: meaning` or `name, name: meaning` of fields, and these names and meanings."""
    name = rf"(?:{'|'.join(fields_of(kind))})"
    return [part.strip() for part in re.split(rf"(?:^|(?<=[.;:] ))({name}(?:, {name})*): ", docstring)]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("\n".join([*commands(), *documents(), ""]), encoding="utf-8")
    print(sys.argv[1])
