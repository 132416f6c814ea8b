"""A user's own table: columns chosen by a YAML file, text fields to labels, numbers and categories.

A category is any text; it is known by its CRC-32, as Criteo's categories are known by a 32-bit hash. Two of a
column's values share one with a probability of 2^-32: of a million values about a hundred pairs do.
"""

import csv
import operator
import re
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.lines import LineBlocks
from data_prep.parse import Block
from data_prep.schema import Schema
from data_prep.sources import Source

KEYS = {"delimiter", "header", "label", "dense", "sparse"}
RULE = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(-?\d+(?:\.\d+)?)\s*")
COMPARISONS: dict[str, Callable[[Any, float], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True)
class Table:
    """How to read a text table.

    Attributes:
        delimiter: one character.
        header: whether every file begins with a line of names.
        label: name of its column, or its position from 0 where there is no header; dense, sparse: likewise.
        rule: what makes a label 1, e.g. ">= 4"; None: it is 0 or 1 already.
        names: of all columns in file order; without a header column_0 and so on, as many as are needed.
    """

    delimiter: str
    header: bool
    label: str
    dense: tuple[str, ...]
    sparse: tuple[str, ...]
    rule: str | None
    names: tuple[str, ...] = ()

    @property
    def schema(self) -> Schema:
        """The columns that are used."""
        return Schema(self.label, self.dense, self.sparse)

    def to_manifest(self) -> dict[str, Any]:
        """As the manifest's `encoding` holds it."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_manifest(cls, entry: dict[str, Any]) -> "Table":
        """The inverse of `to_manifest`."""
        lists = {key: tuple(entry[key]) for key in ("dense", "sparse", "names")}
        return cls(**{**entry, **lists})

    def with_header(self, line: str, name: str, labelled: bool) -> "Table":
        """The same table where a file's first line, `line`, names other columns, or the same in another order.

        Raises:
            UserError: a column that is used is not there.
        """
        names = tuple(next(csv.reader([line], delimiter=self.delimiter), ()))
        for column in self.schema.columns if labelled else (*self.dense, *self.sparse):
            if column not in names:
                raise UserError(f"{name}: row 1: no column {column}; the first row must name the columns")
        return replace(self, names=names)


def load_table(path: Path, sources: tuple[Source, ...]) -> Table:
    """A table by its YAML file, checked against the files' headers.

    Raises:
        UserError: the YAML file says something else than it may, or a column is not in a file.
    """
    table = _read_yaml(path)
    wanted = table.schema.columns
    if len(set(wanted)) != len(wanted):
        twice = next(name for name in wanted if wanted.count(name) > 1)
        raise UserError(f"{path}: column {twice} is named twice; a column has one use")
    if not table.header:
        names = {int(name.removeprefix("column_")) for name in wanted}
        return replace(table, names=tuple(f"column_{i}" for i in range(max(names) + 1)))
    first: tuple[str, ...] | None = None
    for source in sources:
        names_here = _read_header(source, table.delimiter)
        first = first or names_here
        for name in wanted:
            if name not in names_here:
                raise UserError(f"{source.path}: row 1: no column {name}, which {path} names; correct one of them")
        if names_here != first:
            raise UserError(f"{source.path}: row 1: other columns than in {sources[0].path}; give like files")
    assert first is not None
    return replace(table, names=first)


def _read_yaml(path: Path) -> Table:
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not readable as YAML ({' '.join(str(error).split())}); see docs/data.md") from error
    if not isinstance(document, dict) or not {"label", "sparse"} <= set(document) or set(document) - KEYS:
        found = sorted(document) if isinstance(document, dict) else document
        raise UserError(f"{path}: keys {found}; label and sparse are needed, {sorted(KEYS)} are known")
    label, rule = document["label"], None
    if isinstance(label, dict):
        if set(label) != {"column", "rule"} or not RULE.fullmatch(str(label["rule"])):
            raise UserError(f'{path}: key label: give a column, or {{column: NAME, rule: ">= 4"}}')
        label, rule = label["column"], str(label["rule"])
    header = document.get("header", True)
    delimiter = document.get("delimiter", ",")
    if not isinstance(header, bool) or not isinstance(delimiter, str) or len(delimiter) != 1:
        raise UserError(f"{path}: keys header and delimiter: give true or false, and one character")
    lists = [document.get("dense") or [], document["sparse"]]
    if not all(isinstance(columns, list) for columns in lists) or not lists[1]:
        raise UserError(f"{path}: keys dense and sparse: give lists of columns, sparse at least one")
    names = [_name(path, column, header) for column in (label, *lists[0], *lists[1])]
    for name in names[1 + len(lists[0]) :]:
        if set(name) & set("./\\\0") or not name:
            raise UserError(f"{path}: sparse column {name!r}: names files and tables; rename it without . / and \\")
    cut = 1 + len(lists[0])
    return Table(delimiter, header, names[0], tuple(names[1:cut]), tuple(names[cut:]), rule)


def _name(path: Path, column: Any, header: bool) -> str:
    if header and isinstance(column, str):
        return column
    if not header and isinstance(column, int) and column >= 0:
        return f"column_{column}"
    kind = "names" if header else "positions from 0"
    raise UserError(f"{path}: {column!r} is not a column; with header: {str(header).lower()} columns are {kind}")


def _read_header(source: Source, delimiter: str) -> tuple[str, ...]:
    with LineBlocks(source) as lines:
        for block in lines.until(1):
            text = bytes(block.buffer[block.start : block.end])
            return tuple(next(csv.reader([_decode(text, source.path, 1)], delimiter=delimiter), ()))
    raise UserError(f"{source.path}: empty file; get it again, or leave it out of data.raw")


def _decode(text: bytes, name: str, row: int) -> str:
    try:
        return text.decode("utf-8-sig" if row == 1 else "utf-8")
    except UnicodeDecodeError as error:
        row += text.count(b"\n", 0, error.start)
        raise UserError(f"{name}: row {row}: not UTF-8 text; convert the file, or remove the row") from error


def parse_table(text: bytes, table: Table, name: str, row: int, labelled: bool = True) -> Block:
    """Whole lines to labels [rows] int32, dense [rows, N] float64 (0 where empty), sparse [rows, F] uint32.

    Args:
        text: without the header.
        name: what to call the source in an error; row: the number of the first line in it, from 1.
        labelled: whether the label's column holds labels (else labels are 0, and it may be missing altogether).

    Raises:
        UserError: a row that does not fit (file, row, column, remedy).
    """
    lines = _decode(text, name, row).split("\n")
    lines = lines[:-1] if not lines[-1] else lines
    names = table.names
    if not labelled and not table.header and lines and len(_split(lines[0], table, name, row)) == len(names) - 1:
        names = tuple(column for column in names if column != table.label)
    rows = [_split(line.removesuffix("\r"), table, name, row + i) for i, line in enumerate(lines)]
    for i, fields in enumerate(rows):
        if len(fields) < len(names) or (table.header and len(fields) != len(names)):
            column = names[min(len(fields), len(names) - 1)]
            raise UserError(
                f"{name}: row {row + i}: {len(fields)} columns, but a row has {len(names)} (see column {column}); "
                "correct or remove this row"
            )
    columns = dict(zip(names, zip(*rows, strict=False), strict=False)) if rows else dict.fromkeys(names, ())
    where = (name, row)
    labels = np.zeros(len(rows), np.int32)
    if labelled:
        labels = _labels(_numbers(columns[table.label], where, table.label, empty=None), table, where)
    dense = np.empty((len(rows), len(table.dense)))
    for i, column in enumerate(table.dense):
        dense[:, i] = _numbers(columns[column], where, column, empty="0")
    sparse = np.empty((len(rows), len(table.sparse)), np.uint32)
    for i, column in enumerate(table.sparse):
        sparse[:, i] = [zlib.crc32(value.encode()) for value in columns[column]]
    return Block(labels, dense, sparse)  # type: ignore[arg-type]  # real numbers instead of int32


def _split(line: str, table: Table, name: str, row: int) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=table.delimiter), [])
    except csv.Error as error:
        raise UserError(f"{name}: row {row}: {error}; mend or remove the row") from error


def _numbers(values: tuple[str, ...], where: tuple[str, int], column: str, empty: str | None) -> NDArray[np.float64]:
    """Finite numbers; what an empty field stands for, or None if it may not be empty."""
    filled = [value or empty or "empty" for value in values]
    try:
        numbers = np.array(filled, np.float64)
        if np.isfinite(numbers).all():
            return numbers
    except ValueError:
        pass
    for i, value in enumerate(filled):
        try:
            is_number = np.isfinite(float(value))
        except ValueError:
            is_number = False
        if not is_number:
            name, row = where
            raise UserError(
                f"{name}: row {row + i}, column {column}: {values[i][:40]!a} is not a number; "
                "correct or remove this row"
            )
    raise AssertionError("a number that NumPy refuses and Python takes")


def _labels(numbers: NDArray[np.float64], table: Table, where: tuple[str, int]) -> NDArray[np.int32]:
    if table.rule is not None:
        match = RULE.fullmatch(table.rule)
        assert match is not None
        return np.asarray(COMPARISONS[match[1]](numbers, float(match[2])), np.int32)
    bad = np.flatnonzero((numbers != 0) & (numbers != 1))
    if len(bad):
        name, row = where
        raise UserError(
            f"{name}: row {row + bad[0]}, column {table.label}: {numbers[bad[0]]:g} is not a label (0 or 1); "
            "correct the row, or give a rule in the schema"
        )
    return numbers.astype(np.int32)
