"""Comparison of a run with its replay: checkpoints bit for bit, and the record figure by figure, both ways."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from msgspec import UNSET, Struct
from numpy.typing import NDArray

from app.checkpoint.saver import local_tensors, read_tensors, stage, tensors_of
from app.config.app_config import AppConfig
from app.config.kinds import ALL_ROWS, BASE_RATE, CALIBRATION, LABEL_DEVIATION, LOGLOSS, MAE, NE, RMSE
from app.metrics.documents import AnyEvent, Curves, EarlyStop, EvaluationEvent, TrainEvent
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
from app.runtime.environment import INTERFACES, SET_BY_LAUNCHER
from app.training import evaluator
from app.training.checkpointer import Checkpointer
from app.training.recorder import Recorder, undefined_evaluation
from app.training.session import Session
from app.training.state import RunState, best_of
from common.documents import Json, plain_object
from common.errors import UserError

# Values near 0 may change by many times their size without meaning.
NEAR_ZERO = 1.0  # differences of parameters are relative to their size, but at least to this
TABLES = ".embedding_bags."  # part of the names of tables' tensors


class BitwiseDifference(NamedTuple):
    """The index of the first element (row-major) whose bits differ, and the largest difference over max(floor, |x|)."""

    first: tuple[int, ...]
    largest: float


def bitwise_difference(
    recorded: NDArray[np.generic], replayed: NDArray[np.generic], floor: float
) -> BitwiseDifference | None:
    """Return where arrays differ; None if all bits are equal.

    A NaN equals the same NaN and is infinitely far from everything else.
    """
    if recorded.shape != replayed.shape:
        return BitwiseDifference((0,) * recorded.ndim, float("inf"))
    # Bits are compared as integers: as floats, NaN differs from itself and -0 equals 0.
    width = f"u{recorded.dtype.itemsize}"
    bits = np.flatnonzero(np.ascontiguousarray(recorded).view(width) != np.ascontiguousarray(replayed).view(width))
    if not len(bits):
        return None
    # Differences are computed in float64, so that they are not rounded by the type that they measure.
    before, now = recorded.ravel()[bits].astype(np.float64), replayed.ravel()[bits].astype(np.float64)
    with np.errstate(invalid="ignore"):
        relative = np.abs(before - now) / np.maximum(floor, np.abs(before))
    largest = float("inf") if np.isnan(relative).any() else float(relative.max())
    first = tuple(int(index) for index in np.unravel_index(bits[0], recorded.shape))
    return BitwiseDifference(first, largest)


class ReplayDirectory(RunDirectory):
    """A replay's directory; it remembers the curves of the evaluation after `step`, if any."""

    is_tracked = False

    def __init__(self, path: Path, rank: int, step: int | None) -> None:
        super().__init__(path, rank)
        self._step = step
        self.kept_curves: Curves | None = None

    def curves(self, compute: Callable[[], Curves]) -> Curves | None:
        content = super().curves(compute)
        if content is not None and content.step == self._step:
            self.kept_curves = content
        return content


class ReplayComparison(Checkpointer):
    """A replay's checkpointer: it compares instead of saving, wherever the run left a checkpoint."""

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
        return step in self._checkpoints or step in self._scored.values()

    def save(self, state: RunState, best: bool = False) -> None:
        """Compare with the run's checkpoint of this step, and keep the scores that the run kept of it."""
        if state.step in self._checkpoints:
            self.tensors[state.step] = self._compare(self._checkpoints[state.step])
        for split in [split for split, step in self._scored.items() if step == state.step]:
            with self._timer.apart("eval"):
                predictor = self._session.predictor
                evaluator.keep(predictor, predictor.evaluate(split), self._recorder.directory.path, state.step)
                set_step(self._session.optimizer, state.updates)  # FBGEMM's optimizers counted the forward

    def keep_best(self, state: RunState) -> None:
        pass

    def _compare(self, path: Path) -> dict[str, BitwiseDifference]:
        """Return the tensors that differ from a checkpoint's, tables first; a collective call."""
        live = stage(tensors_of(self._session.model, self._session.optimizer))
        # Loading overwrites tensors in place, so it gets a copy of its own.
        recorded = stage(live)
        read_tensors(path, recorded)
        differences = []
        for before, now in zip(local_tensors(recorded), local_tensors(live), strict=True):
            # NumPy lacks bfloat16, which becomes float32, value for value.
            was, is_now = (
                (part.float() if part.dtype is torch.bfloat16 else part).numpy() for part in (before.values, now.values)
            )
            difference = bitwise_difference(was, is_now, NEAR_ZERO)
            if difference is not None:
                index = tuple(a + b for a, b in zip(before.offsets, difference.first, strict=True))
                differences.append((before.path, BitwiseDifference(index, difference.largest)))
        by_name: dict[str, BitwiseDifference] = {}
        for name, difference in chain.from_iterable(self._session.runtime.gather_objects(differences)):
            known = by_name.get(name, difference)
            first, largest = min(known.first, difference.first), max(known.largest, difference.largest)
            by_name[name] = BitwiseDifference(first, largest)
        # The model's tensors come before the optimizer's, tables before dense ones.
        names = sorted(by_name, key=lambda name: (not name.startswith("model."), TABLES not in name, name))
        return {_shorten_name(name): by_name[name] for name in names}

    def report(self, losses: BitwiseDifference | None) -> Json:
        """Return the comparison for the JSON; steps count from 1."""
        sizes = [difference.largest for tensors in self.tensors.values() for difference in tensors.values()]
        differing = {step: tensors for step, tensors in self.tensors.items() if tensors}
        first = min(differing, default=None)
        tensors = {} if first is None else differing[first]
        return {
            "losses": losses and {"first_step": losses.first[0] + 1, "largest": losses.largest},
            "tensors_at_step": first,
            "tensors": {name: {"first_element": index, "largest": size} for name, (index, size) in tensors.items()},
            "largest_difference": max([0.0, losses.largest if losses else 0.0, *sizes]),
        }


