"""The proposed schema of a table, read once: label, use of each column, and why; as YAML with comments.

Figures of columns are over all rows; label rates, formats of times and the order of rows are of a sample.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from operator import ne
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.codec.convert import distinct, plain, refuse_rounded, to_list
from data_prep.codec.files import decode_text
from data_prep.codec.values import (
    EPOCHS,
    EXACT_INTEGERS,
    NUMBER,
    NUMBERS,
    PARTS,
    TRUTHS,
    RawRows,
    number_of,
    read_time,
    text_of,
    text_values,
    whole_number,
)
from data_prep.dataset.format import splitmix64
from data_prep.dataset.options import COLUMN_AND_RULE, LabelKind, Table, parse_rule
from data_prep.parsing.readers import NULL_MARKS, PAIRS, convert_rows
from data_prep.parsing.table import (
    DELIMITERS,
    MIN_ROW_BYTES,
    FileLayout,
    Format,
    common_format,
    load_table,
    read_columns,
)
from data_prep.sources.files import LineBlocks, Source

MAX_EXACT = 1 << 16  # fewer different values are counted; more are estimated
INTEGER = re.compile(r"-?[0-9]+(\.0)?")  # 12.0 as pandas writes columns with gaps, 00042 as postcodes are written


@dataclass
class ColumnFigures:
    """Figures of a column over all rows, and its fields in the sample.

    Attributes:
        name, kind: as the file says.
        counts: rows by what their text is: empty (or a list without members), mark, truth, integer, fraction, text.
        marks: rows of each text that means no value, such as NA; it counts as filled.
        has_others: whether a row, or a member of a list, is neither text, number, truth value nor time.
        has_fractions: whether a typed number is not whole, or so large that its type rounds whole numbers.
        low, high: range of the numbers.
        hashes: the smallest hashes of the different values, at most MAX_EXACT.
        sample: texts of the sampled rows, or lists of texts.
    """

    name: str
    kind: str
    counts: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    has_others: bool = False
    has_fractions: bool = False
    low: float = np.inf
    high: float = -np.inf
    hashes: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    sample: list[Any] = field(default_factory=list)

    def add(self, values: Any, sampled: NDArray[np.int64]) -> None:
        """Count a batch of rows, an Arrow array or a list, and keep those with the numbers `sampled`."""
        values = plain(values)
        if self.kind == "list":
            rows = to_list(values)
            bags = [
                [str(member) for member in row if member is not None] if isinstance(row, list) else [] for row in rows
            ]
            members = [member for row in rows if isinstance(row, list) for member in row]
            self.has_others |= not all(isinstance(row, list | None) for row in rows)
            self.has_others |= not all(isinstance(member, str | int | None) for member in members)
            self.counts.update("text" if bag else "empty" for bag in bags)
            self.sample += [bags[row] for row in sampled.tolist()]
            texts = sorted({text for bag in bags for text in bag})
        else:
            try:
                refuse_rounded(values, str)
            except UserError:
                self.has_fractions = True
            column = distinct(values)
            texts = list(map(self._count, column.values, np.bincount(column.codes).tolist()))
            self.sample += [texts[code] for code in column.codes[sampled].tolist()]
            texts = list(filter(None, texts))
        self.add_values(text_values(pa.array(texts, pa.string())))

    def _count(self, value: Any, rows: int) -> str:
        """Count a value that stands in some rows; return its text, as `text_of` has it, of a time in ISO 8601."""
        is_time = isinstance(value, date)  # as a datetime is, too
        text = value.isoformat() if is_time else text_of(value)
        self.has_fractions |= isinstance(value, float | Decimal) and whole_number(value) is None
        self.has_others |= not (is_time or isinstance(value, str | int | float | Decimal | None))
        number, kind = number_of(text, NUMBERS), "text"
        if text == "":
            kind = "empty"
        elif text.strip() in NULL_MARKS:
            kind = "mark"
            self.marks[text] += rows
        elif text.strip().lower() in TRUTHS:
            kind = "truth"
        elif not np.isnan(number):
            kind = "integer" if INTEGER.fullmatch(text) else "fraction"
            self.low, self.high = min(self.low, number), max(self.high, number)
        self.counts[kind] += rows
        return text

    def add_values(self, values: NDArray[np.uint64]) -> None:
        """Add values [n], of which some may be equal, to each other or to those added before."""
        hashes = splitmix64(values)
        if not self.has_exact_number:
            hashes = hashes[hashes < self.hashes[-1]]
        self.hashes = np.union1d(self.hashes, hashes)[:MAX_EXACT]

    @property
    def has_exact_number(self) -> bool:
        """Return whether the number of different values is counted, not estimated."""
        return len(self.hashes) < MAX_EXACT

    @property
    def num_values(self) -> int:
        """Return the number of different values: counted, or estimated from the density of the smallest hashes."""
        if self.has_exact_number:
            return len(self.hashes)
        return int(MAX_EXACT * 2.0**64 / (int(self.hashes[-1]) + 1))

    @property
    def filled(self) -> int:
        """Return the number of rows whose field is not empty."""
        return self.counts.total() - self.counts["empty"]

    def are_numbers(self, with_marks: bool) -> bool:
        """Return whether every value is a finite number or truth value or, with marks, a number or no value."""
        numbers, others = self.counts["integer"] + self.counts["fraction"], self.counts["truth"]
        if with_marks and numbers and self.marks:
            others = self.counts["mark"]
        return 0 < self.filled == numbers + others and max(-self.low, self.high) < np.inf

    @property
    def value_count(self) -> str:
        """Return the number of different values as text, with "about" if it is estimated."""
        return f"{'' if self.has_exact_number else 'about '}{self.num_values:,}"

    @property
    def texts(self) -> list[str]:
        """Return the texts of the sampled rows that mean a value."""
        return [text for text in self.sample if text.strip() not in NULL_MARKS]

    @property
    def numbers(self) -> NDArray[np.float64]:
        """Return the numbers of the sampled rows that have a value."""
        return np.array([number_of(text, NUMBERS) for text in self.texts])


CHUNK_BYTES = 8 << 20  # of a file, read at once
FIRST_BYTES, LINES = 1 << 20, 50  # of a file, which show the delimiter
SAMPLE_ROWS, SAMPLE_FIELDS = 50_000, 2_000_000  # most rows and fields of the sample


@dataclass
class TableProfile:
    """Figures of a table's columns, by name, in file order; and a sample of the rows.

    The sample has the rows whose numbers have the smallest hashes, in their order: all rows of a small table.

    form, layout: of all files. sampled: numbers of the sampled rows. largest: rows with larger hashes are left out.
    """

    sources: Sequence[Source]
    form: Format
    layout: FileLayout
    columns: dict[str, ColumnFigures]
    rows: int = 0
    sampled: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    largest: int = 2**64 - 1

    def add(self, batch: RawRows) -> None:
        """Add a batch of rows, which follow those before."""
        numbers = np.arange(self.rows, self.rows + batch.rows)
        kept = np.flatnonzero(splitmix64(numbers.astype(np.uint64)) <= np.uint64(self.largest))
        self.sampled = np.concatenate([self.sampled, numbers[kept]])
        self.rows += batch.rows
        for name, figures in self.columns.items():
            figures.add(batch.columns[name], kept)
        self.shrink(slack=2)  # each time takes a pass over the sample, so rows are dropped many at a time

    def shrink(self, slack: int) -> None:
        """Drop the sampled rows of the largest hashes if there are more than `slack` times as many as wanted."""
        limit = min(SAMPLE_ROWS, max(1000, SAMPLE_FIELDS // max(1, len(self.columns))))
        if len(self.sampled) > slack * limit:
            hashes = splitmix64(self.sampled.astype(np.uint64))
            kept = np.sort(np.argpartition(hashes, limit)[:limit])
            self.largest, self.sampled = int(hashes[kept].max()), self.sampled[kept]
            for figures in self.columns.values():
                figures.sample = [figures.sample[index] for index in kept.tolist()]

    def scope(self) -> str:
        """Return a phrase for a heading: the number of all rows, and of the sample's rows if they are fewer."""
        sampled = len(self.sampled)
        more = "" if sampled == self.rows else f"; rates and distributions of {sampled:,} of them, drawn by a hash"
        return f"all {self.rows:,} rows{more}"


