"""Labels by their rule, and the pairs of values that need none."""

import itertools
import math
import sys
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.codec.convert import (
    EMPTY,
    Distinct,
    convert,
    distinct,
    excerpt,
    numbers_of,
    plain,
    refuse_row,
    without_marks,
)
from data_prep.codec.values import (
    EXACT_INTEGERS,
    TRUTHS,
    Form,
    Locator,
    NumberForm,
    RawRows,
    TableBlock,
    exact_number_of,
    number_of,
    text_of,
)
from data_prep.dataset.options import COMPARISONS, LabelKind, LabelRule, Table, parse_rule
from data_prep.parsing.formats import format_named, row_bytes, table_layout
from data_prep.sources.discover import Source

# Texts by which pandas (but for None) and databases write a missing value.
NULL_MARKS = frozenset(
    ["", "NULL", "null", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "\\N", "NaN", "nan", "-NaN", "-nan"]
)
SHOWN_TEXTS = 5


def convert_rows(
    batch: RawRows, table: Table, limits: Sequence[float] | None = None, forms: Mapping[str, Form] | None = None
) -> TableBlock:
    """Convert a batch of rows as `convert` does, with their labels and weights."""
    block = convert(batch, table, limits, forms)
    labels, positive_rows, weights = read_targets(batch, table)
    return block._replace(labels=labels, positive_rows=positive_rows, weights=weights)


def read_targets(batch: RawRows, table: Table) -> tuple[NDArray[Any], tuple[int, ...], NDArray[np.float32] | None]:
    """Return labels [rows], the rows with each of the table's `positive` labels, and sample weights [rows] or None."""
    weights = None
    if table.weight:
        locator = batch.locator_of(table.weight)
        numbers = numbers_of(_column_of(batch, table.weight, table), table, locator, np.nan, np.inf)
        with np.errstate(over="ignore"):
            weights = numbers.astype(np.float32)
        # A number beyond float32 became infinite.
        is_bad = (numbers < 0) | np.isinf(weights)
        fault = "is not a weight, from 0 to 3.4e38, the largest float32"
        refuse_row(is_bad, locator, lambda row: f"{numbers[row]:g} {fault}", "correct the row, or leave it out")
    values, locator = _column_of(batch, table.label, table), batch.locator_of(table.label)
    if not table.positive:
        return _read_labels(values, table, locator), (), weights
    column = distinct(values)
    _refuse_missing(column, table.positive, locator)
    if table.negative:
        known = (*table.positive, *table.negative)
        is_other = [_place_of(value, known, table) < 0 for value in column.values]
        column.refuse(is_other, locator, f"is neither {table.positive[0]} nor {table.negative[0]}")
    # The index of each row's value among the positive ones, and -1 for all others, which the counts leave out.
    indices = np.array([_place_of(value, table.positive, table) for value in column.values], np.int64)[column.codes]
    counts = np.bincount(indices + 1, minlength=1 + len(table.positive))[1:]
    return (indices >= 0).astype(np.int32), tuple(counts.tolist()), weights


def _column_of(batch: RawRows, name: str, table: Table) -> Any:
    """Return a column of a batch in the types that the rules know, with "" for marks of missing values."""
    return without_marks(plain(batch.columns[name]), table.missing)


