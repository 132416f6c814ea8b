"""The label of a table and the rule that makes it 0 or 1, by the column's name and values."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from common.errors import UserError
from data_prep.dataset.label_rule import COLUMN_AND_RULE, COMPARISONS, parse_rule
from data_prep.dataset.options import LabelKind
from data_prep.dataset.spelling import TRUTHS
from data_prep.parsing.label_values import WORD_PAIRS
from data_prep.parsing.labels import is_by_value
from data_prep.parsing.numbers import NUMBERS, exact_number_of, number_of
from extensions.inspect.columns import ColumnFigures
from extensions.inspect.profile import TableProfile

NAMES = ("label", "click", "clicked", "target", "y", "rating")  # of columns that hold the label unless one is given
# One word suffices here, since a person reads the proposal.
POSITIVE = {positive for positive, _ in WORD_PAIRS} | {
    *("1", "+1", "yes", "true", "like", "liked", "buy", "bought", "purchase", "purchased", "converted", "conversion"),
    *("accepted", "approved", "success", "win", "won", "good"),
}
NEGATIVE = {negative for _, negative in WORD_PAIRS} | {
    *("0", "-1", "no", "false", "dislike", "disliked", "rejected", "declined", "failure", "lost", "loss", "bad"),
}
MAX_GRADES = 20  # numbers of more different values are no grades, but a number to predict
SHOWN = 5
LONGEST = 200  # most characters of column names in an error


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

    def positives(self, texts: list[str]) -> list[bool]:
        """Return which of some fields are positive."""
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
        label_key: column, or rule such as "rating >= 4"; None: a column named as one of NAMES.
    """
    column, rule = _column(profile, label_key)
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
    if marks := set(figures.marks) - ({named.value} if named else set()):
        rows = sum(figures.marks[mark] for mark in marks)
        raise UserError(
            f"{place}: {rows:,} of {figures.rows:,} rows have {', '.join(sorted(marks))}, which stands for a missing "
            "value; remove these rows, or name another column in data.label"
        )
    if named and not is_by_value(named, NUMBERS) and not figures.are_numbers:
        raise UserError(
            f"{place}: {_shown(figures)}, of which some are no numbers, as {rule} needs; correct or remove these rows"
        )
    if rule is None:
        rule, reason = _rule(place, figures)
    else:
        reason = "as data.label says"
    if rule == LabelKind.number.value:
        if figures.low == figures.high:
            raise UserError(f"{place}: the same number in every row; name another column in data.label")
        return Label(column, None, LabelKind.number, None, reason)
    label = Label(column, rule, LabelKind.click, None, reason)
    rate = _rate(profile, label)
    if rate in (0.0, 1.0):
        raise UserError(
            f"{place}: every label is {rate:.0f}, so no model can learn from them; values are {_shown(figures)}; name "
            "another column or rule in data.label"
        )
    return Label(column, rule, LabelKind.click, rate, reason)


def _column(profile: TableProfile, label_key: str | None) -> tuple[str, str | None]:
    """Return the label's column and its rule, if it is given with one."""
    names = list(profile.columns)
    if label_key is None:
        by_lower = {name.lower(): name for name in reversed(names)}
        known = next((by_lower[name] for name in NAMES if name in by_lower), None)
        if known is None:
            named = f"{', '.join(NAMES[:-1])} or {NAMES[-1]}"
            raise UserError(
                f"{profile.files.sources[0].path}: no column is named {named}, so the label is not known; give "
                f"data.label=COLUMN, one of {', '.join(filter(None, names))[:LONGEST]}"
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
    raise UserError(f"data.label={label_key}: no such column; the table has {', '.join(names)[:LONGEST]}")


def _rule(place: str, figures: ColumnFigures) -> tuple[str | None, str]:
    """Return the rule by the column's values, LabelKind.number for numbers to predict, or None; and why."""
    counts = figures.counts
    values = None if counts is None else sorted(counts)
    if values is not None and figures.are_numbers:
        numbers = sorted({number_of(value, NUMBERS) for value in values})
        if set(numbers) <= {0.0, 1.0}:
            return None, "of two words, true and yes are 1" if figures.truths else "holds 0 and 1"
    if values is not None and (len(values) <= 2 or (figures.are_numbers and len(numbers) == 2)):
        return _rule_of_two(place, figures, values)
    if figures.are_numbers and not figures.truths:
        if values is not None and len(numbers) <= MAX_GRADES:
            grade = _middle_grade(figures, numbers)
            return f">= {grade:g}", f"grades; {grade:g} is where about half of the rows are positive"
        return LabelKind.number.value, "a number of many values, which a model predicts as it is"
    raise UserError(
        f"{place}: {_shown(figures)}; say which of them is positive, e.g. data.label='{figures.name} == "
        f"{figures.examples[0]}'"
    )


def _rule_of_two(place: str, figures: ColumnFigures, values: list[str]) -> tuple[str, str]:
    """Return the rule of a column with at most two values, one of which is known to be positive or negative."""
    # Of two grades, such as 1 and 5, only a person knows which one is positive.
    is_known = not figures.are_numbers or {number_of(value, NUMBERS) for value in values} == {-1.0, 1.0}
    words = [value.strip().lower() if is_known else "" for value in values]
    positive = [value for value, word in zip(values, words, strict=True) if word in POSITIVE]
    negative = [value for value, word in zip(values, words, strict=True) if word in NEGATIVE]
    if len(positive) == 1 or (len(negative) == 1 and len(values) == 2):
        value = positive[0] if len(positive) == 1 else next(each for each in values if each != negative[0])
        return f"== {_quoted(value)}", f"of two values, {value} is the positive one"
    raise UserError(
        f"{place}: has the values {_shown(figures)}, and neither is known to be positive; say which one is: "
        f"data.label='{figures.name} == {_quoted(values[-1])}'"
    )


def _quoted(value: str) -> str:
    """Return a value as a rule writes it: in quotes if it would mean something else without them."""
    is_plain = value == value.strip() and value[0] not in "=\"'" and value.lower() not in TRUTHS
    return value if is_plain else f'"{value}"' if '"' not in value else f"'{value}'"


def _middle_grade(figures: ColumnFigures, numbers: list[float]) -> float:
    """Return the grade from which on the share of rows is nearest to a half."""
    assert figures.counts is not None
    rows = dict.fromkeys(numbers, 0)
    for text, count in figures.counts.items():
        rows[number_of(text, NUMBERS)] += count
    shares = {grade: sum(rows[each] for each in numbers if each >= grade) / figures.rows for grade in numbers[1:]}
    return min(shares, key=lambda grade: (abs(shares[grade] - 0.5), grade))


def _rate(profile: TableProfile, label: Label) -> float:
    """Return the share of positive rows: of all if each text is counted, else of the sample."""
    counts = profile.columns[label.column].counts
    if counts is None:
        return float(np.mean(label.positives(profile.sample.columns[label.column])))
    texts = list(counts)
    positives = sum(counts[text] for text, met in zip(texts, label.positives(texts), strict=True) if met)
    return positives / counts.total()


def _shown(figures: ColumnFigures) -> str:
    if figures.counts is None:
        return f"{len(figures.distinct):,} different values"
    shown = ", ".join(f"{text[:40]} ({rows:,})" for text, rows in figures.counts.most_common(SHOWN))
    more = f" and {len(figures.counts) - SHOWN:,} more" if len(figures.counts) > SHOWN else ""
    return f"{shown}{more}"
