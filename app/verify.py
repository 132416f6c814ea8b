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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import UNSET

from app.checkpoint import files
from app.checkpoint.files import read
from app.config.app_config import AppConfig, validate
from app.config.commands import VerifyConfig
from app.config.kinds import AUC, LOGLOSS, RMSE
from app.config.sharding import ShardingConfig
from app.config.train import Compile
from app.data.split import verify_splits
from app.metrics.documents import TrainEvent
from app.record.documents import METRICS, SUMMARY
from app.replay.bundle import record_directory, require_dataset
from app.replay.compare import (
    NOT_COMPARED,
    Record,
    Replay,
    ReplayComparison,
    ReplayDirectory,
    bitwise_difference,
    changes,
    compare_records,
    launches_of,
    read_record,
)
from app.runtime import platform
from app.sharding.documents import FORMAT, PlanFile
from app.training import checkpointer, evaluator, session
from app.training.loop import TrainingRun, target_reached
from app.training.state import early_stop, run_length
from common.cli import EXIT_DONE
from common.documents import decode, encode
from common.errors import UserError

log = logging.getLogger("clickwork")

EXIT_DIFFERENT = 1
VERDICTS = ("identical", "equal within tolerance", "different")
MOST_LINES = 10  # figures that differ; the JSON has them all


def main(config: VerifyConfig) -> int:
    """Replay and compare; return the exit status."""
    began = time.perf_counter()
    with record_directory(config.run, config.bundle) as directory:
        trained = checkpointer.trained_config(directory, config.runtime, config.data.path)
        validate(trained)
        record = read_record(directory)
        # The runtime of the first launch, with the overrides. Graphs have the bits of plain steps, so a machine without
        # them can replay what auto chose.
        first, overrides, before = record.first, config.runtime, trained.runtime.compile
        compiled = before if before is Compile.auto else Compile[first.compile]
        runtime = replace(
            trained.runtime,
            num_threads=overrides.num_threads or first.num_threads or trained.runtime.num_threads,
            compile=compiled if overrides.compile is Compile.auto else overrides.compile,
        )
        trained = replace(trained, runtime=runtime)
        with platform.joined(trained, platform.READING) as joined:
            scratch = Path(joined.on_rank_0(tempfile.mkdtemp))
            try:
                return _replay(config, trained, record, joined, scratch, began)
            finally:
                if joined.rank == 0:  # other ranks get here while rank 0 still writes
                    shutil.rmtree(scratch, ignore_errors=True)


def _replay(
    config: VerifyConfig, trained: AppConfig, record: Record, joined: platform.Runtime, scratch: Path, began: float
) -> int:
    """Train the run again, compare, and report; return the exit status. trained: the run's configuration."""
    directory, first, any_layout = record.directory, record.first, trained.train.micro_batch is not None
    launches = launches_of(record.manifest)
    other_sizes = [launch for launch in launches if launch.manifest and launch.manifest.world_size != joined.world_size]
    if other_sizes and not any_layout:
        start, _, launch = other_sizes[0]
        log.info(
            "verify: %s had %d process(es) after step %d, here are %d: bits will differ; for equal bits as far as "
            "can be, start with NPROC=%d (make) or torchrun",
            *(directory, launch and launch.world_size, start, joined.world_size, first.world_size),
        )
    paths = decode(
        joined.on_rank_0(lambda: encode([str(path) for path in files.undamaged_checkpoints(directory)])), list[str]
    )
    checkpoints = {read(Path(path)).state.step: Path(path) for path in paths}
    summary = record.summary
    is_known = summary is not None and not (checkpoints and summary.status == "failed")
    steps = max([*checkpoints, summary.steps if summary is not None and is_known else 0])
    if not steps:
        raise UserError(f"run={directory}: no complete checkpoint and no summary of a training; train it first")
    dataset = trained.data
    if config.bundle is not None and config.data.path is None:
        dataset = replace(dataset, path=joined.on_rank_0(partial(require_dataset, dataset, first, config.bundle)))
    recorded_path, digest = first.dataset.path or "", first.dataset.digest or ""
    root, manifest = checkpointer.open_dataset(dataset.path, directory, recorded_path, digest)
    joined.on_rank_0(lambda: verify_splits(root, manifest, ["train", trained.eval.split], trained.data))

    # Train again without interruption, and report and evaluate wherever the run did or should have.
    replayed = _replay_config(trained, record, steps, joined, scratch)
    replay_session = session.build(replayed, joined, root, manifest)
    # The end of the run is judged by its own length, since the replay's has no targets and no patience.
    train_split = replay_session.predictor.split("train")
    own_length, length = (
        run_length(configured.train, train_split, joined.world_size) for configured in (trained, replayed)
    )
    scored = {split: scores.about.step for split, scores in record.scores.items()}
    windows = [event for event in record.events if isinstance(event, TrainEvent)]
    due = range(record.manifest.from_step + 1, length.total_steps + 1)
    reports = {step for step in due if own_length.reported(step)} | {event.step for event in windows}
    # A run that began with another run's steps has a first window that begins after them.
    reports |= {event.step - (event.steps or 0) for event in windows[:1]}
    evaluations = {step for step in due if own_length.next_evaluation(step - 1) == step}
    evaluations |= {*record.evaluated(length.total_steps), *scored.values()}
    replay_directory = ReplayDirectory(scratch, joined.rank, max(record.evaluated(steps), default=None))
    compare = partial(ReplayComparison, checkpoints=checkpoints, scored=scored)
    length = length._replace(evaluations=frozenset(evaluations), reports=frozenset(reports))
    run = TrainingRun(replay_session, replay_directory, began, length, compare)
    if first.parent is not UNSET:
        run.warm_start(checkpointer.parent_of(directory, first.parent))
    run.train()
    if joined.rank:
        return EXIT_DONE

    split = evaluator.kept_split(trained.eval, manifest)
    most_rows = min(trained.eval.keep_scores, trained.eval.exact_rows)
    keeps = split is not None and replay_session.predictor.split(split).rows <= most_rows
    state, stop = run.state, early_stop(run.state, own_length)
    is_done = state.step >= own_length.total_steps or stop is not None
    status = "target_reached" if target_reached(state, own_length) else "completed" if is_done else "interrupted"
    result = Replay(
        read_record(scratch), steps, trained, status, stop, replay_directory.kept_curves, split if keeps else None
    )
    assert isinstance(run.checkpointer, ReplayComparison)
    losses = None
    if checkpoints:
        recorded = read(checkpoints[max(checkpoints)]).arrays["losses"]
        # The replay may go further than the newest checkpoint.
        losses = bitwise_difference(recorded, state.all_losses()[: len(recorded)], floor=0.0)
    report = {
        "run": str(Path(config.bundle or directory)),
        "steps": steps,
        "compared_at": sorted(checkpoints),
        **run.checkpointer.report(losses),
    }
    report = _add_comparison(record, result, report)
    return _report(report, *changes(launches, result.record.manifest, any_layout), config.tolerance)