def _read_labels(values: Any, table: Table, locator: Locator) -> NDArray[Any]:
    """Convert a column to labels [rows] of the table's kind, by its rule if it has one."""
    rule = None if table.rule is None else parse_rule(table.rule)
    if rule is not None and is_by_value(rule, table):
        # Labels [rows]: whether each field equals the rule's value (with `!=`, whether it differs).
        column = distinct(values)
        _refuse_missing(column, (rule.value,), locator)
        is_equal = np.array([_is_value(value, rule, table) for value in column.values], np.bool_)
        labels: NDArray[np.int32] = COMPARISONS[rule.operator](is_equal, True).astype(np.int32)
        return labels[column.codes]
    try:
        numbers = numbers_of(values, table, locator, np.nan, np.inf)
    except UserError:
        if table.label_kind is LabelKind.click:
            _refuse_texts(values, table, locator)
        raise
    if rule is not None:
        return meets_rule(values, numbers, rule, table).astype(np.int32)
    if table.label_kind is LabelKind.click:
        is_bad = (numbers != 0) & (numbers != 1)
        fault, remedy = "is not a label (0 or 1)", "correct the row, or give a rule or kind: number in the schema"
    else:
        with np.errstate(over="ignore"):
            is_bad = np.isinf(numbers.astype(np.float32))
        fault, remedy = "is beyond 3.4e38, the largest float32", "correct the row"
    refuse_row(is_bad, locator, lambda row: f"{numbers[row]:g} {fault}", remedy)
    return numbers.astype(table.label_kind.dtype)


def meets_rule(values: Any, numbers: NDArray[np.float64], rule: LabelRule, form: NumberForm) -> NDArray[np.bool_]:
    """Return a mask of a column's values that meet a rule.

    numbers: the values as float64. form: how the file writes numbers.
    """
    compare, number = COMPARISONS[rule.operator], number_of(rule.value, form)
    # A rule's number below 2^53 is told from its neighbours by float64, so the whole column is compared at once.
    if not abs(number) >= EXACT_INTEGERS:
        met: NDArray[np.bool_] = compare(numbers, number)
        return met
    # The file may have integers that are equal as float64 alone.
    column, value = distinct(values), exact_number_of(rule.value, form)
    is_met = [compare(exact_number_of(distinct_value, form), value) for distinct_value in column.values]
    return np.array(is_met, np.bool_)[column.codes]


def is_by_value(rule: LabelRule, form: NumberForm) -> bool:
    """Return whether a rule compares texts or truth values, so that fields may be any text."""
    is_truth = rule.value.lower() in TRUTHS
    return rule.is_equality and (rule.is_quoted or is_truth or math.isnan(number_of(rule.value, form)))


def _place_of(value: Any, texts: Sequence[str], table: Table) -> int:
    """Return the index of the text that a field is, or else of the first that it equals by value; -1 for none."""
    # An exact text comes first, as two of the values may mean the same number.
    if (text := text_of(value)) in texts:
        return texts.index(text)
    is_equal = (_is_value(value, LabelRule("==", text, True), table) for text in texts)
    return next(itertools.compress(itertools.count(), is_equal), -1)


def _refuse_missing(column: Distinct, named: Sequence[str], locator: Locator) -> None:
    """Raise UserError for an empty field, or one that stands for a missing value and that the schema does not name."""
    is_bad = [value in EMPTY or (value not in named and is_missing(value)) for value in column.values]
    column.refuse(is_bad, locator, "stands for a missing value")


def _is_value(value: Any, rule: LabelRule, table: Table) -> bool:
    """Return whether a field equals a rule's value: as text if both are text, else as a number or truth value."""
    if isinstance(value, str) and (rule.is_quoted or rule.value.lower() not in TRUTHS):
        return value == rule.value if rule.is_quoted else value.strip() == rule.value
    return exact_number_of(value, table) == exact_number_of(rule.value, table)


def is_missing(value: Any) -> bool:
    """Return whether a value is missing, a null mark, only blanks, or NaN."""
    return value.strip() in NULL_MARKS if isinstance(value, str) else value is None or value != value


def _refuse_texts(values: Any, table: Table, locator: Locator) -> None:
    """Raise UserError for labels that are texts; the message shows some and a rule that accepts them."""
    column = distinct(values)
    is_other = [
        isinstance(value, str) and value != "" and math.isnan(number_of(value, table)) for value in column.values
    ]
    texts = list(itertools.compress(column.values, is_other))
    shown_texts = ", ".join(map(excerpt, texts[:SHOWN_TEXTS])) + (", …" if len(texts) > SHOWN_TEXTS else "")
    remedy = (
        f"labels that are texts need a rule in the schema, as in label: {table.label} == {texts[0] if texts else ''}"
    )
    column.refuse(is_other, locator, f"is not a number (texts: {shown_texts})", remedy)


