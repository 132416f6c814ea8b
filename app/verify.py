"""python -m app.verify run=runs/NAME: replay a run from its record and compare the results.

The dataset must be the one that the run read. The replay trains from the first step in a temporary directory, under the
run's own environment, and evaluates and reports after the steps that the run was configured to. Compared are each
step's loss; every figure of every window of steps and every evaluation; the summary, the manifest, curves and kept
scores; and at each of the run's checkpoints each parameter and the optimizer's state. What is not compared
(app.replay.compare.NOT_COMPARED) is printed. With the same number of processes and threads and the same kind of CPU the
bits are equal; otherwise a tolerance decides. Differences in code, versions, hardware and layout are listed for each
launch of the run, with the step up to which bits can be equal.

Exit status: 0 identical, or equal within the tolerance; 1 different; 2 bad input or configuration.
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from app.commands import COMMANDS
    from common.cli import run

    run(COMMANDS["verify"])


import json
import logging
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from app.checkpoint import files
from app.checkpoint.files import read
from app.config.app_config import AppConfig, validate
from app.config.commands import VerifyConfig
from app.config.kinds import AUC, LOGLOSS, RMSE
from app.config.sharding import ShardingConfig
from app.config.train import Compile, RuntimeConfig
from app.data.split import verify_splits
from app.metrics.documents import TrainEvent
from app.record.documents import METRICS, SUMMARY, RunManifest
from app.replay.bundle import record_directory, require_dataset
from app.replay.compare import (
    NOT_COMPARED,
    BitwiseDifference,
    Launch,
    Record,
    Replay,
    ReplayComparison,
    ReplayDirectory,
    bitwise_difference,
    changes,
    compare_records,
    is_due,
    launches_of,
    read_record,
)
from app.runtime import platform
from app.runtime import platform as runtime
from app.sharding.documents import FORMAT, PlanFile
from app.training import checkpointer, evaluator, session
from app.training.loop import TrainingRun, target_reached
from app.training.state import RunLength, RunState, early_stop, run_length
from common.cli import EXIT_DONE
from common.documents import decode, encode
from common.errors import UserError
from data_prep.dataset.format import Manifest

log = logging.getLogger("clickwork")

EXIT_DIFFERENT = 1
VERDICTS = ("identical", "equal within tolerance", "different")
EVAL_FIGURES = (LOGLOSS, AUC, RMSE)
MOST_LINES = 10  # figures that differ; the JSON has them all


def main(config: VerifyConfig) -> int:
    """Replay and compare; return the exit status."""
    began = time.perf_counter()
    with record_directory(config.run, config.bundle) as directory:
        return _join_and_replay(config, directory, began)


def _join_and_replay(config: VerifyConfig, directory: Path, began: float) -> int:
    """Join the processes, and replay the run in a temporary directory; return the exit status."""
    trained = checkpointer.trained_config(directory, config.runtime, config.data.path)
    validate(trained)
    record = read_record(directory)
    launches = launches_of(record.manifest)
    first = next(launch.manifest for launch in launches if launch.manifest is not None)
    trained = replace(trained, runtime=_first_runtime(first, config.runtime, trained.runtime))
    with platform.joined(trained, platform.READING) as joined:
        scratch = Path(joined.on_rank_0(tempfile.mkdtemp))
        try:
            return _replay(config, trained, record, launches, joined, scratch, began)
        finally:
            if joined.rank == 0:  # other ranks get here while rank 0 still writes
                shutil.rmtree(scratch, ignore_errors=True)


def _replay(
    config: VerifyConfig,
    trained: AppConfig,
    record: Record,
    launches: list[Launch],
    joined: runtime.Runtime,
    scratch: Path,
    began: float,
) -> int:
    """Train the run again, compare, and report; return the exit status. trained: the run's configuration."""
    directory, any_layout = record.directory, trained.train.micro_batch is not None
    first = next(launch.manifest for launch in launches if launch.manifest is not None)
    if not any_layout:
        _log_layout(directory, launches, joined)
    paths = decode(
        joined.on_rank_0(lambda: encode([str(path) for path in files.undamaged_checkpoints(directory)])), list[str]
    )
    checkpoints = {read(Path(path)).state.step: Path(path) for path in paths}
    steps = _last_step(record, checkpoints)
    root, manifest = _open_dataset(config, trained, directory, first, joined)
    joined.on_rank_0(lambda: verify_splits(root, manifest, ["train", trained.eval.split], trained.data))

    # Train again without interruption, and report and evaluate wherever the run did or should have.
    replayed = _use_recorded_plan(_replay_config(trained, record, steps), first, joined, scratch)
    replay_session = session.build(replayed, joined, root, manifest)
    # The end of the run is judged by its own length, since the replay's has no targets and no patience.
    train_split = replay_session.predictor.split("train")
    own_length, replay_length = (
        run_length(configured.train, train_split, joined.world_size) for configured in (trained, replayed)
    )
    scored = {split: scores.about.step for split, scores in record.scores.items()}
    replay_directory = ReplayDirectory(scratch, joined.rank, max(record.evaluated(steps), default=None))
    compare = partial(ReplayComparison, checkpoints=checkpoints, scored=scored)
    length = _recorded_length(replay_length, record, own_length, scored.values())
    run = TrainingRun(replay_session, replay_directory, began, length, compare)
    comparison = run.checkpointer
    assert isinstance(comparison, ReplayComparison)
    if first.parent is not UNSET:
        run.warm_start(checkpointer.parent_of(directory, first.parent))
    run.train()
    if joined.rank:
        return EXIT_DONE

    keeps = evaluator.kept_split(trained.eval, manifest)
    result = Replay(
        record=read_record(scratch),
        steps=steps,
        config=trained,
        length=own_length,
        status=_status(run.state, own_length),
        early_stop=early_stop(run.state, own_length),
        curves=replay_directory.kept_curves,
        keeps_scores=keeps if keeps and _keeps_scores(trained, replay_session.predictor.split(keeps).rows) else None,
    )
    losses = _loss_difference(checkpoints, run.state.all_losses())
    name = Path(config.bundle or directory)
    report = {"run": str(name), "steps": steps, "compared_at": sorted(checkpoints), **comparison.report(losses)}
    report = _add_comparison(record, result, report)
    return _report(name, report, *changes(launches, result.record.manifest, any_layout), config.tolerance)


