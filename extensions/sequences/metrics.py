"""Quality of the ranking within each user's samples, and AUC as MLPerf's reference computes it."""

import numpy as np
import torch
from numpy.typing import NDArray
from torchrec.metrics.auc import compute_auc

from app.metrics.users import grouped_auc


def user_metrics(
    logits: NDArray[np.float32], labels: NDArray[np.float32], users: NDArray[np.integer]
) -> dict[str, float | int | None]:
    """Metrics of logits [n] against labels [n] of 0 and 1, of samples of the users [n]; None where undefined.

    gauc, gauc_users: as of `grouped_auc`.
    auc_torchrec: AUC of probabilities, whose ties count in the order that the sort leaves them in.
    """
    metrics = {**grouped_auc(logits, labels, users), "auc_torchrec": None}
    is_positive = labels > 0.5
    if is_positive.any() and not is_positive.all():
        preds, truth = (torch.from_numpy(each)[None].double() for each in (logits, labels))
        metrics["auc_torchrec"] = float(compute_auc(1, [preds.sigmoid()], [truth], [torch.ones_like(truth)]))
    return metrics
