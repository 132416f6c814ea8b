"""Scores of the best possible model on rows with known click probabilities.

Probabilities are multiples of 2^-20, so their histogram is exact, and all scores follow from it.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PROBABILITY_BITS = 20
PROBABILITY_STEPS = 1 << PROBABILITY_BITS


@dataclass(frozen=True)
class BayesScores:
    """Scores of the model that knows each click's probability.

    auc, logloss, ne: expected against labels drawn from the probabilities. logloss is in nats per sample; ne is logloss
    over the entropy of base_rate, the mean probability. sampled_auc, sampled_logloss: against the labels that were
    drawn; None if these are all equal.
    """

    auc: float
    logloss: float
    ne: float
    base_rate: float
    rows: int
    sampled_auc: float | None = None
    sampled_logloss: float | None = None


def bayes_scores(histogram: NDArray[np.int64], positives: NDArray[np.int64] | None = None) -> BayesScores:
    """Compute the scores from counts of rows.

    Args:
        histogram: [PROBABILITY_STEPS], number of rows with click probability i / PROBABILITY_STEPS.
        positives: number of these rows with label 1, if labels were drawn.
    """
    steps = np.flatnonzero(histogram)
    rows = histogram[steps].astype(np.float64)
    probability = steps / PROBABILITY_STEPS
    expected = rows * probability
    logloss = _logloss(rows, expected, probability)
    base_rate = float(expected.sum() / rows.sum())
    base_entropy = -(base_rate * np.log(base_rate) + (1 - base_rate) * np.log1p(-base_rate))
    scores = BayesScores(_auc(rows, expected), logloss, float(logloss / base_entropy), base_rate, int(rows.sum()))
    if positives is None or not 0 < positives.sum() < rows.sum():
        return scores
    clicks = positives[steps].astype(np.float64)
    sampled = {"sampled_auc": _auc(rows, clicks), "sampled_logloss": _logloss(rows, clicks, probability)}
    return BayesScores(**(asdict(scores) | sampled))


def _auc(rows: NDArray[np.float64], positives: NDArray[np.float64]) -> float:
    """Return the AUC of ascending scores with `rows` rows and `positives` positives each."""
    negatives = rows - positives
    below = np.cumsum(negatives) - negatives
    return float(np.sum(positives * (below + negatives / 2)) / (positives.sum() * negatives.sum()))


def _logloss(rows: NDArray[np.float64], positives: NDArray[np.float64], probability: NDArray[np.float64]) -> float:
    entropy = -(positives * np.log(probability) + (rows - positives) * np.log1p(-probability))
    return float(entropy.sum() / rows.sum())


def truth_path(day: Path) -> Path:
    """Return the path of a generated day's click probabilities, [rows] float32."""
    return day.with_name(f"truth_{day.stem.removeprefix('day_')}.npy")
