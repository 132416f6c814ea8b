"""Metrics of sampled rows over all rows, by scikit-learn; imports nothing of ours."""

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score


def metrics_of_all_rows(
    logits: NDArray[np.float32], labels: NDArray[np.float32] | NDArray[np.bool_], kept: float, weight: float = 1.0
) -> dict[str, float]:
    """Metrics by scikit-learn of corrected probabilities over rows whose negatives stand 1 / kept times.

    weight: that of label 1 over that of label 0 in the loss.
    """
    p = 1 / (1 + np.exp(-logits.astype(np.float64)))
    q = p / (p + (1 - p) * weight / kept)
    counts = np.where(labels == 1, 1, round(1 / kept))
    every, truth = np.repeat(q, counts), np.repeat(labels, counts).astype(int)
    rate = truth.mean()
    entropy = -rate * np.log(rate) - (1 - rate) * np.log(1 - rate)
    bins = np.minimum((every * 15).astype(int), 14)
    gaps = [abs((every - truth)[bins == one].sum()) for one in range(15)]
    return {
        "auc": roc_auc_score(truth, every),
        "pr_auc": average_precision_score(truth, every),
        "logloss": log_loss(truth, every),
        "ne": log_loss(truth, every) / entropy,
        "accuracy": ((every > 0.5) == truth).mean(),
        "ece": sum(gaps) / len(truth),
        "calibration": every.sum() / truth.sum(),
        "base_rate": rate,
        "calibration_of_all_rows": every.sum() / truth.sum(),
        "calibration_of_kept_rows": p.sum() / labels.sum(),
    }
