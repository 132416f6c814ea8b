"""A log of events, in text or Parquet, to users, items, times and flags; see data_prep/dataset/event_schema.py."""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.dataset.event_schema import ANCHOR_BIT, FLAG_BIT, MAX_ID, Condition, EventSchema
from data_prep.dataset.events import flag_value, text_key
from data_prep.dataset.table_spec import meets
from data_prep.parsing.convert import Distinct, distinct, excerpt, is_text, plain, refuse_row, times_of, to_texts
from data_prep.parsing.dates import EPOCH
from data_prep.parsing.formats import CORRECT, Batch, Chunk, Layout, Locator, Size, format_of
from data_prep.sources.discover import Source

EPOCH_MS = "epoch_ms"
WHOLE = r"^(0|[1-9][0-9]{0,17})$"  # texts whose number `text_key` keeps
TIME_LIMIT = 1 << 32  # times are uint32: until 2106
DAY = 86_400
EVENT_BYTES = 48  # of a chunk's budget, that an event counts as


class EventBlock(NamedTuple):
    """Events as read: keys of users and items int64, times uint32 in seconds, flags uint8; each [events]."""

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    times: NDArray[np.uint32]
    flags: NDArray[np.uint8]

    def take(self, rows: Any) -> "EventBlock":
        """Some of the events, by a slice, a mask or their numbers."""
        return EventBlock(self.users[rows], self.items[rows], self.times[rows], self.flags[rows])


def plan_event_chunks(source: Source, chunk_bytes: int) -> list[Chunk]:
    """The chunks of a source, in the order of its rows; of a compressed text there is one."""
    return format_of(source).chunks(source, Size(EVENT_BYTES), chunk_bytes)


def check_columns(source: Source, columns: tuple[str, ...], delimiter: str, named_by: str) -> None:
    """Raises UserError for a source that lacks a column, or has it twice."""
    names = [column.name for column in format_of(source).columns(source, delimiter)]
    for column in columns:
        if names.count(column) != 1:
            number = "no" if column not in names else "two"
            raise UserError(
                f"{source.path}: row 1: {number} column {column}, which {named_by} names; it has {', '.join(names)}; "
                "correct one of them, or the schema's delimiter"
            )


def event_batches(
    source: Source, chunk: Chunk, columns: tuple[str, ...], delimiter: str
) -> Iterator[tuple[Batch, int]]:
    """The batches of a chunk, each column an Arrow array, of text where types are mixed; bytes of the file they took.

    Raises:
        UserError: a value that is neither text nor a number, or a damaged file.
    """
    form = format_of(source)
    layout = Layout(tuple(column.name for column in form.columns(source, delimiter)), delimiter)
    for batch, num_bytes in form.batches(source, chunk, columns, layout):
        arrays = {
            name: pa.array(to_texts(values, batch.locator_of(name)), pa.string())
            if isinstance(values, list)
            else plain(values)
            for name, values in batch.columns.items()
        }
        yield batch._replace(columns=arrays), num_bytes


def parse_events(batch: Batch, schema: EventSchema) -> EventBlock:
    """Events of a batch of `event_batches`.

    Raises:
        UserError: a value that cannot be (file, row, column, remedy).
    """
    users, items = (keys_of(batch, column, schema.renumber) for column in (schema.user, schema.item))
    times = _times(batch, schema)
    texts = {name: _text_codes(batch, name, allowed_texts) for name, allowed_texts in schema.known_values.items()}
    numbers: dict[str, NDArray[np.float64]] = {}
    flags = np.zeros(len(users), np.uint8)
    for bit, condition in enumerate([*schema.actions.values(), schema.anchors]):
        mask = np.uint8(1 << bit if bit < len(schema.actions) else ANCHOR_BIT)
        flags[_meets(condition, batch, texts, numbers)] |= mask
    if schema.flag is not None:
        values = _flags(batch, schema.flag)
        locator = batch.locator_of(schema.flag)
        refuse_row(~np.isin(values, (0, 1)), locator, lambda index: f"{values[index]:g} is not 0 or 1")
        flags[values == 1] |= np.uint8(FLAG_BIT)
    return EventBlock(users, items, times, flags)


def keys_of(batch: Batch, column: str, is_any: bool = True) -> NDArray[np.int64]:
    """Keys of users, items or attributes: see `text_key`; unless `is_any` they are numbers up to MAX_ID."""
    array, locator, texts = batch.columns[column], batch.locator_of(column), None
    if not pa.types.is_integer(array.type):
        texts = array.cast(pa.string())
        is_empty = pc.equal(texts, "").fill_null(True).to_numpy(zero_copy_only=False)
        refuse_row(is_empty, locator, lambda _: "no value")
        if pc.all(pc.match_substring_regex(texts, WHOLE)).as_py() in (True, None):
            array, texts = texts.cast(pa.int64()), None
    elif array.null_count:
        refuse_row(array.is_null().to_numpy(zero_copy_only=False), locator, lambda _: "no value")
    elif pc.any(pc.less(array, 0)).as_py() or array.type == pa.uint64():
        texts = array.cast(pa.string())
    if texts is None:
        keys: NDArray[np.int64] = array.cast(pa.int64()).to_numpy()
    else:
        codes, distinct_texts = distinct(texts)
        keys = np.array([text_key(text) for text in distinct_texts], np.int64)[codes]
    if not is_any:
        remedy = "set `renumber: true` in the schema, or correct this row"
        is_bad = (keys < 0) | (keys > MAX_ID)
        refuse_row(is_bad, locator, lambda index: f"{array[index]} is not an id from 0 to {MAX_ID}", remedy)
    return keys


