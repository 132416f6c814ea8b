"""A run's directory as the report reads it; files may be missing, since a run may have failed or still be running."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import UndefinedError

from app.config.kinds import STANDARD_ERROR
from app.metrics.documents import Best, Curves, EvaluationEvent, EvaluationFigures, Event, StepTimeHistogram, TrainEvent
from app.record.documents import (
    MANIFEST,
    UNFINISHED,
    RunManifest,
    Summary,
    is_run,
    read_config,
    read_curves,
    read_events,
    read_manifest,
    read_step_times,
    read_summary,
)
from common.command import redact
from common.documents import Figures, convert, plain_object
from common.errors import UserError


@dataclass
class RunFiles:
    """One run. Attributes hold the content of the files that they are named after; None if there is no such file."""

    directory: Path
    config: dict[str, Any]
    manifest: RunManifest
    summary: Summary | None
    events: list[Event]  # lines of metrics.jsonl
    curves: Curves | None
    step_times: StepTimeHistogram | None

    @property
    def name(self) -> str:
        return str(self.config.get("run", {}).get("name") or self.directory.name)

    @property
    def seed(self) -> int:
        return int(self.config["train"]["seed"])

    @property
    def status(self) -> str:
        return self.summary.status if self.summary else UNFINISHED

    @property
    def evaluation(self) -> EvaluationFigures:
        """Evaluation of the served model; without split and samples if there was none."""
        if self.summary and self.summary.eval.is_measured:
            return self.summary.eval
        return self.last_evaluation

    @property
    def last_evaluation(self) -> EvaluationFigures:
        """The newest evaluation; without split and samples if there was none."""
        if self.summary and self.summary.last.is_measured:
            return self.summary.last
        # A run without a summary still trains or was killed: its events have its last evaluation.
        evaluations = self.evaluations
        return evaluations[-1].figures() if evaluations else EvaluationFigures(auc=None)

    @property
    def is_evaluated(self) -> bool:
        return self.evaluation.figure("samples") is not None

    @property
    def compares_machines(self) -> bool:
        """Whether to show power, or why it is missing, and DeepSpark's columns: not of a user's own table."""
        return bool(self.config["published"]["recipe"] != "own_table")

    @property
    def best(self) -> Best | None:
        return self.summary.best if self.summary else None

    @property
    def auc_standard_error(self) -> float | None:
        """DeLong's standard error of the evaluation's AUC."""
        return self.evaluation.figure(STANDARD_ERROR)

    @property
    def world_size(self) -> int:
        return self.manifest.world_size

    @property
    def global_batch_size(self) -> int:
        return int(self.config["train"]["global_batch_size"])

    @property
    def steps(self) -> int:
        """Step of the newest event; 0 if there is none."""
        return max((event.step for event in self.events), default=0)

    @property
    def windows(self) -> list[TrainEvent]:
        return [event for event in self.events if isinstance(event, TrainEvent)]

    @property
    def evaluations(self) -> list[EvaluationEvent]:
        return [event for event in self.events if isinstance(event, EvaluationEvent) and event.event == "eval"]

    @property
    def memory(self) -> Figures:
        """Peak bytes by kind; None for each without a summary, as in `throughput`."""
        return defaultdict(lambda: None, (self.summary and self.summary.memory) or {})

    @property
    def throughput(self) -> Figures:
        return defaultdict(lambda: None, self.summary.throughput if self.summary else {})

    @property
    def watts(self) -> float | None:
        """Mean power of all devices together."""
        power = self.summary.power if self.summary else None
        return float(power["mean_watts"] or 0) if power else None

    @property
    def rate(self) -> float | None:
        """Global samples a second."""
        return self.throughput["samples_per_second"]


@contextmanager
def refusing_other_versions(runs: str) -> Iterator[None]:
    """Context that reports in one line what a run's files lack, or have in another form."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, UndefinedError) as error:
        raise UserError(f"runs={runs}: its files are damaged or of another version ({error!r})") from error


def read_run(directory: Path) -> RunFiles:
    """Read a run's files, without secrets. Raises UserError if it is no run's directory, or a file is not readable."""
    config = read_config(directory)
    if not is_run(directory):
        raise UserError(f"runs={directory}: not a run's directory (no readable {MANIFEST})")
    manifest, summary = read_manifest(directory), read_summary(directory)
    run = RunFiles(
        directory=directory,
        config=redact(config),  # redact again: somebody may have written a secret into a file
        manifest=convert(redact(plain_object(manifest)), RunManifest),
        summary=None if summary is None else convert(redact(plain_object(summary)), Summary),
        events=read_events(directory),
        curves=read_curves(directory),
        step_times=read_step_times(directory),
    )
    with refusing_other_versions(str(directory)):
        if min(run.world_size, run.global_batch_size) < 1:
            raise ValueError("a run of nothing")
    return run


NOT_MEASURED = "not measured"
MINUS = "−"


def figure(value: float | int | None, digits: int = 4) -> str:
    """Format a number with `digits` digits after the point."""
    return NOT_MEASURED if value is None else f"{value:,.{digits}f}".replace("-", MINUS)


def signed(value: float | None, digits: int = 4) -> str:
    """Format a difference, with its sign."""
    return NOT_MEASURED if value is None else f"{value:+.{digits}f}".replace("-", MINUS)


def count(value: float | int | None) -> str:
    """Format a whole number with separators."""
    return NOT_MEASURED if value is None else f"{round(value):,}"


def percent(value: float | None, digits: int = 1) -> str:
    """Format a share of one as a percentage."""
    return NOT_MEASURED if value is None else f"{value:.{digits}%}"


def size(num_bytes: float | None) -> str:
    """Format bytes with a binary unit, B to TiB; None was not measured."""
    if num_bytes is None:
        return NOT_MEASURED
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:,.0f} B" if unit == "B" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} TiB"


def duration(seconds: float | None) -> str:
    """Format seconds as hours, minutes and seconds; None was not measured."""
    if seconds is None:
        return NOT_MEASURED
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


# Why power was not measured, by platform, to follow `not measured`.
METERS = {
    "cpu": "as this machine has no RAPL counter that the run may read (/sys/class/powercap)",
    "cuda": "as NVML's energy counter cannot be read (it takes the nvidia-ml-py package)",
    "rocm": "as AMD SMI's energy accumulator cannot be read (it takes ROCm's amdsmi package)",
}


def plural(number: int, noun: str) -> str:
    """Format a count and its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def precision(config: Mapping[str, Any]) -> str:
    """Return the precision in a run's configuration."""
    return str(config["runtime"].get("precision") or "fp32")


def devices(manifest: RunManifest) -> str:
    """Return number, platform and names of a run's devices, such as `2 × cuda (NVIDIA H100)`."""
    hardware = manifest.hardware
    names = sorted({device["name"] for device in hardware["devices"]}) or [hardware["cpu"] or "CPU"]
    return f"{manifest.world_size} × {manifest.platform} ({', '.join(names)})"
