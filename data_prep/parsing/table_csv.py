"""A user's own table in text: its lines, or columns of text, to labels, numbers and categories."""

import contextlib
import csv
import functools
import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.dataset.bags import offsets_of
from data_prep.dataset.schema import Schema
from data_prep.dataset.table_spec import DatePart, Table
from data_prep.io.read_ahead import BLOCK_BYTES
from data_prep.parsing.criteo import Block, parse_bytes
from data_prep.parsing.dates import part_of, read_times
from data_prep.parsing.table_block import TableBlock, TextBags
from data_prep.sources.line_blocks import bare_returns

csv.field_size_limit(BLOCK_BYTES)  # of a line, too
LIST_SEPARATOR = "|"  # in text, of what a Parquet table has as lists


def decode(text: bytes, name: str, row: int) -> str:
    """UTF-8 text; `row`: the number of its first line. Raises UserError where it is not that."""
    try:
        return text.decode("utf-8-sig" if row == 1 else "utf-8")
    except UnicodeDecodeError as error:
        row += text.count(b"\n", 0, error.start)
        raise UserError(f"{name}: row {row}: not UTF-8 text; convert the file, or remove the row") from error


class Rows(NamedTuple):
    """Where rows are: a file and the number of each line."""

    name: str
    numbers: Sequence[int]

    def error(self, index: int, column: str, fault: str, remedy: str = "correct or remove this row") -> UserError:
        """About a field of the row with that index."""
        return UserError(f"{self.name}: row {self.numbers[index]}, column {column}: {fault}; {remedy}")


def split_rows(text: str, delimiter: str, name: str, row: int) -> tuple[list[list[str]], Sequence[int]]:
    """The fields of each row, and the number of its line; blank lines are no rows.

    Args:
        text: whole lines; row: the number of the first.

    Raises:
        UserError: a line that ends inside quotes, or a carriage return within one.
    """
    lines = text.removesuffix("\n").split("\n")
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter)
    rows: list[list[str]] = []
    numbers: list[int] = []
    before = 0
    fault = None
    try:
        for fields in reader:
            if reader.line_num > before + 1 or (fields and fields[-1].endswith("\n")):
                break
            before += 1
            if fields:
                rows.append(fields)
                numbers.append(row + before - 1)
        else:
            return rows, numbers
    except csv.Error as error:
        if reader.line_num <= before + 1:
            fault = f"{bare_returns(name)}" if "new-line" in str(error) else f"{error}; correct or remove this row"
    fault = fault or "ends inside quotes; a row is one line: close the quotes, or remove the line break"
    raise UserError(f"{name}: row {row + before}: {fault}")


def read_names(header: bytes, delimiter: str, name: str) -> tuple[str, ...]:
    """The names in a file's first line. Raises UserError where it is none."""
    rows, _ = split_rows(decode(header, name, 1), delimiter, name, 1)
    return tuple(rows[0]) if rows else ()


def parse_table(
    text: bytes, table: Table, name: str, row: int, labelled: bool = True, max_number: float = np.inf
) -> TableBlock:
    """Parse whole lines.

    Args:
        text: without the header.
        name: what to call the source in an error; row: the number of the first line in it, from 1.
        labelled: whether the label's column holds labels (else labels are 0, and it may be missing altogether).
        max_number: the largest number, without its sign, that a dense column may hold.

    Raises:
        UserError: a row that does not fit (file, row, column, remedy).
    """
    rows, numbers = split_rows(decode(text, name, row), table.delimiter, name, row)
    names = table.names
    if not labelled and not table.header and rows and len(rows[0]) == len(names) - 1:
        names = tuple(column for column in names if column != table.label)
    for fields, number in zip(rows, numbers, strict=True):
        if len(fields) < len(names) or (table.header and len(fields) != len(names)):
            column = names[min(len(fields), len(names) - 1)]
            raise UserError(
                f"{name}: row {number}: {len(fields)} columns, but a row has {len(names)} (see column {column}); "
                "correct or remove this row"
            )
    columns = dict(zip(names, zip(*rows, strict=False), strict=False)) if rows else dict.fromkeys(names, ())
    if table.missing:
        marks = frozenset(table.missing)
        columns = {name: tuple("" if text in marks else text for text in texts) for name, texts in columns.items()}
    where = Rows(name, numbers)
    labels = np.zeros(len(rows), np.int32)
    if labelled:
        labels = _labels(_numbers(columns[table.label], where, table.label, table, None, np.inf), table, where)
    parts = {part.feature: _date_part(columns[part.column], where, part) for part in table.parts}
    dense = np.empty((len(rows), len(table.dense)))
    for i, column in enumerate(table.dense):
        if column in parts:
            dense[:, i] = parts[column][0]
        else:
            dense[:, i] = _numbers(columns[column], where, column, table, "0", max_number)
    texts = (number_texts(*parts[name]) if name in parts else columns[name] for name in table.schema.single)
    categories = tuple(encode_texts(column) for column in texts)
    bags = tuple(
        _bags(columns[column], dict(table.separators)[column] or LIST_SEPARATOR) for column in table.schema.ragged
    )
    return TableBlock(labels, dense, categories, bags)


