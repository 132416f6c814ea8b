"""The proposed schema of a table: the use of each column, and why."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import UserError
from data_prep.dataset.options import LabelKind
from data_prep.dataset.transforms import largest_input
from data_prep.parsing.dates import EPOCHS, PARTS, read_time
from data_prep.parsing.labels import NULL_MARKS
from data_prep.parsing.numbers import NUMBERS, number_of
from data_prep.parsing.table_yaml import load_table
from data_prep.sources.discover import Source
from extensions.inspect.columns import ColumnFigures, words_of
from extensions.inspect.label import Label, find_label
from extensions.inspect.layout import read_layout
from extensions.inspect.leak import auc_of_column
from extensions.inspect.profile import TableProfile, read_profile
from extensions.inspect.text import flow, schema_text

ID_WORDS = frozenset(
    [
        "id",
        "ids",
        "code",
        "zip",
        "zipcode",
        "postcode",
        "user",
        "uid",
        "item",
        "customer",
        "product",
        "movie",
        "artist",
        "track",
        "ad",
        "advertiser",
        "campaign",
        "device",
        "session",
        "category",
        "cat",
        "type",
        "brand",
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
    ]
)
GROUP_WORDS = frozenset(
    [
        "user",
        "uid",
        "customer",
        "session",
        "visitor",
        "patient",
        "member",
        "client",
        "account",
        "device",
        "household",
        "person",
        "player",
        "student",
    ]
)
TIME_WORDS = frozenset(["time", "timestamp", "date", "datetime", "day", "ts", "created", "updated", "at", "when"])
NO_IDS = frozenset(("bid", "paid", "grid", "solid", "valid", "aid", "liquid", "fluid", "mid", "rapid"))
SEPARATORS = ("|", ";", ", ", ",")
FEW_VALUES = 12  # whole numbers with at most as many values are categories
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
    for name, figures in profile.columns.items():
        is_label = name == proposal.label.column
        proposal.uses[name] = Use("label", (), proposal.label.reason) if is_label else _use(profile, figures)
    _leave_out_leaks(proposal)
    proposal.time = _time(proposal)
    proposal.missing = _missing_marks(proposal)
    _require_category(proposal)
    proposal.groups = [name for name in proposal.uses if _is_group(proposal, name)]
    proposal.text = schema_text(proposal)
    load_table(Path("the proposed schema"), tuple(sources), proposal.text)  # an error here is a fault of this module
    return proposal


def _use(profile: TableProfile, figures: ColumnFigures) -> Use:
    """Return the use of a column that is not the label, by its values and its name."""
    if (reason := _unusable(figures)) is not None:
        return Use("out", (), reason)
    if figures.lists:
        return Use("sparse", (figures.name,), f"lists of {_number_of_values(figures)} values")
    if figures.is_time and (profile.files.has_text or not figures.marks):
        form = figures.time_format
        if form not in EPOCHS or TIME_WORDS & set(words_of(figures.name)):
            return _use_of_time(profile, figures, form)
    can_be_category = not figures.has_fractions and _can_name_table(figures.name)
    is_unique = figures.rows >= MIN_ROWS and len(figures.distinct) >= UNIQUE_SHARE * figures.rows
    is_number = figures.are_numbers or (figures.marked_numbers and profile.files.has_text)
    is_number = is_number and figures.kind != "text"  # data_prep takes text of a typed file for categories alone
    empty = figures.missing + (figures.marks.total() if is_number else 0)
    missing = f", {empty / figures.rows:.1%} missing" if empty else ""
    is_id = is_id_name(figures.name)
    if is_number and not (figures.are_whole and (is_id or len(figures.distinct) <= FEW_VALUES) and can_be_category):
        if figures.are_whole and is_unique and figures.descents == 0 and not figures.missing:
            return Use("out", (), "unique: it only rises from row to row")
        return _use_of_number(profile, figures, missing)
    if figures.has_fractions:
        return Use("out", (), "fractions, of which some are not finite")
    if not can_be_category:
        return Use("out", (), "its name has . / or \\, which a category's cannot; rename it")
    if separator := _separator(profile, figures):
        return Use("sparse", ({"column": figures.name, "separator": separator},), f"several values a field{missing}")
    words = ""
    if _separator(profile, figures, (" ",)):
        entry = flow({"column": figures.name, "separator": " "})
        words = f"; of words: {entry} in sparse takes each as a value"
    if is_unique:
        return Use("out", (), f"unique: {_number_of_values(figures)} values in {figures.rows:,} rows{words}")
    return Use("sparse", (figures.name,), f"{_number_of_values(figures)} values{missing}{words}")


def _use_of_number(profile: TableProfile, figures: ColumnFigures, missing: str) -> Use:
    """Return the use of a column of quantities, with a transform unless the default, a logarithm, is the better one."""
    if not figures.numbers:
        return Use("dense", (figures.name,), f"true or false{missing}")
    low, high = (f"{value:g}" for value in (figures.low, figures.high))
    if _has_tail(profile, figures):
        return Use("dense", (figures.name,), f"{low} to {high}, with a long tail, so as its logarithm{missing}")
    is_wide = max(-figures.low, figures.high) > largest_input("standard")
    entry = {"column": figures.name, "transform": "signed_log1p" if is_wide else "standard"}
    return Use("dense", (entry,), f"{low} to {high}{missing}")


def _has_tail(profile: TableProfile, figures: ColumnFigures) -> bool:
    """Return whether some numbers lie so far above most of the sample that their logarithm is the better input."""
    texts = _values(profile, figures)
    if not (texts and figures.is_finite):
        return True
    low, middle, high = np.quantile([number_of(text, NUMBERS) for text in texts], [0.01, 0.5, 0.99])
    return bool(figures.low >= 0 and high - middle > TAIL * (middle - low))


def is_id_name(name: str) -> bool:
    """Return whether a column's name says that its numbers are no quantities."""
    lower = name.lower()
    return bool(ID_WORDS & set(words_of(name))) or (lower.endswith("id") and lower not in NO_IDS)


