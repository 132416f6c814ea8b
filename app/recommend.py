"""python -m app.recommend run=runs/NAME candidates=FILE: rank candidates by a run's model, best first.

New rows are encoded as the run's dataset was, by its own vocabulary; which values it did not know is told. A score
depends on its candidate alone: not on the order, the number or the company of the others, nor on batch_size.
"""

import csv
import io
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app import checkpoint, progress, resume, runtime, scoring, session
from app.candidates import Candidates, ignored_columns, read_candidates, row_names, with_user
from app.config import CONFIG_DIR
from app.config.recommend import RecommendConfig, validate_recommend
from app.validation import validate
from common.cli import EXIT_DONE, run_command
from common.errors import UserError
from data_prep.encode import Encoder
from data_prep.format import load_manifest, write_atomically

log = logging.getLogger("clickwork")

OUT_SUFFIXES = (".json", ".csv")


def main(config: RecommendConfig) -> int:
    """Rank as configured; return the exit status."""
    validate_recommend(config)
    if config.out is not None and Path(config.out).suffix not in OUT_SUFFIXES:
        raise UserError(f"out={config.out}: the name must end in {' or '.join(OUT_SUFFIXES)}")
    directory = Path(config.run)
    trained = resume.trained_config(directory, config.runtime, config.data_path)
    validate(trained)
    here = runtime.start(trained.runtime, trained.train.seed, trained.train.deterministic)
    progress.log_to_terminal(here.rank)
    try:
        root = Path(trained.data.path or "")
        path = Path(here.on_rank_0(lambda: resume.newest_of(directory, config.checkpoint)))
        manifest = load_manifest(root)
        if manifest.digest != checkpoint.read(path).state["dataset_digest"]:
            raise UserError(f"{root}: not the dataset that {path} was trained on; give data_path=")
        encoder = Encoder.load(root)
        candidates = _read(config, encoder)
        block = encoder.parse_columns(candidates.columns, config.candidates, candidates.first_row)
        this = session.build(trained, here, root, manifest)
        resume.load_tensors(path, this, with_optimizer=False)
        logits = scoring.score(this, encoder.encode(block), config.batch_size)
        names = row_names(candidates, config.id_column)
        ranking = _rank(names, logits, encoder.unknown(block), encoder.features)
        if here.rank == 0:
            _tell(config, path, ranking, block_unknown=_counts(encoder.unknown(block), encoder.features))
    finally:
        runtime.stop()
    return EXIT_DONE


if __name__ == "__main__":
    runtime.leave(run_command(main, RecommendConfig, CONFIG_DIR, name="recommend"))
