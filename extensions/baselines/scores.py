"""Scores of a run's model on the rows that its baselines are compared on."""

from collections.abc import Callable
from pathlib import Path

from app.record.documents import write_scores
from app.training.predictor import Evaluation, Predictor, task_of
from data_prep.dataset.format import sampled_row_numbers
from extensions.baselines.command import obstacle
from extensions.baselines.fit import FOLDER, SAMPLE_ROWS


def score_writer(predictor: Predictor, evaluation: Evaluation) -> Callable[[Path, int], None] | None:
    """Return a function of a run's directory and a step, which writes the scores of the rows to compare baselines on.

    It has at most SAMPLE_ROWS rows of the split. None on ranks other than 0, and without baselines.
    """
    config, manifest, split = predictor.config, predictor.manifest, str(evaluation.figures.split)
    is_wanted = config.baselines is not False and obstacle(config) is None and task_of(manifest).has_clicks
    is_wanted = is_wanted and not manifest.weight  # `compare` would not use them
    rows = int(evaluation.figures.samples or 0)
    if predictor.runtime.rank or not is_wanted or rows > config.eval.exact_rows:
        return None
    numbers = sampled_row_numbers([shard.rows for shard in manifest.splits[split].shards], SAMPLE_ROWS)
    logits, labels = evaluation.logits[numbers], evaluation.labels[numbers]

    def write(directory: Path, step: int) -> None:
        write_scores(directory / FOLDER, split, step, manifest.digest, logits, labels)

    return write
