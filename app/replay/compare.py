"""Comparison of a run with its replay: checkpoints bit for bit, and the record figure by figure, both ways."""

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from msgspec import UNSET, Struct
from numpy.typing import NDArray
from torch import Tensor

from app.checkpoint.files import BEST, CHECKPOINTS, LATEST, checkpoint_name, whole_checkpoints
from app.checkpoint.saver import local_tensors, read_tensors, stage, tensors_of
from app.config.kinds import ALL_ROWS, AUC, BASE_RATE, CALIBRATION, LABEL_DEVIATION, LOGLOSS, MAE, NE, RMSE
from app.metrics.documents import AnyEvent, Best, Curves, EarlyStop, EvaluationEvent, EvaluationFigures, TrainEvent
from app.metrics.timing import StepTimer
from app.optimizer import set_step
from app.record.directory import RESULTS_COLUMNS, RunDirectory
from app.record.documents import (
    CURVES,
    DONE,
    MANIFEST,
    METRICS,
    RESULTS,
    SCORES,
    SUMMARY,
    SUMMARY_VERSION,
    RunManifest,
    RunSchedule,
    Scores,
    Summary,
    kept_splits,
    read_config,
    read_curves,
    read_events,
    read_manifest,
    read_scores,
    read_summary,
)
from app.runtime.environment import INTERFACES, SET_BY_LAUNCHER
from app.sharding.documents import PlannedTable
from app.training import evaluator
from app.training.checkpointer import Checkpointer
from app.training.recorder import Recorder, undefined_evaluation
from app.training.session import Session
from app.training.state import RunLength, RunState, best_of, length_of
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


def merged_difference(one: BitwiseDifference | None, other: BitwiseDifference | None) -> BitwiseDifference | None:
    """Merge the differences of two parts of an array: the earlier index, the larger difference."""
    if one is None or other is None:
        return one or other
    return BitwiseDifference(min(one.first, other.first), max(one.largest, other.largest))


