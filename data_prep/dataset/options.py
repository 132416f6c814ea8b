"""Sources, splits, encodings and transforms by name; the columns of rows, and a user's table.

A category is any text; its 64-bit value identifies it, see data_prep/codec/values.py.
"""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import ceil
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta, Struct

from common.documents import Json, decode
from common.errors import UserError
from common.extensions import row_constructor, rows_of_extensions
from data_prep.codec.values import UTF_8, Dialect
from data_prep.dataset.kinds import ROWS, NamedSource, SourceKind

OWN_FILES = SourceKind()
_CRITEO = SourceKind(ROWS, "data_prep.job:fetch_days", group="remote")


class DataSource(Enum):
    """Sources of rows other than the user's files.

    synthetic: generator with a known model; criteo_kaggle, criteo_1tb: Criteo's rows from mirrors; random: random ids,
    for measurements of speed. Extensions add others.
    """

    synthetic = (
        "synthetic",
        SourceKind(
            ROWS,
            "data_prep.synthetic:synthetic_sources",
            "data_prep.synthetic:days_directory",
            group="synthetic",
            figures="data_prep.stages.write:figures",
        ),
    )
    criteo_kaggle = "criteo_kaggle", _CRITEO
    criteo_1tb = "criteo_1tb", _CRITEO
    random = "random", SourceKind(ROWS, group="random", generator="data_prep.synthetic:RandomRows")
    _ignore_ = "added"  # or the loop's variable would become a source
    for added in rows_of_extensions(NamedSource):
        vars()[added.name] = (added.name, added.kind)

    _value_: str
    kind: SourceKind
    __new__ = row_constructor("kind")


GROUPS = tuple(dict.fromkeys(source.kind.group for source in DataSource if source.kind.group))
FILES = tuple(f"{source.kind.group}.{key}" for source in DataSource for key in source.kind.files)
GENERATORS = tuple(source.kind.group for source in DataSource if source.kind.generator or source.kind.figures)


class Encoding(Enum):
    """Encodings of categorical values as ids.

    vocabulary: ids from 1 by descending count in train; 0 for values that are rare or absent there.
    hash: value modulo max_ind_range. One pass and no memory, but values collide.
    torchrec: byte for byte the output of TorchRec's tsv_to_npys, sparse_to_contiguous and shuffle: the MLPerf
        dataset with its defects (ids of the train split rounded to float32, integers that overflow).
    torchrec_fixed: the same without the defects.
    dlrm_kaggle: the arrays of facebookresearch/dlrm for Criteo Kaggle.
    amd_blog: ids by ascending value, integers scaled to 0..1, columns of more than 10,000 values dropped, and
        scikit-learn's random 80/20 split, as in AMD's blog of 2024.
    """

    vocabulary = "vocabulary"
    hash = "hash"
    torchrec = "torchrec"
    torchrec_fixed = "torchrec_fixed"
    dlrm_kaggle = "dlrm_kaggle"
    amd_blog = "amd_blog"


class LabelKind(Enum):
    """Kinds of labels. click: 0 or 1, int32 in shards; number: any finite number, float32."""

    click = "click"
    number = "number"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of labels in shards."""
        return np.dtype(np.int32 if self is LabelKind.click else np.float32)


class DenseTransform(Enum):
    """Transforms of an integer x (missing: 0) to float32, or to int32 with `integers`.

    log1p: log(1 + max(x, 0)), rounded once.
    signed_log1p: log(1 + x) for x >= 0, -log(1 - x) for x < 0.
    log_float32: log(1 + max(x, 0)) in single precision, as facebookresearch/dlrm computes it.
    torchrec: log(x - m + 2), where m is the file's smallest integer over all columns.
    minmax: (x - low) / (high - low), where low and high are the column's range over all rows.
    raw: x; beyond 2^24 float32 rounds.
    integers: x as int32, exact. The export `bin` needs it; for Criteo's rows only.
    """

    log1p = "log1p"
    signed_log1p = "signed_log1p"
    log_float32 = "log_float32"
    torchrec = "torchrec"
    minmax = "minmax"
    raw = "raw"
    integers = "integers"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of the transformed integers."""
        return np.dtype(np.int32 if self is DenseTransform.integers else np.float32)


class VocabularyOrder(Enum):
    """Orders of ids: by descending count (ties by ascending value), first appearance, or ascending value."""

    frequency = "frequency"
    first_appearance = "first_appearance"
    value = "value"


@dataclass(frozen=True)
class SplitAlgorithm:
    """Properties of a split method.

    Attributes:
        held_out: returns the number of held-out rows from the rows of each source and the share; None: chance decides
            it.
        chooses: function of data_prep/stages/place.py that chooses the split of each row; "": the last rows,
            in order or after a permutation, are held out.
        reads: what decides beside chance: times or values in data.split.column, labels, or nothing.
        is_random: whether rows are drawn or permuted, so that data.split.seed matters.
        has_share: whether data.split.held_out matters.
        has_val: whether val gets half of the held-out rows; otherwise test gets all of them.
        needs_several: whether the method needs at least two raw files.
    """

    held_out: Callable[[Sequence[int], float], int] | None = None
    chooses: str = ""
    reads: Literal["", "times", "values", "labels"] = ""
    is_random: bool = False
    has_share: bool = True
    has_val: bool = True
    needs_several: bool = False

    @property
    def has_column(self) -> bool:
        """Return whether the values or times of data.split.column decide each row's split."""
        return self.reads in ("times", "values")

    @property
    def is_arranged(self) -> bool:
        """Return whether the method reorders rows; otherwise val and test are the last rows in their order."""
        return self.is_random or bool(self.chooses)


