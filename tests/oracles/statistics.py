"""Errors, tests and intervals from their definitions; imports nothing of ours."""

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Values = NDArray[np.floating]


def delong_by_pairs(logits: Values, labels: Values) -> tuple[float, float]:
    """The AUC and its standard error by DeLong et al. 1988: every positive against every negative."""
    x, y = logits[labels == 1], logits[labels == 0]
    wins = (x[:, None] > y).astype(np.float64) + 0.5 * (x[:, None] == y)
    variance = wins.mean(axis=1).var(ddof=1) / len(x) + wins.mean(axis=0).var(ddof=1) / len(y)
    return float(wins.mean()), float(np.sqrt(variance))


def delong_of_two(labels: NDArray[np.bool_], first: Values, second: Values) -> tuple[float, float]:
    """Second AUC less first, and the standard error, by the covariance matrices of DeLong et al. 1988, O(n²)."""
    wins = []
    for logits in (first, second):
        x, y = logits[labels == 1], logits[labels == 0]
        wins.append((x[:, None] > y).astype(np.float64) + 0.5 * (x[:, None] == y))
    m, n = wins[0].shape
    of_positives, of_negatives = (np.cov([each.mean(axis=axis) for each in wins]) for axis in (1, 0))
    contrast = np.array([-1.0, 1.0])
    variance = contrast @ (of_positives / m + of_negatives / n) @ contrast
    return float(wins[1].mean() - wins[0].mean()), float(np.sqrt(max(variance, 0.0)))


def delong_by_ranks(logits: Values, labels: Values) -> tuple[float, float]:
    """The same of large samples, by midranks (Sun and Xu 2014, theorem 1)."""
    x, y = (logits[labels == label].astype(np.float64) for label in (1, 0))
    joined = stats.rankdata(np.concatenate([x, y]))
    above = (joined[: len(x)] - stats.rankdata(x)) / len(y)  # for each positive, the share of negatives below it
    below = 1 - (joined[len(x) :] - stats.rankdata(y)) / len(x)  # for each negative, the share of positives above it
    variance = above.var(ddof=1) / len(x) + below.var(ddof=1) / len(y)
    return float(above.mean()), float(np.sqrt(variance))


def t_test(first: Values, second: Values, is_paired: bool) -> tuple[float, float, float, float]:
    """Mean of second less first, its 95% interval, and the two-sided p: paired, or Welch's (1947)."""
    if is_paired:
        differences = np.asarray(second, np.float64) - np.asarray(first, np.float64)
        mean, error = float(differences.mean()), float(differences.std(ddof=1)) / len(differences) ** 0.5
        degrees = len(first) - 1.0
    else:
        parts = [float(np.var(values, ddof=1)) / len(values) for values in (first, second)]
        mean, error = float(np.mean(second) - np.mean(first)), sum(parts) ** 0.5
        degrees = sum(parts) ** 2 / (parts[0] ** 2 / (len(first) - 1) + parts[1] ** 2 / (len(second) - 1))
    reach = float(stats.t.ppf(0.975, degrees)) * error
    return mean, mean - reach, mean + reach, float(2 * stats.t.sf(abs(mean / error), degrees))
