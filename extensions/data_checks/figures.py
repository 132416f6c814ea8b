"""Figures of misleading data, and the warnings for them: `extra.misleading` of a manifest."""

from msgspec import Struct

from common.documents import convert

LEAK_AUC = 0.95  # A column may hold the label if the AUC of its out-of-fold rates is higher.
SHARED_SHARE = 0.01  # share of the held-out rows, beyond chance
SHOWN_COLUMNS = 4


class ColumnFigures(Struct, kw_only=True):
    """Figures of one column.

    Attributes:
        auc: AUC of the column's smoothed out-of-fold label rates in train; None with few labels of a class.
    """

    auc: float | None = None


class Misleading(Struct, kw_only=True):
    """Figures of a dataset's rows.

    Attributes:
        rows: rows that were read; of: rows of all splits.
        shared_rows: share of val's and test's rows that are in train with features and label. None without such rows,
            and for a sample in which chance may explain the number.
        shared_by_chance: expected share if rows with so few values are equal by chance.
    """

    rows: int
    of: int
    columns: dict[str, ColumnFigures]
    shared_rows: float | None = None
    shared_by_chance: float | None = None


def misleading_sentences(recorded: object) -> list[str]:
    """Return a sentence for each kind of fault. Raise ValueError, which names the key, for damaged figures."""
    figures = convert(recorded, Misleading, "extra.misleading")
    sentences = []
    aucs = {name: one.auc for name, one in figures.columns.items() if one.auc is not None and one.auc > LEAK_AUC}
    if aucs:
        names = sorted(aucs, key=lambda name: -aucs[name])
        columns = ", ".join(f"{name} ({aucs[name]:.4f})" for name in names[:SHOWN_COLUMNS])
        more = f" and {len(names) - SHOWN_COLUMNS} more" if len(names) > SHOWN_COLUMNS else ""
        sentences.append(
            f"one column alone predicts the label, AUC by out-of-fold rates: {columns}{more}; if it is not known "
            "before the label is, leave it out of data.schema"
        )
    shared, chance = figures.shared_rows or 0.0, figures.shared_by_chance or 0.0
    if shared > chance + SHARED_SHARE:
        sentences.append(
            f"{shared:.1%} of the rows of val and test are in train, whole ({chance:.1%} may be by chance), so their "
            "score is of memory; remove duplicates from the raw rows"
        )
    sampled = "" if figures.rows == figures.of else f" (by a sample of {figures.rows:,} of {figures.of:,} rows)"
    return [f"{sentence}{sampled}" for sentence in sentences]
