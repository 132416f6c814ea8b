"""Values of a label column: counts of them for errors, and the pairs of words that need no rule in the schema."""

import json
import sys
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from common.errors import UserError
from data_prep.dataset.options import LabelKind
from data_prep.dataset.spelling import text_of
from data_prep.dataset.table_spec import Table
from data_prep.parsing.convert import distinct, excerpt, plain, without_marks
from data_prep.parsing.formats import format_named, table_layout, table_size
from data_prep.parsing.labels import is_missing
from data_prep.parsing.numbers import number_of
from data_prep.sources.discover import Source

SHOWN_VALUES = 8
COUNTED_ROWS = 1_000_000  # first rows whose label values are counted
CHUNK_BYTES = 8 << 20
# Pairs of words that are taken without a rule: the one that means 1, and the one that means 0. Truth words are labels
# already.
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
    counts = _count(table, sources)
    shown = ", ".join(f"{_shown(value)} ({rows:,})" for value, rows in counts.most_common(SHOWN_VALUES))
    more = f" and {len(counts) - SHOWN_VALUES} more" if len(counts) > SHOWN_VALUES else ""
    return f"values of {counts.total():,} rows are {shown}{more}"


def with_known_pair(path: Path, sources: Sequence[Source], table: Table) -> Table:
    """Return the table with the positive and the negative label if its labels are a known pair of words; log this.

    Labels that need no pair are left alone: 0 and 1, truth words, numbers, and those with a rule or positive values.
    More than two values, or one, are left to the reader of rows, which names the row.

    Args:
        path: the schema, for errors.
    """
    if table.label_kind is LabelKind.number or table.rule is not None or table.positive:
        return table
    train = [source for source in sources if source.split in (None, "train")]
    values: dict[Hashable, Any] = {}
    for counts in _counts_by_batch(table, train):
        values |= {_meaning(value, table): value for value in counts if not is_missing(value)}
        if len(values) > 1:
            break
    if len(values) != 2 or set(values) <= {0.0, 1.0}:
        return table
    if (positive := PAIRS.get(frozenset(values))) is None:
        _refuse_pair(path, train, table)
        return table
    [negative] = set(values) - {positive}
    one, zero = text_of(values[positive]), text_of(values[negative])
    print(f"{path}: label {table.label}: {one} is 1, {zero} is 0", file=sys.stderr)
    return replace(table, positive=(one,), negative=(zero,))


def _refuse_pair(path: Path, sources: Sequence[Source], table: Table) -> None:
    """Raise UserError if the column has exactly two values in the sources' first rows."""
    counts = {value: rows for value, rows in _count(table, sources).items() if not is_missing(value)}
    if len({_meaning(value, table) for value in counts}) != 2:
        return
    by_rows = sorted(counts, key=lambda value: (counts[value], text_of(value)))
    shown = " and ".join(f"{_shown(value)} ({counts[value]:,} rows)" for value in by_rows)
    entry = json.dumps(text_of(by_rows[0]), ensure_ascii=False)
    raise UserError(
        f"{sources[0].path}, column {table.label}: labels are {shown}, and nothing says which is 1; write in {path} "
        f"label: {{column: {table.label}, positive: [{entry}]}}, or the other value"
    )


def _count(table: Table, sources: Sequence[Source]) -> Counter[Any]:
    """Count the values of the label column in the first COUNTED_ROWS rows or a little more."""
    total: Counter[Any] = Counter()
    for counts in _counts_by_batch(table, sources):
        total.update(counts)
    return total


def _counts_by_batch(table: Table, sources: Sequence[Source]) -> Iterator[Counter[Any]]:
    """Yield the counts of the label column's values in each batch of the first COUNTED_ROWS rows."""
    form, layout, size = format_named(table.format), table_layout(table)[1], table_size(table)
    places = ((each, place) for each in sources for place in form.chunks(each, size, CHUNK_BYTES))
    batches = (batch for source, place in places for batch, _ in form.batches(source, place, [table.label], layout))
    rows = 0
    for batch in batches:
        column = distinct(without_marks(plain(batch.columns[table.label]), table.missing))
        counts: Counter[Any] = Counter()
        for value, count in zip(column.values, np.bincount(column.codes).tolist(), strict=True):
            counts[text_of(value) if isinstance(value, list | dict) else value] += count
        yield counts
        rows += batch.rows
        if rows >= COUNTED_ROWS:
            return


def _meaning(value: Any, table: Table) -> Hashable:
    """Return a label's number, or its text without blanks and in lower case."""
    number = number_of(value, table)
    return text_of(value).strip().lower() if np.isnan(number) else number


def _shown(value: Any) -> str:
    return "no value" if value is None else excerpt(value)
