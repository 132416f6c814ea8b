"""Metrics of clicks by scikit-learn, with weights of rows or without."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, average_precision_score, log_loss, roc_auc_score


def expected_figures(
    labels: NDArray[Any], logits: NDArray[Any], weights: NDArray[Any] | None = None
) -> dict[str, float]:
    weights = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    preds, weighted = 1 / (1 + np.exp(-logits.astype(np.float64))), {"sample_weight": weights}
    base_rate = float(np.average(labels, weights=weights))
    logloss = log_loss(labels, preds, **weighted)
    return {
        "auc": roc_auc_score(labels, logits, **weighted),
        "logloss": logloss,
        "ne": logloss / log_loss(labels, np.full(len(labels), base_rate), **weighted),
        "accuracy": accuracy_score(labels, logits > 0, **weighted),
        "pr_auc": average_precision_score(labels, logits, **weighted),
        "calibration": (preds @ weights) / (labels @ weights),
        "base_rate": base_rate,
    }
