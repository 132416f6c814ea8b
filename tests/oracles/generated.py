"""Generated days as docs/synthetic.md describes them, in plain lines: best scores."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import log_loss, roc_auc_score

Floats = NDArray[np.float64]


def expected_scores(truth: Floats) -> dict[str, float]:
    """Scores of the true probabilities in expectation: each row counts as a click and as none, by their probability."""
    labels, scores = np.repeat([1, 0], len(truth)), np.tile(truth, 2)
    weights, rate = np.concatenate((truth, 1 - truth)), truth.mean()
    logloss = log_loss(labels, scores, sample_weight=weights)
    entropy = -rate * np.log(rate) - (1 - rate) * np.log(1 - rate)
    auc = roc_auc_score(labels, scores, sample_weight=weights)
    return {"auc": auc, "logloss": logloss, "ne": logloss / entropy, "base_rate": rate, "rows": len(truth)}


def sampled_scores(truth: Floats, labels: list[int]) -> dict[str, float]:
    """Scores against the drawn labels; none where they are of one kind."""
    if len(set(labels)) < 2:
        return {}
    return {"sampled_auc": roc_auc_score(labels, truth), "sampled_logloss": log_loss(labels, truth)}


def after_dropping(truth: Floats, negative_drop_rate: float) -> Floats:
    """A row's click probability once a share of the negatives was left out (Bayes' rule)."""
    keep_rate = 1 - negative_drop_rate
    return np.asarray(truth / (truth + (1 - truth) * keep_rate))


def check_labels(truth: Floats, labels: list[int]) -> None:
    """Labels were drawn from their probabilities: in all, and in each quarter of the rows by probability."""
    order = np.argsort(truth, kind="stable")
    for part in [order, *np.array_split(order, 4)]:
        p = truth[part]
        assert abs(np.sum(np.array(labels)[part] - p)) <= 5 * np.sqrt(np.sum(p * (1 - p))) + 1


def row_of(line: str, ids: int) -> tuple[Any, ...]:
    """Label, numbers and hashed ids of a raw row in Criteo's format."""
    label, *fields = line.rstrip("\n").split("\t")
    numbers = [int(field or 0) for field in fields[:13]]
    return int(label), numbers, [int(field or "0", 16) % ids for field in fields[13:]]
