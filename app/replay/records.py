"""The record of a run: what it holds, what a replay repeats, and what the comparison leaves out."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from app.checkpoint.files import BEST, CHECKPOINTS, LATEST, whole_checkpoints
from app.metrics.documents import AnyEvent, Curves, EarlyStop, EvaluationEvent, EvaluationFigures
from app.record.documents import SUMMARY_VERSION, RunManifest, RunSchedule, Summary
from app.record.reading import (
    MANIFEST,
    METRICS,
    RESULTS,
    SUMMARY,
    read_config,
    read_curves,
    read_events,
    read_manifest,
    read_summary,
)
from app.record.scores import SCORES, Scores, kept_splits, read_scores
from app.replay.launches import Launch, launches_of
from common.errors import UserError

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
        _scores(directory),
        _results(directory / RESULTS),
        {name: _text(checkpoints / name) for name in (LATEST, BEST)},
        [path.name for path in whole_checkpoints(checkpoints)],
    )


def _scores(directory: Path) -> dict[str, Scores]:
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