def encode_texts(texts: Sequence[str]) -> Any:
    """A column of text as `TableBlock` has it."""
    import pyarrow as pa

    return pa.array(texts, pa.string()).dictionary_encode()


def number_texts(numbers: NDArray[np.int64], present: NDArray[np.bool_]) -> list[str]:
    """Whole numbers as categories, "" where there is none."""
    return [str(number) if is_there else "" for number, is_there in zip(numbers.tolist(), present, strict=True)]


def _date_part(texts: Sequence[str], where: Rows, part: DatePart) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    try:
        return part_of(read_times(texts, part.format), part.part)
    except ValueError as error:
        index = error.args[0]
        form = "an ISO 8601 date or time" if part.format is None else f"a time of format {part.format}"
        remedy = "correct this row, or give another format in the schema"
        raise where.error(index, part.column, f"{texts[index][:40]!a} is not {form}", remedy) from error


def _bags(values: Sequence[str], separator: str) -> TextBags:
    """The categories in fields that hold any number of them; an empty field holds none."""
    bags = [[part for part in value.split(separator) if part] for value in values]
    lengths = np.array([len(bag) for bag in bags], np.int64)
    return TextBags(encode_texts([part for bag in bags for part in bag]), offsets_of(lengths))


def _numbers(
    values: Sequence[str], where: Rows, column: str, table: Table, empty: str | None, max_number: float
) -> NDArray[np.float64]:
    """Finite numbers of at most `max_number`; `empty` replaces empty fields; None: they are errors."""
    filled = [value or empty or "empty" for value in values]
    numbers = None
    all_text = "".join(filled)
    if table.decimal == "." and not table.thousands and all_text.isascii() and "_" not in all_text:
        with contextlib.suppress(ValueError):
            numbers = np.array(filled, np.float64)
    if numbers is None or not np.isfinite(numbers).all():
        pattern = _number_pattern(table.decimal, table.thousands)
        numbers = np.array([_number(value, table, pattern) for value in filled], np.float64)
    good = np.isfinite(numbers) & (np.abs(numbers) <= max_number)
    if not good.all():
        index = int(good.argmin())
        if np.isfinite(numbers[index]):
            raise where.error(index, column, too_large(values[index][:40], max_number), "or correct this row")
        raise where.error(index, column, f"{values[index][:40]!a} is not a number")
    return numbers


def too_large(number: object, max_number: float) -> str:
    """What is wrong with a number beyond what its transform takes."""
    return (
        f"{number} is beyond {max_number:.3g}, the largest number of this data.dense_transform; set "
        "data.dense_transform=signed_log1p"
    )


WORDS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}


@functools.cache
def _number_pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    """Numbers as people write them: NumPy also takes 1_000, inf, nan and the digits of other scripts."""
    point = re.escape(decimal)
    whole = rf"(?:\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})+|\d+)" if thousands else r"\d+"
    return re.compile(rf"[ \t]*[+-]?(?:{whole}(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?[ \t]*", re.ASCII)


def _number(text: str, table: Table, pattern: re.Pattern[str]) -> float:
    """A number or a truth value; NaN if it is neither."""
    if pattern.fullmatch(text):
        return float(text.replace(table.thousands, "").replace(table.decimal, "."))
    return WORDS.get(text.strip().lower(), math.nan)


def _labels(numbers: NDArray[np.float64], table: Table, where: Rows) -> NDArray[np.int32]:
    labels, bad = table.apply_rule(numbers)
    if bad is not None:
        fault = f"{numbers[bad]:g} is not a label (0 or 1)"
        raise where.error(bad, table.label, fault, "correct the row, or give a rule in the schema")
    return labels


def text_separators(table: Table | None) -> dict[str, str]:
    """Separator between the values of each multi-valued column, in text."""
    return {} if table is None else {name: text or LIST_SEPARATOR for name, text in table.separators}


def parse_fields(
    columns: Mapping[str, Sequence[str]], schema: Schema, table: Table | None, name: str, first_row: int,
    max_number: float = np.inf,
) -> Block | TableBlock:  # fmt: skip
    """Parse unlabelled rows given by column.

    Args:
        columns: the text of every column that features are read from, one string a row; all of one length.
        table: of a user's own; None: Criteo's rows.
        name: what to call the rows in an error; first_row: the number of the first.
        max_number: as of `parse_table`.

    Raises:
        UserError: a field that does not fit (row, column, remedy).
    """
    names = (*schema.dense, *schema.sparse) if table is None else table.inputs
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
    return parse_table(lines.getvalue().encode(), table, name, first_row, labelled=False, max_number=max_number)