def _hold_out_share(by_source: Sequence[int], share: float) -> int:
    """Return the rows of val and test together, at least one each of three rows or more; by_source: rows by file."""
    # In float64, a product that should be a whole number may lie slightly below it.
    rows = int(sum(by_source) * share + 1e-9)
    return max(rows, 2) if share and sum(by_source) > 2 else rows


_CHOICES = "data_prep.stages.place"


class SplitMethod(Enum):
    """Methods that choose the held-out rows.

    auto: for the user's own table time if the schema names a time column, else random; for Criteo's rows last_day for
        several files and fraction for one.
    last_day: the last file in the order of data.raw.
    fraction: the last `held_out` of all rows.
    random: each row with probability `held_out`, by `seed`; rows keep their order within a split.
    scikit_learn: train_test_split with test_size `held_out` and random_state `seed`; val stays empty.
    time: the latest `held_out` of the rows by `column`; rows of one time are in one split.
    group: all rows of each value of `column` with probability `held_out`, by `seed`.
    stratified: `held_out` of the rows of each label, drawn by `seed`.
    """

    auto = "auto", SplitAlgorithm()
    last_day = "last_day", SplitAlgorithm(lambda by_source, _: by_source[-1], has_share=False, needs_several=True)
    fraction = "fraction", SplitAlgorithm(_hold_out_share)
    random = "random", SplitAlgorithm(chooses=f"{_CHOICES}:choose_by_chance", is_random=True)
    # Like scikit-learn's function, this rounds up.
    scikit_learn = (
        "scikit_learn",
        SplitAlgorithm(lambda by_source, share: ceil(sum(by_source) * share), is_random=True, has_val=False),
    )

    time = "time", SplitAlgorithm(_hold_out_share, f"{_CHOICES}:choose_by_time", "times")
    group = "group", SplitAlgorithm(chooses=f"{_CHOICES}:choose_by_group", reads="values", is_random=True)
    stratified = "stratified", SplitAlgorithm(_hold_out_share, f"{_CHOICES}:choose_by_label", "labels", is_random=True)

    _value_: str
    algorithm: SplitAlgorithm
    __new__ = row_constructor("algorithm")

    def resolve(self, num_sources: int, is_own: bool, has_time: bool = False) -> "SplitMethod":
        """Replace `auto` by the method it stands for. Raise UserError for too few raw files.

        num_sources: number of raw files. is_own: whether rows are of the user's own table. has_time: whether its schema
        names a time column.
        """
        if self is SplitMethod.auto and is_own:
            # A table may be sorted by any of its columns.
            return SplitMethod.time if has_time else SplitMethod.random
        if self is SplitMethod.auto:
            return SplitMethod.last_day if num_sources > 1 else SplitMethod.fraction
        if self.algorithm.needs_several and num_sources < 2:
            raise UserError(f"data.split.method={self.value}: needs at least two raw files; use fraction, or add a day")
        return self


CRITEO_NUM_DENSE = 13
CRITEO_NUM_SPARSE = 26
MAX_NUM_EMBEDDINGS = 1 << 31  # ids are int32

Feature = Annotated[str, Meta(pattern=r"\A[^./\\\0]+\Z")]  # names files and tables
TableRows = Annotated[int, Meta(ge=1, le=MAX_NUM_EMBEDDINGS)]


class Schema(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Column names in file order: the label, then N dense, then F sparse.

    `ragged` lists the multi-hot columns, in the order of `sparse`. `label_kind` is the kind of the labels. `weight` is
    the column of sample weights, which is no feature; "": none.
    """

    label: str
    dense: tuple[str, ...]
    sparse: tuple[Feature, ...]
    ragged: tuple[Feature, ...] = ()
    label_kind: LabelKind = LabelKind.click
    weight: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the label, dense and sparse columns, in file order; the weight is not among them."""
        return (self.label, *self.dense, *self.sparse)

    @property
    def single(self) -> tuple[str, ...]:
        """Return the sparse columns with one value per row."""
        return tuple(name for name in self.sparse if name not in self.ragged)


def to_json(entry: object) -> Json:
    """Convert a Struct to plain values, as JSON returns them, without fields that have their defaults."""
    # Decode first: before Python 3.11 an empty tuple may not be the default object, and would be written.
    return decode(msgspec.json.encode(decode(msgspec.json.encode(entry), type(entry))), Json)


CRITEO = Schema(
    label="label",
    dense=tuple(f"int_{i}" for i in range(CRITEO_NUM_DENSE)),
    sparse=tuple(f"cat_{i}" for i in range(CRITEO_NUM_SPARSE)),
)


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
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"  # in a rule; in a field, blanks may stand around it


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
    """A feature that is one part of a column's dates or times; see data_prep/codec/values.py.

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
        transforms: dense features with a transform of their own, and its name (data_prep/codec/values.py).
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
