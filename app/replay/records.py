"""The record of a run compared with that of its replay, figure by figure."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec import UNSET

from app.kinds.metrics import AUC, BASE_RATE, CALIBRATION, LABEL_DEVIATION, LOGLOSS, MAE, NE, RMSE
from app.metrics.documents import TrainEvent
from app.record.documents import Summary
from app.record.reading import METRICS, SUMMARY, read_config, read_events, read_summary
from common.documents import Json, convert, plain_object
from common.errors import UserError

KINDS = ("train", "eval", "eval_train")  # of events that a replay repeats
# Figures of the machine and of the moment, which no replay repeats.
NOT_COMPARED = (
    "seconds",
    "eval_seconds",
    "samples_per_second",
    "input_wait_fraction",
    "phase_seconds",
    "watts",
    "host_bytes",
    "device_bytes",
    "measured",
    "throughput",
    "memory",
    "power",
    "utilisation",
    "world_size",
    "covers",
    "baselines",
)
OWN_STATUS = ("completed", "target_reached")  # the training decides them; the others come from outside
RELATIVE = ("loss", LOGLOSS, "lr", "gradient_norm", RMSE, MAE, LABEL_DEVIATION)
SMOOTH = (*RELATIVE, NE, CALIBRATION, BASE_RATE)
ROUNDING = 1e-12  # relative: of float64 sums over samples, whose order may be another in another release
CHANGED_PLACES = 4  # samples that may change sides of a threshold or a rank where a logit differs by rounding
NEWEST_IS_EVAL, SERVED_IS_EVAL = 1, 2  # versions of summary.json: which evaluation its `eval` is


class Difference(NamedTuple):
    """A figure that differs: where it stands, its name and both values; infinite where it is no matter of rounding."""

    where: str
    figure: str
    recorded: object
    replayed: object
    size: float


class RecordComparison(NamedTuple):
    """What differs, how many figures were compared, and which were not."""

    differences: list[Difference]
    compared: int
    not_compared: list[str]


def compare_records(before: Path, now: Path, steps: int, status: str) -> RecordComparison:
    """Compare what two runs recorded of the first `steps` steps; `now` is the replay's directory.

    status: what the run's should be after these steps, were it not stopped.

    Raises:
        UserError: the record has nothing to compare, or is of a version that is not known.
    """
    differences: list[Difference] = []
    replayed = {(event.event, event.step): plain_object(event) for event in read_events(now) if event.event in KINDS}
    compared, skipped = 0, set()
    for place, recorded, replay in _pairs(before, now, steps, status, replayed):
        if not replay:
            differences.append(Difference(place, "all", "recorded", "not replayed", math.inf))
        for name, value in recorded.items():
            if name in NOT_COMPARED or name not in replay:
                skipped.add(name)
                continue
            compared += 1
            size = _difference(name, value, replay[name], _samples({**replay, **recorded}))
            if size is not None:
                differences.append(Difference(place, name, value, replay[name], size))
    if not compared:
        raise UserError(f"run={before}: {METRICS} has no losses to compare")
    summary = read_summary(before)
    skipped.update(name for name in NOT_COMPARED if summary is not None and name in plain_object(summary))
    return RecordComparison(differences, compared, sorted(skipped))


def _pairs(
    before: Path, now: Path, steps: int, status: str, replayed: Mapping[tuple[str, int], Json]
) -> Iterator[tuple[str, Json, Json]]:
    """Parts of both records that stand for the same, with their place."""
    events = read_events(before)
    for kind in KINDS:
        for event in events:
            if event.event == kind and event.step <= steps:
                yield (
                    f"{METRICS}, {kind} of step {event.step}",
                    plain_object(event),
                    replayed.get((kind, event.step), {}),
                )
    recorded, replay = read_summary(before), read_summary(now)
    if recorded is None or replay is None or recorded.status == "failed":
        return
    evaluated = [event.step for event in events if event.event == "eval" and event.step <= steps]
    figures: Json = {"steps": recorded.steps, "samples": recorded.samples}
    expected: Json = {"steps": steps, "samples": replay.samples, "status": status}
    if recorded.status in OWN_STATUS:
        figures["status"] = recorded.status
    yield SUMMARY, figures, expected
    if recorded.steps != steps:
        return
    for part in ("parameters", "train"):
        yield f"{SUMMARY}, {part}", _part(recorded, part), _part(replay, part)
    step = recorded.eval.step
    if step is not UNSET:
        yield f"{SUMMARY}, eval", {"step": step}, {"step": _step_of_eval(before, recorded, step, evaluated)}
        yield f"{SUMMARY}, eval", plain_object(recorded.eval), _evaluation(replayed, step)
    if recorded.last and recorded.last.step is not UNSET:
        last = recorded.last.step
        yield f"{SUMMARY}, last", {"step": last}, {"step": max(evaluated, default=last)}
        yield f"{SUMMARY}, last", plain_object(recorded.last), _evaluation(replayed, last)
    if recorded.best:
        best = recorded.best
        same = replay.best if replay.best and replay.best.step == best.step else None  # has the value of train.monitor
        expected = _evaluation(replayed, best.step) | (plain_object(same) if same is not None else {})
        yield f"{SUMMARY}, best", plain_object(best), expected


def _part(summary: Summary, name: str) -> Json:
    part = getattr(summary, name)
    return plain_object(part) if part else {}


def _step_of_eval(run: Path, recorded: Summary, step: int, evaluated: list[int]) -> int:
    """The step that `eval` of a summary should be of, by the meaning of its version."""
    version = recorded.version or 1
    if version not in (NEWEST_IS_EVAL, SERVED_IS_EVAL):
        raise UserError(f"run={run}: {SUMMARY} is of version {version}, which is not known here; use a newer release")
    keeps_best = version == SERVED_IS_EVAL and (read_config(run).get("checkpoint") or {}).get("keep_best")
    return recorded.best.step if keeps_best and recorded.best else max(evaluated, default=step)


def _evaluation(replayed: Mapping[tuple[str, int], Json], step: int) -> Json:
    """A replay's evaluation after a step, as a summary has it."""
    event = replayed.get(("eval", step), {})
    return {**event, "samples": event["eval_samples"]} if event else {"step": None, AUC: None}


def _samples(event: Json) -> float:
    """Samples that the figures of an evaluation, or of a window of steps, are of."""
    if event.get("event") == "train":
        window = convert(event, TrainEvent)
        return (window.steps or 0) * (window.samples or 0) / window.step
    count = event.get("eval_samples") or event.get("samples")
    return count if isinstance(count, int) else math.inf


def _difference(name: str, recorded: object, replayed: object, samples: float) -> float | None:
    """The size of a difference, None if there is none; infinite where it is no matter of rounding."""
    if recorded == replayed or (recorded != recorded and replayed != replayed):  # both NaN
        return None
    if not isinstance(recorded, float) or not isinstance(replayed, float):
        return math.inf
    if math.isclose(recorded, replayed, rel_tol=ROUNDING, abs_tol=0.0):
        return None
    size = abs(recorded - replayed) / (abs(recorded) or 1.0) if name in RELATIVE else abs(recorded - replayed)
    if name not in SMOOTH:
        size = max(0.0, size - CHANGED_PLACES / samples)
    return math.inf if math.isnan(size) else size
