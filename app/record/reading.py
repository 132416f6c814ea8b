"""Reading of a run's directory: the names of its files, and their content."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from app.metrics.documents import AnyEvent, Curves, EvaluationEvent, StepTimeHistogram, decode_event
from app.record.documents import FORMAT_NAME, RunManifest, Summary
from common.documents import decode, format_of, read_document
from common.errors import UserError

CONFIG, MANIFEST, METRICS, SUMMARY = "config.yaml", "manifest.json", "metrics.jsonl", "summary.json"
RESULTS, LOG, LOCK = "results.csv", "log.txt", ".lock"
CURVES, STEP_TIMES = "curves.json", "step_times.json"
OTHER_VERSION = "if another version of the tool wrote it, use that; else train the run again"
RUNS = Path("runs")  # directory of runs, unless run.dir names another
WITHOUT = "remove it, and the report does without"
SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, if PyYAML has it, takes a tenth of the time


T = TypeVar("T")


class Outcome(msgspec.Struct):
    """The status with which a run ended, and its number of steps."""

    status: str
    steps: int


def read_config(directory: Path) -> dict[str, Any]:
    """Return the resolved configuration of a run."""
    try:
        content = yaml.load((directory / CONFIG).read_bytes(), Loader=SAFE_LOADER)
    except (OSError, yaml.YAMLError) as error:
        place, example = RUNS / directory, RUNS / "quickstart"
        if not directory.is_absolute() and (place / CONFIG).is_file():
            remedy = f"did you mean {place}?"
        elif directory == example:
            remedy = "python -m app.train makes it"
        else:
            remedy = f"give one, such as {example}"
        raise UserError(f"run={directory}: not a run's directory (no readable {CONFIG}); {remedy}") from error
    if not isinstance(content, dict):
        raise UserError(f"run={directory}: {CONFIG} is not a configuration")
    return content


def is_run(directory: Path) -> bool:
    """Return whether a directory has the manifest of a run, of whichever version."""
    return format_of(directory / MANIFEST) == FORMAT_NAME


def read_manifest(directory: Path) -> RunManifest:
    """Return the manifest of a run."""
    if not is_run(directory):
        raise UserError(f"run={directory}: not a run's directory (no readable {MANIFEST})")
    return read_document(directory / MANIFEST, RunManifest, OTHER_VERSION)


def read_events(directory: Path) -> list[AnyEvent]:
    """Return a run's events; leaves out a last line that a kill cut off."""
    path = directory / METRICS
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            events.append(decode_event(line))
        except ValueError as error:
            if number == len(lines):
                break
            raise UserError(f"{path}: line {number} is not an event ({error}); delete the line") from error
    return events


def read_evaluations(directory: Path, kind: str = "eval") -> list[EvaluationEvent]:
    """Return a run's evaluation events of one kind. Raises UserError as `read_events` does."""
    events = read_events(directory)
    return [event for event in events if isinstance(event, EvaluationEvent) and event.event == kind]


def read_summary(directory: Path) -> Summary | None:
    """Return the summary of a run; None if it has none yet."""
    return _optional(directory / SUMMARY, Summary, "remove it, and the run counts as not finished")


def read_outcome(directory: Path) -> Outcome | None:
    """Return how a run ended, from a summary of any version; None if there is none that can be read."""
    try:
        return decode((directory / SUMMARY).read_bytes(), Outcome)
    except (OSError, ValueError):
        return None


def read_curves(directory: Path) -> Curves | None:
    """Return the curves of a run's newest evaluation; None if there are none. Raises UserError for damaged ones."""
    return _optional(directory / CURVES, Curves, WITHOUT)


def read_step_times(directory: Path) -> StepTimeHistogram | None:
    """Return the histogram of a run's step times; None if there is none. Raises UserError for a damaged one."""
    return _optional(directory / STEP_TIMES, StepTimeHistogram, WITHOUT)


def _optional(path: Path, kind: type[T], remedy: str) -> T | None:
    try:
        return read_document(path, kind, remedy)
    except FileNotFoundError:
        return None