def _shorten_name(name: str) -> str:
    """Shorten a tensor's name in a checkpoint to the one that people know."""
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
                values = getattr(manifest, part)
                values = plain_object(values) if isinstance(values, Struct) else values
                facts |= {f"{part} {key}": value for key, value in values.items() if key not in BY_LAUNCHER}
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
        device_bytes measured checkpoint resume""",  # of events of the last two kinds the number is compared
        SUMMARY: "throughput covers memory phase_seconds power seconds baselines no_baselines error",
        MANIFEST: """argv began results_before pipeline plan dataset.path dataset.unseen dataset.misleading
        dataset.sampling launcher's_variables keys_without_a_value""",
        "other files": """config.yaml log.txt results.csv step_times.json report.html tensorboard checkpoints/latest
        checkpoints/best""",
    }.items()
}
KINDS = ("train", "eval", "eval_train")  # kinds of events that a replay repeats
RELATIVE = ("loss", LOGLOSS, "lr", "gradient_norm", RMSE, MAE, LABEL_DEVIATION, "mean_norm", "largest_norm")
SMOOTH = (*RELATIVE, NE, CALIBRATION, ALL_ROWS, BASE_RATE)
ROUNDING = 1e-12  # relative; another release may add float64 sums over samples in another order
CHANGED_PLACES = 4  # samples that may change sides of a threshold, or ranks, if logits differ by rounding
MISSING, NOT_REPLAYED = "not recorded", "not replayed"


class Record(NamedTuple):
    """Contents of a run's directory; None or empty for a missing file."""

    directory: Path
    manifest: RunManifest
    summary: Summary | None
    events: list[AnyEvent]
    curves: Curves | None
    scores: dict[str, Scores]

    @property
    def first(self) -> RunManifest:
        """Manifest of the first launch with steps in the record."""
        return next(launch.manifest for launch in launches_of(self.manifest) if launch.manifest is not None)

    def evaluated(self, steps: int) -> list[int]:
        """Return the steps, up to `steps`, after which metrics.jsonl has an evaluation of the evaluated split."""
        return [event.step for event in self.events if event.event == "eval" and event.step <= steps]


class Replay(NamedTuple):
    """Results of a replay of `steps` steps; `record` is read from the replay's own directory.

    status, early_stop: of an undisturbed run that came this far by `config`, the run's own.
    curves: of the newest recorded evaluation, if there was one.
    keeps_scores: the split whose scores a run that came to its end has kept; None: none.
    """

    record: Record
    steps: int
    config: AppConfig
    status: str
    early_stop: EarlyStop | None
    curves: Curves | None
    keeps_scores: str | None


class Difference(NamedTuple):
    """A figure that differs: its place, its name and both values; size is infinite if rounding cannot explain it."""

    where: str
    figure: str
    recorded: object
    replayed: object
    size: float


def read_record(directory: Path) -> Record:
    """Read everything of a run that is compared."""
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
    return not any(name == excluded or name.startswith(f"{excluded}.") for excluded in NOT_COMPARED[file])


