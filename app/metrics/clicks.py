"""Quality of predicted click probabilities over a whole split. Logloss and entropies are in nats."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

CALIBRATION_BINS = 15
OVERFIT = 0.002  # the last AUC this far below the best is more than the noise of an evaluation
NAMES = ("auc", "logloss", "ne", "accuracy", "pr_auc", "ece", "calibration", "base_rate")


def click_metrics(logits: NDArray[np.float32], labels: NDArray[np.float32]) -> dict[str, float | None]:
    """Metrics of logits [n] against labels [n] of 0 and 1; None where undefined.

    auc: exact area under the ROC curve, ties counted half.
    logloss: mean binary cross-entropy, nats.
    ne: logloss over the entropy of the base rate (He et al. 2014); below 1 beats the constant predictor.
    accuracy: share on the right side of probability 0.5.
    pr_auc: average precision.
    ece: expected calibration error over 15 equal-width bins (Guo et al. 2017).
    calibration: sum of probabilities over sum of labels.
    base_rate: share of positives.
    """
    if len(labels) == 0:
        return dict.fromkeys(NAMES)
    z, y = logits.astype(np.float64), labels.astype(np.float64)
    preds = 1 / (1 + np.exp(-np.clip(z, -700, 700)))
    logloss = float(np.mean(np.logaddexp(0, z) - y * z))
    base_rate = float(y.mean())
    entropy = -sum(p * np.log(p) for p in (base_rate, 1 - base_rate) if p > 0)
    auc, pr_auc = _ranking(z, y)
    return {
        "auc": auc,
        "logloss": logloss,
        "ne": float(logloss / entropy) if entropy > 0 else None,
        "accuracy": float(np.mean((z > 0) == (y > 0.5))),
        "pr_auc": pr_auc,
        "ece": _calibration_error(preds, y),
        "calibration": float(preds.sum() / y.sum()) if y.any() else None,
        "base_rate": base_rate,
    }


def shortcomings(evaluation: Mapping[str, Any], best: Mapping[str, Any] | None, keeps_best: bool) -> list[str]:
    """What a run's last evaluation falls short of, its own best and chance, in sentences without a full stop.

    keeps_best: whether the checkpoint of the best evaluation is kept (checkpoint.keep_best).
    """
    auc, found = evaluation.get("auc"), []
    if auc is not None and best is not None and best["auc"] - auc > OVERFIT:
        remedy = (
            "evaluate that one with checkpoint=best" if keeps_best else "keep that one by checkpoint.keep_best=true"
        )
        found.append(f"Overfitted: the best AUC was {best['auc']:.5f} at step {best['step']:,}, and the last is "
                     f"{best['auc'] - auc:.5f} lower, {auc:.5f}; {remedy}")  # fmt: skip
    if auc is not None and auc <= 0.5:
        found.append(f"Learned nothing: AUC {auc:.5f} is no better than chance, 0.5; train on more rows or for more "
                     "steps (data.scale=tiny only shows that a recipe runs)")  # fmt: skip
    return found


def _ranking(scores: NDArray[np.float64], labels: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """ROC AUC and average precision from one sort; tied scores form one threshold."""
    num_positive = labels.sum()
    num_negative = len(labels) - num_positive
    if num_positive == 0 or num_negative == 0:
        return None, None
    order = np.argsort(-scores, kind="stable")
    last_of_tie = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    true_positives = np.cumsum(labels[order])[last_of_tie]
    false_positives = last_of_tie + 1 - true_positives
    new_positives = np.diff(true_positives, prepend=0)
    new_negatives = np.diff(false_positives, prepend=0)
    auc = np.sum(new_negatives * (true_positives - new_positives / 2)) / (num_positive * num_negative)
    precision = true_positives / (true_positives + false_positives)
    return float(auc), float(np.sum(precision * new_positives) / num_positive)


def _calibration_error(preds: NDArray[np.float64], labels: NDArray[np.float64]) -> float:
    bins = np.minimum((preds * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    gap = np.bincount(bins, weights=preds - labels, minlength=CALIBRATION_BINS)
    return float(np.abs(gap).sum() / len(preds))
