"""The proposed schema of a table: label, use of each column, and why; as YAML with comments."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from common.errors import UserError
from data_prep.dataset.format import splitmix64
from data_prep.dataset.options import LabelKind
from data_prep.dataset.spelling import EXACT_INTEGERS, TRUTHS
from data_prep.dataset.table_spec import COLUMN_AND_RULE, COMPARISONS, parse_rule
from data_prep.dataset.transforms import largest_input
from data_prep.parsing.dates import EPOCHS, NUMBERS, PARTS, exact_number_of, number_of, read_time
from data_prep.parsing.labels import NULL_MARKS, WORD_PAIRS, is_by_value
from data_prep.parsing.table_yaml import load_table
from data_prep.sources.discover import Source
from extensions.inspect.columns import ColumnFigures, TableProfile, read_layout, read_profile, words_of

MIN_LABELS = 50  # per class, for a meaningful AUC
PRIOR_ROWS = 10.0  # rows at the base rate that smooth each rate
BINS = 32  # quantiles of a number


def auc_of_column(texts: Sequence[str], numbers: NDArray[np.float64] | None, labels: NDArray[np.bool_]) -> float | None:
    """Return the AUC of a column's label rates, of each half of the rows by those of the other; None for few labels.

    Args:
        texts: the column's fields [rows], whose label rates are by text. numbers: the same [rows] as numbers, whose
            label rates are by quantile; None: no numbers. labels: whether each row is positive, [rows].
    """
    if min(labels.sum(), (~labels).sum()) < MIN_LABELS:
        return None
    rates, aucs = _rates_of_other_half(_text_codes(texts) if numbers is None else _quantiles(numbers), labels), []
    for half in _halves(len(labels)):
        # As `_auc` of data_prep/synthetic.py: a positive row wins against each negative one with a lower rate; equal
        # rates count half.
        values, codes = np.unique(rates[half], return_inverse=True)
        positives = np.bincount(codes, labels[half], len(values))
        negatives = np.bincount(codes, ~labels[half], len(values))
        below = np.cumsum(negatives) - negatives
        total = positives.sum() * negatives.sum()
        aucs.append((positives * (below + negatives / 2)).sum() / total if total else 0.5)
    return float(np.mean(aucs))


def _halves(rows: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return two masks [rows] of all rows, by a hash of a row's number: neighbours, often alike, are torn apart."""
    in_first = splitmix64(np.arange(rows, dtype=np.uint64)) & np.uint64(1) == 1
    return in_first, ~in_first


def _text_codes(texts: Sequence[str]) -> NDArray[np.int64]:
    """Return a code of each text [texts]: its number among the different texts, in order of appearance."""
    code_of = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    return np.array([code_of[text] for text in texts], np.int64)


