"""What of a dataset's rows would mislead: figures found at preparation, and the sentences that warn of them."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from msgspec import Struct

from common.documents import convert

MISLEADING = "misleading"  # in a manifest's `extra`
LEAK_AUC = 0.95  # of one column's out-of-fold rates, from which the column may hold the label
SHARED_SHARE = 0.01  # of the held-out rows, beyond what chance gives
OPPOSED_CORRELATION, OPPOSED_ERRORS = -0.2, 5.0  # of rates in train and in held-out rows; in standard errors
DRIFT = 0.25  # population stability index; by convention: a large shift
JUMP_ODDS, JUMP_ERRORS = 2.0, 6.0  # ratio of the odds of two parts; in standard errors
SHOWN_COLUMNS = 4


class ColumnFigures(Struct, kw_only=True):
    """Figures of one column; None where they are not defined.

    Attributes:
        auc: of the column's smoothed out-of-fold label rates alone, in train.
        rate_correlation: weighted correlation of its values' label rates in train and in the held-out rows; None of a
            sample of the rows, which dilutes the negative one of balanced columns.
        rated_values: the effective number of values that the correlation is over.
        stability_index: population stability index between train and the held-out rows, less what chance adds.
    """

    auc: float | None = None
    rate_correlation: float | None = None
    rated_values: float | None = None
    stability_index: float | None = None


class Part(Struct):
    """Consecutive raw rows and their positive labels."""

    name: str
    rows: int
    positives: int


class Misleading(Struct, kw_only=True):
    """Figures of a dataset's rows.

    Attributes:
        rows: of all splits, that were looked at; of: how many there are.
        shared_rows: share of the rows of val and test that are in train, features and label; None without such rows,
            and of a sample where chance may give as many.
        shared_by_chance: what of it is to be expected of rows of so few values.
        parts: label rates along the raw rows.
    """

    rows: int
    of: int
    columns: dict[str, ColumnFigures]
    shared_rows: float | None = None
    shared_by_chance: float | None = None
    parts: list[Part]


def misleading_sentences(extra: dict[str, Any]) -> list[str]:
    """A sentence on each kind of fault, by a manifest's `extra`; of datasets of older versions there are none."""
    if (content := extra.get(MISLEADING)) is None:
        return []
    figures = convert(content, Misleading, f"extra.{MISLEADING}")
    sampled = "" if figures.rows == figures.of else f" (by a sample of {figures.rows:,} of {figures.of:,} rows)"
    jump = largest_jump(figures.parts)
    return [f"{sentence}{sampled}" for sentence in _of_columns(figures)] + ([] if jump is None else [jump])


def _of_columns(figures: Misleading) -> Iterator[str]:
    columns = figures.columns.items()
    if leaks := {name: one.auc for name, one in columns if one.auc is not None and one.auc > LEAK_AUC}:
        yield (
            f"one column alone predicts the label, AUC by out-of-fold rates: {_listed(leaks, '.4f')}; if it is not "
            "known before the label is, leave it out of data.schema"
        )
    shared, chance = figures.shared_rows or 0.0, figures.shared_by_chance or 0.0
    if shared > chance + SHARED_SHARE:
        yield (
            f"{shared:.1%} of the rows of val and test are in train, whole ({chance:.1%} may be by chance), so their "
            "score is of memory; remove duplicates from the raw rows"
        )
    if opposed := {name: one.rate_correlation for name, one in columns if _is_opposed(one)}:
        yield (
            "label rates by value in train and in the held-out rows have a negative correlation, as where each value "
            f"has a fixed number of negatives: {_listed(opposed, '.2f')}; what is learned of such a column predicts "
            "the opposite, so leave it out, or draw negatives without regard to it"
        )
    indices = {name: one.stability_index for name, one in columns}
    if drifts := {name: index for name, index in indices.items() if index is not None and index > DRIFT}:
        yield (
            f"drift from train to the held-out rows, population stability index above {DRIFT}: "
            f"{_listed(drifts, '.2f')}; check that all files have the same units and columns, and expect a lower score"
        )


def _is_opposed(one: ColumnFigures) -> bool:
    correlation, values = one.rate_correlation, one.rated_values
    if correlation is None or values is None:
        return False
    return correlation < OPPOSED_CORRELATION and correlation * math.sqrt(values) < -OPPOSED_ERRORS


def _listed(figures: dict[str, Any], form: str) -> str:
    """Columns with their figures, the largest first."""
    ordered = sorted(figures, key=lambda name: -abs(figures[name]))
    column_list = ", ".join(f"{name} ({figures[name]:{form}})" for name in ordered[:SHOWN_COLUMNS])
    return column_list + (f" and {len(ordered) - SHOWN_COLUMNS} more" if len(ordered) > SHOWN_COLUMNS else "")


def largest_jump(parts: list[Part]) -> str | None:
    """A sentence on the largest jump of the label rate between two parts in succession; None if there is none.

    Parts of one class are left out: they are of rows sorted by label, which harm only some splits, and these are named.
    """
    mixed = [(a, b) for a, b in pairwise(parts) if all(0 < part.positives < part.rows for part in (a, b))]
    jumps = [(abs(_log_odds(a)[0] - _log_odds(b)[0]), a, b) for a, b in mixed]
    sure = [
        (size, a, b)
        for size, a, b in jumps
        if size > math.log(JUMP_ODDS) and size > JUMP_ERRORS * math.hypot(_log_odds(a)[1], _log_odds(b)[1])
    ]
    if not sure:
        return None
    _, before, after = max(sure, key=lambda jump: jump[0])
    rates = [f"{part.positives / part.rows:.4f} in {part.name}" for part in (before, after)]
    more = f" ({len(sure)} jumps in all, this the largest)" if len(sure) > 1 else ""
    remedy = "check that both are of one rule of labels and one rate of sampling"
    return f"the label rate jumps from {rates[0]} to {rates[1]}{more}; {remedy}"


def _log_odds(part: Part) -> tuple[float, float]:
    """Logarithm of the odds of a positive label, and its standard error (Haldane and Anscombe's, defined at 0)."""
    positives, negatives = part.positives + 0.5, part.rows - part.positives + 0.5
    return math.log(positives / negatives), math.sqrt(1 / positives + 1 / negatives)
