"""Quality of the ranking within each group of rows."""

import numpy as np
from numpy.typing import NDArray

TOP = 10  # HR and NDCG count this many places of a group's ranking


def group_metrics(
    logits: NDArray[np.float32], labels: NDArray[np.float32], groups: NDArray[np.integer], rows: NDArray[np.integer]
) -> dict[str, float | int | None]:
    """Return metrics of logits [n] against labels [n] of 0 and 1, for rows in groups [n]; None if undefined.

    gauc, gauc_users: as in `grouped_auc`.
    hr_at_10: share of positives ranked among the first 10 of their group's negatives and themselves, as in Neural
        Collaborative Filtering, whose groups have one positive and 99 negatives. A tie counts against the positive.
    ndcg_at_10: mean over positives of log(2) / log(1 + rank), or 0 if the rank is beyond 10.

    rows: [n], equal where rows of a group have the same ids. Such rows are one candidate, which is positive if one of
        them is, so a negative that equals the positive does not count. Groups without negatives are left out.
    """
    metrics = grouped_auc(logits, labels, groups)
    is_negative = labels <= 0.5
    # Keep one row per candidate (a positive if there is one), then rank within groups: negatives first among ties.
    order = np.lexsort((is_negative, rows, groups))
    order = order[_differs(groups[order], rows[order])]
    order = order[np.lexsort((~is_negative[order], -logits[order], groups[order]))]
    is_negative, groups = is_negative[order], groups[order]
    starts = np.flatnonzero(_differs(groups))
    counts = np.diff(np.append(starts, len(groups)))
    before: NDArray[np.int64] = np.cumsum(is_negative) - is_negative  # negatives, over all groups
    negatives = np.add.reduceat(is_negative, starts, dtype=np.int64) if len(starts) else starts
    is_ranked = ~is_negative & (np.repeat(negatives, counts) > 0)
    places: NDArray[np.int64] = (before - np.repeat(before[starts], counts))[is_ranked]
    is_hit = places < TOP
    has_places = len(places) > 0
    metrics["hr_at_10"] = float(is_hit.mean()) if has_places else None
    metrics["ndcg_at_10"] = float((is_hit / np.log2(places + 2)).mean()) if has_places else None
    return metrics


def grouped_auc(
    logits: NDArray[np.float32], labels: NDArray[np.float32], groups: NDArray[np.integer]
) -> dict[str, float | int | None]:
    """Return the mean AUC of groups (`gauc`) and how many it covers (`gauc_users`), for samples in groups [n].

    Ties count half, and each group counts once. Groups with one label only or one score only are left out.
    """
    metrics: dict[str, float | int | None] = {"gauc": None, "gauc_users": 0}
    if not len(labels):
        return metrics
    order = np.lexsort((logits, groups))
    logits, is_positive, groups = logits[order], labels[order] > 0.5, groups[order]
    is_first = _differs(groups)
    starts = np.flatnonzero(is_first)
    counts = np.diff(np.append(starts, len(groups)))
    ties = np.flatnonzero(is_first | _differs(logits))
    sizes = np.diff(np.append(ties, len(groups)))
    ranks = np.repeat(ties + (sizes + 1) / 2, sizes) - np.repeat(starts, counts)  # ranks within a group count from 1
    positives = np.add.reduceat(is_positive, starts, dtype=np.int64)
    pairs = positives * (counts - positives)
    areas = np.add.reduceat(ranks * is_positive, starts) - positives * (positives + 1) / 2
    is_counted = (pairs > 0) & (logits[starts] < logits[starts + counts - 1])
    if is_counted.any():
        metrics["gauc"] = float((areas[is_counted] / pairs[is_counted]).mean())
        metrics["gauc_users"] = int(is_counted.sum())
    return metrics


def _differs(*columns: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Return whether each place [n] differs from the one before in any column; the first place does."""
    return np.append(True, np.any([column[1:] != column[:-1] for column in columns], axis=0))[: len(columns[0])]
