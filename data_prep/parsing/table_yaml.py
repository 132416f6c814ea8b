"""The YAML file that says how to read a user's own table, checked against the table's files."""

import csv
import re
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace

from common.errors import UserError
from data_prep.dataset.table_spec import RULE, Table
from data_prep.parsing.table_csv import decode
from data_prep.parsing.table_parquet import column_kinds, is_parquet
from data_prep.sources.discover import Source
from data_prep.sources.line_blocks import LineBlocks

KEYS = {"delimiter", "header", "label", "dense", "sparse"}
OF_TEXT = ("delimiter", "header")
COLUMN_AND_RULE = re.compile(rf"(.*\S)({RULE.pattern})")


def load_table(path: Path, sources: tuple[Source, ...]) -> Table:
    """A table by its YAML file, checked against the files' headers.

    Raises:
        UserError: the YAML file says something else than it may, or a column is not in a file.
    """
    document = _read_yaml(path)
    kinds = {is_parquet(source) for source in sources}
    if len(kinds) == 2:
        raise UserError(f"{path}: Parquet and text files together in data.raw; give files of one kind")
    if kinds == {True}:
        return _parquet_table(path, document, sources)
    delimiter, header = _text_keys(path, document)
    first = _read_header(sources[0], delimiter) if header else None
    table = _table(path, document, first)
    if first is None:
        positions = {int(name.removeprefix("column_")) for name in table.schema.columns}
        return replace(table, names=tuple(f"column_{i}" for i in range(max(positions) + 1)))
    for source in sources:
        names_here = _read_header(source, delimiter)
        for name in table.schema.columns:
            if name not in names_here:
                hint = f", perhaps the delimiter, {delimiter!r} now" if len(names_here) == 1 else ""
                raise UserError(
                    f"{source.path}: row 1: no column {name}, which {path} names; correct one of them{hint}"
                )
            if names_here.count(name) > 1:
                raise UserError(f"{source.path}: row 1: two columns {name}; rename one of them")
        if names_here != first:
            raise UserError(f"{source.path}: row 1: other columns than in {sources[0].path}; give like files")
    return replace(table, names=first)


def _parquet_table(path: Path, document: dict[str, Any], sources: tuple[Source, ...]) -> Table:
    for key in OF_TEXT:
        if key in document:
            raise UserError(f"{path}: key {key}: has no effect, as {sources[0].path} is a Parquet file; leave it out")
    kinds = column_kinds(sources[0])
    table = replace(_table(path, document, tuple(kinds)), names=tuple(kinds), is_parquet=True)
    for source in sources:
        here = column_kinds(source)
        for name in table.schema.columns:
            if name not in here:
                raise UserError(f"{source.path}: no column {name}, which {path} names; correct one of them")
            if here[name] != kinds[name]:
                raise UserError(f"{source.path}, column {name}: {here[name]}, but {kinds[name]} in {sources[0].path}")
    for name in (table.label, *table.dense):
        if kinds[name] not in ("integer", "number"):
            raise UserError(f"{sources[0].path}, column {name}: {kinds[name]}, not numbers; convert the column")
    separators = {name: _separator(path, sources[0], table, name, kinds[name]) for name in table.sparse}
    ordered = tuple((name, separator) for name, separator in separators.items() if separator is not None)
    return replace(table, separators=ordered)


def _separator(path: Path, source: Source, table: Table, name: str, kind: str) -> str | None:
    """Separator of a Parquet column's values, "" in a column of lists; None for single values."""
    separator = dict(table.separators).get(name)
    if kind == "list":
        if separator is not None:
            raise UserError(f"{path}: column {name}: holds lists in {source.path}; leave the separator out")
        return ""
    if kind not in ("text", "integer", "number"):
        raise UserError(f"{source.path}, column {name}: {kind}; categories are text, integers or lists of these")
    if separator is not None and kind != "text":
        raise UserError(f"{source.path}, column {name}: {kind}, which no separator divides")
    return separator


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not readable as YAML ({' '.join(str(error).split())}); see docs/data.md") from error
    if not isinstance(document, dict) or not {"label", "sparse"} <= set(document) or set(document) - KEYS:
        found = sorted(map(str, document)) if isinstance(document, dict) else document
        raise UserError(f"{path}: keys {found}; label and sparse are needed, {sorted(KEYS)} are known")
    return document


