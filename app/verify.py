"""python -m app.verify run=runs/NAME: replay a run from its record and compare the results.

The dataset must be the one that the run read. The replay trains from the first step in a temporary directory, under the
run's own environment, and evaluates and reports after the steps that the run was configured to. Compared are each
step's loss; every figure of every window of steps and every evaluation; the summary, the manifest, curves and kept
scores; and at each of the run's checkpoints each parameter and the optimizer's state. What is not compared
(app.verify.NOT_COMPARED) is printed. With the same number of processes and threads and the same kind of CPU the
bits are equal; otherwise a tolerance decides. Differences in code, versions, hardware and layout are listed for each
launch of the run, with the step up to which bits can be equal.

Exit status: 0 identical, or equal within the tolerance; 1 different; 2 bad input or configuration.
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from app.commands import COMMANDS
    from common.cli import run

    run(COMMANDS["verify"])


import json
import math
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from msgspec import UNSET
from numpy.typing import NDArray

from app.checkpoint import files
from app.checkpoint.saver import local_tensors, read_tensors, stage, tensors_of
from app.config.app_config import AppConfig, validate
from app.config.commands import VerifyConfig
from app.config.kinds import ALL_ROWS, AUC, BASE_RATE, CALIBRATION, LABEL_DEVIATION, LOGLOSS, MAE, NE, RMSE
from app.config.sharding import Plan, ShardingConfig
from app.config.train import Compile
from app.data.split import verify_splits
from app.metrics.documents import Curves, EvaluationEvent, Event, TrainEvent
from app.metrics.timing import StepTimer
from app.optimizer import set_step
from app.record.directory import RunDirectory
from app.record.documents import (
    CURVES,
    DONE,
    MANIFEST,
    METRICS,
    SCORES,
    SUMMARY,
    SUMMARY_VERSION,
    RunManifest,
    Scores,
    Summary,
    kept_splits,
    read_curves,
    read_events,
    read_manifest,
    read_scores,
    read_summary,
)
from app.replay import record_directory, require_dataset
from app.runtime import platform
from app.runtime.environment import INTERFACES, SET_BY_LAUNCHER
from app.training import checkpointer, evaluator, session
from app.training.checkpointer import TABLES, Checkpointer
from app.training.loop import TrainingRun, target_reached
from app.training.recorder import Recorder, undefined_evaluation
from app.training.session import Session
from app.training.state import RunState, best_of, early_stop, run_length
from common.cli import EXIT_DONE
from common.command import log
from common.documents import Json, encode, plain, plain_object
from common.errors import UserError

# Values near 0 may change by many times their size without meaning.
NEAR_ZERO = 1.0  # differences of parameters are relative to their size, but at least to this


# Of arrays that differ: the index of the first element (row-major) whose bits do, and the largest difference.
BitwiseDifference: TypeAlias = tuple[tuple[int, ...], float]


def bitwise_difference(
    recorded: NDArray[np.generic], replayed: NDArray[np.generic], floor: float
) -> BitwiseDifference | None:
    """Return where arrays differ and by how much, over max(floor, |recorded|); None if all bits are equal.

    A NaN equals the same NaN and is infinitely far from everything else, as are arrays of different shapes.
    """
    if recorded.shape != replayed.shape:
        return (0,) * recorded.ndim, float("inf")
    # Bits are compared as integers: as floats, NaN differs from itself and -0 equals 0.
    kind = f"u{recorded.dtype.itemsize}"
    places = np.flatnonzero(np.ascontiguousarray(recorded).view(kind) != np.ascontiguousarray(replayed).view(kind))
    if not len(places):
        return None
    # Differences are computed in float64, so that they are not rounded by the type that they measure.
    before, now = recorded.ravel()[places].astype(np.float64), replayed.ravel()[places].astype(np.float64)
    with np.errstate(invalid="ignore"):
        relative = np.abs(before - now) / np.maximum(floor, np.abs(before))
    largest = float("inf") if np.isnan(relative).any() else float(relative.max())
    first = tuple(int(index) for index in np.unravel_index(places[0], recorded.shape))
    return first, largest


class ReplayDirectory(RunDirectory):
    """A replay's directory; curves.json has the curves of the evaluation after `step`, the record's last one."""

    is_tracked = False

    def __init__(self, path: Path, rank: int, step: int | None) -> None:
        super().__init__(path, rank)
        self._step = step

    def curves(self, compute: Callable[[], Curves]) -> Curves | None:
        content = compute() if self._writes else None
        # A replay may evaluate once more than the record did, and the newest curves would take the file.
        if content is None or content.step != self._step:
            return content
        kept = content
        return super().curves(lambda: kept)


class ReplayComparison(Checkpointer):
    """A replay's checkpointer: at the steps of the run's checkpoints it compares, and it saves none itself."""

    def __init__(
        self,
        session: Session,
        recorder: Recorder,
        timer: StepTimer,
        *,
        checkpoints: dict[int, Path],
        scored: dict[str, int],
    ) -> None:
        """checkpoints: the run's, by step. scored: step of the scores it kept, by split. A collective call."""
        super().__init__(session, recorder, timer)
        self._checkpoints, self._scored = checkpoints, scored
        self.tensors: dict[int, dict[str, BitwiseDifference]] = {}  # tensors that differ, by step and name

    def due(self, step: int) -> bool:
        """Return whether the run left a checkpoint of this step, or scores."""
        return step in self._checkpoints or step in self._scored.values()

    def save(self, state: RunState, best: bool = False) -> None:
        """Compare with the run's checkpoint of this step, and keep the scores that the run kept of it."""
        if state.step in self._checkpoints:
            self.tensors[state.step] = self._compare(self._checkpoints[state.step])
        for split in [split for split, step in self._scored.items() if step == state.step]:
            with self._timer.apart("eval"):
                kept = self._session.evaluate(split)
                evaluator.keep(self._session, kept, self._recorder.directory.path, state.step)
                set_step(self._session.optimizer, state.updates)  # FBGEMM's optimizers counted the forward

    def keep_best(self, state: RunState) -> None:
        """Do nothing, since a replay has no checkpoint that could be the best."""

    def _compare(self, path: Path) -> dict[str, BitwiseDifference]:
        """Return the tensors that differ from a checkpoint's, by name, tables first; a collective call.

        Each has its first differing element in the whole tensor, and its largest difference on any process.
        """
        live = stage(tensors_of(self._session.model, self._session.optimizer))
        # Loading overwrites tensors in place, so it gets a copy of its own.
        recorded = stage(live)
        read_tensors(path, recorded)
        differences = []
        for (name, offsets, before), (_, _, now) in zip(local_tensors(recorded), local_tensors(live), strict=True):
            # NumPy lacks bfloat16, which becomes float32, value for value.
            was, is_now = ((part.float() if part.dtype is torch.bfloat16 else part).numpy() for part in (before, now))
            if (difference := bitwise_difference(was, is_now, NEAR_ZERO)) is not None:
                first, largest = difference
                differences.append((name, tuple(a + b for a, b in zip(offsets, first, strict=True)), largest))
        by_name: dict[str, BitwiseDifference] = {}
        for name, first, largest in chain.from_iterable(self._session.runtime.gather_objects(differences)):
            known = by_name.get(name, (first, largest))
            by_name[name] = min(known[0], first), max(known[1], largest)
        # The model's tensors come before the optimizer's, tables before dense ones.
        names = sorted(by_name, key=lambda name: (not name.startswith("model."), TABLES not in name, name))
        return {_shorten_name(name): by_name[name] for name in names}


