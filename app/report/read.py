"""A run's directory as the report reads it: whatever is there, since a run may have failed or still be running."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.record.reading import CURVES, MANIFEST, METRICS, STEP_TIMES, read_config, read_json, read_summary
from common.errors import UserError
from common.redact import redact

UNFINISHED = "unfinished"  # no summary: still running, or killed


@dataclass
class RunFiles:
    """One run. Attributes hold the content of the files that they are named after; None where there is none."""

    directory: Path
    config: dict[str, Any]
    manifest: dict[str, Any]
    summary: dict[str, Any] | None
    events: list[dict[str, Any]]  # of metrics.jsonl
    curves: dict[str, Any] | None
    step_times: dict[str, Any] | None

    @property
    def name(self) -> str:
        return str(self.config.get("run", {}).get("name") or self.directory.name)

    @property
    def status(self) -> str:
        return str(self.summary["status"]) if self.summary else UNFINISHED

    @property
    def evaluation(self) -> dict[str, Any]:
        """The last evaluation; empty if there was none."""
        if self.summary and self.summary["eval"].get("auc") is not None:
            return dict(self.summary["eval"])
        evaluations = self.of_kind("eval")
        return {**evaluations[-1], "samples": evaluations[-1].get("eval_samples")} if evaluations else {}

    @property
    def auc_standard_error(self) -> float | None:
        """DeLong's, of the last evaluation's AUC; older runs may have it of a part of the rows alone, which is None."""
        error: float | None = self.evaluation.get("auc_standard_error")
        curves = self.curves or {}
        if error is None and curves.get("samples") == curves.get("of"):
            error = curves.get("auc_standard_error")
        return error

    @property
    def world_size(self) -> int:
        return int(self.manifest["world_size"])

    @property
    def global_batch_size(self) -> int:
        return int(self.config["train"]["global_batch_size"])

    @property
    def steps(self) -> int:
        return max((int(event["step"]) for event in self.events), default=0)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    def throughput(self) -> dict[str, Any]:
        return self.summary["throughput"] if self.summary else {}


@contextmanager
def refusing_other_versions(runs: str) -> Iterator[None]:
    """Context in which what a run's files lack, or have in another form, is reported in one line.

    Raises:
        UserError: names the runs and the first fault.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UserError(f"runs={runs}: its files are damaged or of another version ({error!r})") from error


def read_run(directory: Path) -> RunFiles:
    """Read a run's files.

    Raises:
        UserError: it is not a run's directory.
    """
    config, manifest = read_config(directory), read_json(directory / MANIFEST)
    if manifest is None:
        raise UserError(f"runs={directory}: not a run's directory (no readable {MANIFEST})")
    with refusing_other_versions(str(directory)):
        run = RunFiles(
            directory=directory,
            config=redact(config),  # again: runs of older versions may hold secrets
            manifest=redact(manifest),
            summary=redact(read_summary(directory)),
            events=_events(directory / METRICS),
            curves=read_json(directory / CURVES),
            step_times=read_json(directory / STEP_TIMES),
        )
        if min(run.world_size, run.global_batch_size) < 1:
            raise ValueError("a run of nothing")
    return run


def _events(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; the last may be cut off by a kill."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            event = json.loads(line)
            events.append({**event, "step": int(event["step"]), "event": str(event["event"])})
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break
            raise UserError(f"{path}: line {number} is not an event") from error
    return events