def _open_dataset(
    config: VerifyConfig, trained: AppConfig, directory: Path, first: RunManifest, joined: runtime.Runtime
) -> tuple[Path, Manifest]:
    """Open the dataset that the run was trained on; make a bundle's dataset if it does not exist."""
    if config.bundle is not None and config.data.path is None:
        made = joined.on_rank_0(partial(require_dataset, trained.data, first, config.bundle))
        trained = replace(trained, data=replace(trained.data, path=made))
    return checkpointer.open_dataset(trained.data.path, directory, first.dataset.path or "", first.dataset.digest or "")


def _first_runtime(launch: RunManifest, overrides: RuntimeConfig, trained: RuntimeConfig) -> RuntimeConfig:
    """Return a run's runtime as in its first launch, with the overrides."""
    threads = overrides.num_threads or launch.num_threads or trained.num_threads
    # Graphs have the bits of plain steps, so a machine without them can replay what auto chose.
    before = trained.compile if trained.compile is Compile.auto else Compile[launch.compile]
    compiled = before if overrides.compile is Compile.auto else overrides.compile
    return replace(trained, num_threads=threads, compile=compiled)


def _keeps_scores(config: AppConfig, rows: int) -> bool:
    """Return whether a run keeps the scores of a split with this many rows."""
    return rows <= min(config.eval.keep_scores, config.eval.exact_rows)


def _last_step(record: Record, checkpoints: dict[int, Path]) -> int:
    """Return the step up to which to replay: the newest for which the record has results."""
    summary = record.summary
    is_known = summary is not None and not (checkpoints and summary.status == "failed")
    steps = max([*checkpoints, summary.steps if summary is not None and is_known else 0])
    if not steps:
        raise UserError(f"run={record.directory}: no complete checkpoint and no summary of a training; train it first")
    return int(steps)


