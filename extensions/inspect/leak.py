"""AUC of one column alone, by which a column that holds the label is found."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data_prep.dataset.sample import mix

MIN_LABELS = 50  # per class, for a meaningful AUC
PRIOR_ROWS = 10.0  # rows at the base rate that smooth each rate
BINS = 32  # quantiles of a number


def auc_of_column(texts: Sequence[str], numbers: NDArray[np.float64] | None, labels: NDArray[np.bool_]) -> float | None:
    """Return the AUC of a column's label rates, of each half of the rows by those of the other; None for few labels.

    Args:
        texts: the column's fields [rows]; numbers: the same as numbers, which are compared by quantiles.
    """
    if min(labels.sum(), (~labels).sum()) < MIN_LABELS:
        return None
    if numbers is not None:
        bounds = np.unique(np.quantile(numbers, np.arange(1, BINS) / BINS))
        codes = np.searchsorted(bounds, numbers, side="left")
    else:
        code_of = {text: code for code, text in enumerate(dict.fromkeys(texts))}
        codes = np.array([code_of[text] for text in texts], np.int64)
    in_first = mix(np.arange(len(labels), dtype=np.uint64)) & np.uint64(1) == 1
    size = int(codes.max()) + 1
    aucs = []
    for fitted in (in_first, ~in_first):
        rate = labels[fitted].mean()
        positives = np.bincount(codes[fitted], labels[fitted], size)
        rates = (positives + PRIOR_ROWS * rate) / (np.bincount(codes[fitted], minlength=size) + PRIOR_ROWS)
        aucs.append(_auc(rates[codes[~fitted]], labels[~fitted]))
    return float(np.mean(aucs))


def _auc(scores: NDArray[np.float64], labels: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve; equal scores count half."""
    values, codes = np.unique(scores, return_inverse=True)
    positives = np.bincount(codes, labels, len(values))
    negatives = np.bincount(codes, ~labels, len(values))
    below = np.cumsum(negatives) - negatives
    total = positives.sum() * negatives.sum()
    return float((positives * (below + negatives / 2)).sum() / total) if total else 0.5