class ReplayDirectory(RunDirectory):
    """A replay's directory; it remembers the curves of one of the replay's evaluations."""

    is_tracked = False

    def __init__(self, path: Path, rank: int, step: int | None) -> None:
        """step: of the evaluation whose curves are kept; None: keep none."""
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
        differences: dict[str, BitwiseDifference] = {}
        for before, now in zip(local_tensors(recorded), local_tensors(live), strict=True):
            difference = bitwise_difference(_array(before.values), _array(now.values), NEAR_ZERO)
            if difference is not None:
                index = tuple(a + b for a, b in zip(before.offsets, difference.first, strict=True))
                differences[before.path] = (
                    merged_difference(differences.get(before.path), BitwiseDifference(index, difference.largest))
                    or difference
                )
        of_ranks: list[dict[str, BitwiseDifference]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(of_ranks, differences)
        largest: dict[str, BitwiseDifference | None] = {}
        for of_rank in of_ranks:
            for name, difference in of_rank.items():
                largest[name] = merged_difference(largest.get(name), difference)
        return {_short(name): largest[name] for name in sorted(largest, key=_order) if largest[name] is not None}  # type: ignore

    def report(self, losses: BitwiseDifference | None) -> Json:
        """Return the comparison for the JSON; steps count from 1."""
        worst = [one.largest for tensors in self.tensors.values() for one in tensors.values()]
        differing = {step: tensors for step, tensors in self.tensors.items() if tensors}
        first = min(differing, default=None)
        tensors = {} if first is None else differing[first]
        return {
            "losses": plain(losses, lambda index: {"first_step": index[0] + 1}),
            "tensors_at_step": first,
            "tensors": {name: plain(one, lambda index: {"first_element": index}) for name, one in tensors.items()},
            "largest_difference": max([0.0, losses.largest if losses else 0.0, *worst]),
        }


def _order(name: str) -> tuple[bool, bool, str]:
    """Return a sort key: the model's tensors before the optimizer's, tables before dense ones."""
    return not name.startswith("model."), TABLES not in name, name


def _short(name: str) -> str:
    """Shorten a tensor's name in a checkpoint to the one that people know."""
    kind, _, name = name.partition(".")
    of_table = name.rpartition(TABLES)[2] if TABLES in name else ""
    if kind == "model":
        return of_table.removesuffix(".weight") or name
    return "optimizer's " + (of_table.partition(".weight.")[2] or name.removeprefix("state.dense."))


def _array(tensor: Tensor) -> NDArray[Any]:
    """Convert to NumPy; bfloat16, which NumPy lacks, becomes float32, value for value."""
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()


def plain(difference: BitwiseDifference | None, describe: Callable[[tuple[int, ...]], Json]) -> Json | None:
    """Return a difference for the JSON; `describe` names its first index."""
    return None if difference is None else {**describe(difference.first), "largest": difference.largest}


LAYOUT = ("image", "base_image", "world_size", "local_world_size", "num_threads", "platform", "compile")
OF_PROCESSES = ("world_size", "local_world_size", "num_threads")  # they do not affect the bits of deterministic=layout
# Set by torchrun or in its place; LAYOUT compares their effects.
BY_LAUNCHER = (
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "OMP_NUM_THREADS",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
    "TORCH_CPP_LOG_LEVEL",
    SET_BY_LAUNCHER,
    *INTERFACES,
)
# Limits of a container: they change how long a step takes, and bits only through the number of threads in LAYOUT.
LIMITS = ("cpu_quota", "memory_limit_bytes")
ANOTHER_RUN = "trained by another run, from whose checkpoint this one started"


class Launch(NamedTuple):
    """Steps after `start` up to `end` (None: the run's last), and the manifest; None for steps of another run."""

    start: int
    end: int | None
    manifest: RunManifest | None


def launches_of(manifest: RunManifest) -> list[Launch]:
    """Return the launches with steps in the record, in order; steps trained again after a kill are the later one's."""
    parts = manifest.launches
    starts = [part.from_step for part in parts]
    launches = []
    for number, part in enumerate(parts):
        # A launch that resumed before this one's last step has trained these steps again and recorded them.
        end = min(starts[number + 1 :], default=None)
        if end is None or end > starts[number]:
            launches.append(Launch(starts[number], end, part))
    first = launches[0].start
    return [Launch(0, first, None), *launches] if first else launches


def changes(launches: list[Launch], now: RunManifest, any_layout: bool = False) -> tuple[list[str], int | None]:
    """Return changes of code, versions, hardware, environment, files and layout since the launches, and a step.

    now: a manifest's content for the replay. any_layout: processes and threads do not decide bits. Bits can be equal up
    to the step, before which nothing differs; it is None if nothing differs at all.
    """
    by_line: dict[str, list[Launch]] = {}
    for launch in launches:
        for line in [ANOTHER_RUN] if launch.manifest is None else _changes(launch.manifest, now, any_layout):
            by_line.setdefault(line, []).append(launch)
    until = min((launch.start for affected in by_line.values() for launch in affected), default=None)
    return [
        line if affected == launches else f"{_steps(affected)}: {line}" for line, affected in by_line.items()
    ], until


def _steps(launches: list[Launch]) -> str:
    parts = [f"{one.start + 1} to {one.end}" if one.end is not None else f"from {one.start + 1} on" for one in launches]
    return f"steps {', '.join(parts)}"


def _changes(recorded: RunManifest, now: RunManifest, any_layout: bool) -> list[str]:
    keys = [key for key in LAYOUT if not (any_layout and key in OF_PROCESSES)]
    conditions = {key: (getattr(recorded, key), getattr(now, key)) for key in keys}
    if recorded.world_size != now.world_size and not any_layout:
        # It follows from world_size.
        del conditions["local_world_size"]
    lines = [
        f"{key}: {before or None} then, {after} now"
        for key, (before, after) in conditions.items()
        if (before or None) != (after or None)
    ]
    plans = recorded.plan, now.plan
    # Another layout implies another plan, so the plan is named only where the layout is the same.
    if not lines and not any_layout and _places(plans[0]) != _places(plans[1]):
        lines = [f"sharding: {_types(plans[0])} then, {_types(plans[1])} now"]
    for part in ("code", "versions", "hardware", "environment", "files"):
        before, after = (_facts(getattr(manifest, part)) for manifest in (recorded, now))
        lines += [
            f"{part} {key}: {before.get(key)} then, {after.get(key)} now"
            for key in sorted(before.keys() | after.keys())
            if key not in (*BY_LAUNCHER, *LIMITS) and before.get(key) != after.get(key)
        ]
    return lines


def _facts(part: Struct | Json) -> Json:
    return plain_object(part) if isinstance(part, Struct) else part


def _places(plan: Mapping[str, PlannedTable]) -> dict[str, tuple[str, list[int]]]:
    return {name: (entry.type, entry.ranks) for name, entry in plan.items()}


def _types(plan: Mapping[str, PlannedTable]) -> str:
    """Return a plan in few words: the number of tables of each kind of sharding."""
    kinds: dict[str, int] = {}
    for entry in plan.values():
        kind = f"{entry.type} on {len(entry.ranks)}"
        kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"


class ExpectedEvents(NamedTuple):
    """Events that the launches' schedules require and allow, as kinds and steps.

    required: events that a record up to `steps` must have. allowed: further events, next to a stop or a resumption.
    unknown: ranges of steps (start, end] of launches whose schedule is not known.
    """

    required: frozenset[tuple[str, int]]
    allowed: frozenset[tuple[str, int]]
    unknown: list[tuple[int, int]]

    def is_expected(self, kind: str, step: int) -> bool:
        """Return whether a schedule explains an event."""
        place = kind, step
        return place in self.required or place in self.allowed or any(a < step <= b for a, b in self.unknown)

    def steps(self, *kinds: str) -> frozenset[int]:
        """Return the steps of the required events of these kinds."""
        return frozenset(step for kind, step in self.required if kind in kinds)


def expected_events(launches: list[Launch], steps: int, has_ended: bool) -> ExpectedEvents:
    """Return the events of a run's first `steps` steps; has_ended: the run ended there, and was evaluated.

    If a launch was stopped at a step that is to be evaluated, the moment of the stop decides whether it was, unless the
    next launch evaluates it.
    """
    required: set[tuple[str, int]] = set()
    allowed: set[tuple[str, int]] = set()
    unknown = []
    for launch, following in zip(launches, [*launches[1:], None], strict=True):
        start, end = launch.start, min(steps if launch.end is None else launch.end, steps)
        schedule = launch.manifest.schedule if launch.manifest is not None else None
        if not schedule:
            unknown.append((start, end))
            continue
        length = length_of(schedule)
        every = schedule.log_every_steps
        required |= {("train", step) for step in range(start - start % every + every, end + 1, every)}
        if start < schedule.total_steps <= end:
            required.add(("train", schedule.total_steps))
        kinds = {"eval", "eval_train"} if schedule.evaluates_train else {"eval"}
        required |= {(kind, step) for step in _evaluations(length, start, end) if step < end for kind in kinds}
        # A stop may come before or after the evaluation of its step, so the record may have it or not.
        allowed |= {(kind, step) for step in (start, end) for kind in ("eval", "eval_train")}
        # The last launch evaluates its last step unless it was stopped.
        if following is None:
            is_due = has_ended
        else:
            next_schedule = following.manifest.schedule if following.manifest is not None else None
            is_due = bool(next_schedule) and end < steps
            is_due = is_due and length_of(next_schedule).next_evaluation(end - 1) == end  # type: ignore[arg-type]
            kinds -= set() if next_schedule and next_schedule.evaluates_train else {"eval_train"}
        if is_due and end > start:
            required |= {(kind, end) for kind in kinds}
    return ExpectedEvents(frozenset(required), frozenset(allowed), unknown)


def _evaluations(length: RunLength, start: int, end: int) -> list[int]:
    """Return the steps in (start, end] after which a launch evaluates."""
    steps, step = [], start
    while step < min(length.total_steps, end):
        step = length.next_evaluation(step)
        steps.append(step)
    return [step for step in steps if step <= end]


OTHER_FILES = "other files"
POINTERS = f"{CHECKPOINTS}/{LATEST}, {CHECKPOINTS}/{BEST}"
# By file, what is not compared: clocks, memory and power at a moment, words, and what the replay takes from the record.
# `python -m app.verify` prints this, and docs/reproducibility.md lists it.
NOT_COMPARED: Mapping[str, tuple[str, ...]] = {
    METRICS: (
        "seconds",
        "eval_seconds",
        "samples_per_second",
        "input_wait_fraction",
        "phase_seconds",
        "watts",
        "host_bytes",
        "device_bytes",
        "measured",
        "checkpoint",  # only the number of these events is compared
        "resume.line",
        "resume.samples",
    ),
    SUMMARY: (
        "throughput",
        "covers",
        "memory",
        "phase_seconds",
        "power",
        "seconds",
        "baselines",
        "no_baselines",
        "error",
    ),
    MANIFEST: (
        "argv",
        "began",
        "pipeline",
        "plan",
        "dataset.path",
        "dataset.unseen",
        "dataset.misleading",
        "dataset.sampling",
        "earlier.schedule",
        "environment: variables of the launcher",
        "whether a key without a value is there",
    ),
    RESULTS: ("Time Stamp", "Recommendations/s (std/mean)", "lines of earlier runs"),
    OTHER_FILES: ("config.yaml", "log.txt", "step_times.json", "report.html", "tensorboard"),
}


class Record(NamedTuple):
    """Contents of a run's directory; None or empty for a missing file.

    results: lines of results.csv. pointers: text of `latest` and `best`. checkpoints: names, oldest first.
    """

    directory: Path
    config: dict[str, Any]
    manifest: RunManifest
    launches: list[Launch]
    summary: Summary | None
    events: list[AnyEvent]
    curves: Curves | None
    scores: dict[str, Scores]
    results: list[list[str]]
    pointers: dict[str, str | None]
    checkpoints: list[str]

    @property
    def keeps_best(self) -> bool:
        return bool((self.config.get("checkpoint") or {}).get("keep_best"))

    def evaluated(self, steps: int) -> list[int]:
        """Return the steps, up to `steps`, after which metrics.jsonl has an evaluation of the evaluated split."""
        return [event.step for event in self.events if event.event == "eval" and event.step <= steps]


class Replay(NamedTuple):
    """Results of a replay of `steps` steps; `record` is read from the replay's own directory.

    status, early_stop: of an undisturbed run that came this far by the run's own configuration.
    curves: of the newest recorded evaluation, if there was one. monitor: train.monitor.
    keeps_scores: the split whose scores a run that came to its end has kept; None: none.
    any_layout: whether bits do not depend on the numbers of processes and threads.
    """

    record: Record
    steps: int
    status: str
    early_stop: EarlyStop | None
    curves: Curves | None
    monitor: str | dict[str, float]
    schedule: RunSchedule
    keeps_scores: str | None
    any_layout: bool = False

    def evaluation(self, kind: str, step: int) -> EvaluationFigures | None:
        """Return the figures of an evaluation; None if the replay has none after that step."""
        for event in self.record.events:
            if isinstance(event, EvaluationEvent) and (event.event, event.step) == (kind, step):
                return event.figures()
        return None


def read_record(directory: Path) -> Record:
    """Read everything of a run that is compared."""
    manifest, summary, checkpoints = read_manifest(directory), read_summary(directory), directory / CHECKPOINTS
    if any(launch.schedule is None for launch in manifest.launches):
        raise UserError(
            f"run={directory}: {MANIFEST} has no schedule, as of a run that was built and not trained; give a run "
            "that this version trained"
        )
    if summary is not None and summary.version != SUMMARY_VERSION:
        raise UserError(
            f"run={directory}: {SUMMARY} is of version {summary.version}, and this one reads "
            f"{SUMMARY_VERSION}; give a run that this version trained"
        )
    return Record(
        directory,
        read_config(directory),
        manifest,
        launches_of(manifest),
        summary,
        read_events(directory),
        read_curves(directory),
        _kept_scores(directory),
        _results(directory / RESULTS),
        {name: _text(checkpoints / name) for name in (LATEST, BEST)},
        [path.name for path in whole_checkpoints(checkpoints)],
    )


def _kept_scores(directory: Path) -> dict[str, Scores]:
    arrays = {path.name.partition(".")[0] for path in (directory / SCORES).glob("*.npy")}
    splits = kept_splits(directory)
    if alone := sorted(arrays - {*splits}):
        path = directory / SCORES / f"{alone[0]}.json"
        raise UserError(f"{path}: missing beside its arrays; remove these, and keep the scores of {alone[0]} again")
    return {split: read_scores(directory, split) for split in splits}


def _results(path: Path) -> list[list[str]]:
    text = _text(path)
    return [] if text is None else list(csv.reader(io.StringIO(text)))


def _text(path: Path) -> str | None:
    try:
        return path.read_bytes().decode(errors="replace").strip()
    except FileNotFoundError:
        return None


def is_compared(file: str, name: str) -> bool:
    """Return whether a key of a file is compared; its name has dots between the parts."""
    return not any(name == one or name.startswith(f"{one}.") for one in NOT_COMPARED[file])


KINDS = ("train", "eval", "eval_train")  # kinds of events that a replay repeats
RELATIVE = ("loss", LOGLOSS, "lr", "gradient_norm", RMSE, MAE, LABEL_DEVIATION, "mean_norm", "largest_norm")
SMOOTH = (*RELATIVE, NE, CALIBRATION, ALL_ROWS, BASE_RATE)
ROUNDING = 1e-12  # relative; another release may add float64 sums over samples in another order
CHANGED_PLACES = 4  # samples that may change sides of a threshold, or ranks, if logits differ by rounding
MISSING, NOT_REPLAYED = "not recorded", "not replayed"


class Difference(NamedTuple):
    """A figure that differs: its place, its name and both values; size is infinite if rounding cannot explain it."""

    where: str
    figure: str
    recorded: object
    replayed: object
    size: float


class RecordComparison(NamedTuple):
    """Differences, the number of compared figures, and whether each digest of the summary equals the replay's.

    lacking: files that were not compared, each with the reason.
    """

    differences: list[Difference]
    compared: int
    same_digests: dict[str, bool]
    lacking: list[str]


class Pair(NamedTuple):
    """The same part of both records. file: its list in NOT_COMPARED applies; empty: none applies.

    is_whole: both have the same keys; otherwise only common keys are compared.
    """

    where: str
    file: str
    recorded: Json
    replayed: Json
    is_whole: bool = True
    samples: float = math.inf  # number that the figures are computed over


def compare_records(record: Record, replay: Replay) -> RecordComparison:
    """Compare what a run recorded of its first `replay.steps` steps with what its replay recorded."""
    differences: list[Difference] = []
    compared = 0
    for pair in _pairs(record, replay):
        recorded, replayed = _leaves(pair.recorded), _leaves(pair.replayed)
        for name in [*recorded, *(name for name in replayed if name not in recorded)]:
            if pair.file and not is_compared(pair.file, name):
                continue
            if name not in recorded or name not in replayed:
                if pair.is_whole:
                    values = recorded.get(name, MISSING), replayed.get(name, NOT_REPLAYED)
                    differences.append(Difference(pair.where, name, *values, math.inf))
                continue
            compared += 1
            size = _difference(name.rpartition(".")[2], recorded[name], replayed[name], pair.samples)
            if size is not None:
                differences.append(Difference(pair.where, name, recorded[name], replayed[name], size))
    if not any(isinstance(event, TrainEvent) and event.step <= replay.steps for event in record.events):
        raise UserError(f"run={record.directory}: {METRICS} has no losses to compare")
    has_curves = replay.curves is not None
    # Rounding moves the thresholds of curves, so they are compared only where all figures are equal.
    is_same_size = record.manifest.world_size == replay.record.manifest.world_size
    is_repeated = (is_same_size or replay.any_layout) and not differences
    curves = _first_of_curves(record, replay) if has_curves and is_repeated else []
    lacking = [f"{CURVES} (other figures or processes differ)"] * (has_curves and not is_repeated)
    if record.summary is None or record.summary.status == "failed":
        reason = "there is none" if record.summary is None else "the run failed"
        lacking.append(f"{SUMMARY}, {RESULTS}, {POINTERS} ({reason})")
    elif not record.checkpoints:
        lacking.append(f"{POINTERS} (there are no checkpoints)")
    differences += [*curves, *_scores(record, replay)]
    return RecordComparison(differences, compared, _same_digests(record.summary, replay), lacking)


def _pairs(record: Record, replay: Replay) -> Iterator[Pair]:
    yield from _of_events(record, replay)
    yield from _of_manifests(record, replay)
    if record.summary is None:
        return
    yield from _of_summary(record, record.summary, replay)
    if record.summary.status != "failed":
        yield from _of_results(record, record.summary)
        if record.checkpoints:
            best = record.summary.best if record.keeps_best and record.summary.best else None
            expected: Json = {LATEST: record.checkpoints[-1], BEST: best and checkpoint_name(best.step)}
            yield Pair(POINTERS, "", {**record.pointers}, expected)


def _of_events(record: Record, replay: Replay) -> Iterator[Pair]:
    """Yield windows and evaluations, also those that a schedule requires and the record lacks; resumptions; counts."""
    expected, has_ended = expected_of(record, replay.steps), _has_ended(record, replay.steps)
    recorded = {
        (event.event, event.step): event
        for event in record.events
        if event.event in KINDS and (event.step <= replay.steps or has_ended)
    }
    repeated = {(event.event, event.step): event for event in replay.record.events}
    for kind, step in sorted(recorded.keys() | expected.required, key=lambda place: (KINDS.index(place[0]), place[1])):
        where = f"{METRICS}, {kind} of step {step}"
        before, now = recorded.get((kind, step)), repeated.get((kind, step))
        if before is None or now is None or not expected.is_expected(kind, step):
            fault = MISSING if before is None else NOT_REPLAYED if now is None else "not scheduled"
            yield Pair(where, "", {"all": fault}, {"all": "recorded and scheduled"})
            continue
        is_whole = not any(start < step <= end for start, end in expected.unknown)
        figures = plain_object(before)
        yield Pair(where, METRICS, figures, plain_object(now), is_whole, _samples({**plain_object(now), **figures}))
    starts = [launch.from_step for launch in record.manifest.launches]
    # Where a later launch began further back, the record has lost this launch's event.
    resumed = [start for number, start in enumerate(starts) if start and start <= min(starts[number:])]
    steps, launched = [event.step for event in record.events if event.event == "resume"], iter(resumed)
    if all(step in launched for step in steps):
        # A launch that was killed while it started has recorded no event.
        resumed = steps
    yield Pair(f"{METRICS}, resume", "", {"steps": steps}, {"steps": resumed})
    if record.summary is not None and record.summary.status != "failed":
        counts = Counter(event.event for event in record.events)
        yield Pair(f"{SUMMARY}, events", "", {**record.summary.events}, {**counts})


def expected_of(record: Record, steps: int) -> ExpectedEvents:
    """Return the events that the schedules of a record's launches require up to a step."""
    return expected_events(record.launches, steps, _has_ended(record, steps))


def _has_ended(record: Record, steps: int) -> bool:
    """Return whether a run came to its end after that step."""
    summary = record.summary
    return summary is not None and summary.status in DONE and summary.steps == steps


def _of_manifests(record: Record, replay: Replay) -> Iterator[Pair]:
    """Yield what all launches must share; for the newest also what its configuration and the other files say.

    `launches.changes` compares the conditions: code, versions, hardware, environment, files and layout.
    """
    launches = record.manifest.launches
    for number, launch in enumerate(launches, start=1):
        where = MANIFEST if number == len(launches) else f"{MANIFEST}, launch {number}"
        yield Pair(where, MANIFEST, _repeated(launch), _repeated(replay.record.manifest))
        own: Json = {"from_step": launch.from_step, "results_before": launch.results_before}
        lines = len(record.results)  # the head, lines of earlier runs and, if this run came to its end, its own
        has_line = record.summary is not None and record.summary.status != "failed"
        before = (lines - 1 if lines > 2 else 0) if has_line else record.manifest.results_before
        yield Pair(where, "", own, {"from_step": launch.from_step, "results_before": before})
    # The configuration of the directory is that of the newest launch, so only this one is compared with it.
    newest, runtime = record.manifest, record.config.get("runtime") or {}
    recorded: Json = {"num_threads": newest.num_threads, "compile": newest.compile}
    threads, compiled = runtime.get("num_threads"), runtime.get("compile") or "none"
    configured: Json = {"num_threads": threads, "compile": compiled}
    if newest.schedule:
        recorded["schedule"] = plain_object(newest.schedule)
        configured["schedule"] = plain_object(replay.schedule)
    yield Pair(MANIFEST, "", recorded, configured)


def _repeated(manifest: RunManifest) -> Json:
    """Return the values that the manifests of all launches of a run have in common."""
    plain = plain_object(manifest)
    return {key: plain[key] for key in ("format", "dataset", "seeds", "tables") if key in plain}


def _of_results(record: Record, summary: Summary) -> Iterator[Pair]:
    """Yield the line of results.csv, compared with the other files."""
    manifest, rates = record.manifest, summary.throughput
    batch = int(record.config["train"]["global_batch_size"])
    expected: Json = {
        "Num. Nodes": manifest.world_size // manifest.local_world_size,
        "Batch Size": batch,
        "Recommendations/s (mean)": rates.samples_per_second,
        "Run": record.config["run"]["name"],
        "World Size": manifest.world_size,
        "Global Batch Size": batch,
        "Global Recommendations/s (mean)": rates.samples_per_second,
        "Batch Size per Device": batch // manifest.world_size,
        "Recommendations/s per Device (mean)": rates.samples_per_second_per_device,
        "Status": summary.status,
        "Device": manifest.device(manifest.platform),
        "Precision": record.config["runtime"]["precision"] or "fp32",
        "Recipe": record.config["published"]["recipe"],
        "Commit": manifest.commit,
    }
    texts: Json = {name: "" if value is None else str(value) for name, value in expected.items()}
    head, line = (record.results[:1] or [[]])[0], (record.results[-1:] or [[]])[0]
    cells: Json = dict(zip(RESULTS_COLUMNS, line, strict=False))
    yield Pair(RESULTS, "", {"head": head}, {"head": list(RESULTS_COLUMNS)})
    yield Pair(RESULTS, RESULTS, cells, texts)


def _of_summary(record: Record, recorded: Summary, replay: Replay) -> Iterator[Pair]:
    """Yield the parts of the summary; only the error of a failed run's, which one process wrote without the others."""
    if recorded.status == "failed":
        yield Pair(SUMMARY, "", {"error": bool(recorded.error)}, {"error": True})
        return
    repeated = replay.record.summary
    assert repeated is not None
    evaluated = record.evaluated(replay.steps)
    # A run that is stopped in its last evaluation is interrupted, though no step is left.
    is_stopped = recorded.status == "interrupted" and replay.steps not in evaluated
    figures: Json = {"steps": recorded.steps, "samples": recorded.samples, "status": recorded.status}
    status = "interrupted" if is_stopped else replay.status
    yield Pair(SUMMARY, "", figures, {"steps": replay.steps, "samples": repeated.samples, "status": status})
    yield Pair(SUMMARY, "", {"world_size": recorded.world_size}, {"world_size": record.manifest.world_size})
    # Figures of a run that went further than the replay describe other steps.
    if recorded.steps != replay.steps:
        return
    for part in ("parameters", "train"):
        yield Pair(f"{SUMMARY}, {part}", SUMMARY, _part(recorded, part), _part(repeated, part))
    stop = {} if replay.early_stop is None else plain_object(replay.early_stop)
    yield Pair(f"{SUMMARY}, early_stop", SUMMARY, _part(recorded, "early_stop"), stop)
    yield Pair(f"{SUMMARY}, tables", SUMMARY, _part(recorded, "tables"), _tables(record, repeated))
    newest = max(evaluated, default=None)
    served = recorded.best.step if record.keeps_best and recorded.best else newest
    yield _of_evaluation("eval", recorded.eval, served, replay)
    yield _of_evaluation("last", recorded.last, newest, replay)
    yield from _of_best(record, recorded, replay)


def _part(summary: Summary, name: str) -> Json:
    part = getattr(summary, name)
    if isinstance(part, Struct):
        return plain_object(part)
    return {key: plain_object(value) for key, value in part.items()} if part else {}


def _tables(record: Record, repeated: Summary) -> Json:
    """Return the replay's figures of tables; without the rows touched if the run began with another run's tables."""
    tables = _part(repeated, "tables")
    resume = str((record.config.get("checkpoint") or {}).get("resume"))
    if resume not in ("auto", "never"):
        tables = {name: {**dict(figures), "rows_touched": None} for name, figures in tables.items()}  # type: ignore[call-overload]
    return tables


def _of_evaluation(part: str, recorded: EvaluationFigures | None, step: int | None, replay: Replay) -> Pair:
    """Return an evaluation of the summary, compared with the replay's evaluation of that step."""
    figures = {} if recorded is None else plain_object(recorded)
    repeated = undefined_evaluation() if step is None else replay.evaluation("eval", step)
    now: Json = {"step": step, AUC: None} if repeated is None else plain_object(repeated)
    return Pair(f"{SUMMARY}, {part}", SUMMARY, figures, now, samples=_samples({**now, **figures}))


def _of_best(record: Record, recorded: Summary, replay: Replay) -> Iterator[Pair]:
    """Yield the best evaluation beside the replay's figures; one is due once the newest launch has evaluated."""
    where, best = f"{SUMMARY}, best", recorded.best
    if best is not None:
        evaluation = replay.evaluation("eval", best.step)
        repeated: Best | None = None if evaluation is None else best_of(evaluation, replay.monitor)
        figures = {} if repeated is None else plain_object(repeated)
        samples = _samples({} if evaluation is None else plain_object(evaluation))
        yield Pair(where, SUMMARY, plain_object(best), figures, samples=samples)
    else:
        begin = record.manifest.launches[-1].from_step
        evaluations = [replay.evaluation("eval", step) for step in record.evaluated(replay.steps) if step > begin]
        is_due = any(one is not None and best_of(one, replay.monitor) is not None for one in evaluations)
        yield Pair(where, "", {"all": MISSING if is_due else "none"}, {"all": "none"})


def _same_digests(recorded: Summary | None, replay: Replay) -> dict[str, bool]:
    """Return whether each digest equals the replay's; a digest that the record lacks does not."""
    repeated = replay.record.summary
    if recorded is None or repeated is None or recorded.status == "failed" or recorded.steps != replay.steps:
        return {}
    before, now = (plain_object(one.digest) if one.digest else {} for one in (recorded, repeated))
    return {name: before.get(name) == now[name] for name in now}


def _first_of_curves(record: Record, replay: Replay) -> list[Difference]:
    """Return the first figure of curves.json that differs, from the newest recorded evaluation."""
    assert replay.curves is not None
    recorded = {} if record.curves is None else _leaves(plain_object(record.curves))
    repeated = _leaves(plain_object(replay.curves))
    # The first difference is enough, since one changed score shifts all points after it.
    for name in [*repeated, *(name for name in recorded if name not in repeated)]:
        values = recorded.get(name, MISSING), repeated.get(name, NOT_REPLAYED)
        size = _difference("", *values, math.inf)
        if size is not None:
            return [Difference(CURVES, name, *values, size)]
    return []


def _scores(record: Record, replay: Replay) -> Iterator[Difference]:
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
    summary = record.summary
    has_ended = summary is not None and summary.status in DONE
    if has_ended and replay.keeps_scores and replay.keeps_scores not in record.scores:
        yield Difference(SCORES, replay.keeps_scores, MISSING, "kept by eval.keep_scores", math.inf)


def _leaves(content: Mapping[str, object], prefix: str = "") -> Json:
    """Return nested values by the dotted names of their places; empty containers are values themselves."""
    leaves: Json = {}
    for key, value in content.items():
        parts: object = value
        if isinstance(value, (list, tuple)):
            parts = {str(number): one for number, one in enumerate(value)}
        if isinstance(parts, dict) and parts:
            leaves |= _leaves(parts, f"{prefix}{key}.")
        elif value is not UNSET:
            leaves[f"{prefix}{key}"] = value
    return leaves


def _samples(event: Json) -> float:
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