def _quantiles(numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return a code [numbers] of each number: which of BINS ranges between quantiles it is in, or of fewer."""
    return np.searchsorted(np.unique(np.quantile(numbers, np.arange(1, BINS) / BINS)), numbers, side="left")


def _rates_of_other_half(
    codes: NDArray[np.int64], labels: NDArray[Any], priors: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return the mean label of each row's code in the other half, smoothed by PRIOR_ROWS rows of its prior.

    Rates of the same half would reveal each row's own label. `label_rates` of extensions/baselines does this by folds,
    for bags and weights; an extension imports no other.

    Args:
        priors: [rows]; None: the other half's mean label.
    """
    rates = np.empty(len(labels))
    for fitted in _halves(len(labels)):
        prior = labels[fitted].mean() if priors is None else priors[~fitted]
        rates[~fitted] = _smoothed_rates(codes, labels, fitted, ~fitted, prior)
    return rates


def _smoothed_rates(codes: NDArray[np.int64], labels: NDArray[Any], fitted: Any, scored: Any, prior: Any) -> Any:
    """Return the mean label of each scored row's code among the fitted rows, smoothed by PRIOR_ROWS rows of the prior.

    Args:
        fitted, scored: masks or positions of rows. prior: a number, or one for each scored row.
    """
    size = int(codes.max()) + 1
    sums, rows = np.bincount(codes[fitted], labels[fitted], size), np.bincount(codes[fitted], minlength=size)
    return (sums[codes[scored]] + PRIOR_ROWS * prior) / (rows[codes[scored]] + PRIOR_ROWS)


LABEL_NAMES = ("label", "click", "clicked", "target", "y", "rating")  # columns of the label unless one is given
# One word suffices here, since a person reads the proposal.
POSITIVE_WORDS = {positive for positive, _ in WORD_PAIRS} | {
    *("1", "+1", "yes", "true", "like", "liked", "buy", "bought", "purchase", "purchased", "converted", "conversion"),
    *("accepted", "approved", "success", "win", "won", "good"),
}
NEGATIVE_WORDS = {negative for _, negative in WORD_PAIRS} | {
    *("0", "-1", "no", "false", "dislike", "disliked", "rejected", "declined", "failure", "lost", "loss", "bad"),
}
MAX_GRADES = 20  # numbers of more different values are no grades, but a number to predict
SHOWN_VALUES = 5
NAMES_LENGTH = 200  # most characters of column names in an error


@dataclass(frozen=True)
class Label:
    """The label's column, and how it becomes a number.

    Attributes:
        rule: condition of a positive row; None: the column holds 0 and 1, or is a number to predict.
        rate: share of positive rows; None: the labels are numbers.
        reason: why, for a comment.
    """

    column: str
    rule: str | None
    kind: LabelKind
    rate: float | None
    reason: str

    def entry(self) -> Any:
        """Return the value of the schema's key label."""
        if self.kind is LabelKind.number:
            return {"column": self.column, "kind": self.kind.value}
        return self.column if self.rule is None else {"column": self.column, "rule": self.rule}

    def numbers(self, texts: list[str]) -> NDArray[np.float64]:
        """Return the labels of fields, [texts] float64: 0 and 1 of clicks, otherwise the numbers to predict."""
        is_click = self.kind is LabelKind.click
        return np.array(self.positives(texts) if is_click else [number_of(text, NUMBERS) for text in texts], np.float64)

    def positives(self, texts: list[str]) -> list[bool]:
        """Return which of some fields are positive.

        A number, and true or false without quotes, is compared as a number. Another word is compared as text: exactly
        in quotes, else without blanks around it.
        """
        rule = parse_rule(self.rule or "== 1")
        compare, number = COMPARISONS[rule.operator], exact_number_of(rule.value, NUMBERS)
        met = {}
        for text in set(texts):
            if not is_by_value(rule, NUMBERS) or (not rule.is_quoted and rule.value.lower() in TRUTHS):
                met[text] = bool(compare(exact_number_of(text, NUMBERS), number))
            else:
                met[text] = bool(compare(text if rule.is_quoted else text.strip(), rule.value))
        return [met[text] for text in texts]


def find_label(profile: TableProfile, label_key: str | None) -> Label:
    """Return the label.

    Args:
        label_key: column, or rule such as "rating >= 4"; None: a column named as one of LABEL_NAMES.
    """
    column, rule = _find_label_column(profile, label_key)
    figures = profile.columns[column]
    place = f"{profile.files.sources[0].path}, column {column}"
    if figures.lists or figures.others or not figures.filled:
        raise UserError(f"{place}: no values that a label can have; name another column in data.label")
    if figures.missing:
        raise UserError(
            f"{place}: {figures.missing:,} of {figures.rows:,} rows have no label, the first of them is row "
            f"{(figures.first_empty or 0) + 1} of the table; remove these rows, or name another column in data.label"
        )
    named = None if rule is None else parse_rule(rule)
    # A rule such as `== none` may name such a word as a value.
    if marks := set(figures.marks) - ({named.value} if named else set()):
        rows = sum(figures.marks[mark] for mark in marks)
        raise UserError(
            f"{place}: {rows:,} of {figures.rows:,} rows have {', '.join(sorted(marks))}, which stands for a missing "
            "value; remove these rows, or name another column in data.label"
        )
    if named and not is_by_value(named, NUMBERS) and not figures.are_numbers:
        raise UserError(
            f"{place}: {_values_text(figures)}, of which some are no numbers, as {rule} needs; correct or remove these "
            "rows"
        )
    rule, reason = _choose_rule(place, figures) if rule is None else (rule, "as data.label says")
    if rule == LabelKind.number.value:
        if figures.low == figures.high:
            raise UserError(f"{place}: the same number in every row; name another column in data.label")
        return Label(column, None, LabelKind.number, None, reason)
    label = Label(column, rule, LabelKind.click, None, reason)
    # The share of positive rows is that of the sample only where there are too many texts to count each.
    if figures.counts is None:
        rate = float(np.mean(label.positives(profile.sample.columns[column])))
    else:
        met = zip(figures.counts.values(), label.positives(list(figures.counts)), strict=True)
        rate = sum(count for count, is_positive in met if is_positive) / figures.counts.total()
    if rate in (0.0, 1.0):
        raise UserError(
            f"{place}: every label is {rate:.0f}, so no model can learn from them; values are {_values_text(figures)}; "
            "name another column or rule in data.label"
        )
    return replace(label, rate=rate)


def _find_label_column(profile: TableProfile, label_key: str | None) -> tuple[str, str | None]:
    """Return the label's column, as given or by LABEL_NAMES, and the rule that was given with it, else None."""
    names = list(profile.columns)
    if label_key is None:
        by_lower = {name.lower(): name for name in reversed(names)}
        known = next((by_lower[name] for name in LABEL_NAMES if name in by_lower), None)
        if known is None:
            named = f"{', '.join(LABEL_NAMES[:-1])} or {LABEL_NAMES[-1]}"
            raise UserError(
                f"{profile.files.sources[0].path}: no column is named {named}, so the label is not known; give "
                f"data.label=COLUMN, one of {', '.join(filter(None, names))[:NAMES_LENGTH]}"
            )
        return known, None
    if label_key in names:
        return label_key, None
    if (match := COLUMN_AND_RULE.fullmatch(label_key.strip())) and match[1] in names:
        try:
            parse_rule(match[2])
        except ValueError as error:
            raise UserError(f"data.label={label_key}: {error}") from error
        return match[1], match[2]
    raise UserError(f"data.label={label_key}: no such column; the table has {', '.join(names)[:NAMES_LENGTH]}")


def _choose_rule(place: str, figures: ColumnFigures) -> tuple[str | None, str]:
    """Return the rule by the column's values, LabelKind.number for numbers to predict, or None for 0 and 1; and why.

    place: file and column, for errors.
    """
    counts, numbers = figures.counts, list[float]()
    values = None if counts is None else sorted(counts)
    if values is not None and figures.are_numbers:
        numbers = sorted({number_of(value, NUMBERS) for value in values})
        if set(numbers) <= {0.0, 1.0}:
            return None, "of two words, true and yes are 1" if figures.truths else "holds 0 and 1"
    if values is not None and (len(values) <= 2 or len(numbers) == 2):
        # Of two grades, such as 1 and 5, only a person knows which one is positive.
        is_known = not figures.are_numbers or numbers == [-1.0, 1.0]
        words = [value.strip().lower() if is_known else "" for value in values]
        positive = [value for value, word in zip(values, words, strict=True) if word in POSITIVE_WORDS]
        negative = [value for value, word in zip(values, words, strict=True) if word in NEGATIVE_WORDS]
        if len(positive) == 1 or (len(negative) == 1 and len(values) == 2):
            value = positive[0] if len(positive) == 1 else next(value for value in values if value != negative[0])
            return f"== {_quote_value(value)}", f"of two values, {value} is the positive one"
        raise UserError(
            f"{place}: has the values {_values_text(figures)}, and neither is known to be positive; say which one is: "
            f"data.label='{figures.name} == {_quote_value(values[-1])}'"
        )
    if figures.are_numbers and not figures.truths:
        if counts is None or len(numbers) > MAX_GRADES:
            return LabelKind.number.value, "a number of many values, which a model predicts as it is"
        # The grade from which on the share of rows is nearest to a half, as classes of equal size teach most.
        rows = dict.fromkeys(numbers, 0)
        for text, count in counts.items():
            rows[number_of(text, NUMBERS)] += count
        shares = {grade: sum(rows[each] for each in numbers if each >= grade) / figures.rows for grade in numbers[1:]}
        grade = min(shares, key=lambda grade: (abs(shares[grade] - 0.5), grade))
        return f">= {grade:g}", f"grades; {grade:g} is where about half of the rows are positive"
    raise UserError(
        f"{place}: {_values_text(figures)}; say which of them is positive, e.g. data.label='{figures.name} == "
        f"{figures.examples[0]}'"
    )


def _quote_value(value: str) -> str:
    """Return a value as a rule writes it: in quotes if it would mean something else without them."""
    is_plain = value == value.strip() and value[0] not in "=\"'" and value.lower() not in TRUTHS
    return value if is_plain else f'"{value}"' if '"' not in value else f"'{value}'"


def _values_text(figures: ColumnFigures) -> str:
    """Return the most frequent values with their rows, for an error; only their number if there are many."""
    if figures.counts is None:
        return f"{len(figures.distinct):,} different values"
    shown = ", ".join(f"{text[:40]} ({rows:,})" for text, rows in figures.counts.most_common(SHOWN_VALUES))
    more = f" and {len(figures.counts) - SHOWN_VALUES:,} more" if len(figures.counts) > SHOWN_VALUES else ""
    return f"{shown}{more}"


COMMENT_COLUMN = 44
SHOWN_COLUMNS = 4


def schema_text(proposal: Proposal) -> str:
    """Return the YAML; comments say why each column is used as it is."""
    files, label = proposal.profile.files, proposal.label
    has_names = files.layout.header or not files.has_text

    def entry_text(column: str, entry: Any) -> str:
        """Return an entry of a column, its keys or its name, as YAML; files without names have its position instead."""
        reference = column if has_names else files.layout.names.index(column)
        return flow({**entry, "column": reference} if isinstance(entry, dict) else reference)

    name = files.sources[0].name if len(files.sources) == 1 else f"{len(files.sources)} files"
    figures_of = f"Figures are of {proposal.profile.scope()}."
    lines = [f"# Schema of {name}, proposed by python -m data_prep.inspect. {figures_of}"]
    lines += [f"# {sentence}" for sentence in order_sentences(proposal)]
    if files.has_text and files.layout.delimiter != ",":
        lines.append(f"delimiter: {json.dumps(files.layout.delimiter)}")
    if files.has_text and not files.layout.header:
        lines.append("header: false")
    if proposal.missing:
        lines.append(_add_comment(f"missing: {flow(proposal.missing)}", "no value, in every column"))
    text, reason = entry_text(label.column, label.entry()), label.reason
    # COLUMN RULE in one text is the shorter form, where the name is a plain word.
    if label.rule is not None and has_names and label.column.isidentifier():
        text = flow(f"{label.column} {label.rule}")
    if label.rate is not None:
        reason = f"{label.rate:.2%} of the rows are positive; {reason}"
    lines.append(_add_comment(f"label: {text}", reason))
    if proposal.time is not None:
        column, form = proposal.time
        text = entry_text(column, column if form is None else {"column": column, "format": form})
        lines.append(_add_comment(f"time: {text}", "rows are split by it: the newest are held out"))
    for place in ("dense", "sparse"):
        uses = {column: use for column, use in proposal.uses.items() if use.place == place}
        lines += [f"{place}:"] if uses else []
        for column, use in uses.items():
            for number, entry in enumerate(use.entries):
                lines.append(_add_comment(f"  - {entry_text(column, entry)}", "" if number else use.reason))
    left_out = {column: use for column, use in proposal.uses.items() if use.place == "out"}
    lines += ["# Left out:"] if left_out else []
    lines += [f"#   {flow(column)}: {use.reason}" for column, use in left_out.items()]
    if label.kind is LabelKind.number:
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


def _add_comment(line: str, comment: str) -> str:
    """Return a line of YAML with a comment from COMMENT_COLUMN on, unless it is empty."""
    return f"{line:<{COMMENT_COLUMN - 2}}  # {comment}" if comment else line


def order_sentences(proposal: Proposal) -> list[str]:
    """Return how the rows are sorted, and what that means for each way to split them."""
    columns, label, time = proposal.profile.columns, proposal.label, proposal.time
    ending = ""
    # One stretch of equal values for each value means that the rows are sorted, or grouped, by it.
    groups = [name for name in proposal.groups if columns[name].distinct.is_exact]
    groups = [name for name in groups if columns[name].runs == len(columns[name].distinct)]
    times = [name for name, figures in columns.items() if figures.is_time and not figures.missing]
    times = [name for name in times if not columns[name].descents and len(columns[name].distinct) > 2]
    if groups:
        ending = ", of groups that train does not have"
    if times:
        ending = ", which are the newest"
    is_by_label = label.kind is LabelKind.click and columns[label.column].runs == len(columns[label.column].distinct)
    if is_by_label:
        ending = ", which have other labels than train: do not use it"
    orders = [f"sorted by label ({label.column})"] if is_by_label else []
    orders += [f"in order of {name}" for name in times]
    orders += [f"grouped by {name} (all rows of a value follow each other)" for name in groups]
    sentences = [f"Rows are {' and '.join(orders)}." if orders else "Rows are in no order that a column shows."]
    if time is not None:
        sentences.append(
            f"data.split.method=time (the default here) trains on older rows and tests on newer ones by {time[0]}."
        )
    else:
        sentences.append("data.split.method=random (the default here) draws each row, so val and test are as train is.")
    sentences.append(f"data.split.method=fraction tests on the last rows of the files{ending}.")
    sentences += [
        f"data.split.method=group data.split.column={name} keeps all rows of a value of {name} in one split, to test "
        "on new values; random and time test on those that train has."
        for name in proposal.groups[:SHOWN_COLUMNS]
    ]
    if label.rate is not None and label.rate < 0.02:
        sentences.append("data.split.method=stratified gives each split the same share of the rare positive rows.")
    return sentences


ID_WORDS = {
    *("id", "ids", "code", "zip", "zipcode", "postcode", "user", "uid", "item", "customer", "product", "movie"),
    *("artist", "track", "ad", "advertiser", "campaign", "device", "session", "category", "cat", "type", "brand"),
    *(
        "store",
        "shop",
        "site",
        "page",
        "query",
        "publisher",
        "banner",
        "creative",
        "hash",
        "key",
        "uuid",
        "sku",
        "isbn",
    ),
}
GROUP_WORDS = {
    *("user", "uid", "customer", "session", "visitor", "patient", "member", "client", "account", "device"),
    *("household", "person", "player", "student"),
}
TIME_WORDS = frozenset(["time", "timestamp", "date", "datetime", "day", "ts", "created", "updated", "at", "when"])
NO_IDS = frozenset(("bid", "paid", "grid", "solid", "valid", "aid", "liquid", "fluid", "mid", "rapid"))
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
        place: dense, sparse, label, time or out. entries: what the schema's list has for it.
        reason: what a comment says. auc: AUC of the column's label rates alone, if they were computed.
    """

    place: str
    entries: tuple[Any, ...] = ()
    reason: str = ""
    auc: float | None = None


@dataclass
class Proposal:
    """A proposed schema.

    Attributes:
        uses: of each column. time: the time column's entry; None: there is none. groups: columns whose rows belong
            together. missing: texts that mean no value. notes: sentences about the whole table.
        text: the schema as YAML with comments.
    """

    profile: TableProfile
    label: Label
    uses: dict[str, Use]
    time: tuple[str, str | None] | None = None
    groups: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    text: str = ""


def propose_schema(sources: Sequence[Source], label: str | None = None) -> Proposal:
    """Read all rows of some files, and propose a schema that data_prep accepts."""
    profile = read_profile(read_layout(sources))
    proposal = Proposal(profile, find_label(profile, label), {})
    labels = proposal.label.numbers(profile.sample.columns[proposal.label.column])
    for name, figures in profile.columns.items():
        if name == proposal.label.column:
            proposal.uses[name] = Use("label", (), proposal.label.reason)
        else:
            proposal.uses[name] = _choose_use(proposal, figures, labels)
    if proposal.label.kind is LabelKind.click:
        _leave_out_leaks(proposal, labels > 0)
    proposal.time = _choose_time(proposal)
    # Texts that mean no value are named for columns of numbers and times; in others they are values like any other.
    marks: set[str] = set()
    for name, use in proposal.uses.items():
        is_time = any(isinstance(entry, dict) and "part" in entry for entry in use.entries)
        if use.place == "dense" or (use.place == "sparse" and is_time):
            marks |= set(profile.columns[name].marks)
    proposal.missing = sorted(marks)
    _require_category(proposal)
    proposal.groups = [name for name in proposal.uses if _is_group(proposal, name)]
    proposal.text = schema_text(proposal)
    load_table(Path("the proposed schema"), tuple(sources), proposal.text)  # an error here is a fault of this module
    return proposal


def _choose_use(proposal: Proposal, figures: ColumnFigures, labels: NDArray[np.float64]) -> Use:
    """Return the use of a column that is not the label; labels: [rows of the sample]."""
    profile = proposal.profile
    if (reason := _reason_to_leave_out(figures)) is not None:
        return Use("out", (), reason)
    if figures.lists:
        return Use("sparse", (figures.name,), f"lists of {_value_count_text(figures)} values")
    if figures.is_time and (profile.files.has_text or not figures.marks):
        form = figures.time_format
        if form not in EPOCHS or TIME_WORDS & set(words_of(figures.name)):
            return _use_of_time(proposal, figures, form, labels)
    can_be_category = not figures.has_fractions and _can_name_table(figures.name)
    is_unique = figures.rows >= MIN_ROWS and len(figures.distinct) >= UNIQUE_SHARE * figures.rows
    is_number = figures.are_numbers or (figures.marked_numbers and profile.files.has_text)
    is_number = is_number and figures.kind != "text"  # data_prep takes text of a typed file for categories alone
    is_whole = is_number and figures.integers == figures.filled - figures.marks.total()
    empty = figures.missing + (figures.marks.total() if is_number else 0)
    more = f", {empty / figures.rows:.1%} missing" if empty else ""
    is_category, evidence = not is_number, ""
    if is_whole and can_be_category:
        is_category, evidence = _judge_numbers(proposal, figures, labels)
    if not is_category:
        if is_whole and is_unique and figures.descents == 0 and not empty:
            return Use("out", (), "unique: it only rises from row to row")
        return _use_of_number(profile, figures, more + evidence)
    if figures.has_fractions:
        return Use("out", (), "fractions, of which some are not finite")
    if not can_be_category:
        return Use("out", (), "its name has . / or \\, which a category's cannot; rename it")
    if separator := _find_separator(profile, figures):
        return Use("sparse", ({"column": figures.name, "separator": separator},), f"several values a field{more}")
    words = ""
    if _find_separator(profile, figures, (" ",)):
        entry = flow({"column": figures.name, "separator": " "})
        words = f"; of words: {entry} in sparse takes each as a value"
    if is_unique:
        return Use("out", (), f"unique: {_value_count_text(figures)} values in {figures.rows:,} rows{words}")
    return Use("sparse", (figures.name,), f"{_value_count_text(figures)} values{more}{evidence}{words}")


def _judge_numbers(proposal: Proposal, figures: ColumnFigures, labels: NDArray[np.float64]) -> tuple[bool, str]:
    """Return whether the values of a column of whole numbers are categories, and the figures that decide this.

    They are if the label rates by value, of which the rates by quantile are the priors, score the other half's rows
    better than those by quantile alone. They are quantities if quantiles score better than no column, and values worse
    or hardly better. What scores no better than no column may be users, whose rates are often equal: names and forms
    decide, then how often values repeat.
    """
    if len(figures.distinct) <= FEW_VALUES:
        return True, ""
    texts = proposal.profile.sample.columns[figures.name]
    is_filled = np.array([text != "" and text not in figures.marks for text in texts], np.bool_)
    texts, labels = [text for text in texts if text and text not in figures.marks], labels[is_filled]
    name = figures.name.lower()
    is_id = (
        bool(ID_WORDS & set(words_of(figures.name)))
        or (name.endswith("id") and name not in NO_IDS)
        or max(-figures.low, figures.high) > EXACT_INTEGERS
        or any(re.match("-?0[0-9]", text) for text in texts)
    )
    is_click, repeats = proposal.label.kind is LabelKind.click, figures.integers / len(figures.distinct)
    few = min((labels > 0).sum(), (labels <= 0).sum()) if is_click else len(labels) // 2
    if repeats < MIN_REPEATS or few < MIN_LABELS:
        return is_id, f", {repeats:.1f} rows a value"
    quantiles = _quantiles(np.array(texts).astype(np.float64))
    by_none = _rates_of_other_half(np.zeros_like(quantiles), labels)
    by_quantile = _rates_of_other_half(quantiles, labels)
    by_value = _rates_of_other_half(_text_codes(texts), labels, by_quantile)
    value, quantile, none = (_losses(rates, labels, is_click) for rates in (by_value, by_quantile, by_none))
    means = [losses.mean() for losses in (value, quantile, none)]
    shown = [f"{mean if is_click else math.sqrt(mean):.4g}" for mean in means]
    metric = "log loss" if is_click else "RMSE"
    evidence = f"; {metric} {shown[0]} by value, {shown[1]} by quantile, {shown[2]} by neither"
    gain = _errors_between(quantile, value)
    # A model learns less of rare values than their rates say.
    if gain > ERRORS * max(1.0, PRIOR_ROWS / repeats):
        return True, evidence
    # Of fewer values each has a quantile of its own, which says nothing about order.
    has_order = len(figures.distinct) > BINS and _errors_between(none, quantile) > ERRORS
    if has_order and means[1] - means[0] < LITTLE * (means[2] - means[1]) and (not is_id or gain < -ERRORS):
        return False, evidence
    return is_id or repeats >= PRIOR_ROWS, evidence


def _losses(rates: NDArray[np.float64], labels: NDArray[np.float64], is_click: bool) -> NDArray[np.float64]:
    """Return the loss [rows] of predicted rates [rows]: log loss, or squared error if labels are numbers."""
    return -np.log(np.where(labels > 0, rates, 1 - rates)) if is_click else (rates - labels) ** 2


def _errors_between(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return by how many standard errors the mean of losses `one` is above that of `other`, [rows] each, row by row."""
    differences = one - other
    return float(differences.mean() / (differences.std() / math.sqrt(len(differences)) or 1.0))


def _use_of_number(profile: TableProfile, figures: ColumnFigures, more: str) -> Use:
    """Return the use of a column of quantities, with a transform unless the default, a logarithm, is the better one.

    more: evidence, which the reason ends with.
    """
    if not figures.numbers:
        return Use("dense", (figures.name,), f"true or false{more}")
    low, high = (f"{value:g}" for value in (figures.low, figures.high))
    texts = [text for text in profile.sample.columns[figures.name] if text and text.strip() not in NULL_MARKS]
    # Where some numbers lie far above most of the sample, or are infinite, their logarithm is the better input.
    has_tail = not (texts and figures.is_finite)
    if not has_tail:
        first, middle, last = np.quantile([number_of(text, NUMBERS) for text in texts], [0.01, 0.5, 0.99])
        has_tail = figures.low >= 0 and bool(last - middle > TAIL * (middle - first))
    if has_tail:
        return Use("dense", (figures.name,), f"{low} to {high}, with a long tail, so as its logarithm{more}")
    is_wide = max(-figures.low, figures.high) > largest_input("standard")
    entry = {"column": figures.name, "transform": "signed_log1p" if is_wide else "standard"}
    return Use("dense", (entry,), f"{low} to {high}{more}")


def _reason_to_leave_out(figures: ColumnFigures) -> str | None:
    """Return why a column cannot be used in any way, for a comment of the schema; None if it can."""
    if not figures.filled:
        return "constant: empty in every row"
    if not figures.name:
        return "no name, as of an index that pandas writes; name it in row 1 to use it"
    if figures.others:
        return f"{figures.kind if figures.kind not in ('any', 'list') else 'objects'}: neither text nor numbers"
    if figures.lists and (figures.kind != "list" or not _can_name_table(figures.name)):
        return "lists in some rows only" if figures.kind != "list" else "its name has . / or \\; rename it"
    if figures.kind not in ("any", "text", "integer", "number", "null", "time", "list"):
        return f"{figures.kind}: neither text nor numbers"
    if figures.has_nan:
        return "NaN in some rows, which is no number; write null"
    if len(figures.distinct) == 1 and not figures.lists and not figures.missing:
        return "constant: the same value in every row"
    return None


def _can_name_table(name: str) -> bool:
    """Return whether a column's name can be a category's, which is part of a file's name."""
    return bool(name) and not set(name) & set("./\\\0")


def _value_count_text(figures: ColumnFigures) -> str:
    """Return the number of a column's different values for a comment, with "about" if it is estimated."""
    return f"{'' if figures.distinct.is_exact else 'about '}{len(figures.distinct):,}"


def _use_of_time(proposal: Proposal, figures: ColumnFigures, form: str | None, labels: NDArray[np.float64]) -> Use:
    """Return the parts of a column of times that differ between rows and tell something of newer rows' labels.

    Rows are split by time: a part is left out if its label rates in the older half of the rows score the newer half
    worse than the mean label does, by ERRORS standard errors, as weekdays of few sessions do.

    Args:
        labels: [rows of the sample].
    """
    texts = proposal.profile.sample.columns[figures.name]
    moments = [None if text.strip() in ("", *NULL_MARKS) else read_time(text.strip(), form) for text in texts]
    is_time = np.array([moment is not None for moment in moments], np.bool_)
    times = np.array([moment for moment in moments if moment is not None], np.int64).astype("M8[us]")
    labels, is_click = labels[is_time], proposal.label.kind is LabelKind.click
    older, newer = np.array_split(np.argsort(times, kind="stable"), 2)
    few = min((labels[older] > 0).sum(), (labels[older] <= 0).sum()) if is_click else len(older)
    shown = f"times, {texts[int(is_time.argmax())]} and others" if len(times) else "times"
    if figures.formats and len(figures.formats) > 1 and form not in EPOCHS:
        shown += f"; the format may be {figures.formats[1]}, too"
    parts = []
    for part in ("weekday", "hour"):
        name = f"{figures.name}_{part}"
        codes = PARTS[part](times).astype(np.int64)
        num_values = len(np.unique(codes))
        if num_values < 2 or name in proposal.profile.columns or not _can_name_table(name):
            continue
        if few >= MIN_LABELS:
            mean = labels[older].mean()
            rates = _smoothed_rates(codes, labels, older, newer, mean)
            by_part, by_none = (_losses(rate, labels[newer], is_click) for rate in (rates, mean))
            # Rates of random values cost half a nat a value, or the labels' variance, so only a greater loss counts.
            cost = num_values * (0.5 if is_click else labels.var()) / len(newer)
            if _errors_between(by_part - cost, by_none) > ERRORS:
                shown += f"; label rates by {part} in older rows do not hold for newer ones"
                continue
        entry = {"column": figures.name, "part": part}
        parts.append(entry if form is None else {**entry, "format": form})
    return Use("sparse" if parts else "out", tuple(parts), shown if parts else f"{shown}: no part is of use")


def _find_separator(
    profile: TableProfile, figures: ColumnFigures, separators: Sequence[str] = SEPARATORS
) -> str | None:
    """Return the separator of several values in a field; None if fields hold one value each."""
    if figures.kind not in ("any", "text") or figures.numbers == figures.filled:
        return None
    texts = [text for text in profile.sample.columns[figures.name] if text]
    whole = set(texts)
    for separator in separators:
        divided = sum(separator in text for text in texts)
        members = {member for text in whole for member in text.split(separator) if member}
        # A separator that makes more different values than there were only cuts free text.
        if divided > DIVIDED_SHARE * len(texts) and 1 < len(members) <= len(whole):
            return separator
    return None


def _choose_time(proposal: Proposal) -> tuple[str, str | None] | None:
    """Return the column and format of the time of each row, by which rows are split; None if no column has it."""
    candidates = []
    for name, figures in proposal.profile.columns.items():
        is_named, form = bool(TIME_WORDS & set(words_of(name))), figures.time_format
        is_whole = figures.is_time and not figures.missing and not figures.marks and len(figures.distinct) > 2
        # Numbers may be times or anything else, so only a name makes them the time.
        if is_whole and proposal.uses[name].place in ("sparse", "out") and (is_named or form not in EPOCHS):
            candidates.append((is_named, len(figures.distinct), name, form))
    if not candidates:
        return None
    # A name that says time decides, then the number of different times.
    _, _, name, form = max(candidates, key=lambda candidate: candidate[:2])
    return name, form


def _leave_out_leaks(proposal: Proposal, labels: NDArray[np.bool_]) -> None:
    """Leave out columns that alone predict the label, and note each column's AUC; labels: [rows of the sample]."""
    sample = proposal.profile.sample
    for name, use in list(proposal.uses.items()):
        if use.place not in ("dense", "sparse"):
            continue
        texts = ["|".join(value) if isinstance(value, list) else value for value in sample.columns[name]]
        numbers = None
        if use.place == "dense":
            numbers = np.array([number_of(text, NUMBERS) if text else 0.0 for text in texts])
        auc = auc_of_column(texts, numbers, labels)
        place, reason = use.place, use.reason
        if auc is not None and auc > LEAK_AUC:
            place = "out"
            reason = f"leaks the label: alone it predicts it with an AUC of {auc:.3f}, by the rates of other rows"
        proposal.uses[name] = Use(place, use.entries, reason, auc)


def _require_category(proposal: Proposal) -> None:
    """Make a category of the column with fewest values if there is none. Raise UserError if none can be one."""
    if any(use.place == "sparse" for use in proposal.uses.values()):
        return
    columns = proposal.profile.columns

    def allowed(name: str) -> bool:
        is_whole = columns[name].numbers == columns[name].integers
        return proposal.uses[name].place == "dense" and _can_name_table(name) and is_whole

    names = sorted(filter(allowed, proposal.uses), key=lambda name: (len(columns[name].distinct), name))
    if not names:
        reasons = "; ".join(f"{name}: {use.reason}" for name, use in proposal.uses.items() if use.place == "out")[:200]
        raise UserError(
            f"{proposal.profile.files.sources[0].path}: no column can be a category, of which a model needs one"
            f"{f' ({reasons})' if reasons else ''}; add one, or write the schema yourself (docs/inspect.md)"
        )
    reason = f"{_value_count_text(columns[names[0]])} values; a model needs one category at least"
    proposal.uses[names[0]] = Use("sparse", (names[0],), reason, proposal.uses[names[0]].auc)


def _is_group(proposal: Proposal, name: str) -> bool:
    """Return whether rows of one value of a column belong together, by its name (userid, too) and its values."""
    figures, use = proposal.profile.columns[name], proposal.uses[name]
    return (
        use.place == "sparse"
        and use.entries == (name,)
        and not figures.lists
        and not figures.missing
        and bool(GROUP_WORDS & set(re.sub(r"ids?$", " id", name.lower()).split()) | (GROUP_WORDS & set(words_of(name))))
        and MIN_GROUPS <= len(figures.distinct) <= figures.rows / 2
    )


def number_text(value: float) -> str:
    """Return a number with thousands separators: a whole one in full, another with four digits."""
    return f"{value:,.0f}" if math.isfinite(value) and value == int(value) else f"{value:,.4g}"
