"""Errors of predicted numbers over a whole split."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from app.kinds.metrics import LABEL_DEVIATION, MAE, OF_ROWS, RMSE

Total = Callable[[NDArray[np.float64]], NDArray[np.float64]]  # sums over all processes


def number_metrics(
    preds: NDArray[np.float32],
    labels: NDArray[np.float32],
    total: Total = lambda sums: sums,
    weights: NDArray[np.float32] | None = None,
) -> dict[str, float | None]:
    """Return metrics of predicted numbers [n] against labels [n]; metrics of clicks are None, and all without samples.

    rmse: root of the mean squared error. mae: mean absolute error. label_deviation: the labels' standard deviation,
    which is the RMSE of their mean. Sums are in float64. total: adds up sums of several processes.
    weights: sample weights [n], by which means are weighted.
    """
    metrics: dict[str, float | None] = {**dict.fromkeys(OF_ROWS), **dict.fromkeys((RMSE, MAE, LABEL_DEVIATION))}
    truth = labels.astype(np.float64)
    errors = preds.astype(np.float64) - truth
    weight = np.float64(1) if weights is None else weights.astype(np.float64)
    samples, squares, absolute, label_sum = total(
        np.array(
            [
                len(truth) if weights is None else weight.sum(),
                (weight * np.square(errors)).sum(),
                (weight * np.abs(errors)).sum(),
                (weight * truth).sum(),
            ]
        )
    ).tolist()
    if not samples:
        return metrics
    [deviations] = total(np.array([(weight * np.square(truth - label_sum / samples)).sum()])).tolist()
    metrics[RMSE], metrics[MAE] = math.sqrt(squares / samples), absolute / samples
    metrics[LABEL_DEVIATION] = math.sqrt(deviations / samples)
    return metrics
