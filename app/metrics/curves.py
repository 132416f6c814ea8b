"""Curves of an evaluation, as numbers: ROC, precision over recall, calibration, scores by label."""

import numpy as np
from numpy.typing import NDArray

from app.kinds.metrics import STANDARD_ERROR
from app.metrics.documents import Curves, EvaluationFigures, PrecisionRecall, ReliabilityBin, Roc, ScoreCounts

MAX_SAMPLES = 1 << 22  # a larger split is sampled: every k-th of its samples
THRESHOLDS = 200  # at quantiles of either label's scores
SCORE_BINS = 50
EQUAL_MASS_BINS = 20

Values = NDArray[np.float64]


def click_curves(logits: NDArray[np.float32], labels: NDArray[np.float32], evaluation: EvaluationFigures) -> Curves:
    """Return the curves of logits [n] against labels [n] of 0 and 1; some are None if only one class occurs.

    evaluation: the metrics of all samples; logits and labels may already be a part of those.

    samples, of: number of samples used, and of all samples.
    auc_standard_error: over all samples (`click_metrics`).
    roc: fpr, tpr; pr: recall, precision; exact at each threshold, of which there are at most 400.
    reliability: mean probability, share of positives and samples of bins with equally many samples.
    scores: counts of either label over bins of equal width from 0 to the highest probability.
    """
    stride = max(1, -(-len(labels) // MAX_SAMPLES))
    z, y = logits[::stride], labels[::stride] > 0.5
    preds = 1 / (1 + np.exp(-np.clip(z.astype(np.float64), -700, 700)))
    positives, negatives = np.sort(z[y]), np.sort(z[~y])
    thresholds = _thresholds(positives, negatives) if len(positives) and len(negatives) else (None, None)
    return Curves(
        samples=len(z),
        of=evaluation.samples or 0,
        auc_standard_error=evaluation.figure(STANDARD_ERROR),
        roc=thresholds[0],
        pr=thresholds[1],
        reliability=_reliability(preds, y),
        scores=_scores(preds, y),
    )


def _thresholds(positives: NDArray[np.float32], negatives: NDArray[np.float32]) -> tuple[Roc, PrecisionRecall]:
    steps = np.linspace(0, 1, THRESHOLDS)
    quantiles = [scores[((len(scores) - 1) * steps).astype(np.int64)] for scores in (positives, negatives)]
    thresholds = np.unique(np.concatenate(quantiles))[::-1]  # descending: from (0, 0) to (1, 1)
    true = len(positives) - np.searchsorted(positives, thresholds, "left")
    false = len(negatives) - np.searchsorted(negatives, thresholds, "left")
    false_rates = _rounded(np.concatenate(([0], false / len(negatives))))
    true_rates = _rounded(np.concatenate(([0], true / len(positives))))
    return Roc(false_rates, true_rates), PrecisionRecall(
        _rounded(true / len(positives)), _rounded(true / (true + false))
    )


def _reliability(preds: Values, positive: NDArray[np.bool_]) -> list[ReliabilityBin]:
    order = np.argsort(preds, kind="stable")
    parts = np.array_split(order, min(EQUAL_MASS_BINS, len(order)) or 1)
    return [
        ReliabilityBin(float(f"{preds[part].mean():.6g}"), float(f"{positive[part].mean():.6g}"), len(part))
        for part in parts
        if len(part)
    ]


def _scores(preds: Values, positive: NDArray[np.bool_]) -> ScoreCounts:
    edges = np.linspace(0, preds.max(initial=0.0) or 1.0, SCORE_BINS + 1)
    counts = [np.histogram(preds[label], edges)[0].tolist() for label in (positive, ~positive)]
    return ScoreCounts(_rounded(edges), *counts)


def _rounded(values: Values) -> list[float]:
    return [float(f"{value:.6g}") for value in values]