def _text_keys(path: Path, document: dict[str, Any]) -> tuple[str, bool]:
    """Delimiter and header of text files."""
    header, delimiter = document.get("header", True), document.get("delimiter", ",")
    if not isinstance(header, bool) or not isinstance(delimiter, str) or len(delimiter) != 1:
        raise UserError(f"{path}: keys header and delimiter: give true or false, and one character")
    return delimiter, header


def _table(path: Path, document: dict[str, Any], names: tuple[str, ...] | None) -> Table:
    """The table that a document describes; `names`: of the file's columns, None for text without a header."""
    delimiter, header = _text_keys(path, document)
    label, rule = _label(path, document["label"])
    lists = [document.get("dense") or [], document["sparse"]]
    if not all(isinstance(columns, list) for columns in lists) or not lists[1]:
        raise UserError(f"{path}: keys dense and sparse: give lists of columns, sparse at least one")
    sparse, separators = [], []
    for entry in lists[1]:
        column, separator = _sparse_column(path, entry)
        sparse.append(_name(path, column, names))
        separators += [] if separator is None else [(sparse[-1], separator)]
    for name in sparse:
        if set(name) & set("./\\\0") or not name:
            raise UserError(f"{path}: sparse column {name!r}: names files and tables; rename it without . / and \\")
    dense = tuple(_name(path, column, names) for column in lists[0])
    label = _name(path, label, names)
    wanted = (label, *dense, *sparse)
    if len(set(wanted)) != len(wanted):
        twice = next(name for name in wanted if wanted.count(name) > 1)
        raise UserError(f"{path}: column {twice} is named twice; a column has one use")
    return Table(delimiter, header, label, dense, tuple(sparse), rule, names=(), separators=tuple(separators))


def _label(path: Path, label: Any) -> tuple[Any, str | None]:
    """Column and rule from COLUMN, "COLUMN >= 4" or {column: COLUMN, rule: ">= 4"}."""
    if isinstance(label, str) and (match := COLUMN_AND_RULE.fullmatch(label)):
        return match[1], match[2].strip()
    if not isinstance(label, dict):
        return label, None
    if set(label) != {"column", "rule"} or not RULE.fullmatch(str(label["rule"])):
        raise UserError(f'{path}: key label: give a column, or {{column: NAME, rule: ">= 4"}}')
    return label["column"], str(label["rule"])


def _sparse_column(path: Path, entry: Any) -> tuple[Any, str | None]:
    """Column and separator from COLUMN or {column: COLUMN, separator: "|"}."""
    if not isinstance(entry, dict):
        return entry, None
    separator = entry.get("separator")
    if set(entry) != {"column", "separator"} or not isinstance(separator, str) or not separator:
        raise UserError(f'{path}: key sparse, {entry}: give a column, or {{column: NAME, separator: "|"}}')
    return entry["column"], separator


def _name(path: Path, column: Any, names: tuple[str, ...] | None) -> str:
    """A column's name, from its name or its position."""
    is_position = isinstance(column, int) and not isinstance(column, bool) and column >= 0
    if is_position:
        if names is not None and column >= len(names):
            raise UserError(f"{path}: column {column}: the file has {len(names)} columns, counted from 0")
        return f"column_{column}" if names is None else names[column]
    if names is not None and isinstance(column, str):
        return column
    kind = "positions from 0" if names is None else "names, or positions from 0"
    raise UserError(f"{path}: {column!r} is not a column; of these files columns are {kind}")


def _read_header(source: Source, delimiter: str) -> tuple[str, ...]:
    with LineBlocks(source) as lines:
        for block in lines.until(1):
            text = bytes(block.buffer[block.start : block.end])
            return tuple(next(csv.reader([decode(text, source.path, 1)], delimiter=delimiter), ()))
    raise UserError(f"{source.path}: empty file; get it again, or leave it out of data.raw")
