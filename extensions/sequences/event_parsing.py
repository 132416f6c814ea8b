"""Parsing of a log of events, in any format, to users, items, times and flags (extensions/sequences/event_schema.py).

data_prep/parsing/convert.py converts the values, as for tables.
"""

import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.dataset.label_rule import parse_rule
from data_prep.dataset.spelling import compared_text, whole_number
from data_prep.encoding.values import text_key
from data_prep.parsing.convert import (
    EMPTY,
    Distinct,
    distinct,
    distinct_texts,
    excerpt,
    is_text,
    numbers_of,
    plain,
    refuse_rounded,
    refuse_row,
    times_of,
    truths_of,
    whole_bits,
    without_nan,
)
from data_prep.parsing.dates import SECOND
from data_prep.parsing.formats import Chunk, Column, FileLayout, Size, format_of
from data_prep.parsing.labels import meets
from data_prep.parsing.numbers import NUMBERS
from data_prep.parsing.raw_rows import CORRECT, Locator, RawRows
from data_prep.sources.discover import Source
from extensions.sequences.event_schema import ANCHOR_BIT, FLAG_BIT, MAX_ID, Condition, EventSchema

WHOLE = r"^(0|[1-9][0-9]{0,17})$"  # texts whose number `text_key` keeps
TIME_LIMIT = 1 << 32  # seconds; times are stored as uint32, until 2106
DAY = 86_400
EVENT_BYTES = 48  # share of a chunk's budget per event


class EventBlock(NamedTuple):
    """Parsed events, [events] each: keys of users and items int64, times int64 in microseconds, flags uint8."""

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    times: NDArray[np.int64]
    flags: NDArray[np.uint8]

    def take(self, rows: Any) -> "EventBlock":
        """Select events by a slice, a mask or their numbers."""
        return EventBlock(self.users[rows], self.items[rows], self.times[rows], self.flags[rows])


def plan_event_chunks(source: Source, chunk_bytes: int) -> list[Chunk]:
    """Return the chunks of a source in row order; a compressed text is one chunk."""
    return format_of(source).chunks(source, Size(EVENT_BYTES), chunk_bytes)


def check_columns(source: Source, columns: tuple[str, ...], delimiter: str, named_by: str) -> list[Column]:
    """Return the columns of a source. Raise UserError if it lacks one of `columns` or has it twice."""
    source_columns = format_of(source).columns(source, delimiter)
    names = [column.name for column in source_columns]
    for column in columns:
        if names.count(column) != 1:
            number = "no" if column not in names else "two"
            raise UserError(
                f"{source.path}: row 1: {number} column {column}, which {named_by} names; it has {', '.join(names)}; "
                "correct one of them, or the schema's delimiter"
            )
    return source_columns


def check_log(sources: list[Source], schema: EventSchema, named_by: str) -> None:
    """Refuse log files that lack a column, and a format of times if all times are timestamps."""
    columns = [column for each in sources for column in check_columns(each, schema.columns, schema.delimiter, named_by)]
    if schema.time_format is not None and all(each.kind == "time" for each in columns if each.name == schema.time):
        raise UserError(
            f"{sources[0].path}, column {schema.time}: time, but {named_by} has format {schema.time_format} for it; "
            "leave it out"
        )


def event_batches(
    source: Source, chunk: Chunk, columns: tuple[str, ...], delimiter: str
) -> Iterator[tuple[RawRows, int]]:
    """Yield the batches of a chunk, with null for NaN, and the bytes of the file that each covers."""
    form = format_of(source)
    layout = FileLayout(tuple(column.name for column in form.columns(source, delimiter)), delimiter)
    for batch, num_bytes in form.batches(source, chunk, columns, layout):
        yield (
            batch._replace(columns={name: without_nan(plain(values)) for name, values in batch.columns.items()}),
            num_bytes,
        )


def parse_events(batch: RawRows, schema: EventSchema) -> EventBlock:
    """Parse a batch of `event_batches`."""
    users, items = (keys_of(batch, column, schema.renumber) for column in (schema.user, schema.item))
    times = _times(batch, schema)
    texts = {name: _action_texts(batch, name, allowed_texts) for name, allowed_texts in schema.known_values.items()}
    numbers: dict[str, NDArray[np.float64]] = {}
    flags = np.zeros(len(users), np.uint8)
    for bit, condition in enumerate([*schema.actions.values(), schema.anchors]):
        mask = np.uint8(1 << bit if bit < len(schema.actions) else ANCHOR_BIT)
        flags[_meets(condition, batch, texts, numbers)] |= mask
    if schema.flag is not None:
        flags[truths_of(batch.columns[schema.flag], batch.locator_of(schema.flag), np.nan)] |= np.uint8(FLAG_BIT)
    return EventBlock(users, items, times, flags)