def _times(batch: Batch, schema: EventSchema) -> NDArray[np.uint32]:
    column, form = schema.time, schema.time_format
    array, locator = batch.columns[column], batch.locator_of(column)
    if pa.types.is_timestamp(array.type) or pa.types.is_date(array.type):
        seconds = array.cast(pa.timestamp("s"), safe=False).cast(pa.int64())
    elif pa.types.is_integer(array.type):
        seconds = array.cast(pa.int64())
    else:
        seconds = _text_times(array.cast(pa.string()).fill_null(""), locator, form)
    refuse_row(seconds.is_null().to_numpy(zero_copy_only=False), locator, lambda _: "no time")
    times: NDArray[np.int64] = seconds.to_numpy()
    if form == EPOCH_MS:
        times = times // 1000
    now = min(time.time() + DAY, TIME_LIMIT - 1)
    if (bad := (times < 0) | (times > now)).any():
        value = int(times[bad.argmax()])
        fault, remedy = f"{value} seconds lie {'before 1970' if value < 0 else 'in the future'}", CORRECT
        if form != EPOCH_MS and 0 < value / 1000 <= now:
            fault = f"{value} lies in the future as seconds; it looks like milliseconds"
            remedy = f"write `time: {{column: {column}, format: {EPOCH_MS}}}` in the schema"
        refuse_row(bad, locator, lambda _: fault, remedy)
    return times.astype(np.uint32)


def _text_times(texts: Any, locator: Locator, form: str | None) -> Any:
    """Seconds (or what `form` counts) of texts, each a whole number or a time; null where one is empty."""
    is_whole = pc.match_substring_regex(texts, r"^-?[0-9]{1,18}$")
    if form not in (None, EPOCH, EPOCH_MS):
        is_whole = pa.nulls(len(texts), pa.bool_()).fill_null(False)
    numbers = pc.if_else(is_whole, texts, None).cast(pa.int64())
    if pc.all(is_whole).as_py() in (True, None):
        return numbers
    kind = f"a time ({'ISO 8601, or seconds' if form is None else form})"
    remedy = "correct this row, or `time: {column: NAME, format: …}` in the schema"
    text_form = None if form in (EPOCH, EPOCH_MS) else form
    times = times_of(pc.if_else(is_whole, "", texts), text_form, locator, kind, remedy)
    return pc.coalesce(numbers, pa.array(times).cast(pa.int64()))


def _text_codes(batch: Batch, column: str, allowed_texts: set[str]) -> Distinct:
    """A column of text. Raises UserError for a text that the schema does not name."""
    texts = distinct(batch.columns[column].cast(pa.string()).fill_null(""))
    is_unknown = np.array([text not in allowed_texts for text in texts.values], np.bool_)[texts.codes]
    refuse_row(
        is_unknown,
        batch.locator_of(column),
        lambda index: f"unknown action {excerpt(texts.values[texts.codes[index]])}; known are {sorted(allowed_texts)}",
        f"name it in `actions`, or in `others: {{{column}: […]}}`, which no history shows, in the schema",
    )
    return texts


def _numbers(batch: Batch, column: str) -> NDArray[np.float64]:
    """Numbers, NaN where there is none."""
    array = batch.columns[column]
    if is_text(array):
        array = pc.if_else(pc.equal(array, ""), None, array)
    try:
        numbers: NDArray[np.float64] = array.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy()
    except pa.ArrowInvalid:
        texts = distinct(array)
        is_bad = [not _is_number(text) for text in texts.values]
        texts.refuse(is_bad, batch.locator_of(column), "is not a number")
        raise
    return numbers


def _is_number(text: str | None) -> bool:
    """Whether Arrow reads a text as a number; None is none that could be refused."""
    with suppress(pa.ArrowInvalid):
        pa.scalar(text, pa.string()).cast(pa.float64())
        return True
    return False


def _flags(batch: Batch, column: str) -> NDArray[np.float64]:
    """Numbers of a column that holds 0 and 1, as `flag_value` reads texts."""
    if not is_text(batch.columns[column]):
        return _numbers(batch, column)
    codes, texts = distinct(batch.columns[column].fill_null(""))
    return np.array([flag_value(text) for text in texts], np.float64)[codes]


def _meets(
    condition: Condition, batch: Batch, texts: dict[str, Distinct], numbers: dict[str, NDArray[np.float64]]
) -> NDArray[np.bool_]:
    """Which events meet a condition; {} all do."""
    met = np.ones(batch.rows, np.bool_)
    for column, value in condition.items():
        if isinstance(value, str):
            if column not in numbers:
                numbers[column] = _numbers(batch, column)
            met &= meets(numbers[column], value) & ~np.isnan(numbers[column])
        else:
            codes, values = texts[column]
            met &= np.isin(codes, [code for code, text in enumerate(values) if text in value])
    return met
