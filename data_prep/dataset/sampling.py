"""Rates of clicks from probabilities that sampling (data.sampling) or weights of classes (loss.class_weights) shift."""

import math
from collections.abc import Sequence

from data_prep.dataset.manifest import Manifest


def kept_share(manifest: Manifest) -> float:
    """Return the share of rows with label 0 that the dataset kept; 1 without sampling."""
    return 1 - float(manifest.encoding.get("negative_drop_rate") or 0)


def odds_factor(kept: float, class_weights: Sequence[float] | None) -> float:
    """Return the factor f that turns a probability p into p / (p + (1 - p) / f), the rate over all rows.

    Keeping a share of the negatives multiplies the odds of a click by 1 / kept; weights of label 0 and 1 multiply them
    by their ratio.
    """
    negative, positive = class_weights or (1.0, 1.0)
    return kept * negative / positive


def correction(kept: float, class_weights: Sequence[float] | None = None) -> float:
    """Return the logit offset of `odds_factor`.

    Raises:
        ValueError: no row with label 0 was kept.
    """
    return math.log(odds_factor(kept, class_weights))


def sampling_sentence(manifest: Manifest, class_weights: Sequence[float] | None = None) -> str | None:
    """Return a sentence about probabilities that are not the rates of all rows; None if they are."""
    kept = kept_share(manifest)
    factor = odds_factor(kept, class_weights)
    if factor == 1:
        return None
    reasons = []
    if kept != 1:
        reasons.append(
            f"{1 - kept:.4g} of the rows with label 0 were left out of all splits (data.sampling.negative_drop_rate)"
        )
    if class_weights:
        negative, positive = class_weights
        reasons.append(f"the loss weighs label 0 by {negative:g} and label 1 by {positive:g} (loss.class_weights)")
    return (
        f"{' and '.join(reasons)}, so predicted probabilities are too {'high' if factor < 1 else 'low'} for the rates "
        "of all rows; evaluate, recommend and export give those rates with correct_sampling=true"
    )
