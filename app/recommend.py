"""python -m app.recommend run=runs/NAME candidates=FILE: rank candidates by a run's model, best first.

New rows are encoded as the run's dataset was, by its own vocabulary, and values that it does not contain are reported.
Of a dataset of events, items are ranked for one of its users (user=ID) after the events that it holds of this user.
A score depends on nothing but its candidate: neither on the order nor on the number of the others.
"""

if __name__ == "__main__":  # first: what is imported below may take seconds
    from app.commands import COMMANDS
    from common.cli import run

    run(COMMANDS["recommend"])


import logging
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.config import AppConfig, validate
from app.config.commands import RecommendConfig
from app.config.model import require_own_scores
from app.data.batch import RowArrays
from app.data.split import BatchMaker
from app.runtime import process_group
from app.runtime.platform import Runtime
from app.scoring import ranking
from app.scoring.candidates import ignored_columns, row_names, with_user
from app.scoring.ranking import ALL, Scored
from app.training import predictor, resume
from app.training.labels import task_of
from app.training.predictor import Predictor
from app.training.resume import TrainedRun
from common.cli import EXIT_DONE
from common.errors import UserError
from common.files import write_atomically
from data_prep.encoding.encoder import EncodedBlock, Encoder
from data_prep.encoding.new_rows import NewRows, read_new_rows

log = logging.getLogger("clickwork")

PIECE_ROWS = 256  # fixed, with padding: matrix products of one shape sum each row in one order


def main(config: RecommendConfig) -> int:
    """Rank as configured; return the exit status."""
    directory = Path(config.run)
    trained = resume.trained_config(directory, config.runtime, config.data.path)
    validate(trained)
    require_own_scores(trained.model, "recommend")
    parts = trained.model.parts
    score = score_rows if parts is None else parts.rank
    with process_group.joined(trained, process_group.READING) as runtime:
        run = resume.open_checkpoint(directory, config.checkpoint, trained, runtime)
        correction = run.correction(config.correct_sampling)
        scored = score(config, trained, run, runtime)
        _require_finite(scored.logits)
        has_clicks = task_of(run.manifest).has_clicks
        ranked = ranking.rank(*scored[:-1], has_clicks, correction)
        run.log_choice()
        if runtime.rank == 0:
            counts = zip(scored.features, scored.unknown.sum(axis=0).tolist(), strict=True)
            about = {
                "run": str(directory),
                **run.about,
                **run.about_sampling(config.correct_sampling),
                "candidates": len(scored.names),
                "out_of_vocabulary": {feature: count for feature, count in counts if count},
                **scored.about,
            }
            _report(config, ranked[: config.top_k], about)
    return EXIT_DONE


def _require_finite(logits: NDArray[np.float32]) -> None:
    """Raises UserError for logits that cannot be ranked."""
    if bad := int(np.count_nonzero(~np.isfinite(logits))):
        raise UserError(
            f"candidates: {bad:,} of {len(logits):,} logits are not finite: the model is lost, or the "
            "dense features are too large; choose another checkpoint, or correct the rows"
        )


def score_rows(config: RecommendConfig, trained: AppConfig, run: TrainedRun, runtime: Runtime) -> Scored:
    """New rows, encoded as the dataset was.

    Raises:
        UserError: a time or `candidates=all` is given, or the rows lack a column or have an invalid value.
    """
    if config.time is not None:
        raise UserError(f"time={config.time}: is of datasets of events, and {run.root} holds rows; leave it out")
    if config.candidates == ALL:
        raise UserError(f"candidates={ALL}: is of datasets of events, and {run.root} holds rows; name a file of rows")
    encoder = Encoder.load(run.root)
    candidates = _read(config, encoder)
    block = encoder.parse_columns(candidates.columns, candidates.name, candidates.numbers)
    order = _canonical_order(candidates, encoder)
    scorer = predictor.load(run.path, trained, runtime, run.root, run.manifest)
    logits = _score(scorer, encoder.encode(block), order)
    names = row_names(candidates, config.id_column)
    return Scored(names, logits, order, encoder.unknown(block), encoder.features, {})


def _read(config: RecommendConfig, encoder: Encoder) -> NewRows:
    """The candidates with all columns that the model reads."""
    columns = encoder.input_columns
    shape = encoder.shape((*columns, config.id_column))
    candidates = read_new_rows(Path(config.candidates), shape)
    if config.user is not None:
        candidates = with_user(candidates, read_new_rows(Path(config.user), shape))
    if ignored := ignored_columns(candidates, columns, spare=(config.id_column, encoder.schema.label)):
        log.info("candidates: the model does not read %s", ", ".join(ignored))
    return candidates


def _canonical_order(candidates: NewRows, encoder: Encoder) -> NDArray[np.int64]:
    """The candidates sorted by their features' text, [n]: the same whatever order they came in."""
    columns = [list(map(str, candidates.values(name))) for name in encoder.input_columns]
    order = sorted(range(len(candidates.numbers)), key=lambda row: [column[row] for column in columns])
    return np.array(order, np.int64)


def _score(scorer: Predictor, block: EncodedBlock, order: NDArray[np.int64]) -> NDArray[np.float32]:
    """Logits [n] of the rows as they are numbered, computed in the given order."""
    rows = RowArrays(block.labels.astype(np.float32), block.dense, block.sparse, block.bags)
    make = BatchMaker(scorer.root, scorer.manifest, scorer.config.data).of_size(PIECE_ROWS)
    starts = range(0, len(order), PIECE_ROWS)
    pieces = (make.batch(rows.take(order[start : start + PIECE_ROWS])) for start in starts)
    logits = np.empty(len(order), np.float32)
    logits[order] = scorer.score(pieces).logits
    return logits


def _report(config: RecommendConfig, ranked: ranking.Ranking, about: dict[str, object]) -> None:
    """Print the table; write the file, if one is wanted."""
    print(ranking.to_table(ranked), end="")
    unknown = about["out_of_vocabulary"]
    assert isinstance(unknown, dict)
    if unknown:
        counts = ", ".join(f"{feature} {count}" for feature, count in unknown.items())
        log.info("out of vocabulary, of %d candidates: %s", about["candidates"], counts)
    if config.out is not None:
        path = Path(config.out)
        text = ranking.to_json(ranked, about) if path.suffix == ".json" else ranking.to_csv(ranked)
        write_atomically(path, text.encode())
