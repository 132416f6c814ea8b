"""Scores of a run's model on the rows that its baselines are compared on."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.record.documents import write_scores
from app.training.predictor import Evaluation, Predictor, task_of
from data_prep.dataset.format import sampled_row_numbers
from extensions.baselines.command import obstacle
from extensions.baselines.rows import FOLDER, SAMPLE_ROWS


class SampledScores(NamedTuple):
    """Logits and labels, [n] float32 each, of at most SAMPLE_ROWS rows of a split by `sampled_row_numbers`.

    dataset: digest of the manifest.
    """

    split: str
    dataset: str
    logits: NDArray[np.float32]
    labels: NDArray[np.float32]

    def write(self, directory: Path, step: int) -> None:
        """Write the scores into the run's directory; `step` is that of the model that it serves."""
        write_scores(directory / FOLDER, self.split, step, self.dataset, self.logits, self.labels)


def sampled_scores(predictor: Predictor, evaluation: Evaluation) -> SampledScores | None:
    """Return the scores of the rows to compare baselines on; None on ranks other than 0 and without baselines."""
    config, manifest, split = predictor.config, predictor.manifest, str(evaluation.figures.split)
    is_wanted = config.baselines is not False and obstacle(config) is None and task_of(manifest).has_clicks
    is_wanted = is_wanted and not manifest.weight  # `compare` would not use them
    rows = int(evaluation.figures.samples or 0)
    if predictor.runtime.rank or not is_wanted or rows > config.eval.exact_rows:
        return None
    numbers = sampled_row_numbers([shard.rows for shard in manifest.splits[split].shards], SAMPLE_ROWS)
    return SampledScores(split, manifest.digest, evaluation.logits[numbers], evaluation.labels[numbers])