SHOWN_VALUES = 8
COUNTED_ROWS = 1_000_000  # first rows whose label values are counted
CHUNK_BYTES = 8 << 20
# Pairs of words that need no rule: the word that means 1, and the one that means 0. Truth words are labels already.
WORD_PAIRS = (
    ("y", "n"),
    ("t", "f"),
    ("click", "no_click"),
    ("click", "no click"),
    ("clicked", "not_clicked"),
    ("clicked", "not clicked"),
    ("positive", "negative"),
    ("pos", "neg"),
)
# The positive value of each pair. 1 and 2 are left out, as either may be the click; 1 and 0 are labels already.
PAIRS: dict[frozenset[Hashable], Hashable] = {frozenset(pair): pair[0] for pair in (*WORD_PAIRS, (1.0, -1.0))}


def describe_label_values(table: Table, sources: Sequence[Source]) -> str:
    """Return the most frequent values of the label column in the sources' first rows, for an error."""
    counts: Counter[Any] = sum(_counts_by_batch(table, sources), Counter())
    frequent = counts.most_common(SHOWN_VALUES)
    shown = ", ".join(f"{'no value' if value is None else excerpt(value)} ({rows:,})" for value, rows in frequent)
    more = f" and {len(counts) - SHOWN_VALUES} more" if len(counts) > SHOWN_VALUES else ""
    return f"values of {counts.total():,} rows are {shown}{more}"


def add_known_pair(path: Path, sources: Sequence[Source], table: Table) -> Table:
    """Return the table with the positive and the negative label if its labels are a known pair of words; log this.

    Labels that need no pair are left alone: 0 and 1, truth words, numbers, and those with a rule or positive values.
    Any other values are left to the reader of rows, which names the row, and what to write.

    path: the schema, for errors.
    """
    if table.label_kind is LabelKind.number or table.rule is not None or table.positive:
        return table
    train = [source for source in sources if source.split in (None, "train")]
    values: dict[Hashable, Any] = {}
    for counts in _counts_by_batch(table, train):
        # Two values suffice to find a pair, so most files are read only at their beginning.
        values |= {_meaning(value, table): value for value in counts if not is_missing(value)}
        if len(values) > 1:
            break
    if (positive := PAIRS.get(frozenset(values))) is None:
        return table
    [negative] = set(values) - {positive}
    one, zero = text_of(values[positive]), text_of(values[negative])
    print(f"{path}: label {table.label}: {one} is 1, {zero} is 0", file=sys.stderr)
    return replace(table, positive=(one,), negative=(zero,))


def _counts_by_batch(table: Table, sources: Sequence[Source]) -> Iterator[Counter[Any]]:
    """Yield the counts of the label column's values in each batch of the first COUNTED_ROWS rows or a little more."""
    form, layout, least = format_named(table.format), table_layout(table)[1], row_bytes(table)
    pairs = ((source, chunk) for source in sources for chunk in form.chunks(source, layout, least, CHUNK_BYTES))
    batches = (batch for source, chunk in pairs for batch, _ in form.batches(source, chunk, [table.label], layout))
    rows = 0
    for batch in batches:
        column = distinct(_column_of(batch, table.label, table))
        counts: Counter[Any] = Counter()
        for value, count in zip(column.values, np.bincount(column.codes).tolist(), strict=True):
            counts[text_of(value) if isinstance(value, list | dict) else value] += count
        yield counts
        rows += batch.rows
        if rows >= COUNTED_ROWS:
            return


def _meaning(value: Any, table: Table) -> Hashable:
    """Return a label's number, or its text without blanks and in lower case: 1 and 1.0 or Yes and yes are one label."""
    number = number_of(value, table)
    return text_of(value).strip().lower() if np.isnan(number) else number
