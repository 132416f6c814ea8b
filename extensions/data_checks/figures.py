"""Figures of what misleads in a dataset's rows, and the sentences that warn of it: `extra.misleading` of a manifest."""

from msgspec import Struct

from common.documents import convert

LEAK_AUC = 0.95  # of one column's out-of-fold rates, from which the column may hold the label
SHARED_SHARE = 0.01  # of the held-out rows, beyond what chance gives
SHOWN_COLUMNS = 4


class ColumnFigures(Struct, kw_only=True):
    """Figures of one column.

    Attributes:
        auc: of the column's smoothed out-of-fold label rates alone, in train; None with few labels of a class.
    """

    auc: float | None = None


class Misleading(Struct, kw_only=True):
    """Figures of a dataset's rows.

    Attributes:
        rows: of all splits, that were looked at; of: how many there are.
        shared_rows: share of the rows of val and test that are in train, features and label; None without such rows,
            and of a sample where chance may give as many.
        shared_by_chance: what of it is to be expected of rows of so few values.
    """

    rows: int
    of: int
    columns: dict[str, ColumnFigures]
    shared_rows: float | None = None
    shared_by_chance: float | None = None


def misleading_sentences(recorded: object) -> list[str]:
    """A sentence on each kind of fault. Raises ValueError, which names the key, for damaged figures."""
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
