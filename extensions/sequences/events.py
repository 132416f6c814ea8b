"""Logs of events: their schema, its file, the arrays on disk (manifest kind `events`), and parsing.

An event is stored as item (int32), time (seconds, uint32) and flags (uint8): a bit per action of the schema in order,
ANCHOR_BIT for an event that can be a sample, and FLAG_BIT for the value of the `flag` column.

    <root>/events/00000.users.npy    [U] int64    key of each user: a number, or a hash of a text (see `text_key`)
    <root>/events/00000.offsets.npy  [U + 1] int64 user u has events offsets[u] to offsets[u + 1]
    <root>/events/00000.items.npy    [E] int32    ids
    <root>/events/00000.times.npy    [E] uint32   seconds, rounded down
    <root>/events/00000.flags.npy    [E] uint8    see extensions/sequences/events.py
    <root>/vocab/<attribute>.npy     [items] int32 the attribute's id of each item
    <root>/vocab/item.npy            [items - 1] int64 key of item i + 1, if items are renumbered

A user's events are ordered by time in microseconds, which these files do not keep. Events at one time are in the order
of the input.

data_prep/codec/convert.py converts the values, as for tables.
"""

import time
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from msgspec import Meta, Struct
from numpy.typing import NDArray

from common.documents import Json, convert
from common.errors import UserError
from data_prep.codec.convert import (
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
    without_nan,
)
from data_prep.codec.values import (
    CORRECT,
    NUMBERS,
    SECOND,
    RawRows,
    compared_text,
    fault_of_format,
    text_values,
    whole_number,
)
from data_prep.dataset.format import REMEDY, Manifest, shard_path, verify_shard
from data_prep.dataset.kinds import kind_of
from data_prep.dataset.options import MAX_NUM_EMBEDDINGS, RULE, Feature, TableRows, parse_rule, to_json
from data_prep.io import open_array
from data_prep.parsing.readers import meets_rule
from data_prep.parsing.table import Chunk, FileLayout, format_of, schema_path
from data_prep.sources.files import Source

EVENTS = "events"  # the encoding's name, and the only split on disk
MAX_ACTIONS = 6
ANCHOR_BIT, FLAG_BIT = 1 << 6, 1 << 7
USER, ITEM, HOUR = "user", "item", "hour"

Values = tuple[str, ...]  # for a column with text or codes; a condition on a number is a rule such as ">= 50"
Condition = dict[str, Values | str]  # by column; an event must meet all


class Attribute(Struct, frozen=True, forbid_unknown_fields=True):
    """An id that a second table gives to items: its file, and the file's columns of items and of the attribute."""

    file: str
    item: str
    column: str


class Cross(Struct, frozen=True, forbid_unknown_fields=True):
    """A table with `rows` rows, indexed by the xxh64 of some ids: user, item, attributes, hour, or the flag."""

    of: tuple[str, ...]
    rows: TableRows