def read_profile(sources: Sequence[Source]) -> TableProfile:
    """Return the figures of all rows of some files, and a sample of the rows; the files are read once."""
    form = common_format(sources)
    delimiter, header = _find_layout(sources[0]) if form.has_layout else (",", True)
    columns = read_columns(form, sources, FileLayout((), delimiter, header))
    names = [name for name, _ in columns[0]]
    # Two columns may lack a name: the index that pandas writes, and an empty one if a delimiter ends each line.
    if twice := next((name for name, count in Counter(names).items() if name and count > 1), None):
        raise UserError(f"{sources[0].path}: row 1: two columns {twice}; rename one of them")
    if other := next((each for each, found in zip(sources, columns, strict=True) if found != columns[0]), None):
        raise UserError(f"{other.path}: other columns than in {sources[0].path}; give like files")
    figures = {name: ColumnFigures(name, kind) for name, kind in columns[0]}
    lists = tuple(name for name, column in figures.items() if column.kind == "list")
    profile = TableProfile(sources, form, FileLayout(tuple(names), delimiter, header, lists), figures)
    for source in sources:
        for chunk in form.chunks(source, profile.layout, max(MIN_ROW_BYTES, 8 * len(figures)), CHUNK_BYTES):
            for batch, _ in form.batches(source, chunk, list(figures), profile.layout):
                profile.add(batch)
    profile.shrink(slack=1)
    if not profile.rows:
        raise UserError(f"{sources[0].path}: no rows in it; get it again, or leave it out of {sources[0].key}")
    return profile


