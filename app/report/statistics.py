"""Is a difference more than noise: tests over runs, paired and Welch's, and a ratio of speeds with its interval."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

Values = Sequence[float] | NDArray[np.float64]

UPPER = 0.975  # the part of Student's t that lies below the upper end of a 95% interval


class MeanDifference(NamedTuple):
    """Second minus first mean; the interval and p are None where there are not two values on either side."""

    mean: float
    low: float | None
    high: float | None
    p: float | None


class Ratio(NamedTuple):
    """Second over first, with its interval; None where undefined."""

    ratio: float
    low: float | None
    high: float | None


def welch(first: Values, second: Values) -> MeanDifference:
    """Welch's test that two samples have one mean, whatever their variances (Welch 1947); two-sided.

    With two equal values on either side the variance is 0: then p is 1 for equal means and 0 otherwise.
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    return _tested(float(b.mean() - a.mean()), a, b)


def paired(first: Values, second: Values) -> MeanDifference:
    """The t-test that the differences of pairs have the mean 0; two-sided. As `welch`, where they do not vary."""
    differences = np.asarray(second, np.float64) - np.asarray(first, np.float64)
    return _tested(float(differences.mean()), differences)


def speed_ratio(first: Values, second: Values) -> Ratio:
    """Estimate how many times faster the second is from seconds a sample; a 95% interval by the delta method.

    The logarithm of a ratio of means has the sum of their squared relative errors as its variance.
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    ratio = float(a.mean() / b.mean())
    if min(len(a), len(b)) < 2:
        return Ratio(ratio, None, None)
    parts = tuple(float(values.var(ddof=1) / len(values) / values.mean() ** 2) for values in (a, b))
    if sum(parts) == 0:
        return Ratio(ratio, ratio, ratio)
    reach = float(stdtrit(_degrees(parts, (len(a), len(b))), UPPER)) * math.sqrt(sum(parts))
    return Ratio(ratio, ratio * math.exp(-reach), ratio * math.exp(reach))


def batch_means(
    seconds: NDArray[np.float64], samples: NDArray[np.float64], max_stretches: int = 20
) -> NDArray[np.float64]:
    """Seconds a sample of up to `max_stretches` stretches of consecutive windows.

    Neighbouring windows resemble each other; the means of long stretches hardly do (the method of batch means, Law
    and Kelton), so that an interval made from them is not too narrow.
    """
    parts = [
        part
        for part in np.array_split(np.arange(len(seconds)), min(max_stretches, max(len(seconds) // 2, 1)))
        if len(part)
    ]
    return np.array([seconds[part].sum() / samples[part].sum() for part in parts])


def _tested(mean: float, *samples: NDArray[np.float64]) -> MeanDifference:
    """The test that a mean is 0 whose variance is the sum of the variances of the samples' means; two-sided."""
    sizes = [len(sample) for sample in samples]
    if min(sizes) < 2:
        return MeanDifference(mean, None, None, None)
    parts = [float(sample.var(ddof=1) / len(sample)) for sample in samples]
    error = math.sqrt(sum(parts))
    if error == 0:
        return MeanDifference(mean, mean, mean, 1.0 if mean == 0 else 0.0)
    df = _degrees(parts, sizes)
    reach = float(stdtrit(df, UPPER)) * error
    return MeanDifference(mean, mean - reach, mean + reach, float(2 * stdtr(df, -abs(mean / error))))


def _degrees(parts: Sequence[float], sizes: Sequence[int]) -> float:
    """Welch and Satterthwaite's degrees of freedom; of one part, its size less 1."""
    return float(sum(parts) ** 2 / sum(part**2 / (size - 1) for part, size in zip(parts, sizes, strict=True)))
