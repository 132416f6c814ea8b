"""Schema of a log of events: columns of users, items and times, the actions, and the tables of a model.

An event is stored as item (int32), time (seconds, uint32) and flags (uint8): a bit per action of the schema in order,
ANCHOR_BIT for an event that can be a sample, and FLAG_BIT for the value of the `flag` column.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from common.documents import Json
from data_prep.dataset.schema import MAX_NUM_EMBEDDINGS, Feature, TableRows, to_json

EVENTS = "events"  # the encoding's name, and the only split on disk
MAX_ACTIONS = 6
ANCHOR_BIT, FLAG_BIT = 1 << 6, 1 << 7
USER, ITEM, HOUR = "user", "item", "hour"
CANDIDATE = "candidate_"  # prefix of a candidate's features

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
            data_prep/parsing/dates.py; None: numbers are seconds, text is ISO 8601.
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
        conditions = (*self.actions.values(), self.anchors)
        tested = [column for condition in conditions for column in condition]
        return tuple(dict.fromkeys([self.user, self.item, self.time, *tested, *([self.flag] if self.flag else [])]))

    @property
    def known_values(self) -> dict[str, set[str]]:
        """Return the values that each column of text may hold."""
        values_of = {column: set(values) for column, values in self.others.items()}
        for condition in (*self.actions.values(), self.anchors):
            for column, values in condition.items():
                if not isinstance(values, str):
                    values_of.setdefault(column, set()).update(values)
        return values_of

    @property
    def label_bit(self) -> int:
        """Return the label's bit in flags."""
        return 1 << list(self.actions).index(self.label)

    @property
    def sequence_tables(self) -> tuple[str, ...]:
        """Return the tables with an id for each event of a history: its item and the item's attributes."""
        return (ITEM, *self.attributes)

    @property
    def context_tables(self) -> tuple[str, ...]:
        """Return the tables with one id per sample: its user and the crosses."""
        return (USER, *self.crosses)

    @property
    def tables(self) -> tuple[str, ...]:
        """Return all tables."""
        return (*self.context_tables, *self.sequence_tables)

    def fault(self) -> str | None:
        """Return the first contradiction, as `key: what is wrong`; None if there is none."""
        if self.label not in self.actions:
            return f"label: {self.label} is none of the actions ({', '.join(self.actions)})"
        names = [*self.tables, HOUR, *([self.flag] if self.flag else [])]
        if twice := next((name for name in names if names.count(name) > 1), None):
            return f"attributes, crosses, flag: the name {twice} is used twice; user, item and hour are taken"
        for name, cross in self.crosses.items():
            allowed = (USER, ITEM, *self.attributes, HOUR, *([self.flag] if self.flag else []))
            if not cross.of or (unknown := set(cross.of) - set(allowed)):
                return f"crosses: {name}: of {sorted(unknown) if cross.of else 'nothing'}; known are {list(allowed)}"
        if unknown := set(self.rows) - {USER, *self.sequence_tables}:
            return f"rows: {sorted(unknown)} are not tables of ids ({', '.join((USER, *self.sequence_tables))})"
        if self.renumber and self.rows:
            return "rows: has no effect with renumber: true, which counts them; leave one of them out"
        if unknown := set(self.others) - {column for each in self.actions.values() for column in each}:
            return f"others: {sorted(unknown)} are not columns of actions"
        return None

    def to_manifest(self) -> Json:
        """Convert to plain values as JSON returns them."""
        plain: Json = to_json(self)
        return plain

    @classmethod
    def from_manifest(cls, entry: Json) -> "EventSchema":
        """Build from the form of `to_manifest`."""
        return msgspec.convert(entry, cls)


MAX_ID = MAX_NUM_EMBEDDINGS - 2  # an id is an int32, and its table has one row more
