"""Quality of the ranking within each user's samples, and AUC as in MLPerf's reference."""

import numpy as np
import torch
from numpy.typing import NDArray
from torchrec.metrics.auc import compute_auc

from app.metrics.users import grouped_auc


def user_metrics(
    logits: NDArray[np.float32], labels: NDArray[np.float32], users: NDArray[np.integer]
) -> dict[str, float | int | None]:
    """Compute metrics of logits [n] and labels [n] of 0 and 1 for samples of the users [n]; None if undefined.

    gauc, gauc_users: from `grouped_auc`.
    auc_torchrec: AUC of probabilities that counts ties in the order that the sort leaves.
    """
    metrics = {**grouped_auc(logits, labels, users), "auc_torchrec": None}
    is_positive = labels > 0.5
    if is_positive.any() and not is_positive.all():
        preds, truth = (torch.from_numpy(each)[None].double() for each in (logits, labels))
        metrics["auc_torchrec"] = float(compute_auc(1, [preds.sigmoid()], [truth], [torch.ones_like(truth)]))
    return metrics