def compare_records(record: Record, replay: Replay) -> tuple[list[Difference], int, dict[str, bool], list[str]]:
    """Compare what a run recorded of its first `replay.steps` steps with what its replay recorded.

    Return the differences, the number of compared figures, whether each digest of the summary equals the replay's, and
    the files that were not compared, each with the reason.
    """
    differences: list[Difference] = []
    compared = 0
    for where, before, now, samples in _record_pairs(record, replay):
        if not before or not now:
            if before or now:
                faults = ("recorded", NOT_REPLAYED) if before else (MISSING, "replayed")
                differences.append(Difference(where, "all", *faults, math.inf))
            continue
        recorded, replayed = _flatten(before), _flatten(now)
        for name in [*recorded, *(name for name in replayed if name not in recorded)]:
            if not is_compared(where.partition(",")[0], name):
                continue
            compared += 1
            values = recorded.get(name, MISSING), replayed.get(name, NOT_REPLAYED)
            if (size := _difference(name.rpartition(".")[2], *values, samples)) is not None:
                differences.append(Difference(where, name, *values, size))
    if not any(isinstance(event, TrainEvent) and event.step <= replay.steps for event in record.events):
        raise UserError(f"run={record.directory}: {METRICS} has no losses to compare")
    lacking = []
    if replay.curves is not None:
        # Rounding moves the thresholds of curves, so they are compared only where all figures are equal.
        is_same_size = record.manifest.world_size == replay.record.manifest.world_size
        if not (is_same_size or replay.config.train.micro_batch is not None) or differences:
            lacking.append(f"{CURVES} (other figures or processes differ)")
        else:
            recorded = {} if record.curves is None else _flatten(plain_object(record.curves))
            replayed = _flatten(plain_object(replay.curves))
            for name in {**replayed, **recorded}:
                values = recorded.get(name, MISSING), replayed.get(name, NOT_REPLAYED)
                if _difference("", *values, math.inf) is not None:
                    differences.append(Difference(CURVES, name, *values, math.inf))
                    break  # one changed score shifts all points after it
    recorded_summary, summary = record.summary, replay.record.summary
    same_digests: dict[str, bool] = {}
    if recorded_summary is None or recorded_summary.status == "failed":
        lacking.append(f"{SUMMARY} ({'there is none' if recorded_summary is None else 'the run failed'})")
    elif summary is not None and recorded_summary.steps == replay.steps:
        before, now = (_plain_part(content, "digest") for content in (recorded_summary, summary))
        same_digests = {name: before.get(name) == now[name] for name in now}
    return [*differences, *_score_differences(record, replay)], compared, same_digests, lacking


def _record_pairs(record: Record, replay: Replay) -> Iterator[tuple[str, Json, Json, float]]:
    """Yield what the record and its replay have of each window, evaluation, manifest and part of the summary.

    The place, which begins with a file's name, comes before both, and the samples of their figures after them.
    """
    manifest, summary, config = record.manifest, record.summary, replay.config
    recorded, repeated = (
        {(event.event, event.step): plain_object(event) for event in events if event.step <= replay.steps}
        for events in (record.events, replay.record.events)
    )
    # The newest launch was configured as the replay is, so it recorded what the replay does beyond its first step. What
    # a run does after its last one depends on how it ended; the summary counts these events.
    required = {
        (kind, step)
        for kind, step in repeated
        if kind in KINDS and manifest.from_step < step < replay.steps
        if kind != "eval_train" or config.eval.train_split
    }
    events = required | {event for event in recorded if event[0] in KINDS}
    for kind, step in sorted(events, key=lambda event: (KINDS.index(event[0]), event[1])):
        before, now = recorded.get((kind, step), {}), repeated.get((kind, step), {})
        yield f"{METRICS}, {kind} of step {step}", before, now, _sample_count({**now, **before})
    # `changes` compares the conditions: code, versions, hardware, environment, files and layout.
    for number, launch in enumerate(manifest.launches, start=1):
        where = MANIFEST if number == len(manifest.launches) else f"{MANIFEST}, launch {number}"
        before, now = (plain_object(content) for content in (launch, replay.record.manifest))
        shared = [key for key in ("format", "dataset", "seeds", "tables") if key in before or key in now]
        yield where, {key: before.get(key) for key in shared}, {key: now.get(key) for key in shared}, math.inf
    repeated_summary = replay.record.summary
    if summary is None or summary.status == "failed" or repeated_summary is None:
        return
    yield f"{SUMMARY}, events", {**summary.events}, {**Counter(event.event for event in record.events)}, math.inf
    evaluated = record.evaluated(replay.steps)
    # A run that is stopped in its last evaluation is interrupted, though no step is left.
    is_stopped = summary.status == "interrupted" and replay.steps not in evaluated
    names = ("steps", "samples", "status", "world_size")
    status = "interrupted" if is_stopped else replay.status
    now = {"steps": replay.steps, "samples": repeated_summary.samples, "status": status}
    now["world_size"] = manifest.world_size
    yield SUMMARY, {name: getattr(summary, name) for name in names}, now, math.inf
    # Figures of a run that went further than the replay describe other steps.
    if summary.steps != replay.steps:
        return
    tables = _plain_part(repeated_summary, "tables")
    if config.checkpoint.resume not in ("auto", "never"):
        # A run that began with another run's tables does not know which rows it touched.
        tables = {name: {**dict(figures), "rows_touched": None} for name, figures in tables.items()}  # type: ignore[call-overload]
    # Evaluations are compared with the replay's of the same step. A best one is due once the newest launch evaluated.
    evaluations = (event for event in replay.record.events if isinstance(event, EvaluationEvent))
    figures = {event.step: event.figures() for event in evaluations if event.event == "eval"}
    last, best, monitor = max(evaluated, default=None), summary.best, config.train.monitor
    served = best.step if config.checkpoint.keep_best and best else last
    steps = [step for step in evaluated if step > manifest.from_step] if best is None else [best.step]
    candidates = (best_of(figures[step], monitor) for step in steps if step in figures)
    replayed: dict[str, Struct | None] = {
        "parameters": repeated_summary.parameters,
        "train": repeated_summary.train,
        "early_stop": replay.early_stop,
        "eval": undefined_evaluation() if served is None else figures.get(served),
        "last": undefined_evaluation() if last is None else figures.get(last),
        "best": next((candidate for candidate in candidates if candidate is not None), None),
    }
    samples = _sample_count(_plain_part(summary, "last"))
    for part, content in replayed.items():
        now = plain_object(content) if content is not None else {}
        yield f"{SUMMARY}, {part}", _plain_part(summary, part), now, samples
    yield f"{SUMMARY}, tables", _plain_part(summary, "tables"), tables, math.inf