def _replay_config(trained: AppConfig, record: Record, steps: int) -> AppConfig:
    """Return the run's configuration up to that step, without checkpoints and early stops."""
    # The record tells how far the run went, so nothing else may end the replay.
    unlimited = replace(trained.train, epochs=None, max_samples=None, max_minutes=None)
    train = replace(unlimited, max_steps=steps, target_auc=None, target_accuracy=None, early_stop_patience=None)
    # Comparing takes the place of saving, at the run's own checkpoints.
    never = replace(trained.checkpoint, every_steps=None, every_minutes=None, resume="never")
    evaluates_train = trained.eval.train_split or any(event.event == "eval_train" for event in record.events)
    return replace(trained, train=train, eval=replace(trained.eval, train_split=evaluates_train), checkpoint=never)


def _recorded_length(length: RunLength, record: Record, own_length: RunLength, scored: Iterable[int]) -> RunLength:
    """Set the replay's evaluations and windows: those that the record has, and those that its newest launch was due.

    own_length: of the run as configured. scored: steps of the models whose scores the run keeps.
    """
    windows = [event for event in record.events if isinstance(event, TrainEvent)]
    steps = range(record.manifest.from_step + 1, length.total_steps + 1)
    reports, evaluations = ({step for step in steps if is_due(own_length, kind, step)} for kind in ("train", "eval"))
    # A run that began with another run's steps has a first window that begins after them.
    reports |= {event.step for event in windows} | {event.step - (event.steps or 0) for event in windows[:1]}
    evaluations |= {*record.evaluated(length.total_steps), *scored}
    return length._replace(evaluations=frozenset(evaluations), reports=frozenset(reports))


def _status(state: RunState, length: RunLength) -> str:
    """Return the status of a run that came this far and was not stopped."""
    if target_reached(state, length):
        return "target_reached"
    is_done = state.step >= length.total_steps or early_stop(state, length) is not None
    return "completed" if is_done else "interrupted"


def _loss_difference(checkpoints: dict[int, Path], losses: NDArray[np.float32]) -> BitwiseDifference | None:
    """Compare each step's loss in the newest checkpoint, if there is one, with the replay's."""
    if not checkpoints:
        return None
    recorded = read(checkpoints[max(checkpoints)]).arrays["losses"]
    # The replay may go further than the newest checkpoint.
    return bitwise_difference(recorded, losses[: len(recorded)], floor=0.0)


def _use_recorded_plan(config: AppConfig, recorded: RunManifest, joined: runtime.Runtime, scratch: Path) -> AppConfig:
    """Set the recorded plan if the processes are the same, since a planner may choose another one today."""
    layout = {
        "world_size": joined.world_size,
        "local_world_size": joined.local_world_size,
        "platform": joined.platform.value,
    }
    if any(getattr(recorded, key) != value for key, value in layout.items()):
        return config
    path, tables = scratch / "plan.json", recorded.plan
    plan = PlanFile(
        format=FORMAT, world_size=joined.world_size, local_world_size=joined.local_world_size, tables=tables
    )
    joined.on_rank_0(lambda: str(path.write_text(encode(plan), encoding="utf-8")))
    return replace(config, sharding=ShardingConfig(plan=str(path), qcomm=config.sharding.qcomm))


def _add_comparison(record: Record, replay: Replay, report: dict[str, Any]) -> dict[str, Any]:
    """Return the report on checkpoints with the comparison of the run's and the replay's records added."""
    comparison = compare_records(record, replay)
    differences = comparison.differences
    windows = [window for window in differences if window.where.startswith(METRICS) and window.figure == "loss"]
    # Without checkpoints the losses of single steps are not known, so those of the log's windows stand for them.
    if report["losses"] is None and windows:
        # `where` ends with the window's step.
        first_step = min(int(window.where.rsplit(" ", 1)[1]) for window in windows)
        report["losses"] = {"first_step": first_step, "largest": max(window.size for window in windows)}
    differing = {figure.figure: figure.size for figure in differences if figure.where == f"{SUMMARY}, eval"}
    evaluation = record.summary.eval if record.summary is not None else None
    figures = [key for key in EVAL_FIGURES if evaluation is not None and evaluation.figure(key) is not None]
    return {
        **report,
        "figures": [figure._asdict() for figure in differences],
        "figures_compared": comparison.compared,
        "not_compared": {file: list(names) for file, names in NOT_COMPARED.items()},
        "lacking": comparison.lacking,
        "evaluation": {key: differing.get(key, 0.0) for key in figures},
        "same_digests": comparison.same_digests,
        "largest_difference": max([report["largest_difference"], *(figure.size for figure in differences)]),
    }


