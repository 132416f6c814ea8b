"""Label rates by value: out-of-fold for the rows that they are counted on, overall for other rows."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.dataset.bags import Bags
from data_prep.dataset.sample import mix

FOLDS, PRIOR_ROWS = 5, 10.0  # rows at the base rate that smooth each rate
DENSE_BINS = 32  # a number is counted by its quantile in train


@dataclass
class Rates:
    """Smoothed label rates of a column, float64: out-of-fold for train's rows [train], overall for others [others]."""

    train: NDArray[np.float64]
    others: NDArray[np.float64]


def folds_of(rows: int) -> NDArray[np.int64]:
    """Return the fold of each row, [rows], by a hash of its number."""
    return (mix(np.arange(rows, dtype=np.uint64)) % np.uint64(FOLDS)).astype(np.int64)


def label_rates(
    train: Bags, labels: NDArray[np.bool_], others: Bags, weights: NDArray[np.float64] | None = None
) -> Rates:
    """Return rates by id; a bag has the mean of its ids' rates, an empty bag the base rate.

    weights: of train's rows, with mean 1; None: all 1.
    """
    base = np.average(labels, weights=weights)
    num_ids = int(max(train.ids.max(initial=0), others.ids.max(initial=0))) + 1
    folds, ids = np.repeat(folds_of(len(labels)), train.lengths), train.ids.astype(np.int64)
    counts = np.ones(len(labels)) if weights is None else weights
    cells, shape = (ids * FOLDS + folds, (num_ids, FOLDS))
    rows, positives = (
        np.bincount(cells, np.repeat(each, train.lengths), num_ids * FOLDS).reshape(shape)
        for each in (counts, counts * labels)
    )
    other_rows, other_positives = (each.sum(axis=1, keepdims=True) - each for each in (rows, positives))
    out_of_fold = (other_positives + PRIOR_ROWS * base) / (other_rows + PRIOR_ROWS)
    whole = (positives.sum(axis=1) + PRIOR_ROWS * base) / (rows.sum(axis=1) + PRIOR_ROWS)
    return Rates(_means(out_of_fold[ids, folds], train, base), _means(whole[others.ids], others, base))


def dense_rates(
    train: NDArray[np.float32],
    labels: NDArray[np.bool_],
    others: NDArray[np.float32],
    weights: NDArray[np.float64] | None = None,
) -> Rates:
    """Return rates by quantile of a number."""
    edges = np.unique(np.quantile(train, np.arange(1, DENSE_BINS) / DENSE_BINS, method="lower"))
    bags = [Bags(np.searchsorted(edges, each), np.arange(len(each) + 1)) for each in (train, others)]
    return label_rates(bags[0], labels, bags[1], weights)


def _means(values: NDArray[np.float64], bags: Bags, empty: float) -> NDArray[np.float64]:
    """Return the mean of the values of each bag's ids, [n]."""
    lengths = bags.lengths
    if (lengths == 1).all():
        return values
    rows = np.repeat(np.arange(len(lengths)), lengths)
    sums = np.bincount(rows, weights=values, minlength=len(lengths))
    return np.where(lengths > 0, sums / np.maximum(lengths, 1), empty)
