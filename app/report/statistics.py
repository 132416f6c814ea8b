"""Is a difference more than noise: tests over runs, paired and Welch's, and a ratio of speeds with its interval."""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = Sequence[float] | NDArray[np.float64]

CONFIDENCE = 0.95
NODES = 200  # of the quadrature for Student's t


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
    mean = float(b.mean() - a.mean())
    if min(len(a), len(b)) < 2:
        return MeanDifference(mean, None, None, None)
    parts = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    error = math.sqrt(sum(parts))
    if error == 0:
        return MeanDifference(mean, mean, mean, 1.0 if mean == 0 else 0.0)
    df = _degrees(parts, (len(a), len(b)))
    reach = t_quantile(df) * error
    return MeanDifference(mean, mean - reach, mean + reach, t_two_sided(mean / error, df))


def paired(first: Values, second: Values) -> MeanDifference:
    """The t-test that the differences of pairs have the mean 0; two-sided. As `welch`, where they do not vary."""
    differences = np.asarray(second, np.float64) - np.asarray(first, np.float64)
    mean = float(differences.mean())
    if len(differences) < 2:
        return MeanDifference(mean, None, None, None)
    error = math.sqrt(float(differences.var(ddof=1)) / len(differences))
    if error == 0:
        return MeanDifference(mean, mean, mean, 1.0 if mean == 0 else 0.0)
    reach = t_quantile(len(differences) - 1) * error
    return MeanDifference(mean, mean - reach, mean + reach, t_two_sided(mean / error, len(differences) - 1))


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
    reach = t_quantile(_degrees(parts, (len(a), len(b)))) * math.sqrt(sum(parts))
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


def t_two_sided(t: float, df: float) -> float:
    """P(|T| >= |t|) of Student's t with df >= 1 degrees of freedom.

    With t = sqrt(df) tan(angle) the tail is an integral of cos(angle)^(df-1), smooth enough for Gauss's quadrature.
    """
    start = math.atan(abs(t) / math.sqrt(df))
    # Beyond `end` the integrand is below 1e-16 of its greatest, at `start`.
    end = min(math.pi / 2, math.acos(math.cos(start) * 10 ** (-16 / max(df - 1, 1e-9)))) if df > 1 else math.pi / 2
    nodes, weights = _nodes()
    angles = start + (end - start) * (nodes + 1) / 2
    constant = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi)
    return min(1.0, float(2 * constant * (weights * np.cos(angles) ** (df - 1)).sum() * (end - start) / 2))


def t_quantile(df: float, confidence: float = CONFIDENCE) -> float:
    """The t beyond which 1 - confidence lies on both sides together."""
    low, high = 0.0, 1.0
    while t_two_sided(high, df) > 1 - confidence:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_two_sided(middle, df) > 1 - confidence else (low, middle)
    return high


@functools.cache
def _nodes() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return nodes, weights


def _degrees(parts: Sequence[float], sizes: Sequence[int]) -> float:
    """Welch and Satterthwaite's degrees of freedom."""
    return float(sum(parts) ** 2 / sum(part**2 / (size - 1) for part, size in zip(parts, sizes, strict=True)))