def keys_of(batch: RawRows, column: str, is_any: bool = True) -> NDArray[np.int64]:
    """Return keys of users, items or attributes (see `text_key`); unless `is_any` they are numbers up to MAX_ID."""
    values, locator = batch.columns[column], batch.locator_of(column)
    _refuse_empty(values, locator, "no value")
    if (keys := _whole_keys(values)) is None:
        refuse_rounded(values, locator)
        ids = distinct(values)
        is_fraction = [isinstance(each, float | Decimal) and whole_number(each) is None for each in ids.values]
        ids.refuse(is_fraction, locator, "is not an id: text or an integer")
        codes, texts = distinct_texts(values, locator)
        keys = np.array([text_key(text) for text in texts], np.int64)[codes]
    if not is_any:
        remedy = "set `renumber: true` in the schema, or correct this row"
        is_bad = (keys < 0) | (keys > MAX_ID)
        refuse_row(is_bad, locator, lambda index: f"{values[index]} is not an id from 0 to {MAX_ID}", remedy)
    return keys


def _whole_keys(values: Any) -> NDArray[np.int64] | None:
    """Return a column without empty fields as keys, if all its values are keys themselves; otherwise None."""
    if isinstance(values, list):
        return None
    if is_text(values):
        if not pc.all(pc.match_substring_regex(values, WHOLE), min_count=0).as_py():
            return None
    elif not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return None
    try:
        keys: NDArray[np.int64] = values.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:  # fractions, or numbers beyond 63 bits
        return None
    limit = 1 << whole_bits(values.type) if pa.types.is_floating(values.type) else None
    return None if (keys < 0).any() or (limit is not None and (keys >= limit).any()) else keys


def _times(batch: RawRows, schema: EventSchema) -> NDArray[np.int64]:
    """Return microseconds since 1970, rounded down."""
    column, locator = schema.time, batch.locator_of(schema.time)
    _refuse_empty(batch.columns[column], locator, "no time")

    def entry(form: str) -> str:
        return f"time: {{column: {column}, format: {form}}}"

    times = times_of(batch.columns[column], schema.time_format, locator, entry, takes_numbers=True).astype(np.int64)
    now = int(min(time.time() + DAY, TIME_LIMIT - 1))
    if (is_bad := (times < 0) | (times // SECOND > now)).any():
        seconds = int(times[is_bad.argmax()]) // SECOND
        fault = f"{seconds} seconds lie {'before 1970' if seconds < 0 else 'in the future'}"
        refuse_row(is_bad, locator, lambda _: fault, f"{CORRECT}, or give another format in the schema")
    return times


def _action_texts(batch: RawRows, column: str, allowed_texts: set[str]) -> Distinct:
    """Return a column of actions as `compared_text`. Raise UserError for a text that the schema does not name."""
    locator = batch.locator_of(column)
    texts = distinct_texts(batch.columns[column], locator)
    allowed = set(map(compared_text, allowed_texts))
    is_unknown = np.array([compared_text(text) not in allowed for text in texts.values], np.bool_)[texts.codes]
    refuse_row(
        is_unknown,
        locator,
        lambda index: f"unknown action {excerpt(texts.values[texts.codes[index]])}; known are {sorted(allowed_texts)}",
        f"name it in `actions`, or in `others: {{{column}: […]}}`, which no history shows, in the schema",
    )
    return texts._replace(values=list(map(compared_text, texts.values)))


def _numbers(batch: RawRows, column: str) -> NDArray[np.float64]:
    """Return numbers, NaN for an empty field."""
    values = batch.columns[column]
    numbers = numbers_of(values, NUMBERS, batch.locator_of(column), 0.0, np.inf)
    return np.where(_is_empty(values), np.nan, numbers)


def _is_empty(values: Any) -> NDArray[np.bool_]:
    if isinstance(values, list):
        return np.array([value in EMPTY for value in values], np.bool_)
    is_empty = pc.is_null(values)
    if is_text(values):
        is_empty = pc.or_(is_empty, pc.equal(values, "").fill_null(True))
    mask: NDArray[np.bool_] = is_empty.to_numpy(zero_copy_only=False)
    return mask


def _refuse_empty(values: Any, locator: Locator, fault: str) -> None:
    refuse_row(_is_empty(values), locator, lambda _: fault)


def _meets(
    condition: Condition, batch: RawRows, texts: dict[str, Distinct], numbers: dict[str, NDArray[np.float64]]
) -> NDArray[np.bool_]:
    """Return a mask of the events that meet a condition; all events meet {}."""
    met = np.ones(batch.rows, np.bool_)
    for column, value in condition.items():
        if isinstance(value, str):
            if column not in numbers:
                numbers[column] = _numbers(batch, column)
            rule = parse_rule(value)
            met &= meets(batch.columns[column], numbers[column], rule, NUMBERS) & ~np.isnan(numbers[column])
        else:
            codes, values = texts[column]
            expected = set(map(compared_text, value))
            met &= np.isin(codes, [code for code, text in enumerate(values) if text in expected])
    return met
