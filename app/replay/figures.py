"""Comparison of a run's record with its replay's record, figure by figure, both ways."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import UNSET, Struct

from app.checkpoint.files import BEST, LATEST, checkpoint_name
from app.kinds.metrics import ALL_ROWS, AUC, BASE_RATE, CALIBRATION, LABEL_DEVIATION, LOGLOSS, MAE, NE, RMSE
from app.metrics.documents import Best, EvaluationFigures, TrainEvent
from app.record.directory import RESULTS_COLUMNS
from app.record.documents import DONE, RunManifest, Summary
from app.record.reading import CURVES, MANIFEST, METRICS, RESULTS, SUMMARY
from app.record.scores import SCORES
from app.replay.compare import NEAR_ZERO, bitwise_difference
from app.replay.launches import ExpectedEvents, expected_events
from app.replay.records import POINTERS, Record, Replay, is_compared
from app.training.monitor import best_of
from app.training.recording.summary import undefined_evaluation
from common.documents import Json, plain_object
from common.errors import UserError

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
    if name not in SMOOTH:
        size = max(0.0, size - CHANGED_PLACES / samples)
    return math.inf if math.isnan(size) else size
