"""Comparison of a run's model with its baselines on the same rows, by DeLong's test."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.record.scores import Scores, read_scores
from app.report.statistics import delong
from common.errors import UserError
from data_prep.dataset.format import Manifest
from data_prep.dataset.sample import sampled_numbers
from extensions.baselines.cache import Scored, numbers_of
from extensions.baselines.rows import FOLDER, SAMPLE_ROWS


def compare(scored: Scored, manifest: Manifest, directory: Path, step: int | None, rows: int | None) -> None:
    """Set the difference of each baseline to the run's model, or why there is none.

    The model's scores are those that training kept, or else those of the whole split (keep_scores of evaluate).

    Args:
        step: step of the model that the run serves.
        rows: maximum rows of the split that baselines were scored on; None: all.
    """
    figures = scored.figures
    split = figures.split
    numbers = numbers_of(manifest, split, rows)
    try:
        if manifest.weight:
            raise UserError(f"the rows have sample weights ({manifest.weight}), which DeLong's test does not take")
        places, kept = _scores_of(directory, manifest, split, step, numbers)
        labels, logits = kept.labels[places], kept.logits[places]
        if labels.all() or not labels.any():
            raise UserError(f"the {len(labels):,} rows that both scored have one label")
    except UserError as error:
        figures.not_compared = str(error)
        return
    figures.compared_rows = len(labels)
    for name in scored.ranks:
        difference = delong(labels, scored.ranks_of(name).astype(np.float64), logits)
        baseline = getattr(figures, name)
        baseline.difference = difference.mean
        ends = (difference.low, difference.high)
        baseline.difference_interval = None if None in ends else [end for end in ends if end is not None]


def _scores_of(
    directory: Path, manifest: Manifest, split: str, step: int | None, numbers: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Scores]:
    """Return the kept scores of the served model, and the places in them of the rows with these numbers.

    Raises:
        UserError: there are none; the remedy makes them.
    """
    shard_rows = [shard.rows for shard in manifest.splits[split].shards]
    for place, limit in ((directory / FOLDER, SAMPLE_ROWS), (directory, None)):
        try:
            kept = read_scores(place, split)
        except (FileNotFoundError, UserError):  # damaged scores count as missing
            continue
        if (kept.about.dataset, kept.about.step) == (manifest.digest, step):
            return np.searchsorted(sampled_numbers(shard_rows, limit), numbers), kept
    raise UserError(
        f"the run kept no scores of {split} by its model of step {step}; python -m app.evaluate run={directory} "
        f"split={split} keep_scores={sum(shard_rows)} keeps them, and python -m app.baselines run={directory} compares"
    )
