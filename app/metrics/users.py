"""Quality of the ranking within each user's samples, and AUC as MLPerf's reference computes it."""

import numpy as np
from numpy.typing import NDArray


def user_metrics(
    logits: NDArray[np.float32], labels: NDArray[np.float32], users: NDArray[np.integer]
) -> dict[str, float | int | None]:
    """Metrics of logits [n] against labels [n] of 0 and 1, of samples of the users [n]; None where undefined.

    gauc: mean of users' AUCs, ties counted half, each user once; without users of one label or of one score alone.
    gauc_users: number of users in it.
    auc_torchrec: AUC of probabilities, whose ties count in the order that the sort leaves them in.
    """
    import torch  # both take seconds to import: only for datasets of events
    from torchrec.metrics.auc import compute_auc

    metrics: dict[str, float | int | None] = {"gauc": None, "gauc_users": 0, "auc_torchrec": None}
    is_positive = labels > 0.5
    if is_positive.all() or not is_positive.any():
        return metrics
    preds, truth = (torch.from_numpy(each)[None].double() for each in (logits, labels))
    metrics["auc_torchrec"] = float(compute_auc(1, [preds.sigmoid()], [truth], [torch.ones_like(truth)]))
    order = np.lexsort((logits, users))
    logits, is_positive, users = logits[order], is_positive[order], users[order]
    is_first = np.append(True, users[1:] != users[:-1])
    starts = np.flatnonzero(is_first)
    counts = np.diff(np.append(starts, len(users)))
    ties = np.flatnonzero(is_first | np.append(True, logits[1:] != logits[:-1]))
    sizes = np.diff(np.append(ties, len(users)))
    ranks = np.repeat(ties + (sizes + 1) / 2, sizes) - np.repeat(starts, counts)  # from 1, within a user
    positives = np.add.reduceat(is_positive, starts, dtype=np.int64)
    pairs = positives * (counts - positives)
    areas = np.add.reduceat(ranks * is_positive, starts) - positives * (positives + 1) / 2
    is_counted = (pairs > 0) & (logits[starts] < logits[starts + counts - 1])
    if is_counted.any():
        metrics["gauc"] = float((areas[is_counted] / pairs[is_counted]).mean())
        metrics["gauc_users"] = int(is_counted.sum())
    return metrics