def _find_layout(source: Source) -> tuple[str, bool]:
    """Return the delimiter that divides the first lines into most columns, all alike, and whether row 1 has names."""
    lines: list[str] = []
    with LineBlocks(source) as blocks:
        if (block := next(blocks.read_until(FIRST_BYTES), None)) is not None:
            content = bytes(block.buffer[block.start : block.end])[:FIRST_BYTES]
            text = decode_text(content[: content.rfind(b"\n") + 1] or content, source.path, 1)
            # splitlines() would also cut at U+2028.
            lines = [line for line in re.split(r"\r\n?|\n", text) if line.strip()][: LINES + 1]
    if not lines:
        raise UserError(f"{source.path}: no rows in it; get it again, or leave it out of {source.key}")
    merits = {}
    for delimiter in (",", *DELIMITERS):  # of equally good ones the first counts
        widths = {len(row) for row in csv.reader(lines, delimiter=delimiter)}
        # One that divides the lines at all comes first, then one that gives equal widths, then the one of most columns.
        merits[delimiter] = (max(widths, default=0) > 1, len(widths) == 1, max(widths, default=0))
    delimiter = max(merits, key=lambda candidate: merits[candidate])
    names = next(csv.reader(lines, delimiter=delimiter))
    return delimiter, any(names) and not any(re.fullmatch(NUMBER, name) for name in names)


MIN_LABELS = 50  # per class, for a meaningful AUC
PRIOR_ROWS = 10.0  # rows at the base rate that smooth each rate
BINS = 32  # quantiles of a number


def auc_of_column(codes: NDArray[np.int64], labels: NDArray[np.bool_]) -> float | None:
    """Return the AUC of a column's label rates by code [rows], of each half of the rows by those of the other.

    labels: whether each row is positive, [rows]. None with few labels of a class.
    """
    if min(labels.sum(), (~labels).sum()) < MIN_LABELS:
        return None
    rates, aucs = _rates_of_other_half(codes, labels), []
    for half in _halves(len(labels)):
        positives, negatives = rates[half & labels], np.sort(rates[half & ~labels])
        # A positive row wins against each negative one with a lower rate; equal rates count half.
        wins = [np.searchsorted(negatives, positives, side).sum() for side in ("left", "right")]
        pairs = len(positives) * len(negatives)
        aucs.append(sum(wins) / 2 / pairs if pairs else 0.5)
    return float(np.mean(aucs))


