"""A user's own table in text: its lines, or columns of text, to labels, numbers and categories."""

import csv
import io
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.dataset.bags import Bags, offsets_of
from data_prep.dataset.schema import Schema
from data_prep.dataset.table_spec import Table
from data_prep.io.read_ahead import BLOCK_BYTES
from data_prep.parsing.criteo import Block, parse_bytes

csv.field_size_limit(BLOCK_BYTES)  # of a line, too
LIST_SEPARATOR = "|"  # in text, of what a Parquet table has as lists


def decode(text: bytes, name: str, row: int) -> str:
    """UTF-8 text; `row`: the number of its first line. Raises UserError where it is not that."""
    try:
        return text.decode("utf-8-sig" if row == 1 else "utf-8")
    except UnicodeDecodeError as error:
        row += text.count(b"\n", 0, error.start)
        raise UserError(f"{name}: row {row}: not UTF-8 text; convert the file, or remove the row") from error


def parse_table(text: bytes, table: Table, name: str, row: int, labelled: bool = True) -> Block:
    """Whole lines to labels [rows] int32, dense [rows, N] float64 (0 where empty), sparse [rows, F] uint32, bags.

    Args:
        text: without the header.
        name: what to call the source in an error; row: the number of the first line in it, from 1.
        labelled: whether the label's column holds labels (else labels are 0, and it may be missing altogether).

    Raises:
        UserError: a row that does not fit (file, row, column, remedy).
    """
    lines = decode(text, name, row).split("\n")
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
    single = table.schema.single
    sparse = np.empty((len(rows), len(single)), np.uint32)
    for i, column in enumerate(single):
        sparse[:, i] = [zlib.crc32(value.encode()) for value in columns[column]]
    bags = tuple(
        _bags(columns[column], dict(table.separators)[column] or LIST_SEPARATOR) for column in table.schema.ragged
    )
    return Block(labels, dense, sparse, bags)  # type: ignore[arg-type]  # real numbers instead of int32


def _bags(values: Sequence[str], separator: str) -> Bags:
    """The categories in fields that hold any number of them; an empty field holds none."""
    bags = [[part for part in value.split(separator) if part] for value in values]
    ids = [zlib.crc32(part.encode()) for bag in bags for part in bag]
    return Bags(np.array(ids, np.uint32), offsets_of(np.array([len(bag) for bag in bags], np.int64)))


def _split(line: str, table: Table, name: str, row: int) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=table.delimiter), [])
    except csv.Error as error:
        raise UserError(f"{name}: row {row}: {error}; correct or remove this row") from error


def _numbers(values: tuple[str, ...], where: tuple[str, int], column: str, empty: str | None) -> NDArray[np.float64]:
    """Finite numbers; `empty` replaces empty fields; None: they are errors."""
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
    labels, bad = table.apply_rule(numbers)
    if bad is not None:
        name, row = where
        raise UserError(
            f"{name}: row {row + bad}, column {table.label}: {numbers[bad]:g} is not a label (0 or 1); "
            "correct the row, or give a rule in the schema"
        )
    return labels


def text_separators(table: Table | None) -> dict[str, str]:
    """Separator between the values of each multi-valued column, in text."""
    return {} if table is None else {name: text or LIST_SEPARATOR for name, text in table.separators}


def parse_fields(
    columns: Mapping[str, Sequence[str]], schema: Schema, table: Table | None, name: str, first_row: int
) -> Block:
    """Parse unlabelled rows given by column.

    Args:
        columns: the text of every dense and sparse column of `schema`, one string a row; all of one length.
        table: of a user's own; None: Criteo's rows.
        name: what to call the rows in an error; first_row: the number of the first.

    Raises:
        UserError: a field that does not fit (row, column, remedy).
    """
    names = (*schema.dense, *schema.sparse)
    forbidden = "\r\n" if table is not None else "\t\r\n"
    for column in names:
        for row, text in enumerate(columns[column], start=first_row):
            if any(character in text for character in forbidden):
                raise UserError(f"{name}: row {row}, column {column}: a tab or a line break in it; remove it")
    rows = zip(*(columns[column] for column in names), strict=True)
    if table is None:
        text = "".join("\t".join(fields) + "\n" for fields in rows)
        return parse_bytes(text.encode(), name, schema, labelled=False, first_row=first_row, missing=np.int32(0))
    lines = io.StringIO()
    csv.writer(lines, delimiter=table.delimiter, lineterminator="\n").writerows(rows)
    table = replace(table, header=True, names=names)
    return parse_table(lines.getvalue().encode(), table, name, first_row, labelled=False)
