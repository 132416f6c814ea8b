"""Tests whether a difference is more than noise: of means over runs, of scores of the same rows, of speeds."""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtr, stdtrit

Values = Sequence[float] | NDArray[np.float64]

UPPER = 0.975  # share of a distribution below the upper end of a 95% interval


class MeanDifference(NamedTuple):
    """Second mean minus first; the interval and p are None with fewer than two values on either side."""

    mean: float
    low: float | None
    high: float | None
    p: float | None


Ratio: TypeAlias = tuple[float, float | None, float | None]  # second over first, and the ends of its interval, or None


def welch(first: Values, second: Values) -> MeanDifference:
    """Test whether two samples have the same mean, whatever their variances (Welch 1947); two-sided.

    If all values on either side are equal, the variance is 0; p is then 1 for equal means and 0 otherwise.
    """
    samples = np.asarray(first, np.float64), np.asarray(second, np.float64)
    return _test_mean(float(samples[1].mean() - samples[0].mean()), *samples)


def paired(first: Values, second: Values) -> MeanDifference:
    """Test whether the differences of pairs have mean 0 (t-test, two-sided); as `welch` if they do not vary."""
    differences = np.asarray(second, np.float64) - np.asarray(first, np.float64)
    return _test_mean(float(differences.mean()), differences)


def spread(values: Values) -> tuple[float, float | None, float | None, float | None]:
    """Return the mean of at least one value, their standard deviation, and the mean's 95% interval by Student's t.

    All but the mean are None for one value.
    """
    sample = np.asarray(values, np.float64)
    mean, low, high, _ = _test_mean(float(sample.mean()), sample)
    return mean, None if len(sample) < 2 else float(sample.std(ddof=1)), low, high


def delong(labels: NDArray[np.bool_], first: NDArray[np.floating], second: NDArray[np.floating]) -> MeanDifference:
    """Test whether two models' scores of the same rows have the same AUC (DeLong 1988); arrays are [n]; two-sided.

    The variance is that of the difference of the structural components: for each positive, the share of negatives below
    it; for each negative, the share of positives above it; ties count half. As `welch` if the variance is 0; the
    interval and p are None with fewer than two rows of a label.

    Raises ValueError: only one label occurs.
    """
    if labels.all() or not labels.any():
        raise ValueError("all rows have one label")
    components = [_components(np.asarray(scores, np.float64), labels) for scores in (first, second)]
    # One array of the positives' differences, one of the negatives'.
    differences = [
        np.subtract(second_shares, first_shares)
        for first_shares, second_shares in zip(components[0], components[1], strict=True)
    ]
    mean = float(differences[0].mean())
    if min(map(len, differences)) < 2:
        return MeanDifference(mean, None, None, None)
    error = math.sqrt(sum(float(shares.var(ddof=1)) / len(shares) for shares in differences))
    if error == 0:
        return MeanDifference(mean, mean, mean, 1.0 if mean == 0 else 0.0)
    # Rows are many, unlike seeds, so the normal distribution serves in the place of Student's t.
    reach = float(ndtri(UPPER)) * error
    return MeanDifference(mean, mean - reach, mean + reach, float(2 * ndtr(-abs(mean / error))))


def _components(
    scores: NDArray[np.float64], labels: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return shares of negatives below each positive [positives] and of positives above each negative [negatives]."""
    positives, negatives = scores[labels], scores[~labels]
    # The mean of the places left and right of equal scores counts a tie half.
    negatives_below, positives_below = (
        (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")) / (2 * len(ordered))
        for ordered, values in ((np.sort(negatives), positives), (np.sort(positives), negatives))
    )
    return negatives_below, 1 - positives_below


def speed_ratio(first: Values, second: Values) -> Ratio:
    """Estimate how many times faster the second is, from seconds per sample; a 95% interval by the delta method.

    The variance of the logarithm of a ratio of means is the sum of the means' squared relative errors.
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    ratio = float(a.mean() / b.mean())
    if min(len(a), len(b)) < 2:
        return ratio, None, None
    squared_errors = tuple(float(values.var(ddof=1) / len(values) / values.mean() ** 2) for values in (a, b))
    if sum(squared_errors) == 0:
        return ratio, ratio, ratio
    # The interval is that of the logarithm, so that its lower end stays above 0.
    df = _degrees_of_freedom(squared_errors, (len(a), len(b)))
    reach = float(stdtrit(df, UPPER)) * math.sqrt(sum(squared_errors))
    return ratio, ratio * math.exp(-reach), ratio * math.exp(reach)


def batch_means(
    seconds: NDArray[np.float64], samples: NDArray[np.float64], max_stretches: int = 20
) -> NDArray[np.float64]:
    """Return the seconds per sample of up to `max_stretches` stretches of consecutive windows.

    Neighbouring windows resemble each other, but means of long stretches hardly do (the method of batch means, Law and
    Kelton), so an interval from these means is not too narrow.
    """
    count = min(max_stretches, max(len(seconds) // 2, 1))
    stretches = [windows for windows in np.array_split(np.arange(len(seconds)), count) if len(windows)]
    return np.array([seconds[windows].sum() / samples[windows].sum() for windows in stretches])


def _test_mean(mean: float, *samples: NDArray[np.float64]) -> MeanDifference:
    """Test whether a mean is 0; its variance is the sum of the variances of the samples' means; two-sided."""
    sizes = [len(sample) for sample in samples]
    if min(sizes) < 2:
        return MeanDifference(mean, None, None, None)
    variances = [float(sample.var(ddof=1) / len(sample)) for sample in samples]
    error = math.sqrt(sum(variances))
    if error == 0:
        return MeanDifference(mean, mean, mean, 1.0 if mean == 0 else 0.0)
    df = _degrees_of_freedom(variances, sizes)
    reach = float(stdtrit(df, UPPER)) * error
    return MeanDifference(mean, mean - reach, mean + reach, float(2 * stdtr(df, -abs(mean / error))))


def _degrees_of_freedom(variances: Sequence[float], sizes: Sequence[int]) -> float:
    """Return Welch and Satterthwaite's degrees of freedom of a sum of means; for one mean, its sample's size less 1.

    variances: of the samples' means, or their squared relative errors.
    """
    squares = sum(variance**2 / (size - 1) for variance, size in zip(variances, sizes, strict=True))
    return float(sum(variances) ** 2 / squares)
