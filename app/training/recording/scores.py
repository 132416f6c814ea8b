"""The scores of a whole split that a run keeps: eval.keep_scores."""

import logging
from pathlib import Path

from app.checkpoint import files
from app.checkpoint.model_state import load_tensors
from app.config import EvalConfig
from app.record.scores import TEST, write_scores
from app.training.predictor import Evaluation, Predictor
from app.training.session import Session
from data_prep.dataset.format import Manifest

log = logging.getLogger("clickwork")


def keep_served(session: Session, directory: Path, step: int) -> None:
    """Score the split of `kept_split` with the model that the run serves, and write the scores; a collective call.

    step: of the session's parameters. If the run keeps a best checkpoint, the parameters are that one's afterwards.
    """
    config = session.config
    split = kept_split(config.eval, session.manifest)
    if split is None:
        return
    if not is_within(config.eval.keep_scores, split, session.predictor.split(split).rows, config.eval.exact_rows):
        return
    best = session.runtime.on_rank_0(lambda: str(files.pointed_to(directory / files.CHECKPOINTS, files.BEST) or ""))
    if best and Path(best).name != files.checkpoint_name(step):
        load_tensors(Path(best), session.model, optimizer=None)
        step = files.read_state(Path(best)).step
    keep(session.predictor, session.predictor.evaluate(split), directory, step)


def kept_split(config: EvalConfig, manifest: Manifest) -> str | None:
    """Return the split whose scores a run keeps, if any: test, or the evaluated split if the dataset has no test."""
    if not config.keep_scores:
        return None
    has_test = TEST in manifest.splits and manifest.splits[TEST].rows > 0
    return TEST if has_test else config.split


def is_within(limit: int, split: str, rows: int, exact_rows: int) -> bool:
    """Return whether a split has few enough scores to keep; log a warning if not."""
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
    """Write the scores of a whole split's evaluation into a run's directory, on rank 0; a collective call."""
    split, digest = str(evaluation.figures.split), predictor.manifest.digest

    def write() -> str:
        return str(write_scores(directory, split, step, digest, evaluation.logits, evaluation.labels))

    log.info("scores: %s", predictor.runtime.on_rank_0(write))
