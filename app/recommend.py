"""python -m app.recommend run=runs/NAME candidates=FILE: rank candidates by a run's model, best first.

New rows are encoded as the run's dataset was, by its own vocabulary, and values that it does not contain are reported.
A score depends on nothing but its candidate: neither on the order nor on the number of the others.
"""

import logging
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.checkpoint.model_state import load_tensors
from app.config import CONFIG_DIR, validate
from app.config.commands import RecommendConfig, validate_recommend
from app.config.model import require_dlrm
from app.data.batch import RowArrays
from app.data.split import BatchMaker
from app.runtime import platform, process_group
from app.scoring import ranking
from app.scoring.candidates import Candidates, ignored_columns, read_candidates, row_names, with_user
from app.training import resume, session
from app.training.session import Session
from common.cli import EXIT_DONE, run_command
from data_prep.dataset.format import write_atomically
from data_prep.encoding.encoder import EncodedBlock, Encoder

log = logging.getLogger("clickwork")

PIECE_ROWS = 256  # fixed, with padding: matrix products of one shape sum each row in one order


def main(config: RecommendConfig) -> int:
    """Rank as configured; return the exit status."""
    validate_recommend(config)
    directory = Path(config.run)
    trained = resume.trained_config(directory, config.runtime, config.data.path)
    validate(trained)
    require_dlrm(trained.model, "recommend")
    with process_group.joined(trained, process_group.READING) as here:
        run = resume.open_checkpoint(directory, config.checkpoint, trained, here)
        encoder = Encoder.load(run.root)
        candidates = _read(config, encoder)
        block = encoder.parse_columns(candidates.columns, config.candidates, candidates.first_row)
        this = session.build(trained, here, run.root, run.manifest)
        load_tensors(run.path, this.model, optimizer=None)
        order = _canonical_order(candidates, encoder)
        logits = _score(this, encoder.encode(block), order)
        unknown = encoder.unknown(block)
        names = row_names(candidates, config.id_column)
        ranked = ranking.rank(names, logits, order, unknown, encoder.features)
        if here.rank == 0:
            counts = zip(encoder.features, unknown.sum(axis=0).tolist(), strict=True)
            about = {
                "run": str(directory),
                "checkpoint": run.path.name,
                "step": run.state["step"],
                "candidates": candidates.rows,
                "out_of_vocabulary": {feature: count for feature, count in counts if count},
            }
            _report(config, ranked[: config.top_k], about)
    return EXIT_DONE


def _read(config: RecommendConfig, encoder: Encoder) -> Candidates:
    """The candidates with all columns that the model reads."""
    path, label = Path(config.candidates), encoder.schema.label
    form = (encoder.raw_columns, label, encoder.separators)
    candidates = read_candidates(path, *form)
    if config.user is not None:
        user = Path(config.user)
        candidates = with_user(candidates, read_candidates(user, *form), user)
    wanted = encoder.input_columns
    ignored = ignored_columns(candidates, path, wanted, spare=(config.id_column, label))
    if ignored:
        log.info("candidates: the model does not read %s", ", ".join(ignored))
    return candidates


def _canonical_order(candidates: Candidates, encoder: Encoder) -> NDArray[np.int64]:
    """The candidates sorted by their features' text, [n]: the same whatever order they came in."""
    columns = [candidates.columns[name] for name in encoder.input_columns]
    order = sorted(range(candidates.rows), key=lambda row: [column[row] for column in columns])
    return np.array(order, np.int64)


def _score(session: Session, block: EncodedBlock, order: NDArray[np.int64]) -> NDArray[np.float32]:
    """Logits [n] of the rows as they are numbered, computed in the given order."""
    rows = RowArrays(block.labels.astype(np.float32), block.dense, block.sparse, block.bags)
    make = BatchMaker(session.root, session.manifest, session.config.data).of_size(PIECE_ROWS)
    starts = range(0, len(order), PIECE_ROWS)
    pieces = (make.batch(rows.take(order[start : start + PIECE_ROWS])) for start in starts)
    logits = np.empty(len(order), np.float32)
    logits[order] = session.score(pieces).logits
    return logits


def _report(config: RecommendConfig, ranked: list[ranking.Ranked], about: dict[str, object]) -> None:
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


if __name__ == "__main__":
    platform.leave(run_command(main, RecommendConfig, CONFIG_DIR, name="recommend"))
