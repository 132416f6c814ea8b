"""Negative sampling (data.sampling): rows with label 0 left out of a dataset, and the correction of probabilities."""

import math

from data_prep.dataset.manifest import Manifest


def kept_share(manifest: Manifest) -> float:
    """Return the share of rows with label 0 that the dataset kept; 1 without sampling."""
    return 1 - float(manifest.encoding.get("negative_drop_rate") or 0)


def correction(kept: float) -> float:
    """Return the logit offset that turns a probability p into p / (p + (1 - p) / kept), the probability over all rows.

    Keeping a share of the negatives multiplies the odds of a click by 1 / kept; the offset undoes this.

    Raises:
        ValueError: no row with label 0 was kept.
    """
    return math.log(kept)


def sampling_sentence(manifest: Manifest) -> str | None:
    """Return a sentence about probabilities learned from sampled rows; None if all rows were kept."""
    kept = kept_share(manifest)
    if kept == 1:
        return None
    return (
        f"{1 - kept:.4g} of the rows with label 0 were left out of all splits (data.sampling.negative_drop_rate), so "
        "predicted probabilities are those of the rows that were kept, and too high for all rows; evaluate, recommend "
        "and export give those of all rows with correct_sampling=true"
    )
