"""Generated days and traces as docs/synthetic.md describes them, in plain lines: best scores, stack distances."""

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


def stack_distances(ids: list[int]) -> list[int | None]:
    """Of each access the different ids used since the last use of its id, by a list; None at its first use."""
    stack: list[int] = []
    distances: list[int | None] = []
    for identity in ids:
        distances.append(stack.index(identity) if identity in stack else None)
        if identity in stack:
            stack.remove(identity)
        stack.insert(0, identity)
    return distances


def hit_rates(distances: list[int | None], sizes: int) -> Floats:
    """Share of the accesses that an LRU cache of 1, 2, … `sizes` rows hits."""
    counts = np.bincount([d for d in distances if d is not None], minlength=sizes)[:sizes]
    return np.asarray(np.cumsum(counts) / len(distances))
