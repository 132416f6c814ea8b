"""Rows with label 0 that were left out of a dataset (data.sampling), and the correction of probabilities for it."""

import math

from data_prep.dataset.manifest import Manifest


def kept_share(manifest: Manifest) -> float:
    """Share of the rows with label 0 that all splits kept; 1 of a dataset that kept all rows."""
    return 1 - float(manifest.encoding.get("negative_drop_rate") or 0)


def correction(kept: float) -> float:
    """Return the offset of a logit that turns its probability p into p / (p + (1 - p) / kept), that of all rows.

    Keeping a share of the negatives multiplies the odds of a click by 1 / kept; this divides them again.

    Raises:
        ValueError: no row with label 0 was kept.
    """
    return math.log(kept)


def sampling_sentence(manifest: Manifest) -> str | None:
    """A sentence on what the probabilities of sampled rows are of; None if all rows were kept."""
    kept = kept_share(manifest)
    if kept == 1:
        return None
    return (
        f"{1 - kept:.4g} of the rows with label 0 were left out of all splits (data.sampling.negative_drop_rate), so "
        "predicted probabilities are those of the rows that were kept, and too high for all rows; evaluate, recommend "
        "and export give those of all rows with correct_sampling=true"
    )
