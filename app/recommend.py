"""python -m app.recommend run=runs/NAME candidates=FILE: rank candidates by a run's model, best first.

New rows are encoded as the run's dataset was, by its own vocabulary, and values that it does not contain are reported.
Of a dataset of events, items are ranked for one of its users (user=ID) after the events that it holds of this user.
A score depends on nothing but its candidate: neither on the order nor on the number of the others.
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from app.commands import COMMANDS
    from common.cli import run

    run(COMMANDS["recommend"])


from pathlib import Path

from app import scoring
from app.config.app_config import AppConfig, validate
from app.config.commands import RecommendConfig
from app.config.model import require_own_scores
from app.runtime import platform
from app.runtime.platform import Runtime
from app.scoring import (
    ALL,
    NONE_SCORED,
    RowScorer,
    Scored,
    fill_from_user,
    log_unknown,
    parse,
    require_finite,
    unknown_counts,
)
from app.training import checkpointer, predictor
from app.training.checkpointer import TrainedRun
from app.training.predictor import task_of
from common.errors import UserError
from common.files import write_atomically
from data_prep.encoding import Encoder, read_new_rows


def main(config: RecommendConfig) -> None:
    """Rank as configured."""
    directory = Path(config.run)
    trained = checkpointer.trained_config(directory, config.runtime, config.data.path)
    validate(trained)
    require_own_scores(trained.model, "recommend")
    parts = trained.model.parts
    score = score_rows if parts is None else parts.rank
    with platform.joined(trained, platform.READING) as runtime:
        run = checkpointer.open_checkpoint(directory, config.checkpoint, trained.data.path, runtime)
        correction = run.correction(config.correct_sampling)
        scored = score(config, trained, run, runtime)
        require_finite(scored.logits)
        has_clicks = task_of(run.manifest).has_clicks
        ranked = scoring.rank(scored, has_clicks, correction)[: config.top_k]
        run.log_chosen_checkpoint()
        if runtime.rank == 0:
            unknown = unknown_counts(scored.features, scored.unknown)
            about = {
                "run": str(directory),
                **run.about,
                **run.about_sampling(config.correct_sampling),
                "candidates": len(scored.names),
                "out_of_vocabulary": unknown,
                **scored.about,
            }
            print(scoring.to_table(ranked), end="")
            if config.out is not None:
                is_json = Path(config.out).suffix == ".json"
                text = scoring.to_json(ranked, about) if is_json else scoring.to_csv(ranked)
                write_atomically(Path(config.out), text.encode())
            log_unknown(unknown, len(scored.names))


def score_rows(config: RecommendConfig, trained: AppConfig, run: TrainedRun, runtime: Runtime) -> Scored:
    """Return the scores of the candidates, encoded like the dataset; NONE_SCORED if there are none."""
    if config.time is not None:
        raise UserError(f"time={config.time}: is of datasets of events, and {run.root} holds rows; leave it out")
    if config.candidates == ALL:
        raise UserError(f"candidates={ALL}: is of datasets of events, and {run.root} holds rows; name a file of rows")
    encoder = Encoder.load(run.root)
    shape = encoder.shape((*encoder.input_columns, config.id_column))
    candidates = read_new_rows(Path(config.candidates), shape)
    # The user's row fills in columns that the candidates lack.
    if config.user is not None:
        candidates = fill_from_user(candidates, read_new_rows(Path(config.user), shape))
    if not candidates.numbers:
        return NONE_SCORED
    block = parse(encoder, candidates, config.id_column)
    scorer = RowScorer(encoder, predictor.load(run.path, trained, runtime, run.root, run.manifest))
    return scorer.scored(candidates, block, config.id_column)
