"""The column of a user's own table that decides the split of each row: times, or values of a group.

Each field becomes a 64-bit number: microseconds since 1970, or the value of its text (data_prep/encoding/values.py).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.dataset.spelling import NUMBER
from data_prep.dataset.table_spec import Table
from data_prep.encoding.values import text_values
from data_prep.parsing.convert import (
    EMPTY,
    Distinct,
    distinct,
    distinct_texts,
    excerpt,
    plain,
    refuse_row,
    times_of,
    to_list,
    without_marks,
    without_nan,
)
from data_prep.parsing.formats import Chunk, LineFormat, format_of, table_layout, table_size
from data_prep.parsing.raw_rows import Locator, RawRows
from data_prep.sources.discover import Source

FIRST_BYTES = 1 << 20  # beginning of a text file, with its first row
FILL = "it decides the row's split, so fill it in, or remove the row"
LONGEST = 200  # most characters of column names in an error
KINDS = ("text", "any", "integer", "number", "null")  # kinds of columns with one value a row


@dataclass(frozen=True)
class SplitColumn:
    """The column, with the form of its fields.

    Attributes:
        column: its name.
        is_time: whether it holds times, not values of a group.
        format: format of the times; None: ISO 8601, or numbers that count seconds since 1970.
        example: value of the first row; all others are of its type, text or number. None: the files tell the type.
    """

    column: str
    is_time: bool
    format: str | None = None
    example: Any = None

    def keys(self, batch: RawRows, table: Table) -> NDArray[np.int64]:
        """Return the 64-bit number of each row of a batch [rows]."""
        locator = batch.locator_of(self.column)
        values = without_marks(plain(without_nan(batch.columns[self.column])), table.missing)
        if self.example is not None:
            self._refuse_other_types(distinct(values), locator)
        if self.is_time:
            times = times_of(values, self.format, locator, self._entry, takes_numbers=True)
            refuse_row(np.isnat(times), locator, lambda _: "no value", FILL)
            return times.astype(np.int64)
        texts = distinct_texts(values, locator)
        texts.refuse([text == "" for text in texts.values], locator, "", FILL)
        return text_values(pa.array(texts.values, pa.string())).view(np.int64)[texts.codes]

    def _refuse_other_types(self, column: Distinct, locator: Locator) -> None:
        """Raise UserError for the first row whose value is a number if the example is text, or the other way round."""
        is_number = self._is_number(self.example)
        is_other = [value not in EMPTY and self._is_number(value) != is_number for value in column.values]
        names = ("text", "a number") if is_number else ("a number", "text")
        fault = f"is {names[0]}, but the first row has {names[1]} ({excerpt(self.example)})"
        column.refuse(is_other, locator, fault, "write all values of the column alike")

    def _is_number(self, value: Any) -> bool:
        """Return whether a value is a number: by its type or, of a time in text, by its characters."""
        if isinstance(value, str):
            return self.is_time and re.fullmatch(NUMBER, value) is not None
        return isinstance(value, int | float | Decimal)

    def _entry(self, form: str) -> str:
        """Return the schema's line that gives the column a format."""
        return f"time: {{column: {self.column}, format: {form}}}"


def find_split_column(name: str, is_time: bool, table: Table, sources: Sequence[Source]) -> SplitColumn:
    """Look the column up in the files that it divides, with the format that the schema gives it."""
    divided = [source for source in sources if source.split in (None, "train")]
    kinds: dict[str, str] = {}  # the kind of the column, and a file that has it
    for source in divided:
        form = format_of(source)
        columns = {each.name: each.kind for each in form.columns(source, table.delimiter, table.header)}
        if name in columns:
            kinds.setdefault(columns[name], source.path)
        elif not form.merges_columns or (source is divided[-1] and not kinds):
            known = ", ".join(columns)
            raise UserError(f"{source.path}: no column {name}, which data.split.column names; it has {known[:LONGEST]}")
    for kind, path in kinds.items():
        if kind not in (*KINDS, *(("time",) if is_time else ())):
            remedy = "name a column of times or numbers" if is_time else "name a column of text or integers"
            raise UserError(f"{path}, column {name}: {kind}, which data.split.column cannot be; {remedy}")
        if kind not in ("null", (first := next(iter(kinds)))):
            fault = f"{kind}, but {first} in {kinds[first]}"
            raise UserError(f"{path}, column {name}: {fault}; write both files with one type")
    formats = [each.format for each in (table.time, *table.parts) if each is not None and each.column == name]
    form_of_times = formats[0] if formats and is_time else None
    is_typed = form_of_times is not None or "time" in kinds
    return SplitColumn(name, is_time, form_of_times, None if is_typed else _first_value(name, table, divided[0]))


def _first_value(name: str, table: Table, source: Source) -> Any:
    """Return a column's value in the first row; None for an empty field."""
    form = format_of(source)
    is_text = isinstance(form, LineFormat)
    chunk = Chunk(0, FIRST_BYTES) if is_text else form.chunks(source, table_size(table), FIRST_BYTES)[0]
    for batch, _ in form.batches(source, chunk, [name], table_layout(table)[1]):
        [value] = to_list(plain(without_nan(batch.columns[name]))[:1])
        return None if value in (*EMPTY, *table.missing) else value
    return None
