"""A user's table: its label and rule, features, files, and what is known of its columns.

A category is any text; its 64-bit value identifies it, see data_prep/codec/spelling.py.
"""

import operator
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct

from data_prep.codec.spelling import UTF_8, Dialect
from data_prep.dataset.options import Feature, LabelKind, Schema

# The order matters: `>=` is tried before `>`.
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_OPERATOR = "|".join(COMPARISONS)
RULE_PATTERN = rf"\s*({_OPERATOR})\s*(\S(?:.*\S)?)\s*"
# A column and a rule in one text, such as "rating >= 4"; the name cannot end in a blank or a part of an operator.
COLUMN_AND_RULE = re.compile(rf"(.*?[^\s=<>!])\s*((?:{_OPERATOR})\s*\S.*)")
QUOTES = "\"'"
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"  # in a rule; in a field, blanks may stand around it (spelling.py)


class LabelRule(NamedTuple):
    """A parsed rule: operator, value without quotes, and whether the value was quoted."""

    operator: str
    value: str
    is_quoted: bool

    @property
    def is_equality(self) -> bool:
        """Return whether the operator is == or !=; the others compare numbers alone."""
        return self.operator in ("==", "!=")


def parse_rule(rule: str) -> LabelRule:
    """Parse an operator and a value.

    Raises ValueError: invalid rule; the message says what to write.
    """
    match = re.fullmatch(RULE_PATTERN, rule)
    if match is None:
        raise ValueError(f"{rule}: not a rule; write one of {', '.join(COMPARISONS)} and a value")
    name, value = match[1], match[2]
    if value[0] in QUOTES:
        if len(value) < 2 or value[-1] != value[0]:
            raise ValueError(f"{rule}: the quote is not closed")
        return LabelRule(name, value[1:-1], True)
    if value[0] == "=":
        raise ValueError(f"{rule}: write {name} {value.lstrip('= ')}, or the text in quotes: {name} '{value}'")
    return LabelRule(name, value, False)


# A rule on a number, for events of a log; any other text is a value there.
RULE = re.compile(rf"\s*({'|'.join(COMPARISONS)})\s*({NUMBER})\s*")

FORMATS = {  # module and class of each file format, by name; a file has the first format that accepts it
    "parquet": ("data_prep.parsing.readers", "Parquet"),
    "json_lines": ("data_prep.parsing.readers", "JsonLines"),
    "text": ("data_prep.parsing.readers", "Text"),
}

Transform = Literal["raw", "log1p", "signed_log1p", "standard", "minmax", "quantile"]
Part = Literal["year", "month", "day", "weekday", "hour", "minute", "second", "date", "timestamp"]


class DatePart(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A feature that is one part of a column's dates or times; see data_prep/codec/dates.py.

    format: as for `datetime.strptime`, or a name of EPOCHS there; None: ISO 8601.
    """

    feature: str
    column: str
    part: Part
    format: str | None = None


class Vector(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A column of `size` numbers a field: a list, or text with a separator between them."""

    column: str
    size: Annotated[int, Meta(ge=1)]
    separator: str = ""

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names of its dense features, COLUMN_0 and so on: one for each number."""
        return tuple(f"{self.column}_{place}" for place in range(self.size))


class TimeColumn(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The column with the time of each row, by which data.split.method=time divides rows; format as of a part."""

    column: str
    format: str | None = None


class Table(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Description of a user's table.

    Attributes:
        delimiter: one character; for text files.
        header: whether every text file begins with a line of names.
        label: column name, or its position from 0 if there is no header; dense, sparse: likewise.
        rule: condition that makes a label 1, e.g. ">= 4"; None: labels are 0 or 1 already.
        names: all columns in file order; without a header column_0 and so on, as many as needed.
        separators: each multi-hot column with the separator of its values; "" if the file itself holds lists.
        format: format of the files, one of FORMATS.
        decimal, thousands: characters in the numbers of a text file; thousands "": none.
        missing: texts that mean an empty field in a text file.
        parts: those of `dense` and `sparse` that are parts of a column's dates.
        label_kind: kind of the labels; numbers have no rule.
        positive: texts that are the label 1, instead of a rule; other values are 0.
        negative: with `positive`, the only other values; (): any.
        quoting, escape, charset: dialect of text files.
        vectors: columns of several of the `dense` features each.
        transforms: dense features with a transform of their own, and its name (data_prep/codec/transforms.py).
        time: column with the time of each row; no feature unless `parts` name it.
        weight: column with the sample weight of each row; no feature.
    """

    delimiter: Annotated[str, Meta(min_length=1, max_length=1)]
    header: bool
    label: str
    dense: tuple[str, ...]
    sparse: tuple[Feature, ...]
    rule: Annotated[str, Meta(pattern=rf"\A{RULE_PATTERN}\Z")] | None
    names: tuple[str, ...]
    separators: tuple[tuple[str, str], ...] = ()
    format: str = "text"
    decimal: str = "."
    thousands: str = ""
    missing: tuple[str, ...] = ()
    parts: tuple[DatePart, ...] = ()
    label_kind: LabelKind = LabelKind.click
    positive: tuple[str, ...] = ()
    negative: tuple[str, ...] = ()
    quoting: Literal["csv", "none"] = "csv"
    escape: Annotated[str, Meta(max_length=1)] = ""
    charset: str = UTF_8
    vectors: tuple[Vector, ...] = ()
    transforms: tuple[tuple[str, Transform], ...] = ()
    time: TimeColumn | None = None
    weight: str = ""

    @property
    def dialect(self) -> Dialect:
        """Return the form of fields in text files."""
        return Dialect(self.quoting, self.escape, self.charset)

    @property
    def schema(self) -> Schema:
        """Return the schema of the used columns."""
        multi_hot = dict(self.separators)
        ragged = tuple(name for name in self.sparse if name in multi_hot)
        return Schema(self.label, self.dense, self.sparse, ragged, self.label_kind, self.weight)

    @property
    def columns_of_features(self) -> dict[str, str]:
        """Return the file's column of each dense and sparse feature; features of a vector or of a date share one."""
        columns = {feature: feature for feature in (*self.dense, *self.sparse)}
        columns |= {feature: vector.column for vector in self.vectors for feature in vector.features}
        return columns | {part.feature: part.column for part in self.parts}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the columns that the dense and sparse features are read from."""
        return tuple(dict.fromkeys(self.columns_of_features.values()))

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the columns that labelled rows have besides `inputs`: the label, and the weight if there is one."""
        return (self.label, self.weight) if self.weight else (self.label,)

    @property
    def indexed_transforms(self) -> list[tuple[int, str]]:
        """Return the index in `dense`, and the transform, of each feature with a transform of its own."""
        names = dict(self.transforms)
        return [(index, names[feature]) for index, feature in enumerate(self.dense) if feature in names]

    @property
    def named_columns(self) -> tuple[str, ...]:
        """Return all columns that the schema names: label, weight, those of features, and the time."""
        time = () if self.time is None else (self.time.column,)
        return tuple(dict.fromkeys((*self.targets, *self.inputs, *time)))
