"""python -m app.train: prepare the data if need be, train, evaluate, write the run's directory.

Exit status: 0 done; 2 bad input or configuration; 75 stopped by a signal after a checkpoint (the same command
goes on from there). Under `torchrun --nproc-per-node N -m app.train` it runs on N processes.
"""

import logging
import sys
from dataclasses import replace
from pathlib import Path

from app import checkpoint, prepare, progress, runtime, session
from app.config import CONFIG_DIR, AppConfig
from app.data import verify_splits
from app.record import Record, read_summary
from app.run import Run
from app.signals import StopRequest
from app.validation import validate
from common.cli import EXIT_DONE, EXIT_STOPPED, run_command
from data_prep.format import load_manifest

log = logging.getLogger("clickwork")


def main(config: AppConfig) -> int:
    """Train as configured; return the exit status."""
    validate(config)
    stop = StopRequest()
    here = runtime.start(config.runtime, config.train.seed, config.train.deterministic)
    progress.log_to_terminal(here.rank)
    try:
        root = prepare.dataset_path(config.data)
        here.on_rank_0(lambda: prepare.prepare(config.data))
        manifest = load_manifest(root)
        here.on_rank_0(lambda: verify_splits(root, manifest, ["train", config.eval.split], config.data.verify))
        record = Record(Path(config.run.dir), writes=here.rank == 0)
        start = _starting_point(config, record)
        config.data = replace(config.data, path=str(root))
        config.runtime = replace(config.runtime, num_threads=here.num_threads)
        run = Run(session.build(config, here, root, manifest), record, stop)
        if start is not None:
            run.restore(start)
        before = read_summary(record.directory)
        if start is not None and before is not None and run.is_done(before):
            log.info("%s: %s already, nothing to do; give another run.name, or checkpoint.resume=never to start over",
                     record.directory, before["status"])  # fmt: skip
            return EXIT_DONE
        return EXIT_STOPPED if run.train() == "interrupted" else EXIT_DONE
    finally:
        runtime.stop()


def _starting_point(config: AppConfig, record: Record) -> Path | None:
    """The checkpoint to go on from, if any."""
    resume = config.checkpoint.resume
    if resume == "auto":
        return checkpoint.newest(record.checkpoints)
    if resume == "never":
        record.clear()
        return None
    return Path(resume)


if __name__ == "__main__":
    sys.exit(run_command(main, AppConfig, CONFIG_DIR))
