"""JSON lines: each line is an object whose members are columns. A missing member is an empty field."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa

from common.errors import UserError
from data_prep.dataset.dialect import STANDARD, Dialect
from data_prep.parsing.formats import BYTE_ORDER_MARK, Column, FileLayout, LineFormat, suffix_of
from data_prep.sources.discover import Source
from data_prep.sources.line_blocks import LineBlocks

SUFFIXES = (".jsonl", ".ndjson")
BLANK = b" \t\r"
ARROW_TYPES = {str: pa.string(), float: pa.float64(), int: pa.int64(), bool: pa.bool_()}
_decode = msgspec.json.Decoder().decode


class JsonLines(LineFormat):
    """Format of JSON lines."""

    name = "json_lines"
    merges_columns = True
    batch_bytes = 2 << 20  # Python objects take many times as much memory

    def is_of(self, source: Source) -> bool:
        """Return whether the file's name has a suffix of JSON lines."""
        return suffix_of(source.name) in SUFFIXES

    def columns(
        self, source: Source, delimiter: str = ",", header: bool = True, dialect: Dialect = STANDARD
    ) -> list[Column]:
        """Return the members of the first objects, of kind any or list."""
        kinds: dict[str, str] = {}
        with LineBlocks(source) as lines:
            for block in lines.until(1 << 20):
                for item in read_objects(bytes(block.buffer[block.start : block.end]), source.path).values():
                    for name, value in item.items():
                        kinds[name] = "list" if isinstance(value, list) else kinds.get(name, "any")
        if not kinds:
            raise UserError(f"{source.path}: no rows in it; get it again, or leave it out of {source.key}")
        return [Column(name, kind) for name, kind in kinds.items()]

    def fields(
        self, text: bytes, columns: Sequence[str], layout: FileLayout, name: str, row: int
    ) -> tuple[dict[str, Any], list[int]]:
        """Parse lines as `LineFormat.fields` describes."""
        objects = read_objects(text, name, row)
        return {column: column_of(objects, column) for column in columns}, list(objects)


def read_objects(text: bytes, name: str, first: int = 1) -> dict[int, dict[str, Any]]:
    """Return the objects of whole lines by line number, without blank lines. Only a line feed ends a line."""
    objects = {}
    for row, line in enumerate(text.removeprefix(BYTE_ORDER_MARK).split(b"\n"), start=first):
        if not line.strip(BLANK):
            continue
        try:
            item = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            refuse_constants(line, f"{name}: row {row}, ")
            raise UserError(f"{name}: row {row}: not JSON ({error}); give one object a line") from error
        if not isinstance(item, dict):
            raise UserError(f"{name}: row {row}: not an object of columns; give one object a line")
        objects[row] = item
    return objects


class Constant(str):
    """Name of a number that JSON lacks."""


def refuse_constants(text: bytes, location: str) -> None:
    """Raise UserError for a NaN or infinity, as Python's json writes them; `location` precedes the column."""
    with suppress(ValueError, RecursionError):
        members: list[tuple[str, Any]] = []
        json.loads(text, parse_constant=Constant, object_pairs_hook=members.extend)
        fields = ((name, each) for name, value in members for each in (value if isinstance(value, list) else [value]))
        for name, value in fields:
            if isinstance(value, Constant):
                raise UserError(f"{location}column {name}: {value}, which JSON does not have; write null")


def column_of(objects: Mapping[int, Mapping[str, Any]], column: str) -> Any:
    """Return a column's values: an Arrow array if all have one type, otherwise a list of Python values."""
    values = [item.get(column) for item in objects.values()]
    kinds = {type(value) for value in values} - {type(None)}
    if len(kinds) == 1 and (kind := ARROW_TYPES.get(kinds.pop())):
        with suppress(OverflowError):  # integers beyond 64 bits stay Python objects
            return pa.array(values, kind)
    return values