def _plain_part(summary: Summary, name: str) -> Json:
    """Return a part of a summary as plain values; empty if it is None."""
    part = getattr(summary, name)
    if isinstance(part, Struct):
        return plain_object(part)
    return {key: plain_object(value) for key, value in part.items()} if part else {}


def _score_differences(record: Record, replay: Replay) -> Iterator[Difference]:
    """Yield kept scores that differ from the replay's of the same step and split, and those that were not kept."""
    for split, recorded in record.scores.items():
        where, repeated = f"{SCORES}/{split}", replay.record.scores.get(split)
        if repeated is None or repeated.about.step != recorded.about.step:
            yield Difference(where, "step", recorded.about.step, NOT_REPLAYED, math.inf)
            continue
        for name in ("split", "rows", "dataset", "labels_sha256"):
            values = getattr(recorded.about, name), getattr(repeated.about, name)
            if values[0] != values[1]:
                yield Difference(where, name, *values, math.inf)
        difference = bitwise_difference(recorded.logits, repeated.logits, NEAR_ZERO)
        if difference is not None:
            before, now = (float(scores.logits[difference.first]) for scores in (recorded, repeated))
            yield Difference(where, f"logits.{difference.first[0]}", before, now, difference.largest)
    has_ended = record.summary is not None and record.summary.status in DONE
    if has_ended and replay.keeps_scores and replay.keeps_scores not in record.scores:
        yield Difference(SCORES, replay.keeps_scores, MISSING, "kept by eval.keep_scores", math.inf)


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
    """Return the samples that the figures of an evaluation, or of a window of steps, are computed over."""
    if event.get("event") == "train":
        steps, samples, step = (event.get(name) or 0 for name in ("steps", "samples", "step"))
        return steps * samples / step  # type: ignore[operator]
    count = event.get("eval_samples") or event.get("samples")
    return count if isinstance(count, int) else math.inf


def _difference(name: str, recorded: object, replayed: object, samples: float) -> float | None:
    """Return the size of a difference; None if there is none, infinite if rounding cannot explain it."""
    if recorded == replayed or (recorded != recorded and replayed != replayed):  # both NaN
        return None
    if name == "rows_touched" and isinstance(recorded, int) and isinstance(replayed, int):
        return max(0, abs(recorded - replayed) - CHANGED_PLACES) / max(recorded, 1)
    if not isinstance(recorded, float) or not isinstance(replayed, float):
        return math.inf
    if math.isclose(recorded, replayed, rel_tol=ROUNDING, abs_tol=0.0):
        return None
    size = abs(recorded - replayed) / (abs(recorded) or 1.0) if name in RELATIVE else abs(recorded - replayed)
    # A sample on the other side of a threshold changes such a figure by a step, however small its own change is.
    if name not in SMOOTH:
        size = max(0.0, size - CHANGED_PLACES / samples)
    return math.inf if math.isnan(size) else size
