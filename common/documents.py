"""JSON documents that this program writes, and their versions.

A document is a msgspec Struct. One that later versions may extend is an `OpenDocument`: further keys are kept.
"""

import json
import re
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Struct

from common.errors import UserError

SHOWN_CHARACTERS = 60
UNKNOWN = "is unknown; another version of the tool may have written it"
REST = "rest"

T = TypeVar("T")
Json: TypeAlias = dict[str, object]  # an object with any keys and values
Number: TypeAlias = int | float  # read as it is written: 1 stays 1
Figures: TypeAlias = dict[str, Number | None]  # numbers by name; None was not measured


class OpenDocument(Struct, kw_only=True):
    """A document that keeps keys without a field in `rest`, and writes them last."""

    rest: Json = msgspec.field(default_factory=dict)

    def figure(self, name: str) -> float | None:
        """Return the number of a field or a further key; None if it is missing or null.

        Raises ValueError: it is not a number.
        """
        value = getattr(self, name, UNSET)
        value = self.rest.get(name) if value is UNSET else value
        if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            return value
        raise ValueError(f"key {name!r} is {_excerpt(value)}: not a number")


def read_document(path: Path, kind: type[T], remedy: str) -> T:
    """Read a document from its file.

    Raises FileNotFoundError: there is no file. Raises UserError: it cannot be read, is not JSON, or a key is invalid;
    names the file, key and remedy.
    """
    try:
        return decode(path.read_bytes(), kind)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{path}: not readable ({error.strerror}); {remedy}") from error
    except ValueError as error:
        raise UserError(f"{path}: damaged ({error}); {remedy}") from error


def format_of(path: Path) -> str | None:
    """Return the format that a JSON document names; None if it names none, or there is no such document."""
    try:
        document = decode(path.read_bytes(), object)
    except (OSError, ValueError):
        return None
    form = document.get("format") if isinstance(document, dict) else None
    return form if isinstance(form, str) else None


def decode(content: bytes | str, kind: type[T]) -> T:
    """Parse a document from JSON; NaN and infinities are read as Python writes them.

    Raises ValueError: not JSON, or a key that is missing, unknown or of a wrong value; names the key.
    """
    # The parser of msgspec refuses NaN and infinities, which figures may be.
    try:
        document = json.loads(content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return convert(document, kind)


def encode(document: object, indent: int | None = None) -> str:
    """Format a document as JSON with the keys in the order of its fields; leave out fields that are not set."""
    return json.dumps(plain(document), indent=indent)


def plain(document: object) -> Any:
    """Convert a document, a dataclass, or a list or dictionary with them in it, to values that json.dumps takes."""
    if isinstance(document, Struct):
        return plain_object(document)
    if is_dataclass(document):
        return {field.name: plain(getattr(document, field.name)) for field in fields(document)}
    if isinstance(document, dict):
        return {key: plain(value) for key, value in document.items()}
    if isinstance(document, (list, tuple)):
        return [plain(value) for value in document]
    return document.name if isinstance(document, Enum) else document


def plain_object(document: Struct) -> Json:
    """Convert a document to a dictionary of plain values; fields that are not set are left out, `rest` is joined."""
    values = {name: getattr(document, name) for name in document.__struct_fields__}
    if isinstance(document, OpenDocument):
        values |= values.pop(REST)
    return {name: plain(value) for name, value in values.items() if value is not UNSET}


def convert(value: object, kind: type[T], prefix: str = "") -> T:
    """Convert plain values to a document by msgspec, with errors that name the whole key, also below mappings.

    prefix: dotted key of the value in errors.

    Raises ValueError: names the first key that is missing, unknown or of a wrong value.
    """
    try:
        document = msgspec.convert(value, kind)
        _keep_rest(document, value)
        return document
    except msgspec.ValidationError as error:
        names, part = _locate(value, kind, str(error))
        message = str(error).partition(" - at ")[0]
    field = re.fullmatch("Object (missing required|contains unknown) field `(.*)`", message)
    key = ".".join(filter(None, (prefix, *names, field and field[2]))).replace(".[", "[")
    if field:
        raise ValueError(f"key {key!r} {'is missing' if field[1] == 'missing required' else UNKNOWN}")
    place = f"key {key!r} is {_excerpt(part)}" if key else "the document"
    raise ValueError(f"{place}: {message[0].lower()}{message[1:]}")


def _excerpt(value: object) -> str:
    """Return a value as JSON for an error, cut after SHOWN_CHARACTERS."""
    text = json.dumps(value, default=str)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _keep_rest(document: object, value: object) -> None:
    """Set `rest` of all open documents in a document from the value that it was made of."""
    if isinstance(document, Struct) and isinstance(value, dict):
        fields = document.__struct_fields__
        if isinstance(document, OpenDocument):
            document.rest = {key: part for key, part in value.items() if key not in fields}
        parts = [(getattr(document, name), value[name]) for name in fields if name in value and name != REST]
    elif isinstance(document, dict) and isinstance(value, dict):
        parts = [(document_part, value[key]) for key, document_part in document.items()]
    elif isinstance(document, list) and isinstance(value, list):
        parts = list(zip(document, value, strict=True))
    else:
        return
    for document_part, value_part in parts:
        if isinstance(document_part, (Struct, dict, list)) and document_part is not value_part:
            _keep_rest(document_part, value_part)


def _locate(document: object, kind: type[T], message: str) -> tuple[list[str], object]:
    """Return the path of names to the value that an error of msgspec is about, and the value.

    msgspec writes [...] for any key of a mapping. To find the key, each is tried alone.
    """
    path = message.partition(" - at ")[2]
    value: Any = document  # its parts may be nested in any way
    names = []
    steps = re.findall(r"\.(\w+)|\[(\d+|\.{3})\]", path) + ([("", "...")] if "`key` in" in path else [])
    for name, index in steps:
        if index == "...":
            entries = dict(value)
            for name in entries:  # noqa: PLW2901
                value.clear()
                value[name] = entries[name]
                try:
                    msgspec.convert(document, kind)
                except msgspec.ValidationError:
                    break
            value.update(entries)
        names.append(name or f"[{index}]")
        value = value[name] if name else value[int(index)]
    return names, value


# The version of the checkout, or of the installed package.
PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
_DECLARED = PYPROJECT.is_file() and re.search(r'^version = "([^"]+)"', PYPROJECT.read_text("utf-8"), re.MULTILINE)
VERSION = _DECLARED[1] if _DECLARED else metadata.version("clickwork")