def _log_layout(directory: Path, launches: list[Launch], joined: runtime.Runtime) -> None:
    """Log that bits will differ if a launch of the run had another number of processes than the replay."""
    sizes = {launch.start: launch.manifest.world_size for launch in launches if launch.manifest is not None}
    different_sizes = {start: size for start, size in sizes.items() if size != joined.world_size}
    if different_sizes:
        start = min(different_sizes)
        log.info(
            "verify: %s had %d process(es) after step %d, here are %d: bits will differ; for equal bits as far as "
            "can be, start with NPROC=%d (make) or torchrun",
            directory,
            different_sizes[start],
            start,
            joined.world_size,
            sizes[min(sizes)],
        )


def _report(directory: Path, report: dict[str, Any], conditions: list[str], until: int | None, tolerance: float) -> int:
    """Print the report as JSON on stdout, then log its reasons and, last, the verdict; return the exit status.

    until: the step up to which bits can be equal; None: to the end.
    """
    losses, figures = report["losses"], report["figures"]
    same_digests, same_bits = all(report["same_digests"].values()), not (losses or report["tensors"])
    same = same_bits and same_digests and not figures
    # If bits are equal, or should be, rounding cannot explain a digest that differs.
    wrong_digest = not same_digests and same_bits and (until is None or report["steps"] in report["compared_at"])
    is_within = report["largest_difference"] <= tolerance and not wrong_digest
    verdict = VERDICTS[0] if same else VERDICTS[1] if is_within else VERDICTS[2]
    judged = {"verdict": verdict, "tolerance": tolerance, "changed_since": conditions, "bits_can_be_equal_until": until}
    print(json.dumps({**report, **judged}, indent=1), flush=True)

    lines = []
    if not report["compared_at"]:
        lines.append("the run has no checkpoints: losses, evaluations and digests of its record were compared")
    if losses:
        lines.append(f"losses differ from step {losses['first_step']} on, by {losses['largest']:.3g} relative at most")
    for name, difference in list(report["tensors"].items())[:1]:
        lines.append(
            f"at step {report['tensors_at_step']} (of the checkpoints, {', '.join(map(str, report['compared_at']))}) "
            f"the first tensor that differs is {name}, from element {list(difference['first_element'])} on, "
            f"by {difference['largest']:.3g} at most"
        )
    for figure in figures[:MOST_LINES]:
        values = f"recorded as {figure['recorded']}, replayed as {figure['replayed']}"
        lines.append(f"{figure['where']}: {figure['figure']} is {values}")
    if len(figures) > MOST_LINES:
        lines.append(f"{len(figures)} figures differ in all, which the JSON lists")
    lines += [f"{SUMMARY}: the digest of {name} differs" for name, equal in report["same_digests"].items() if not equal]
    if not same and not is_within:
        lines.append(f"the largest difference is {report['largest_difference']:.3g}, the tolerance {tolerance:.3g}")
    lines += [f"since then: {line}" for line in conditions]
    if until:
        lines.append(f"bits can be equal up to step {until}, not beyond")
    if not same and (until is None or (losses and losses["first_step"] <= until)):
        since = "" if until is None else f" step {losses['first_step']} was trained"
        lines.append(f"no recorded condition has changed since{since}: on a CPU the bits should have been equal")
    lines.append("not compared: times, memory and places; not_compared in the JSON names them")
    lines += [f"not compared: {reason}" for reason in report["lacking"]]
    counts = f"{report['figures_compared']} figures of the record, {len(report['compared_at'])} checkpoints"
    lines.append(f"{directory}: {verdict} ({counts})")
    for line in lines:
        log.info("verify: %s", line)
    return EXIT_DIFFERENT if verdict == VERDICTS[2] else EXIT_DONE