def _replay_config(
    trained: AppConfig, record: Record, steps: int, joined: platform.Runtime, scratch: Path
) -> AppConfig:
    """Return the run's configuration up to that step, by the recorded plan, without checkpoints and early stops."""
    # The record tells how far the run went, so nothing else may end the replay.
    unlimited = replace(trained.train, epochs=None, max_samples=None, max_minutes=None)
    train = replace(unlimited, max_steps=steps, target_auc=None, target_accuracy=None, early_stop_patience=None)
    # Comparing takes the place of saving, at the run's own checkpoints.
    never = replace(trained.checkpoint, every_steps=None, every_minutes=None, resume="never")
    evaluates_train = trained.eval.train_split or any(event.event == "eval_train" for event in record.events)
    config = replace(trained, train=train, eval=replace(trained.eval, train_split=evaluates_train), checkpoint=never)
    recorded, sizes = record.first, (joined.world_size, joined.local_world_size)
    if (recorded.world_size, recorded.local_world_size, recorded.platform) != (*sizes, joined.platform.value):
        return config
    # A planner may choose another plan today.
    path = scratch / "plan.json"
    plan = PlanFile(format=FORMAT, world_size=sizes[0], local_world_size=sizes[1], tables=recorded.plan)
    joined.on_rank_0(lambda: str(path.write_text(encode(plan), encoding="utf-8")))
    return replace(config, sharding=ShardingConfig(plan=str(path), qcomm=config.sharding.qcomm))


def _add_comparison(record: Record, replay: Replay, report: dict[str, Any]) -> dict[str, Any]:
    """Return the report on checkpoints with the comparison of the run's and the replay's records added."""
    differences, compared, same_digests, lacking = compare_records(record, replay)
    windows = [window for window in differences if window.where.startswith(METRICS) and window.figure == "loss"]
    # Without checkpoints the losses of single steps are not known, so those of the log's windows stand for them.
    if report["losses"] is None and windows:
        # `where` ends with the window's step.
        first_step = min(int(window.where.rsplit(" ", 1)[1]) for window in windows)
        report["losses"] = {"first_step": first_step, "largest": max(window.size for window in windows)}
    differing = {figure.figure: figure.size for figure in differences if figure.where == f"{SUMMARY}, eval"}
    evaluation = record.summary.eval if record.summary is not None else None
    judged = [key for key in (LOGLOSS, AUC, RMSE) if evaluation is not None and evaluation.figure(key) is not None]
    return {
        **report,
        "figures": [figure._asdict() for figure in differences],
        "figures_compared": compared,
        "not_compared": {file: list(names) for file, names in NOT_COMPARED.items()},
        "lacking": lacking,
        "evaluation": {key: differing.get(key, 0.0) for key in judged},
        "same_digests": same_digests,
        "largest_difference": max([report["largest_difference"], *(figure.size for figure in differences)]),
    }


def _report(report: dict[str, Any], conditions: list[str], until: int | None, tolerance: float) -> int:
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
    lines.append(f"{report['run']}: {verdict} ({counts})")
    for line in lines:
        log.info("verify: %s", line)
    return EXIT_DIFFERENT if verdict == VERDICTS[2] else EXIT_DONE