def _halves(rows: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return two masks [rows] of all rows, by a hash of a row's number: neighbours, often alike, are torn apart."""
    in_first = splitmix64(np.arange(rows, dtype=np.uint64)) & np.uint64(1) == 1
    return in_first, ~in_first


def quantile_codes(numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return a code [numbers] of each number: which of BINS ranges between quantiles it is in, or of fewer."""
    return np.searchsorted(np.unique(np.quantile(numbers, np.arange(1, BINS) / BINS)), numbers, side="left")


def _rates_of_other_half(
    codes: NDArray[np.int64], labels: NDArray[Any], priors: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return the mean label of each row's code in the other half, smoothed by PRIOR_ROWS rows of its prior.

    Rates of the same half would reveal each row's own label. `label_rates` of extensions/baselines does this by folds,
    for bags and weights; an extension imports no other.

    priors: [rows]; None: the other half's mean label.
    """
    rates, size = np.empty(len(labels)), int(codes.max()) + 1
    for fitted in _halves(len(labels)):
        prior = labels[fitted].mean() if priors is None else priors[~fitted]
        sums, rows = np.bincount(codes[fitted], labels[fitted], size), np.bincount(codes[fitted], minlength=size)
        rates[~fitted] = (sums[codes[~fitted]] + PRIOR_ROWS * prior) / (rows[codes[~fitted]] + PRIOR_ROWS)
    return rates


LABEL_NAMES = ("label", "click", "clicked", "target", "y", "rating")  # columns of the label unless one is given
MAX_GRADES = 20  # numbers of more different values are no grades, but a number to predict
SHOWN_VALUES = 5
NAMES_LENGTH = 200  # most characters of column names in an error


@dataclass(frozen=True)
class Label:
    """The label's column, and how it becomes a number.

    Attributes:
        rule: condition of a positive row; None: the column holds 0 and 1, or is a number to predict.
        reason: why, for a comment.
        values: labels [rows of the sample], 0 and 1 of clicks, otherwise the numbers to predict.
    """

    column: str
    rule: str | None
    kind: LabelKind
    reason: str
    values: NDArray[np.float64]

    @property
    def is_click(self) -> bool:
        """Return whether the labels are 0 and 1."""
        return self.kind is LabelKind.click

    @property
    def rate(self) -> float | None:
        """Return the share of positive rows in the sample; None: the labels are numbers."""
        return float(self.values.mean()) if self.is_click else None


def find_label(profile: TableProfile, label_key: str | None) -> Label:
    """Return the label.

    label_key: column, or rule such as "rating >= 4"; None: a column named as one of LABEL_NAMES.
    """
    path, names, column, rule = profile.sources[0].path, list(profile.columns), label_key, None
    shown = ", ".join(filter(None, names))[:NAMES_LENGTH]
    if label_key is None:
        by_lower = {name.lower(): name for name in reversed(names)}
        column = next((by_lower[name] for name in LABEL_NAMES if name in by_lower), None)
    elif label_key not in names and (match := COLUMN_AND_RULE.fullmatch(label_key.strip())):
        column, rule = match.groups()
    if column is None:
        raise UserError(
            f"{path}: no column is named {', '.join(LABEL_NAMES[:-1])} or {LABEL_NAMES[-1]}, so the label is not "
            f"known; give data.label=COLUMN, one of {shown}"
        )
    if column not in names:
        raise UserError(f"data.label={label_key}: no such column; the table has {shown}")
    try:
        # A rule such as `== none` may name as a value a word that elsewhere means none.
        named = None if rule is None else parse_rule(rule).value
    except ValueError as error:
        raise UserError(f"data.label={label_key}: {error}") from error
    figures = profile.columns[column]
    if figures.kind == "list" or figures.has_others or not figures.filled:
        raise UserError(f"{path}, column {column}: no values that a label can have; name another column in data.label")
    marks = [mark for mark in figures.marks if mark != named]
    if absent := figures.counts["empty"] + sum(figures.marks[mark] for mark in marks):
        fields = zip(profile.sampled.tolist(), figures.sample, strict=True)
        row = next((row for row, text in fields if text in ("", *marks)), None)
        first = "" if row is None else f", such as row {row + 1} of the table"
        words = f" ({', '.join(marks)} stands for a missing value)" if marks else ""
        raise UserError(
            f"{path}, column {column}: {absent:,} of {profile.rows:,} rows have no label{first}{words}; remove these "
            "rows, or name another column in data.label"
        )
    kind, reason = LabelKind.click, "as data.label says"
    if rule is None:
        rule, kind, reason = _choose_rule(f"{path}, column {column}", figures)
    # Preparation reads labels by the same functions, and so refuses the same values.
    table = Table(",", True, column, (), (), rule, (column,), label_kind=kind)
    rows = RawRows(
        {column: pa.array(figures.sample, pa.string())},
        len(figures.sample),
        lambda index: f"{path}: row {profile.sampled[index] + 1} of the table",
    )
    return Label(column, rule, kind, reason, convert_rows(rows, table).labels.astype(np.float64))


def _choose_rule(place: str, figures: ColumnFigures) -> tuple[str | None, LabelKind, str]:
    """Return the rule by the column's values, None for 0 and 1 or numbers to predict; the labels' kind; and why.

    place: file and column, for errors.
    """
    counts, numbers, has_truths = Counter(figures.sample), list[float](), figures.counts["truth"] > 0
    if figures.are_numbers(with_marks=False):
        if figures.low >= 0 and figures.high <= 1 and not figures.counts["fraction"]:
            return None, LabelKind.click, "of two words, true and yes are 1" if has_truths else "holds 0 and 1"
        numbers = [number_of(text, NUMBERS) for text in figures.sample]
    words: dict[Hashable, str] = {
        number_of(text, NUMBERS) if numbers else text.strip().lower(): text for text in counts
    }
    if (positive := PAIRS.get(frozenset(words))) is not None:
        value = words[positive]
        return f"== {_quote_value(value)}", LabelKind.click, f"of two values, {value} is the positive one"
    # Of two grades, such as 1 and 5, only a person knows which one is positive.
    if numbers and not has_truths and len(words) > 2:
        if figures.num_values > MAX_GRADES:
            return None, LabelKind.number, "a number of many values, which a model predicts as it is"
        # The grade from which on the share of rows is nearest to a half, as classes of equal size teach most.
        grades = np.unique(numbers)[1:]
        grade = min(grades, key=lambda grade: abs(np.mean(numbers >= grade) - 0.5))
        return f">= {grade:g}", LabelKind.click, f"grades; {grade:g} is where about half of the rows are positive"
    shown = ", ".join(f"{text[:40]} ({rows:,})" for text, rows in counts.most_common(SHOWN_VALUES))
    more = f" and {len(counts) - SHOWN_VALUES:,} more" if len(counts) > SHOWN_VALUES else ""
    raise UserError(
        f"{place}: has the values {shown}{more}, of which none is known to be positive; say which one is: "
        f"data.label='{figures.name} == {_quote_value(max(counts))}'"
    )


def _quote_value(value: str) -> str:
    """Return a value as a rule writes it: in quotes if it would mean something else without them."""
    is_plain = value == value.strip() and value[0] not in "=\"'" and value.lower() not in TRUTHS
    return value if is_plain else f'"{value}"' if '"' not in value else f"'{value}'"


COMMENT_COLUMN = 44
SHOWN_COLUMNS = 4


def schema_text(proposal: Proposal) -> str:
    """Return the YAML; comments say why each column is used as it is."""
    sources, form, layout = proposal.profile.sources, proposal.profile.form, proposal.profile.layout
    label, has_names = proposal.label, layout.header or not form.has_layout

    def entry_text(column: str, entry: Any) -> str:
        """Return an entry of a column, its keys or its name, as YAML; files without names have its position instead."""
        reference = column if has_names else layout.names.index(column)
        return flow({**entry, "column": reference} if isinstance(entry, dict) else reference)

    def add(line: str, comment: str) -> None:
        """Add a line of YAML with a comment from COMMENT_COLUMN on."""
        lines.append(f"{line:<{COMMENT_COLUMN - 2}}  # {comment}" if comment else line)

    name = sources[0].name if len(sources) == 1 else f"{len(sources)} files"
    figures_of = f"Figures are of {proposal.profile.scope()}."
    lines = [f"# Schema of {name}, proposed by python -m data_prep.inspect. {figures_of}"]
    lines += [f"# {sentence}" for sentence in order_sentences(proposal)]
    if form.has_layout and layout.delimiter != ",":
        lines.append(f"delimiter: {json.dumps(layout.delimiter)}")
    if not has_names:
        lines.append("header: false")
    if proposal.missing:
        add(f"missing: {flow(proposal.missing)}", "no value, in every column")
    keys = {"rule": label.rule} if label.rule is not None else {} if label.is_click else {"kind": label.kind.value}
    text = entry_text(label.column, {"column": label.column, **keys} if keys else label.column)
    # COLUMN RULE in one text is the shorter form, where the name is a plain word.
    if label.rule is not None and has_names and label.column.isidentifier():
        text = flow(f"{label.column} {label.rule}")
    rate = "" if label.rate is None else f"{label.rate:.2%} of the rows are positive; "
    add(f"label: {text}", f"{rate}{label.reason}")
    if proposal.time is not None:
        column, time_format = proposal.time
        entry = column if time_format is None else {"column": column, "format": time_format}
        add(f"time: {entry_text(column, entry)}", "rows are split by it: the newest are held out")
    for place in ("dense", "sparse"):
        uses = proposal.columns_of(place)
        lines += [f"{place}:"] if uses else []
        for column in uses:
            use = proposal.uses[column]
            for number, entry in enumerate(use.entries):
                add(f"  - {entry_text(column, entry)}", "" if number else use.reason)
    left_out = proposal.columns_of("out")
    lines += ["# Left out:"] if left_out else []
    lines += [f"#   {flow(column)}: {proposal.uses[column].reason}" for column in left_out]
    if not label.is_click:
        lines.append("# Train on these labels with loss=mse train.monitor=rmse.")
    # Characters of names and values that would end the line are shown as ?.
    return "".join("".join(letter if letter.isprintable() else "?" for letter in line) + "\n" for line in lines)


def flow(value: Any) -> str:
    """Return a value in YAML's flow style, in one line that can be shown on a terminal."""
    # It is dumped as a list of one, whose brackets are cut off: YAML ends a text that stands alone by a line of dots.
    for allow_unicode in (True, False):  # Without it characters that would end or blank the line are escaped.
        text: str = yaml.safe_dump([value], default_flow_style=True, width=float("inf"), allow_unicode=allow_unicode)
        if text.strip().isprintable():
            break
    return text.strip()[1:-1]


def order_sentences(proposal: Proposal) -> list[str]:
    """Return how the rows are sorted, and what that means for each way to split them."""
    label, columns = proposal.label, proposal.profile.columns
    orders, ending = [], ""
    if groups := [name for name in proposal.groups if _is_grouped(columns[name].sample)]:
        ending = ", of groups that train does not have"
    if times := [name for name, use in proposal.uses.items() if use.ascends]:
        ending = ", which are the newest"
    if label.is_click and _is_grouped(columns[label.column].sample):
        orders, ending = [f"sorted by label ({label.column})"], ", which have other labels than train: do not use it"
    orders += [f"in order of {name}" for name in times]
    orders += [f"grouped by {name} (all rows of a value follow each other)" for name in groups]
    sentences = [f"Rows are {' and '.join(orders)}." if orders else "Rows are in no order that a column shows."]
    if proposal.time is not None:
        method = f"time (the default here) trains on older rows and tests on newer ones by {proposal.time[0]}."
    else:
        method = "random (the default here) draws each row, so val and test are as train is."
    sentences += [
        f"data.split.method={method}",
        f"data.split.method=fraction tests on the last rows of the files{ending}.",
    ]
    sentences += [
        f"data.split.method=group data.split.column={name} keeps all rows of a value of {name} in one split, to test "
        "on new values; random and time test on those that train has."
        for name in proposal.groups[:SHOWN_COLUMNS]
    ]
    return sentences


def _is_grouped(texts: list[str]) -> bool:
    """Return whether equal texts [rows of the sample] follow each other, of which each stands in two rows at least."""
    different = len(set(texts))
    return different <= len(texts) / 2 and 1 + sum(map(ne, texts, texts[1:])) == different


PATTERNS = (
    *(day + time for day in ("%d.%m.%Y", "%Y/%m/%d", "%d/%m/%Y", "%m/%d/%Y") for time in ("", " %H:%M", " %H:%M:%S")),
    "%d %b %Y",
    "%a %b %d %H:%M:%S %Y",
)
ISO = None
DAY = "%Y%m%d"  # of numbers such as 20240131
MIN_EPOCH, MAX_EPOCH = 631_152_000, 4_102_444_800  # 1990 to 2100, in seconds: earlier numbers are rarely times
ID_WORDS = {
    *("id", "ids", "uid", "uuid", "code", "zip", "key", "hash", "user", "item", "customer", "product", "movie", "ad"),
    *("artist", "track", "advertiser", "campaign", "device", "session", "category", "cat", "type", "brand", "store"),
}
GROUP_WORDS = {"user", "uid", "customer", "session", "visitor", "patient", "member", "client", "account", "device"}
TIME_WORDS = {"time", "timestamp", "date", "datetime", "day", "ts", "created", "updated", "at", "when"}
NO_IDS = {"bid", "paid", "grid", "solid", "valid", "aid", "liquid", "fluid", "mid", "rapid"}
KINDS = ("any", "text", "integer", "number", "null", "time", "list")  # of columns that can be used
SEPARATORS = ("|", ";", ", ", ",")
FEW_VALUES = 12  # whole numbers with at most as many values are categories
MIN_REPEATS = 3  # rows a value, below which whole numbers are quantities unless they are named or written as ids
ERRORS = 2.0  # standard errors beyond which a difference of losses is none by chance
LITTLE = 0.1  # share of what quantiles tell that values add at the most if their order is all that counts
UNIQUE_SHARE = 0.95  # of the rows that have a value of their own, from which on a column is left out
MIN_ROWS = 20  # fewer rows say nothing about unique values
DIVIDED_SHARE = 0.05  # of the fields that have a separator, if it divides values
TAIL = 4  # times as far from the median is the 99th percentile as the first, in columns whose logarithm is taken
MIN_GROUPS = 10  # fewer values are no groups whose rows a split keeps together
LEAK_AUC = 0.95  # a column alone that predicts the label better is left out


@dataclass(frozen=True)
class Use:
    """The use of a column.

    Attributes:
        place: dense, sparse, label or out. entries: what the schema's list has for it.
        reason: what a comment says. auc: AUC of the column's label rates alone, if they were computed.
        formats: formats of a column of times; (): it is none. ascends: whether each row has a time, and none is below
            that of the row before.
    """

    place: str
    entries: tuple[Any, ...] = ()
    reason: str = ""
    auc: float | None = None
    formats: tuple[str | None, ...] = ()
    ascends: bool = False


@dataclass
class Proposal:
    """A proposed schema.

    uses: of each column. time: the time column and its format; None: there is none. groups: columns whose rows belong
    together. missing: texts that mean no value. text: the schema as YAML with comments.
    """

    profile: TableProfile
    label: Label
    uses: dict[str, Use]
    time: tuple[str, str | None] | None = None
    groups: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    text: str = ""

    def columns_of(self, place: str) -> list[str]:
        """Return the columns with a use, in file order."""
        return [name for name, use in self.uses.items() if use.place == place]


def propose_schema(sources: Sequence[Source], label: str | None = None) -> Proposal:
    """Read all rows of some files, and propose a schema that data_prep accepts."""
    profile = read_profile(sources)
    proposal = Proposal(profile, find_label(profile, label), {})
    for name, figures in profile.columns.items():
        is_label = name == proposal.label.column
        use = Use("label", (), proposal.label.reason) if is_label else _choose_use(proposal, figures)
        proposal.uses[name] = _judge_leak(proposal, figures, use) if proposal.label.is_click else use
    # Rows are split by the column whose name says time, or else by that of most different times.
    if times := [name for name, use in proposal.uses.items() if use.formats and _has_many_times(profile.columns[name])]:
        column = max(times, key=lambda name: (bool(TIME_WORDS & words_of(name)), profile.columns[name].num_values))
        proposal.time = column, proposal.uses[column].formats[0]
    # Texts that mean no value are named for columns of numbers and times; in others they are values like any other.
    times = [name for name in proposal.columns_of("sparse") if proposal.uses[name].formats]
    used = [*proposal.columns_of("dense"), *times]
    proposal.missing = sorted({mark for name in used for mark in profile.columns[name].marks})
    _require_category(proposal)
    proposal.groups = [name for name in proposal.uses if _is_group(proposal, name)]
    proposal.text = schema_text(proposal)
    load_table(Path("the proposed schema"), tuple(sources), proposal.text)  # an error here is a fault of this module
    return proposal


def proposed_text(sources: Sequence[Source], label: str | None) -> str:
    """Return the schema's YAML for some files. Raise UserError if their rows have no label."""
    return propose_schema(sources, label).text


def _choose_use(proposal: Proposal, figures: ColumnFigures) -> Use:
    """Return the use of a column that is not the label."""
    profile, values = proposal.profile, f"{figures.value_count} values"
    has_text = profile.form.has_layout
    can_name_table = not set(figures.name) & set("./\\\0")  # a category's name is part of a file's name
    reasons = {
        "constant: empty in every row": not figures.filled,
        "no name, as of an index that pandas writes; name it in row 1 to use it": not figures.name,
        f"{figures.kind}: neither text nor numbers": figures.kind not in KINDS,
        "lists or objects: neither text nor numbers": figures.has_others,
        "its name has . / or \\; rename it": figures.kind == "list" and not can_name_table,
        "constant: the same value in every row": (
            figures.kind != "list" and figures.num_values == 1 and figures.filled == profile.rows
        ),
    }
    if (reason := next((reason for reason, is_so in reasons.items() if is_so), None)) is not None:
        return Use("out", (), reason)
    if figures.kind == "list":
        return Use("sparse", (figures.name,), f"lists of {values}")
    if (has_text or not figures.marks) and (use := _use_of_time(proposal, figures, can_name_table)) is not None:
        return use
    # data_prep takes text of a typed file for categories alone.
    is_number = figures.are_numbers(with_marks=has_text) and figures.kind != "text"
    is_whole = is_number and not figures.counts["fraction"] and not figures.counts["truth"]
    empty = figures.counts["empty"] + (figures.counts["mark"] if is_number else 0)
    more = f", {empty / profile.rows:.1%} missing" if empty else ""
    is_unique = profile.rows >= MIN_ROWS and figures.num_values >= UNIQUE_SHARE * profile.rows
    can_be_category = not figures.has_fractions and can_name_table
    is_category, evidence = not is_number, ""
    if is_whole and can_be_category:
        is_category, evidence = _judge_numbers(proposal, figures)
    if not is_category:
        numbers = figures.numbers
        if is_whole and is_unique and not empty and (np.diff(numbers) >= 0).all():
            return Use("out", (), "unique: it only rises from row to row")
        return _use_of_number(figures, numbers, more + evidence)
    if figures.has_fractions:
        return Use("out", (), "fractions, of which some are not finite; write null for NaN")
    if not can_be_category:
        return Use("out", (), "its name has . / or \\, which a category's cannot; rename it")
    if separator := _find_separator(figures):
        return Use("sparse", ({"column": figures.name, "separator": separator},), f"several values a field{more}")
    if is_unique:
        return Use("out", (), f"unique: {values} in {profile.rows:,} rows")
    return Use("sparse", (figures.name,), f"{values}{more}{evidence}")


def words_of(name: str) -> set[str]:
    """Return the words of a column's name in lower case: userId and user_id have user and id."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+", name)}


def _judge_numbers(proposal: Proposal, figures: ColumnFigures) -> tuple[bool, str]:
    """Return whether the values of a column of whole numbers are categories, and the figures that decide this.

    They are if the label rates by value, of which the rates by quantile are the priors, score the other half's rows
    better than those by quantile alone. They are quantities if quantiles score better than no column, and values worse
    or hardly better. What scores no better than no column may be users, whose rates are often equal: names and forms
    decide, then how often values repeat.
    """
    if figures.num_values <= FEW_VALUES:
        return True, ""
    has_value = np.array([text.strip() not in NULL_MARKS for text in figures.sample], np.bool_)
    labels, is_click = proposal.label.values[has_value], proposal.label.is_click
    texts, name = figures.texts, figures.name.lower()
    is_id = (
        bool(ID_WORDS & words_of(figures.name))
        or (name.endswith("id") and name not in NO_IDS)
        or max(-figures.low, figures.high) > EXACT_INTEGERS
        or any(re.match("-?0[0-9]", text) for text in texts)
    )
    repeats = figures.counts["integer"] / figures.num_values
    few = min((labels > 0).sum(), (labels <= 0).sum()) if is_click else len(labels) // 2
    if repeats < MIN_REPEATS or few < MIN_LABELS:
        return is_id, f", {repeats:.1f} rows a value"

    def errors_between(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
        """Return by how many standard errors the mean of losses `one` [rows] is above that of `other`."""
        differences = one - other
        return float(differences.mean() / (differences.std() / math.sqrt(len(differences)) or 1.0))

    quantiles = quantile_codes(figures.numbers)
    by_none = _rates_of_other_half(np.zeros_like(quantiles), labels)
    by_quantile = _rates_of_other_half(quantiles, labels)
    by_value = _rates_of_other_half(distinct(pa.array(texts)).codes, labels, by_quantile)
    value, quantile, none = (
        -np.log(np.where(labels > 0, rates, 1 - rates)) if is_click else (rates - labels) ** 2
        for rates in (by_value, by_quantile, by_none)
    )
    means = [losses.mean() for losses in (value, quantile, none)]
    shown = [f"{mean if is_click else math.sqrt(mean):.4g}" for mean in means]
    metric = "log loss" if is_click else "RMSE"
    evidence = f"; {metric} {shown[0]} by value, {shown[1]} by quantile, {shown[2]} by neither"
    gain = errors_between(quantile, value)
    # A model learns less of rare values than their rates say.
    if gain > ERRORS * max(1.0, PRIOR_ROWS / repeats):
        return True, evidence
    # Of fewer values each has a quantile of its own, which says nothing about order.
    has_order = figures.num_values > BINS and errors_between(none, quantile) > ERRORS
    if has_order and means[1] - means[0] < LITTLE * (means[2] - means[1]) and (not is_id or gain < -ERRORS):
        return False, evidence
    return is_id or repeats >= PRIOR_ROWS, evidence


def _use_of_number(figures: ColumnFigures, numbers: NDArray[np.float64], more: str) -> Use:
    """Return the use of a column of quantities, with a transform unless the default, a logarithm, is the better one.

    numbers: of the sample. more: evidence, which the reason ends with.
    """
    if not figures.counts["integer"] + figures.counts["fraction"]:
        return Use("dense", (figures.name,), f"true or false{more}")
    reason = f"{figures.low:g} to {figures.high:g}"
    # Where some numbers lie far above most of the sample their logarithm is the better input.
    first, middle, last = np.quantile(numbers, [0.01, 0.5, 0.99]) if len(numbers) else (0, 0, 1)
    if figures.low >= 0 and last - middle > TAIL * (middle - first):
        return Use("dense", (figures.name,), f"{reason}, with a long tail, so as its logarithm{more}")
    return Use("dense", ({"column": figures.name, "transform": "standard"},), f"{reason}{more}")


def _use_of_time(proposal: Proposal, figures: ColumnFigures, can_name_table: bool) -> Use | None:
    """Return the use of a column of times, its parts weekday and hour that differ between rows; None for others."""
    texts, are_numbers = [text.strip() for text in figures.texts], figures.are_numbers(with_marks=True)

    def is_time(text: str, form: str | None) -> bool:
        moment = read_time(text, form)
        if moment is None or not are_numbers:
            return moment is not None
        return MIN_EPOCH * 1e6 <= moment < MAX_EPOCH * 1e6 and (form != DAY or len(text) == len("20240131"))

    formats: tuple[str | None, ...] = (ISO,)
    if figures.kind != "time":
        if figures.has_others or figures.has_fractions or not texts:
            return None
        forms = (*EPOCHS, DAY) if are_numbers else (ISO, *PATTERNS)
        different = set(texts)
        formats = tuple(form for form in forms if all(is_time(text, form) for text in different))
    # Numbers may be times or anything else, so only a name makes them times.
    if not formats or (formats[0] in EPOCHS and not TIME_WORDS & words_of(figures.name)):
        return None
    times = np.array([read_time(text, formats[0]) for text in texts], np.int64).astype("M8[us]")
    shown = f"times, {texts[0]} and others" if texts else "times"
    if len(formats) > 1 and formats[0] not in EPOCHS:
        shown += f"; the format may be {formats[1]}, too"
    form = {} if formats[0] is None else {"format": formats[0]}
    parts = [
        {"column": figures.name, "part": part, **form}
        for part in ("weekday", "hour")
        if f"{figures.name}_{part}" not in proposal.profile.columns
        and can_name_table
        and len(np.unique(PARTS[part](times))) > 1
    ]
    ascends = _has_many_times(figures) and bool((times[1:] >= times[:-1]).all())
    reason = shown if parts else f"{shown}: no part is of use"
    return Use("sparse" if parts else "out", tuple(parts), reason, None, formats, ascends)


def _has_many_times(figures: ColumnFigures) -> bool:
    """Return whether each row has a time, and there are enough of them to split rows."""
    return not figures.counts["empty"] and not figures.marks and figures.num_values > 2


def _find_separator(figures: ColumnFigures) -> str | None:
    """Return the separator of several values in a field; None if fields hold one value each."""
    if figures.kind not in ("any", "text"):
        return None
    texts = [text for text in figures.sample if text]
    whole = set(texts)
    for separator in SEPARATORS:
        divided = sum(separator in text for text in texts)
        members = {member for text in whole for member in text.split(separator) if member}
        # A separator that makes more different values than there were only cuts free text.
        if divided > DIVIDED_SHARE * len(texts) and 1 < len(members) <= len(whole):
            return separator
    return None


def _judge_leak(proposal: Proposal, figures: ColumnFigures, use: Use) -> Use:
    """Return a column's use with its AUC; leave the column out if it alone predicts the label."""
    if use.place not in ("dense", "sparse"):
        return use
    if use.place == "dense":
        # Missing numbers are 0 in training.
        codes = quantile_codes(np.nan_to_num(np.array([number_of(text, NUMBERS) for text in figures.sample])))
    else:
        texts = ["|".join(field) if isinstance(field, list) else field for field in figures.sample]
        codes = distinct(pa.array(texts)).codes
    auc = auc_of_column(codes, proposal.label.values > 0)
    if auc is None or auc <= LEAK_AUC:
        return replace(use, auc=auc)
    reason = f"leaks the label: alone it predicts it with an AUC of {auc:.3f}, by the rates of other rows"
    return replace(use, place="out", reason=reason, auc=auc)


def _require_category(proposal: Proposal) -> None:
    """Make a category of the column with fewest values if there is none. Raise UserError if none can be one."""
    columns = proposal.profile.columns
    if proposal.columns_of("sparse"):
        return
    names = [
        name
        for name in proposal.columns_of("dense")
        if not set(name) & set("./\\\0") and not columns[name].counts["fraction"]
    ]
    if not names:
        reasons = "; ".join(f"{name}: {proposal.uses[name].reason}" for name in proposal.columns_of("out"))[:200]
        raise UserError(
            f"{proposal.profile.sources[0].path}: no column can be a category, of which a model needs one"
            f"{f' ({reasons})' if reasons else ''}; add one, or write the schema yourself (docs/inspect.md)"
        )
    name = min(names, key=lambda name: columns[name].num_values)
    reason = f"{columns[name].value_count} values; a model needs one category at least"
    proposal.uses[name] = replace(proposal.uses[name], place="sparse", entries=(name,), reason=reason)


def _is_group(proposal: Proposal, name: str) -> bool:
    """Return whether rows of one value of a column belong together, by its name (userid, too) and its values."""
    figures, use = proposal.profile.columns[name], proposal.uses[name]
    words = {*words_of(name), name.lower().removesuffix("id")}
    is_single = use.place == "sparse" and use.entries == (name,) and figures.kind != "list"
    is_many = MIN_GROUPS <= figures.num_values <= proposal.profile.rows / 2 and not figures.counts["empty"]
    return is_single and bool(GROUP_WORDS & words) and is_many
