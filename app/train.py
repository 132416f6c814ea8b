"""python -m app.train: prepare the data if need be, train, evaluate, write the run's directory.

Exit status: 0 done; 2 bad input or configuration; 75 stopped by a signal after a checkpoint (the same command
resumes from there). Under `torchrun --nproc-per-node N -m app.train` it runs on N processes.
"""

import logging
import time
from dataclasses import replace
from pathlib import Path

from app.checkpoint import files
from app.config import CONFIG_DIR, AppConfig, validate_new_run
from app.config.train import with_batch_of_all
from app.data import prepare
from app.data.shards import verify_splits
from app.record.directory import RunDirectory
from app.record.reading import read_summary
from app.report.page import write_report
from app.runtime import environment, platform, process_group
from app.runtime.signals import StopRequest
from app.trackers.run_trackers import require_clients
from app.training import meta_build, session
from app.training.run import TrainingRun
from common.cli import EXIT_DONE, EXIT_STOPPED, run_command
from data_prep.dataset.format import load_manifest

log = logging.getLogger("clickwork")


def main(config: AppConfig) -> int:
    """Train as configured; return the exit status."""
    began = time.perf_counter()
    validate_new_run(config)
    require_clients(config)
    stop = StopRequest()
    only_built = meta_build.is_wanted(config)
    arithmetic = replace(config.runtime, precision=None) if only_built else config.runtime
    settings = environment.apply(config.environment)
    with process_group.joined(replace(config, runtime=arithmetic), process_group.TRAINING) as here:
        for line in settings:
            log.info("%s", line)
        config.train = with_batch_of_all(config.train, here.world_size)
        record = RunDirectory(Path(config.run.dir), here.rank)
        try:
            if only_built:
                return meta_build.write(config, here, record, began)
            return _train(config, here, record, stop, began)
        finally:
            record.release()


def _train(config: AppConfig, here: platform.Runtime, record: RunDirectory, stop: StopRequest, began: float) -> int:
    root = prepare.dataset_path(config.data)
    here.on_rank_0(lambda: prepare.prepare(config.data, lambda: bool(stop)))
    manifest = load_manifest(root)
    prepare.require_agreement(config.data, manifest)
    here.on_rank_0(lambda: verify_splits(root, manifest, ["train", config.eval.split], config.data.verify,
                                          lambda: bool(stop)))  # fmt: skip
    here.on_rank_0(record.open)
    start = here.on_rank_0(lambda: files.choose(config.checkpoint, record.checkpoints))
    config.data = replace(config.data, path=str(root))
    config.runtime = replace(config.runtime, num_threads=here.num_threads)
    run = TrainingRun(session.build(config, here, root, manifest), record, stop, began)
    if start is not None:
        run.restore(Path(start))
        before = read_summary(record.path)
        if before is not None and run.is_done(before):
            log.info("%s: %s already, nothing to do; give another run.name, or checkpoint.resume=never",
                     record.path, before["status"])  # fmt: skip
            return EXIT_DONE
        best = (run.state.best or {}).get("step")
        here.on_rank_0(lambda: files.remove_later(record.checkpoints, Path(start), best))
    try:
        return EXIT_STOPPED if run.train() == "interrupted" else EXIT_DONE
    finally:
        if here.rank == 0:
            _report(record.path)


def _report(directory: Path) -> None:
    """Write the run's report, of a failed run too; a failure to write it is logged and does not fail the run."""
    try:
        log.info("report: %s", write_report(directory))
    except Exception as error:  # noqa: BLE001  # whatever it is, the run is complete
        log.warning("report: not written (%s: %s); its figures are in %s", type(error).__name__, error, directory)


if __name__ == "__main__":
    platform.leave(run_command(main, AppConfig, CONFIG_DIR))
