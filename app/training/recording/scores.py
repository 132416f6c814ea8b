"""Keeping a model's scores of a whole split: eval.keep_scores."""

import logging
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.checkpoint import files
from app.checkpoint.model_state import load_tensors
from app.config import AppConfig
from app.record.scores import TEST, write_scores
from app.training.predictor import Evaluation, Predictor
from app.training.session import Session
from data_prep.dataset.format import Manifest

log = logging.getLogger("clickwork")


def keep_served(session: Session, directory: Path, step: int) -> None:
    """Score the split of `split_of` by the model that the run serves; a collective call.

    step: of the session's parameters, which are those of the best checkpoint afterwards, if the run keeps one.
    """
    config = session.config
    if not config.eval.keep_scores:
        return
    split = split_of(config, session.manifest)
    if not is_within(config.eval.keep_scores, split, session.split(split).rows, config.eval.exact_rows):
        return
    best = session.runtime.on_rank_0(lambda: str(files.pointed_to(directory / files.CHECKPOINTS, files.BEST) or ""))
    if best and Path(best).name != files.checkpoint_name(step):
        load_tensors(Path(best), session.model, optimizer=None)
        step = files.read_state(Path(best)).step
    keep(session, session.evaluate(split), directory, step)


def split_of(config: AppConfig, manifest: Manifest) -> str:
    """The split whose scores a run keeps: test, or the evaluated one of a dataset without it."""
    has_test = TEST in manifest.splits and manifest.splits[TEST].rows > 0
    return TEST if has_test else config.eval.split


def is_within(limit: int, split: str, rows: int, exact_rows: int) -> bool:
    """Whether the scores of a split are few enough to be kept; a warning if not."""
    if rows > limit:
        log.warning(
            "keep_scores=%d: %s has %s rows, so no scores are kept; give keep_scores=%d",
            limit,
            split,
            f"{rows:,}",
            rows,
        )
    elif rows > exact_rows:
        log.warning("keep_scores: %s has more rows than exact_rows=%d, so no scores are kept", split, exact_rows)
    return rows <= min(limit, exact_rows)


def keep(predictor: Predictor, evaluation: Evaluation, directory: Path, step: int) -> None:
    """Write the scores of an evaluation of all rows into a run's directory, on rank 0; a collective call."""
    split, rows = str(evaluation.figures.split), int(evaluation.figures.samples or 0)

    def write() -> str:
        logits, labels = evaluation.logits, evaluation.labels
        if not predictor.manifest.kind.windows:  # whose order is that of the processes
            places = places_of_rows(
                np.arange(rows), rows, predictor.eval_batch_size(rows), predictor.runtime.world_size
            )
            logits, labels = logits[places], labels[places]
        return str(write_scores(directory, split, step, predictor.manifest.digest, logits, labels))

    log.info("scores: %s", predictor.runtime.on_rank_0(write))


def places_of_rows(numbers: NDArray[np.int64], rows: int, batch_size: int, world_size: int = 1) -> NDArray[np.int64]:
    """Where an evaluation of a split of `rows` rows has those with these numbers.

    The scores of one process follow those of another, and each process scores an equal part of each batch.
    """
    local_size = batch_size // world_size
    batches, last_rows = divmod(rows, batch_size)
    last_parts = np.clip(last_rows - local_size * np.arange(world_size), 0, local_size)
    starts = np.cumsum([0, *(batches * local_size + last_parts)])
    batch, place = np.divmod(numbers, batch_size)
    rank, local_place = np.divmod(place, local_size)
    places: NDArray[np.int64] = starts[rank] + batch * local_size + local_place
    return places