def _unusable(figures: ColumnFigures) -> str | None:
    """Return why a column cannot be used; None if it can."""
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
    return bool(name) and not set(name) & set("./\\\0")


def _values(profile: TableProfile, figures: ColumnFigures) -> list[str]:
    """Return the texts of the sample that are neither empty nor marks of a missing value."""
    return [text for text in profile.sample.columns[figures.name] if text and text.strip() not in NULL_MARKS]


def _number_of_values(figures: ColumnFigures) -> str:
    return f"{'' if figures.distinct.is_exact else 'about '}{len(figures.distinct):,}"


def _use_of_time(profile: TableProfile, figures: ColumnFigures, form: str | None) -> Use:
    """Return the parts of a column of times that differ between rows and whose names are free."""
    texts = _values(profile, figures)
    moments = [read_time(text.strip(), form) for text in texts]
    times = np.array([moment for moment in moments if moment is not None], np.int64).astype("M8[us]")
    parts = []
    for part in ("weekday", "hour"):
        name = f"{figures.name}_{part}"
        if (
            len(times)
            and len(np.unique(PARTS[part](times))) > 1
            and name not in profile.columns
            and _can_name_table(name)
        ):
            entry = {"column": figures.name, "part": part}
            parts.append(entry if form is None else {**entry, "format": form})
    shown = f"times, {texts[0]} and others" if texts else "times"
    if figures.formats and len(figures.formats) > 1 and form not in EPOCHS:
        shown += f"; the format may be {figures.formats[1]}, too"
    return Use("sparse" if parts else "out", tuple(parts), shown if parts else f"{shown}: no part differs between rows")


def _separator(profile: TableProfile, figures: ColumnFigures, separators: Sequence[str] = SEPARATORS) -> str | None:
    """Return the separator of several values in a field; None if fields hold one value each."""
    if figures.kind not in ("any", "text") or figures.numbers == figures.filled:
        return None
    texts = [text for text in profile.sample.columns[figures.name] if text]
    whole = set(texts)
    for separator in separators:
        divided = sum(separator in text for text in texts)
        members = {member for text in whole for member in text.split(separator) if member}
        if divided > DIVIDED_SHARE * len(texts) and 1 < len(members) <= len(whole):
            return separator
    return None


def _time(proposal: Proposal) -> tuple[str, str | None] | None:
    """Return the column and format of the time of each row; None if no column has it."""
    candidates = []
    for name, figures in proposal.profile.columns.items():
        is_named = bool(TIME_WORDS & set(words_of(name)))
        form = figures.time_format
        is_usable = (
            figures.is_time and proposal.uses[name].place in ("sparse", "out") and (is_named or form not in EPOCHS)
        )
        if is_usable and not figures.missing and not figures.marks and len(figures.distinct) > 2:
            candidates.append((is_named, len(figures.distinct), name, form))
    if not candidates:
        return None
    _, _, name, form = max(candidates, key=lambda each: each[:2])
    return name, form


def _leave_out_leaks(proposal: Proposal) -> None:
    """Leave out columns that alone predict the label, and note each column's AUC."""
    label, sample = proposal.label, proposal.profile.sample
    if label.kind is LabelKind.number:
        return
    labels = np.array(label.positives(sample.columns[label.column]), np.bool_)
    for name, use in list(proposal.uses.items()):
        if use.place not in ("dense", "sparse"):
            continue
        texts = ["|".join(value) if isinstance(value, list) else value for value in sample.columns[name]]
        numbers = None
        if use.place == "dense":
            numbers = np.array([number_of(text, NUMBERS) if text else 0.0 for text in texts])
        auc = auc_of_column(texts, numbers, labels)
        if auc is not None and auc > LEAK_AUC:
            reason = f"leaks the label: alone it predicts it with an AUC of {auc:.3f}, by the rates of other rows"
            proposal.uses[name] = Use("out", use.entries, reason, auc)
        else:
            proposal.uses[name] = Use(use.place, use.entries, use.reason, auc)


def _missing_marks(proposal: Proposal) -> list[str]:
    """Return the texts that mean no value in columns of numbers and times."""
    marks: set[str] = set()
    for name, use in proposal.uses.items():
        figures = proposal.profile.columns[name]
        is_time = any(isinstance(entry, dict) and "part" in entry for entry in use.entries)
        if use.place == "dense" or (use.place == "sparse" and is_time):
            marks |= set(figures.marks)
    return sorted(marks)


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
            f"{f' ({reasons})' if reasons else ''}; add one, or write the schema yourself (docs/data.md)"
        )
    reason = f"{_number_of_values(columns[names[0]])} values; a model needs one category at least"
    proposal.uses[names[0]] = Use("sparse", (names[0],), reason, proposal.uses[names[0]].auc)


def _is_group(proposal: Proposal, name: str) -> bool:
    """Return whether rows of one value of a column belong together, by its name and values."""
    figures, use = proposal.profile.columns[name], proposal.uses[name]
    return (
        use.place == "sparse"
        and use.entries == (name,)
        and not figures.lists
        and not figures.missing
        and bool(GROUP_WORDS & set(re.sub(r"ids?$", " id", name.lower()).split()) | (GROUP_WORDS & set(words_of(name))))
        and MIN_GROUPS <= len(figures.distinct) <= figures.rows / 2
    )


def digits(value: float) -> str:
    """Return a number for a comment."""
    return f"{value:,.0f}" if math.isfinite(value) and value == int(value) else f"{value:,.4g}"
