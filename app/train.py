"""python -m app.train: prepare the data if need be, train, evaluate, write the run's directory.

Exit status: 0 done; 2 bad input or configuration; 75 stopped by a signal, or another process lost, with a checkpoint
(the same command resumes from there); 69 another process lost and no checkpoint; 128 + its number: a signal before the
first step, or a second one. Under `torchrun --nproc-per-node N -m app.train` it runs on N processes.
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from app.commands import COMMANDS
    from common.cli import run

    run(COMMANDS["train"])


import logging
import os
import time
from dataclasses import replace
from pathlib import Path

from app.checkpoint import files
from app.config import AppConfig, DataConfig, validate
from app.config.own_table import is_own_table, table_values
from app.config.runtime import require_graphs
from app.config.train import with_batch_of_all, with_evaluation_distance
from app.data import prepare
from app.data.shards import TRAIN, find_split, verify_splits
from app.record.directory import RunDirectory
from app.record.reading import read_summary
from app.report.page import REPORT, write_report
from app.runtime import platform, process_group
from app.trackers.run_trackers import require_clients
from app.training import agreement, meta_build, session
from app.training.after_training import steps_after_training
from app.training.labels import refuse_one_class, require_task
from app.training.monitor import require_validation
from app.training.recording import scores
from app.training.run import TrainingRun
from app.training.state import require_rates, require_steps_left
from common import signals
from common.cli import EXIT_DONE, EXIT_STOPPED
from common.compose import convert
from common.keys import nested, to_plain
from common.signals import Interrupted, StopRequest
from data_prep.dataset.format import MANIFEST_NAME, Manifest
from data_prep.dataset.misleading import misleading_sentences
from data_prep.dataset.sampling import sampling_sentence
from data_prep.dataset.unseen import unseen_values

log = logging.getLogger("clickwork")

# For one process, and for several: one of several may be lost before they agree.
ANSWERS = ("stopping after this step and saving a checkpoint", "stopping as soon as all processes agree on the step")
LESS_MEMORY = "use a smaller train.global_batch_size or data.shuffle_window_blocks, or more processes"


def main(config: AppConfig) -> int:
    """Train as configured; return the exit status."""
    began = time.perf_counter()
    require_clients(config)
    for step in steps_after_training():
        step.require(config)
    checkpoints = Path(config.run.dir) / files.CHECKPOINTS
    advice = process_group.FailureAdvice(LESS_MEMORY, lambda: files.resumption(checkpoints))
    try:
        status = _join_and_train(config, advice, began)
    except Interrupted as error:  # from the first step on, none is raised
        resumable, words = files.resumption(checkpoints)
        progress = words if resumable else "nothing was trained yet"
        raise Interrupted(error.signal, f"stopped before the first step; {progress}") from error
    if status == EXIT_DONE and os.environ.get("RANK", "0") == "0":
        for step in steps_after_training():
            step.finish(config)  # after the process group is closed, so that the others need not wait
        if (report := Path(config.run.dir) / REPORT).exists():
            log.info("report: %s", report)  # last, where people see it
    return status


def _join_and_train(config: AppConfig, advice: process_group.FailureAdvice, began: float) -> int:
    only_built = meta_build.is_wanted(config)
    arithmetic = replace(config.runtime, precision=None) if only_built else config.runtime
    with process_group.joined(replace(config, runtime=arithmetic), advice) as runtime:
        agreement.require_same_program(config, runtime)
        record = RunDirectory(Path(config.run.dir), runtime.rank)
        try:
            if only_built:
                return meta_build.write(resolved(config, runtime), runtime, record, began)
            return _train(config, runtime, record, began)
        finally:
            record.release()


def resolved(
    config: AppConfig, runtime: platform.Runtime, root: Path = Path(), manifest: Manifest | None = None
) -> AppConfig:
    """Complete the configuration by the number of processes, the dataset if there is one, and the machine.

    A run records this configuration and works by it.
    """
    train = with_batch_of_all(config.train, runtime.world_size)
    config = replace(config, train=replace(train, micro_batch_size=train.micro_batch))
    if manifest is None:
        return config
    data = replace(prepare.in_force(config.data, manifest), path=str(root))
    return replace(config, data=data, runtime=replace(config.runtime, num_threads=runtime.num_threads))


def _with_table_values(config: AppConfig, root: Path, manifest: Manifest) -> AppConfig:
    """Return the configuration with the values that follow from the dataset, checked anew; log them."""
    if not config.by_table:
        return config
    values = {key: value for key, value in table_values(manifest).items() if key in config.by_table}
    words = " ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items()
    )
    reason = "is of an own table" if is_own_table(manifest) else "is not of an own table, but this recipe was given"
    log.info("%s: %s: recipe=own_table with %s; recipe=quickstart is the other default", root, reason, words)
    config = convert(AppConfig, to_plain(config), *map(nested, values.items()), {"by_table": []})
    validate(config)
    return config


def _train(config: AppConfig, runtime: platform.Runtime, record: RunDirectory, began: float) -> int:
    run = _set_up(config, runtime, record, began)
    if run is None:
        return EXIT_DONE
    status = None
    stop = StopRequest(ANSWERS[runtime.world_size > 1], lambda: files.resumption(record.checkpoints)[1])
    try:
        status = EXIT_STOPPED if run.train(stop) == "interrupted" else EXIT_DONE
        if status == EXIT_DONE:
            scores.keep_served(run.session, record.path, run.state.step)
        stop.answer = "training has ended, the report is being written"
    finally:
        if runtime.rank == 0:
            _report(record.path, is_last=status != EXIT_DONE)
    # Let the others wait: torchrun asks all processes to end as soon as one has ended.
    runtime.highest(0.0)
    signals.finish(status)
    return status


def _set_up(config: AppConfig, runtime: platform.Runtime, record: RunDirectory, began: float) -> TrainingRun | None:
    """Do everything before the first step; return None if nothing is left to train. Raises Interrupted at a signal."""
    if (parts := config.model.parts) is not None:
        parts.require_device(config, runtime.device.type)
    require_graphs(config.runtime, runtime.device.type)
    runtime.on_rank_0(record.open)
    agreement.require_shared(record.path, runtime, config.runtime.timeout_minutes)
    start = runtime.on_rank_0(lambda: files.choose(config.checkpoint, record.checkpoints))
    root = config.data.root
    is_new = runtime.on_rank_0(lambda: _prepare(config.data, root)) is not None
    manifest, shared = agreement.load_same_manifest(root, runtime, is_new)
    prepare.require_agreement(config.data, manifest)
    config = _with_table_values(config, root, manifest)
    require_task(config, root, manifest)
    refuse_one_class(config.data, root, manifest)
    has_windows = bool(manifest.kind.windows)  # the rows of windows are known once the log is open
    if not has_windows:
        if config.eval.split in manifest.splits:
            find_split(root, manifest, config.eval.split)  # which says why it has no rows
        evaluated = manifest.splits.get(config.eval.split)
        rows = evaluated.rows if evaluated is not None else 0
        if config.eval.split == TRAIN:
            rows *= config.data.negatives.rows_per_positive
        require_validation(config, rows)
    scored = [scores.split_of(config, manifest)] if config.eval.keep_scores else []
    splits = list(dict.fromkeys(["train", config.eval.split, *scored]))
    agreement.on_each_machine(runtime, shared, lambda: verify_splits(root, manifest, splits, config.data))
    # Data_prep has printed these for a new dataset.
    printed = [unseen_values(manifest), *misleading_sentences(manifest.extra)]
    for line in filter(None, [sampling_sentence(manifest), *([] if is_new else printed)]):
        log.warning("%s: %s", root, line)
    trained = session.build(resolved(config, runtime, root, manifest), runtime, root, manifest)
    steps_per_epoch = trained.predictor.split(TRAIN).num_batches(trained.config.train.global_batch_size)
    train = with_evaluation_distance(trained.config.train, steps_per_epoch)
    trained.predictor.config = replace(trained.config, train=train)
    run = TrainingRun(trained, record, began)
    if has_windows:
        require_validation(config, run.session.predictor.split_rows()[config.eval.split])
    if parts is not None:
        parts.require_labels(config, root, run.session.predictor.split(TRAIN))
    if start is not None:
        run.restore(Path(start))
        status = runtime.on_rank_0(lambda: _status_if_done(run, record))
        if status is not None:
            log.info(
                "%s: %s already, nothing to do; give another run.name, or checkpoint.resume=never "
                "checkpoint.overwrite=true",
                record.path,
                status,
            )
            return None
        require_steps_left(run.length, run.state.step, Path(start))
    require_rates(run.length, config.schedule, run.state.step)
    run.checkpointer.require_space(run.state.step, run.length)
    if start is not None and run.continues:
        best = run.state.best.step if run.state.best and config.checkpoint.keep_best else None
        runtime.on_rank_0(lambda: files.remove_later(record.checkpoints, Path(start), best))
    return run


def _status_if_done(run: TrainingRun, record: RunDirectory) -> str | None:
    """Return the recorded status of a run that had reached the configured end; None for other runs."""
    before = read_summary(record.path) if run.continues else None
    return before.status if before is not None and run.is_done(before) else None


def _prepare(data: DataConfig, root: Path) -> str | None:
    """Make the dataset if it does not exist; return its path if it was made."""
    was_there = (root / MANIFEST_NAME).exists()
    prepare.prepare(data)
    return None if was_there else str(root)


def _report(directory: Path, is_last: bool) -> None:
    """Write the report of a run, even a failed one; log a failure to write it, which does not fail the run.

    is_last: whether nothing is logged afterwards, so that the path must be named now.
    """
    try:
        path = write_report(directory)
        if is_last:
            log.info("report: %s", path)
    except Exception as error:  # noqa: BLE001  # whatever it is, the run is complete
        log.warning("report: not written (%s: %s); its figures are in %s", type(error).__name__, error, directory)
