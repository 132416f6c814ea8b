"""python -m app.train: prepare the data if need be, train, evaluate, write the run's directory.

Exit status: 0 done; 2 bad input or configuration; 75 stopped by a signal, or another process lost, with a checkpoint
(the same command resumes from there); 69 another process lost and no checkpoint; 128 + its number: a signal before the
first step, or a second one. Under `torchrun --nproc-per-node N -m app.train` it runs on N processes.
"""

import logging
import time
from dataclasses import replace
from pathlib import Path

from app.checkpoint import files
from app.config import CONFIG_DIR, AppConfig, validate_new_run
from app.config.hstu import require_attention
from app.config.runtime import require_graphs
from app.config.train import with_batch_of_all
from app.data import prepare
from app.data.shards import verify_splits
from app.record.directory import RunDirectory
from app.record.reading import read_summary
from app.report.page import write_report
from app.runtime import environment, platform, process_group
from app.trackers.run_trackers import require_clients
from app.training import meta_build, session
from app.training.run import TrainingRun
from common import signals
from common.cli import EXIT_DONE, EXIT_STOPPED, run_command
from common.signals import Interrupted, StopRequest
from data_prep.dataset.format import load_manifest
from data_prep.dataset.unseen import unseen_values

log = logging.getLogger("clickwork")

# Of one process, and of several, of which one may be lost before they agree.
ANSWERS = ("stopping after this step and saving a checkpoint", "stopping as soon as all processes agree on the step")
LESS_MEMORY = "use a smaller train.global_batch_size or data.shuffle_window_blocks, or more processes"


def main(config: AppConfig) -> int:
    """Train as configured; return the exit status."""
    began = time.perf_counter()
    validate_new_run(config)
    require_clients(config)
    checkpoints = Path(config.run.dir) / files.CHECKPOINTS
    advice = process_group.FailureAdvice(LESS_MEMORY, lambda: files.resumption(checkpoints))
    try:
        return _join_and_train(config, advice, began)
    except Interrupted as error:  # none is raised from the first step on
        resumable, words = files.resumption(checkpoints)
        left = words if resumable else "nothing was trained yet"
        raise Interrupted(error.signal, f"stopped before the first step; {left}") from error


def _join_and_train(config: AppConfig, advice: process_group.FailureAdvice, began: float) -> int:
    only_built, settings = meta_build.is_wanted(config), environment.apply(config.environment)
    arithmetic = replace(config.runtime, precision=None) if only_built else config.runtime
    with process_group.joined(replace(config, runtime=arithmetic), advice) as here:
        for line in settings:
            log.info("%s", line)
        config.train = with_batch_of_all(config.train, here.world_size)
        record = RunDirectory(Path(config.run.dir), here.rank)
        try:
            if only_built:
                return meta_build.write(config, here, record, began)
            return _train(config, here, record, began)
        finally:
            record.release()


def _train(config: AppConfig, here: platform.Runtime, record: RunDirectory, began: float) -> int:
    run = _set_up(config, here, record, began)
    if run is None:
        return EXIT_DONE
    stop = StopRequest(ANSWERS[here.world_size > 1], lambda: files.resumption(record.checkpoints)[1])
    try:
        status = EXIT_STOPPED if run.train(stop) == "interrupted" else EXIT_DONE
        stop.answer = "training has ended, the report is being written"
    finally:
        if here.rank == 0:
            _report(record.path)
    here.highest(0.0)  # the others wait: torchrun asks all to end as soon as one has
    signals.finish(status)
    return status


def _set_up(config: AppConfig, here: platform.Runtime, record: RunDirectory, began: float) -> TrainingRun | None:
    """Everything before the first step; None if there is nothing left to train. Raises Interrupted at a signal."""
    require_attention(config.model.hstu, here.device.type)
    require_graphs(config.runtime, here.device.type)
    root = prepare.dataset_path(config.data)
    here.on_rank_0(lambda: prepare.prepare(config.data))
    manifest = load_manifest(root)
    prepare.require_agreement(config.data, manifest)
    here.on_rank_0(lambda: verify_splits(root, manifest, ["train", config.eval.split], config.data.verify))
    here.on_rank_0(record.open)
    if (unseen := unseen_values(manifest)) is not None:
        log.warning("%s: %s", root, unseen)
    start = here.on_rank_0(lambda: files.choose(config.checkpoint, record.checkpoints))
    config.data = replace(prepare.in_force(config.data, manifest), path=str(root))
    config.runtime = replace(config.runtime, num_threads=here.num_threads)
    run = TrainingRun(session.build(config, here, root, manifest), record, began)
    if start is not None:
        run.restore(Path(start))
        before = read_summary(record.path)
        if before is not None and run.is_done(before):
            log.info("%s: %s already, nothing to do; give another run.name, or checkpoint.resume=never "
                     "checkpoint.overwrite=true", record.path, before["status"])  # fmt: skip
            return None
        best = (run.state.best or {}).get("step")
        here.on_rank_0(lambda: files.remove_later(record.checkpoints, Path(start), best))
    run.checkpointer.require_space(run.state.step, run.length)
    return run


def _report(directory: Path) -> None:
    """Write the run's report, of a failed run too; a failure to write it is logged and does not fail the run."""
    try:
        log.info("report: %s", write_report(directory))
    except Exception as error:  # noqa: BLE001  # whatever it is, the run is complete
        log.warning("report: not written (%s: %s); its figures are in %s", type(error).__name__, error, directory)


if __name__ == "__main__":
    platform.leave(run_command(main, AppConfig, CONFIG_DIR))