class EventSchema(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Description of a log of events; docs/sequences.md explains its YAML.

    Attributes:
        user, item, time: columns. time_format: as for `datetime.strptime`, or a name of EPOCHS in
            data_prep/codec/dates.py; None: numbers are seconds, text is ISO 8601.
        actions: at most MAX_ACTIONS, each with its condition, in the order of their bits.
        label: action that a model predicts. anchors: condition for events that can be samples; {}: all.
        others: further values allowed in a column of `actions`; any other value is refused.
        flag: column of 0 and 1, or None.
        attributes: attributes of items, by name. crosses: by name. rows: sizes of tables of ids that are not counted.
        renumber: whether users, items and attributes get ids from 1 on; otherwise their numbers are their ids.
        min_history: minimum events of a user before an anchor. window_seconds: length of a window.
        drop_last_seconds, keep_seconds: period of the events to keep, counted back from the last event.
        delimiter: delimiter of text files.
    """

    user: str
    item: str
    time: str
    actions: Annotated[dict[Feature, Condition], Meta(min_length=1, max_length=MAX_ACTIONS)]
    label: str
    time_format: str | None = None
    anchors: Condition = {}
    others: dict[str, Values] = {}
    flag: str | None = None
    attributes: dict[Feature, Attribute] = {}
    crosses: dict[Feature, Cross] = {}
    rows: dict[str, TableRows] = {}
    renumber: bool = True
    min_history: Annotated[int, Meta(ge=0)] = 1
    window_seconds: Annotated[int, Meta(ge=1)] = 86_400
    drop_last_seconds: Annotated[int, Meta(ge=0)] = 0
    keep_seconds: Annotated[int, Meta(ge=1)] | None = None
    delimiter: Annotated[str, Meta(min_length=1, max_length=1)] = ","

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns to read, each once."""
        tested = [column for condition in (*self.actions.values(), self.anchors) for column in condition]
        return tuple(dict.fromkeys([self.user, self.item, self.time, *tested, *([self.flag] if self.flag else [])]))

    def bit(self, action: str) -> int:
        """Return the mask of an action's bit in the flags of events."""
        return 1 << list(self.actions).index(action)

    @property
    def sequence_tables(self) -> tuple[str, ...]:
        """Return the tables with an id for each event of a history: its item and the item's attributes."""
        return (ITEM, *self.attributes)

    @property
    def candidate_keys(self) -> tuple[str, ...]:
        """Return the keys of a candidate's ids in the same tables."""
        return tuple(f"candidate_{name}" for name in self.sequence_tables)

    @property
    def context_tables(self) -> tuple[str, ...]:
        """Return the tables with one id per sample: its user and the crosses."""
        return (USER, *self.crosses)

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the names of all tables, in the order of the manifest's `num_embeddings`."""
        return (*self.context_tables, *self.sequence_tables)

    def fault(self) -> str | None:
        """Return the first contradiction, as `key: what is wrong`; None if there is none."""
        if self.label not in self.actions:
            return f"label: {self.label} is none of the actions ({', '.join(self.actions)})"
        flag = (self.flag,) if self.flag else ()
        names = [*self.tables, HOUR, *flag]
        if twice := next((name for name in names if names.count(name) > 1), None):
            return f"attributes, crosses, flag: the name {twice} is used twice; user, item and hour are taken"
        for name, cross in self.crosses.items():
            allowed = (USER, *self.sequence_tables, HOUR, *flag)
            if not cross.of or (unknown := set(cross.of) - set(allowed)):
                return f"crosses: {name}: of {sorted(unknown) if cross.of else 'nothing'}; known are {list(allowed)}"
        if unknown := set(self.rows) - {USER, *self.sequence_tables}:
            return f"rows: {sorted(unknown)} are not tables of ids ({', '.join((USER, *self.sequence_tables))})"
        if self.renumber and self.rows:
            return "rows: has no effect with renumber: true, which counts them; leave one of them out"
        if unknown := set(self.others) - {column for condition in self.actions.values() for column in condition}:
            return f"others: {sorted(unknown)} are not columns of actions"
        return None


MAX_ID = MAX_NUM_EMBEDDINGS - 2  # an id is an int32, and its table has one row more


def schema_of_yambda() -> Json:
    """Return the schema of Yambda's events in a manifest's form."""
    return to_json(load_event_schema(schema_path("yambda")))


def load_event_schema(path: Path) -> EventSchema:
    """Read a schema from its YAML file. Raise UserError for an unknown, a missing or a contradictory key."""
    try:
        document: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not readable as YAML ({' '.join(str(error).split())})") from error
    if not isinstance(document, dict):
        raise UserError(f"{path}: no keys in it; docs/sequences.md explains them")
    if isinstance(time := document.get("time"), dict):
        if not {"column"} <= set(time) <= {"column", "format"}:
            raise UserError(f"{path}: key time: give a column, or {{column: NAME, format: epoch_ms}}")
        form = time.get("format")
        if isinstance(form, str) and (fault := fault_of_format(form)) is not None:
            raise UserError(f"{path}: key time, format {form}: {fault}")
        document |= {"time": time["column"], "time_format": form}
    for key in ("actions", "anchors", "others"):
        if isinstance(value := document.get(key), dict) and key == "actions":
            document[key] = {name: _parse_condition(path, f"{key}.{name}", each) for name, each in value.items()}
        elif isinstance(value, dict):
            document[key] = _parse_condition(path, key, value)
    try:
        schema: EventSchema = convert(document, EventSchema)
    except ValueError as error:
        raise UserError(f"{path}: {error}; docs/sequences.md explains the keys") from error
    if fault := schema.fault():
        raise UserError(f"{path}: key {fault}")
    return schema


def _parse_condition(path: Path, key: str, condition: Any) -> dict[str, Any]:
    """Return a condition, as YAML has it, in the form of `Condition`: lists of texts, or rules.

    key: its place in the schema, such as `actions.liked`, for errors.
    """
    if not isinstance(condition, dict):
        raise UserError(f'{path}: key {key}: give columns and what they hold, e.g. {{event: like, rating: ">= 4"}}')
    parsed: dict[str, Any] = {}
    for column, value in condition.items():
        # `others` names values alone, never a rule.
        is_rule = key != "others" and isinstance(value, str) and RULE.fullmatch(value)
        values = value if isinstance(value, list) else [value]
        parsed[str(column)] = value.strip() if is_rule else [str(text) for text in values]
    return parsed


EVENT_DTYPES = {"users": np.int64, "offsets": np.int64, "items": np.int32, "times": np.uint32, "flags": np.uint8}
SHARD_NAME = "00000"
VOCABULARY = "vocab"


class EventArrays(NamedTuple):
    """Arrays of a dataset of events, memory-mapped except for users, offsets and attributes [A, items] int32."""

    users: NDArray[np.int64]
    offsets: NDArray[np.int64]
    items: NDArray[np.int32]
    times: NDArray[np.uint32]
    flags: NDArray[np.uint8]
    attributes: NDArray[np.int32]


def event_schema(root: Path, manifest: Manifest) -> EventSchema:
    """Return the schema of a dataset of events."""
    manifest.require_kind(root, kind_of(EVENTS))
    return msgspec.convert(manifest.encoding["raw_schema"], EventSchema)


def open_events(root: Path, manifest: Manifest) -> EventArrays:
    """Map the arrays, and check their shapes and offsets, which readers rely on (not their checksums)."""
    schema = event_schema(root, manifest)
    [shard] = manifest.splits[EVENTS].shards
    paths = {kind: shard_path(root, EVENTS, shard.name, kind) for kind in EVENT_DTYPES}
    opened = {kind: _open_array(path, np.dtype(EVENT_DTYPES[kind])) for kind, path in paths.items()}
    # These are needed for every batch and are small, unlike the arrays of events.
    users, offsets = np.array(opened["users"]), np.array(opened["offsets"])
    rises = len(offsets) == len(users) + 1 and (np.diff(offsets) >= 0).all()
    lengths = {len(opened[kind]) for kind in ("items", "times", "flags")}
    if not rises or offsets[0] != 0 or lengths != {shard.rows} or offsets[-1] != shard.rows:
        raise UserError(f"{root / EVENTS}: its arrays do not fit each other; {REMEDY}")
    items = manifest.num_embeddings["item"]
    attributes = np.zeros((len(schema.attributes), items), np.int32)
    for row, name in zip(attributes, schema.attributes, strict=True):
        table = _open_array(attribute_path(root, name), np.dtype(np.int32))
        if len(table) != items:
            raise UserError(f"{attribute_path(root, name)}: {len(table)} items of {items}; {REMEDY}")
        row[:] = table
    return EventArrays(users, offsets, opened["items"], opened["times"], opened["flags"], attributes)


def known_items(root: Path, manifest: Manifest, events: EventArrays) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the keys (see `text_key`) of the log's items, ascending, and their ids; may read all events."""
    if event_schema(root, manifest).renumber:
        keys = np.array(_open_array(attribute_path(root, ITEM), np.dtype(np.int64)))
        return keys, np.arange(1, len(keys) + 1)
    # Without renumbering a key is its id, and the events alone tell which ids occur.
    is_known, block = np.zeros(manifest.num_embeddings[ITEM], np.bool_), 1 << 24
    for start in range(0, len(events.items), block):
        is_known[events.items[start : start + block]] = True
    ids = np.flatnonzero(is_known)
    return ids, ids


def attribute_path(root: Path, name: str) -> Path:
    """Return the path of an attribute's ids or, for `item`, of the items' keys."""
    return root / VOCABULARY / f"{name}.npy"


def _open_array(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Map an array of one dimension. Raise UserError for another shape or dtype."""
    try:
        array = open_array(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: file not readable ({error}); {REMEDY}") from error
    if array.dtype != dtype or array.ndim != 1:
        raise UserError(f"{path}: {array.dtype} {array.shape}, but it is {dtype} of one dimension; {REMEDY}")
    return array


def verify_events(root: Path, manifest: Manifest) -> None:
    """Compare the arrays with their checksums, and check that they fit each other."""
    verify_shard(root, EVENTS, manifest.splits[EVENTS].shards[0])
    open_events(root, manifest)


def manifest_fault(document: Manifest) -> str | None:
    """Return the first contradiction in a manifest, or None. Raise ValueError for a value of a wrong type."""
    schema = convert(document.encoding.get("raw_schema"), EventSchema, "encoding.raw_schema")
    if contradiction := schema.fault():
        return f"key 'encoding.raw_schema': {contradiction}"
    if tuple(document.num_embeddings) != schema.tables:
        return "keys 'num_embeddings' and 'encoding.raw_schema' name different tables"
    if list(document.splits) != [EVENTS] or len(document.splits[EVENTS].shards) != 1:
        return f"key 'splits' is not of one split, {EVENTS!r}, with one shard"
    return None


TIME_LIMIT = 1 << 32  # seconds; times are stored as uint32, until 2106
EVENT_BYTES = 48  # bytes that an event counts for in a sorted run, and at least in a chunk of Parquet


class EventBlock(NamedTuple):
    """Parsed events, [events] each: keys of users and items int64, times int64 in microseconds, flags uint8."""

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    times: NDArray[np.int64]
    flags: NDArray[np.uint8]


def plan_event_chunks(source: Source, chunk_bytes: int) -> list[Chunk]:
    """Return the chunks of a source in row order; a compressed text is one chunk."""
    return format_of(source).chunks(source, FileLayout(), EVENT_BYTES, chunk_bytes)


def check_columns(source: Source, columns: tuple[str, ...], delimiter: str, named_by: str) -> None:
    """Raise UserError if a source lacks one of `columns` or has it twice.

    named_by: path of the schema, which names these columns.
    """
    names = [column.name for column in format_of(source).columns(source, FileLayout((), delimiter))]
    if wrong := next((column for column in columns if names.count(column) != 1), None):
        number = "no" if wrong not in names else "two"
        raise UserError(
            f"{source.path}: row 1: {number} column {wrong}, which {named_by} names; it has {', '.join(names)}; "
            "correct one of them, or the schema's delimiter"
        )


def event_batches(
    source: Source, chunk: Chunk, columns: tuple[str, ...], delimiter: str
) -> Iterator[tuple[RawRows, int]]:
    """Yield the batches of a chunk, with null for NaN, and the bytes of the file that each covers."""
    form = format_of(source)
    layout = FileLayout((), delimiter)
    layout = layout._replace(names=tuple(column.name for column in form.columns(source, layout)))
    for batch, num_bytes in form.batches(source, chunk, columns, layout):
        filled = {name: without_nan(plain(values)) for name, values in batch.columns.items()}
        yield batch._replace(columns=filled), num_bytes


def parse_events(batch: RawRows, schema: EventSchema) -> EventBlock:
    """Parse a batch of `event_batches`. Raise UserError, which names the row, for a value that the schema refuses."""
    users, items = (keys_of(batch, column, schema.renumber) for column in (schema.user, schema.item))
    times = _parse_times(batch, schema)
    conditions: list[Mapping[str, Values | str]] = [*schema.actions.values(), schema.anchors]
    # The texts that a column may have are those of all conditions, so these are checked before any condition is.
    known: dict[str, set[str]] = {}
    for condition in [schema.others, *conditions]:
        for column, value in condition.items():
            if not isinstance(value, str):
                known.setdefault(column, set()).update(value)
    texts = {column: _action_texts(batch, column, allowed_texts) for column, allowed_texts in known.items()}

    def meets(column: str, value: Values | str) -> NDArray[np.bool_]:
        """Return a mask [rows] of the fields that have one of some texts, or that meet a rule on numbers."""
        if not isinstance(value, str):
            return np.isin(texts[column].values, [*map(compared_text, value)])[texts[column].codes]
        values = batch.columns[column]
        numbers = numbers_of(values, NUMBERS, batch.locator_of(column), 0.0, np.inf)
        return meets_rule(values, numbers, parse_rule(value), NUMBERS) & ~_is_empty(values)

    flags = np.zeros(len(users), np.uint8)
    for bit, condition in enumerate(conditions):
        # An event must meet all of a condition, and all events meet {}.
        is_met = np.logical_and.reduce([np.ones(batch.rows, np.bool_), *map(meets, condition, condition.values())])
        flags[is_met] |= np.uint8(1 << bit if bit < len(schema.actions) else ANCHOR_BIT)
    if schema.flag is not None:
        flags[truths_of(batch.columns[schema.flag], batch.locator_of(schema.flag), np.nan)] |= np.uint8(FLAG_BIT)
    return EventBlock(users, items, times, flags)


def keys_of(batch: RawRows, column: str, allows_text: bool = True) -> NDArray[np.int64]:
    """Return a column's keys [rows] of users, items or attributes (see `text_key`).

    allows_text: whether any text may be an id; otherwise ids are numbers up to MAX_ID, and their own keys.
    """
    values, locator = batch.columns[column], batch.locator_of(column)
    refuse_row(_is_empty(values), locator, lambda _: "no value")
    is_whole = not isinstance(values, list) and pa.types.is_integer(values.type)
    low, high = pc.min_max(values).as_py().values() if is_whole else (None, None)
    if is_whole and (low or 0) >= 0 and (high or 0) < 1 << 63:
        # As `text_values` of their texts, which would double the time of a preparation.
        keys = values.cast(pa.int64()).to_numpy()
    else:
        if is_whole or is_text(values):
            encoded: Any = values.cast(pa.string()).dictionary_encode()
            codes, texts = encoded.indices.to_numpy(), encoded.dictionary
        else:
            refuse_rounded(values, locator)
            ids = distinct(values)
            is_fraction = [isinstance(value, float | Decimal) and whole_number(value) is None for value in ids.values]
            ids.refuse(is_fraction, locator, "is not an id: text or an integer")
            distinct_ids = distinct_texts(values, locator)
            codes, texts = distinct_ids.codes, pa.array(distinct_ids.values, pa.string())
        keys = text_values(texts).view(np.int64)[codes]
    if not allows_text:
        remedy = "set `renumber: true` in the schema, or correct this row"
        is_bad = (keys < 0) | (keys > MAX_ID)
        refuse_row(is_bad, locator, lambda index: f"{values[index]} is not an id from 0 to {MAX_ID}", remedy)
    return keys


def _parse_times(batch: RawRows, schema: EventSchema) -> NDArray[np.int64]:
    """Return the times [events] in microseconds since 1970, rounded down; refuse none, an earlier and a future one."""
    values, locator = batch.columns[schema.time], batch.locator_of(schema.time)
    refuse_row(_is_empty(values), locator, lambda _: "no time")
    entry = f"time: {{column: {schema.time}"
    times = times_of(values, schema.time_format, locator, entry, takes_numbers=True).astype(np.int64)
    # A day's grace is for clocks of other time zones.
    now = int(min(time.time() + 86_400, TIME_LIMIT - 1))
    if (is_bad := (times < 0) | (times // SECOND > now)).any():
        seconds = int(times[is_bad.argmax()]) // SECOND
        fault = f"{seconds} seconds lie {'before 1970' if seconds < 0 else 'in the future'}"
        refuse_row(is_bad, locator, lambda _: fault, f"{CORRECT}, or give another format in the schema")
    return times


def _action_texts(batch: RawRows, column: str, allowed_texts: set[str]) -> Distinct:
    """Return a column's texts as `compared_text`, which conditions compare.

    Raise UserError for a text that is not among `allowed_texts`, those that the schema names for the column: a
    misspelled action would else count as none.
    """
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


def _is_empty(values: Any) -> NDArray[np.bool_]:
    """Return a mask of a column's empty fields: null or an empty text."""
    if isinstance(values, list):
        return np.array([value in EMPTY for value in values], np.bool_)
    is_empty = pc.equal(values.fill_null(""), "") if is_text(values) else values.is_null()
    mask: NDArray[np.bool_] = is_empty.to_numpy(zero_copy_only=False)
    return mask