def _shorten_name(name: str) -> str:
    """Return a tensor's name for people: `t_a`, `dense_arch.0.weight` or `optimizer's t_a.momentum1`.

    A table goes by its own name, without the modules that hold it in a model.
    """
    kind, _, name = name.partition(".")
    name_in_table = name.rpartition(TABLES)[2] if TABLES in name else ""
    if kind == "model":
        return name_in_table.removesuffix(".weight") or name
    return "optimizer's " + (name_in_table.partition(".weight.")[2] or name.removeprefix("state.dense."))


LAYOUT = ("image", "base_image", "world_size", "local_world_size", "num_threads", "platform", "compile")
OF_PROCESSES = ("world_size", "local_world_size", "num_threads")  # they do not affect the bits of deterministic=layout
# Variables of torchrun or of those in its place, whose effects LAYOUT compares, and limits of a container: they change
# how long a step takes, and bits only through the number of threads.
BY_LAUNCHER = (
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    *("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "TORCH_CPP_LOG_LEVEL", SET_BY_LAUNCHER, *INTERFACES),
    *("cpu_quota", "memory_limit_bytes"),
)
ANOTHER_RUN = "trained by another run, from whose checkpoint this one started"


class Launch(NamedTuple):
    """Steps after `start` up to `end` (None: the run's last), and the manifest; None for steps of another run."""

    start: int
    end: int | None
    manifest: RunManifest | None


def launches_of(manifest: RunManifest) -> list[Launch]:
    """Return the launches with steps in the record, in order; steps trained again after a kill are the later one's."""
    starts = [launch.from_step for launch in manifest.launches]
    launches = []
    for number, launch_manifest in enumerate(manifest.launches):
        # A launch that resumed before this one's last step has trained these steps again and recorded them.
        end = min(starts[number + 1 :], default=None)
        if end is None or end > starts[number]:
            launches.append(Launch(starts[number], end, launch_manifest))
    first = launches[0].start
    return [Launch(0, first, None), *launches] if first else launches


def changes(launches: list[Launch], now: RunManifest, any_layout: bool = False) -> tuple[list[str], int | None]:
    """Return changes of code, versions, hardware, environment, files and layout since the launches, and a step.

    now: a manifest's content for the replay. any_layout: processes and threads do not decide bits. Bits can be equal up
    to the step, before which nothing differs; it is None if nothing differs at all.
    """
    by_line: dict[str, list[Launch]] = {}
    for launch in launches:
        if launch.manifest is None:
            by_line[ANOTHER_RUN] = [launch]
            continue
        is_same_size = launch.manifest.world_size == now.world_size
        keys = [key for key in LAYOUT if not (any_layout and key in OF_PROCESSES)]
        keys = [key for key in keys if is_same_size or key != "local_world_size"]  # it follows from world_size
        conditions: list[Json] = []
        for manifest in (launch.manifest, now):
            facts: Json = {key: getattr(manifest, key) or None for key in keys}
            if is_same_size and not any_layout:  # another number of processes implies another plan
                kinds = Counter(f"{table.type} on {len(table.ranks)}" for table in manifest.plan.values())
                facts["sharding"] = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
            for part in ("code", "versions", "hardware", "environment", "files"):
                values = getattr(manifest, part).items()
                facts |= {f"{part} {key}": value for key, value in values if key not in BY_LAUNCHER}
            conditions.append(facts)
        before, after = conditions
        for key in sorted(before.keys() | after.keys()):
            if before.get(key) != after.get(key):
                by_line.setdefault(f"{key}: {before.get(key)} then, {after.get(key)} now", []).append(launch)
    lines = []
    for line, affected in by_line.items():
        ranges = [f"{start + 1} to {end}" if end is not None else f"from {start + 1} on" for start, end, _ in affected]
        lines.append(line if affected == launches else f"steps {', '.join(ranges)}: {line}")
    return lines, min((launch.start for affected in by_line.values() for launch in affected), default=None)


# By file, what is not compared: clocks, memory and power at a moment, words, and what the replay takes from the record.
# `python -m app.verify` prints this.
NOT_COMPARED = {
    file: tuple(names.split())
    for file, names in {
        METRICS: """seconds eval_seconds samples_per_second input_wait_fraction phase_seconds watts host_bytes
        device_bytes checkpoint resume""",  # of events of the last two kinds the number is compared
        SUMMARY: "throughput covers memory phase_seconds power seconds baselines no_baselines error",
        MANIFEST: """argv began results_before pipeline plan dataset.path dataset.unseen dataset.misleading
        dataset.sampling launcher's_variables keys_without_a_value""",
        "other files": """config.yaml log.txt results.csv step_times.json report.html tensorboard checkpoints/latest
        checkpoints/best""",
    }.items()
}
KINDS = ("train", "eval", "eval_train")  # kinds of events that a replay repeats
# Differences of RELATIVE are divided by the recorded value. Figures that are not SMOOTH move in steps of whole samples.
RELATIVE = ("loss", LOGLOSS, "lr", "gradient_norm", RMSE, MAE, LABEL_DEVIATION, "mean_norm", "largest_norm")
SMOOTH = (*RELATIVE, NE, CALIBRATION, ALL_ROWS, BASE_RATE)
ROUNDING = 1e-12  # relative; another release may add float64 sums over samples in another order
CHANGED_PLACES = 4  # samples that may change sides of a threshold, or ranks, if logits differ by rounding
MISSING, NOT_REPLAYED = "not recorded", "not replayed"
DIGESTS = ("digest", "logits_sha256")  # keys of a summary and of kept scores; what they are of is compared by itself
OF_ANY_LENGTH = ("steps", "samples", "status", "world_size", "events")  # of a summary of more steps than the replay's


class Record(NamedTuple):
    """Contents of a run's directory; None or empty for a missing file."""

    directory: Path
    manifest: RunManifest
    summary: Summary | None
    events: list[Event]
    curves: Curves | None
    scores: dict[str, Scores]

    @property
    def first(self) -> RunManifest:
        """Manifest of the first launch with steps in the record."""
        return next(launch.manifest for launch in launches_of(self.manifest) if launch.manifest is not None)

    def evaluated(self, steps: int) -> list[int]:
        """Return the steps, up to `steps`, after which metrics.jsonl has an evaluation of the evaluated split."""
        return [event.step for event in self.events if event.event == "eval" and event.step <= steps]


# A figure that differs: its place (`where`), its name (`figure`), both values (`recorded`, `replayed`) and the
# difference's `size`, infinite if rounding cannot explain it.
Difference: TypeAlias = dict[str, Any]


def difference_of(where: str, figure: str, recorded: object, replayed: object, size: float) -> Difference:
    """Return a difference by the names of its parts."""
    return {"where": where, "figure": figure, "recorded": recorded, "replayed": replayed, "size": size}


def read_record(directory: Path) -> Record:
    """Read everything of a run that is compared. Raises UserError for another version, or for damaged files."""
    manifest, summary = read_manifest(directory), read_summary(directory)
    if summary is not None and summary.version != SUMMARY_VERSION:
        raise UserError(
            f"run={directory}: {SUMMARY} is of version {summary.version}, and this one reads "
            f"{SUMMARY_VERSION}; give a run that this version trained"
        )
    splits = kept_splits(directory)
    if alone := sorted({path.name.partition(".")[0] for path in (directory / SCORES).glob("*.npy")} - {*splits}):
        path = directory / SCORES / f"{alone[0]}.json"
        raise UserError(f"{path}: missing beside its arrays; remove these, and keep the scores of {alone[0]} again")
    scores = {split: read_scores(directory, split) for split in splits}
    return Record(directory, manifest, summary, read_events(directory), read_curves(directory), scores)


def is_compared(file: str, name: str) -> bool:
    """Return whether a key of a file is compared; its name has dots between the parts."""
    return not any(name == excluded or name.startswith(f"{excluded}.") for excluded in NOT_COMPARED.get(file, ()))


def compare_records(record: Record, replay: Record, config: AppConfig, kept_split: str | None) -> dict[str, Any]:
    """Compare what a run recorded of the steps that its replay trained with what the replay recorded.

    replay: its summary ends as an undisturbed run of that many steps does. config: the run's own. kept_split: the split
    whose scores a run that came to its end has kept; None: none. Return entries for the JSON: the differences, the
    number of compared figures, the names and files that were not compared, the latter with the reason, the difference
    of each of AUC, logloss and RMSE that the run has, and whether each digest of the summary equals the replay's.
    """
    differences: list[Difference] = []
    compared, summary = 0, record.summary
    assert replay.summary is not None
    for pair in _record_pairs(record, replay, replay.summary, config):
        figures = list(_compare(*pair))
        compared += len(figures)
        differences += filter(None, figures)
    if not any(isinstance(event, TrainEvent) and event.step <= replay.summary.steps for event in record.events):
        raise UserError(f"run={record.directory}: {METRICS} has no losses to compare")
    lacking = []
    if replay.curves is not None:
        # Rounding moves the thresholds of curves, so they are compared only where all figures are equal.
        is_same_size = record.manifest.world_size == replay.manifest.world_size
        if not (is_same_size or config.train.micro_batch is not None) or differences:
            lacking.append(f"{CURVES} (other figures or processes differ)")
        else:
            curves = {} if record.curves is None else plain_object(record.curves)
            # One changed score shifts all points after it.
            first = next(filter(None, _compare(CURVES, curves, plain_object(replay.curves), math.inf)), None)
            differences += [] if first is None else [first | {"size": math.inf}]
    same_digests: dict[str, bool] = {}
    if summary is None or summary.status == "failed":
        lacking.append(f"{SUMMARY} ({'there is none' if summary is None else 'the run failed'})")
    elif summary.steps == replay.summary.steps:
        digests = summary.digest or {}
        same_digests = {name: digests.get(name) == digest for name, digest in (replay.summary.digest or {}).items()}
    for split in record.scores.keys() & replay.scores.keys():
        logits = record.scores[split].logits, replay.scores[split].logits
        if (difference := bitwise_difference(*logits, NEAR_ZERO)) is not None:
            (first_row,), largest = difference
            before, now = (float(each[first_row]) for each in logits)
            differences.append(difference_of(f"{SCORES}/{split}", f"logits.{first_row}", before, now, largest))
    if summary is not None and summary.status in DONE and kept_split and kept_split not in record.scores:
        differences.append(difference_of(SCORES, kept_split, MISSING, "kept by eval.keep_scores", math.inf))
    differing = {each["figure"]: each["size"] for each in differences if each["where"] == SUMMARY}
    judged = [key for key in (LOGLOSS, AUC, RMSE) if summary is not None and summary.eval.figure(key) is not None]
    return {
        "figures": differences,
        "figures_compared": compared,
        "not_compared": {file: list(names) for file, names in NOT_COMPARED.items()},
        "lacking": lacking,
        "evaluation": {key: differing.get(f"eval.{key}", 0.0) for key in judged},
        "same_digests": same_digests,
    }


def _compare(where: str, before: Json, now: Json, samples: float) -> Iterator[Difference | None]:
    """Yield for each compared figure of a part of the record the difference of its replay; None if there is none.

    where: of the part, beginning with a file's name. before, now: either may be missing. samples: as for `_difference`.
    """
    if not before or not now:
        faults = ("recorded", NOT_REPLAYED) if before else (MISSING, "replayed")
        yield from [difference_of(where, "all", *faults, math.inf)] if before or now else []
        return
    recorded, replayed = _flatten(before), _flatten(now)
    for name in {**recorded, **replayed}:
        if name.partition(".")[0] not in DIGESTS and is_compared(where.partition(",")[0], name):
            values = recorded.get(name, MISSING), replayed.get(name, NOT_REPLAYED)
            size = _difference(name.rpartition(".")[2], *values, samples)
            yield None if size is None else difference_of(where, name, *values, size)


def _record_pairs(
    record: Record, replay: Record, repeated_summary: Summary, config: AppConfig
) -> Iterator[tuple[str, Json, Json, float]]:
    """Yield what the record and its replay have of each window, evaluation, manifest and kept score, and the summary.

    The place, which begins with a file's name, comes before both, and the samples of their figures after them.
    """
    manifest, summary, steps = record.manifest, record.summary, repeated_summary.steps
    recorded, repeated = (
        {(event.event, event.step): plain_object(event) for event in events if event.step <= steps}
        for events in (record.events, replay.events)
    )
    # The newest launch was configured as the replay is, so it recorded what the replay does beyond its first step. What
    # a run does after its last one depends on how it ended; the summary counts these events.
    required = {
        (kind, step)
        for kind, step in repeated
        if kind in KINDS and manifest.from_step < step < steps
        if kind != "eval_train" or config.eval.train_split
    }
    events = required | {event for event in recorded if event[0] in KINDS}
    for kind, step in sorted(events, key=lambda event: (KINDS.index(event[0]), event[1])):
        before, now = recorded.get((kind, step), {}), repeated.get((kind, step), {})
        yield f"{METRICS}, {kind} of step {step}", before, now, _sample_count({**now, **before})
    # `changes` compares the conditions: code, versions, hardware, environment, files and layout.
    for number, launch in enumerate(manifest.launches, start=1):
        where = MANIFEST if number == len(manifest.launches) else f"{MANIFEST}, launch {number}"
        before, now = (plain_object(content) for content in (launch, replay.manifest))
        shared = [key for key in ("format", "dataset", "seeds", "tables") if key in before or key in now]
        yield where, {key: before.get(key) for key in shared}, {key: now.get(key) for key in shared}, math.inf
    for split, scores in record.scores.items():
        before, now = ({} if kept is None else plain_object(kept.about) for kept in (scores, replay.scores.get(split)))
        yield f"{SCORES}/{split}", before, now, math.inf
    if summary is None or summary.status == "failed":
        return
    # Evaluations are compared with the replay's of the same step. A best one is due once the newest launch evaluated.
    evaluations = [event for event in replay.events if isinstance(event, EvaluationEvent) and event.event == "eval"]
    figures, evaluated = {event.step: event.figures() for event in evaluations}, record.evaluated(steps)
    last, best, monitor = max(evaluated, default=None), summary.best, config.train.monitor
    served = best.step if config.checkpoint.keep_best and best else last
    due = [step for step in evaluated if step > manifest.from_step] if best is None else [best.step]
    candidates = (best_of(figures[step], monitor) for step in due if step in figures)
    tables = repeated_summary.tables
    if config.checkpoint.resume not in ("auto", "never"):
        # A run that began with another run's tables does not know which rows it touched.
        tables = {name: {**table, "rows_touched": None} for name, table in tables.items()}
    # A run that is stopped in its last evaluation is interrupted, though no step is left.
    is_stopped = summary.status == "interrupted" and steps not in evaluated
    before, now = plain_object(summary), plain_object(repeated_summary)
    now |= {
        "status": "interrupted" if is_stopped else repeated_summary.status,
        "world_size": manifest.world_size,
        "events": {**Counter(event.event for event in record.events)},
        "eval": plain(undefined_evaluation() if served is None else figures.get(served)),
        "last": plain(undefined_evaluation() if last is None else figures.get(last)),
        "best": plain(next((candidate for candidate in candidates if candidate is not None), None)),
        "tables": tables,
    }
    # Figures of a run that went further than the replay describe other steps.
    if summary.steps != steps:
        before, now = ({name: content[name] for name in OF_ANY_LENGTH} for content in (before, now))
    yield SUMMARY, before, now, _sample_count(plain_object(summary.last))


def _flatten(content: Mapping[str, object], prefix: str = "") -> Json:
    """Return nested values by the dotted names of their places; empty containers are values themselves."""
    leaves: Json = {}
    for key, value in content.items():
        children: object = value
        if isinstance(value, (list, tuple)):
            children = {str(number): element for number, element in enumerate(value)}
        if isinstance(children, dict) and children:
            leaves |= _flatten(children, f"{prefix}{key}.")
        elif value is not UNSET:
            leaves[f"{prefix}{key}"] = value
    return leaves


def _sample_count(event: Json) -> float:
    """Return the samples behind the figures of an evaluation, or of a window of steps; infinity if it is neither."""
    if event.get("event") == "train":
        # An event has the samples since the run's start, so the window gets its share of the steps.
        steps, samples, step = (event.get(name) or 0 for name in ("steps", "samples", "step"))
        return steps * samples / step  # type: ignore[operator]
    count = event.get("eval_samples") or event.get("samples")
    return count if isinstance(count, int) else math.inf


def _difference(name: str, recorded: object, replayed: object, samples: float) -> float | None:
    """Return the size of a difference; None if there is none, infinite if rounding cannot explain it.

    samples: number behind the figure, as of `_sample_count`.
    """
    if recorded == replayed or (recorded != recorded and replayed != replayed):  # both NaN
        return None
    # A row counts as touched if it differs from its initial values, which rounding may decide for a few rows.
    if name == "rows_touched" and isinstance(recorded, int) and isinstance(replayed, int):
        return max(0, abs(recorded - replayed) - CHANGED_PLACES) / max(recorded, 1)
    # Counts and texts are exact, so rounding cannot have changed them.
    if not isinstance(recorded, float) or not isinstance(replayed, float):
        return math.inf
    if math.isclose(recorded, replayed, rel_tol=ROUNDING, abs_tol=0.0):
        return None
    size = abs(recorded - replayed) / (abs(recorded) or 1.0) if name in RELATIVE else abs(recorded - replayed)
    # A sample on the other side of a threshold changes such a figure by a step, however small its own change is.
    if name not in SMOOTH:
        size = max(0.0, size - CHANGED_PLACES / samples)
    return math.inf if math.isnan(size) else size


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
        # The runtime of the first launch, below the overrides. compile=auto stays auto: `step` has the bits of `none`,
        # so this machine may choose another than the run's did.
        first, overrides, compiled = record.first, config.runtime, config.runtime.compile
        if compiled == "auto" and trained.runtime.compile != "auto":
            compiled = cast(Compile, first.compile)
        num_threads = overrides.num_threads or first.num_threads or trained.runtime.num_threads
        trained = replace(trained, runtime=replace(trained.runtime, num_threads=num_threads, compile=compiled))
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
    paths = joined.on_rank_0(lambda: [*files.undamaged_checkpoints(directory / files.CHECKPOINTS)])
    checkpoints = {files.read_state(path).step: path for path in paths}
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
    train_split = replay_session.split("train")
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
    make_comparison = partial(ReplayComparison, checkpoints=checkpoints, scored=scored)
    length = length._replace(evaluations=frozenset(evaluations), reports=frozenset(reports))
    run = TrainingRun(replay_session, replay_directory, began, length, make_comparison)
    if first.parent is not UNSET:
        run.warm_start(checkpointer.parent_of(directory, first.parent))
    run.train()
    if joined.rank:
        return EXIT_DONE

    split = evaluator.kept_split(trained.eval, manifest)
    # As `evaluator.has_few_rows` decides in the run, which also warns.
    most_rows = min(trained.eval.keep_scores, trained.eval.exact_rows)
    keeps = split is not None and replay_session.split(split).rows <= most_rows
    state, stop = run.state, early_stop(run.state, own_length)
    is_done = state.step >= own_length.total_steps or stop is not None
    replay = read_record(scratch)
    assert replay.summary is not None
    replay.summary.early_stop = stop
    replay.summary.status = (
        "target_reached" if target_reached(state, own_length) else "completed" if is_done else "interrupted"
    )
    assert isinstance(run.checkpointer, ReplayComparison)
    losses = None
    if checkpoints:
        recorded = files.read(checkpoints[max(checkpoints)])[1]["losses"]
        # The replay may go further than the newest checkpoint.
        losses = bitwise_difference(recorded, state.all_losses()[: len(recorded)], floor=0.0)
    report = {
        "run": str(Path(config.bundle or directory)),
        "steps": steps,
        "compared_at": sorted(checkpoints),
        **_report_bits(losses, run.checkpointer.tensors),
        **compare_records(record, replay, trained, split if keeps else None),
    }
    return _report(report, *changes(launches, replay.manifest, any_layout), config.tolerance)


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
    # A plan is for one number of processes, and its kernels for one platform.
    recorded, sizes = record.first, (joined.world_size, joined.local_world_size)
    if (recorded.world_size, recorded.local_world_size, recorded.platform) != (*sizes, joined.platform):
        return config
    # A planner may choose another plan today.
    path = scratch / "plan.json"
    plan = Plan(world_size=sizes[0], local_world_size=sizes[1], tables=recorded.plan)
    joined.on_rank_0(lambda: path.write_text(encode(plan), encoding="utf-8"))
    return replace(config, sharding=ShardingConfig(plan=str(path), qcomm=config.sharding.qcomm))


def _report_bits(losses: BitwiseDifference | None, tensors: dict[int, dict[str, BitwiseDifference]]) -> dict[str, Any]:
    """Return entries for the JSON: losses, with steps from 1, and tensors of the first checkpoint that differs.

    largest_difference is over the losses and the tensors of all checkpoints; 0 if all bits are equal.
    """
    first = min((step for step, differing in tensors.items() if differing), default=None)
    differing = {} if first is None else tensors[first]
    sizes = [size for of_step in tensors.values() for _, size in of_step.values()]
    return {
        "losses": losses and {"first_step": losses[0][0] + 1, "largest": losses[1]},
        "tensors_at_step": first,
        "tensors": {name: {"first_element": index, "largest": size} for name, (index, size) in differing.items()},
        "largest_difference": max([0.0, losses[1] if losses else 0.0, *sizes]),
    }


def _report(report: dict[str, Any], conditions: list[str], until: int | None, tolerance: float) -> int:
    """Print the report as JSON on stdout, then log its reasons and, last, the verdict; return the exit status.

    until: the step up to which bits can be equal; None: to the end.
    """
    figures = report["figures"]
    windows = [window for window in figures if window["where"].startswith(METRICS) and window["figure"] == "loss"]
    # Without checkpoints the losses of single steps are not known, so those of the log's windows stand for them.
    if report["losses"] is None and windows:
        # `where` ends with the window's step.
        first_step = min(int(window["where"].rsplit(" ", 1)[1]) for window in windows)
        report["losses"] = {"first_step": first_step, "largest": max(window["size"] for window in windows)}
    report["largest_difference"] = max([report["largest_difference"], *(each["size"] for each in figures)])
    losses = report["losses"]
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
