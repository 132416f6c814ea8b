"""A run's directory: what made the run, what happened in it, what came out. Only rank 0 writes."""

import csv
import datetime
import io
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import yaml

from common.errors import UserError
from data_prep.format import write_atomically

log = logging.getLogger("clickwork")

CONFIG, MANIFEST, METRICS, SUMMARY = "config.yaml", "manifest.json", "metrics.jsonl", "summary.json"
RESULTS, LOG, CHECKPOINTS = "results.csv", "log.txt", "checkpoints"
# AMD's five columns, here of the whole job; then ours, labelled.
RESULTS_COLUMNS = (
    "Time Stamp", "Num. Nodes", "Batch Size", "Recommendations/s (mean)", "Recommendations/s (std/mean)",
    "Run", "World Size", "Batch Size per Device", "Recommendations/s per Device (mean)", "Status",
)  # fmt: skip


class Record:
    """The directory of one run."""

    def __init__(self, directory: Path, writes: bool) -> None:
        self.directory = directory
        self._writes = writes

    @property
    def checkpoints(self) -> Path:
        """Where this run's checkpoints are."""
        return self.directory / CHECKPOINTS

    def clear(self) -> None:
        """Remove what an earlier run of this name left; only directories that are a run's are touched."""
        if not self._writes or not self.directory.exists():
            return
        if not (self.directory / CONFIG).exists() and any(self.directory.iterdir()):
            raise UserError(f"run.dir={self.directory}: not empty and not a run's directory; choose another")
        shutil.rmtree(self.directory / CHECKPOINTS, ignore_errors=True)
        for name in (METRICS, SUMMARY, MANIFEST, LOG):
            (self.directory / name).unlink(missing_ok=True)

    def begin(self, config: dict[str, Any], manifest: dict[str, Any], step: int) -> None:
        """Write the configuration and the manifest; forget events after `step`, which will come again."""
        if not self._writes:
            return
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_atomically(self.directory / CONFIG, yaml.safe_dump(config, sort_keys=False).encode())
            write_atomically(self.directory / MANIFEST, _json(manifest))
            self._rewind(step)
            (self.directory / SUMMARY).unlink(missing_ok=True)
        except OSError as error:
            raise UserError(
                f"run.dir={self.directory}: cannot be written ({error.strerror}); choose another"
            ) from error
        handler = logging.FileHandler(self.directory / LOG)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)

    def event(self, kind: str, step: int, samples: int, seconds: float, **values: Any) -> None:
        """Append one line to metrics.jsonl; `seconds` is since the run began, resumptions counted together."""
        if self._writes:
            line = {"event": kind, "step": step, "samples": samples, "seconds": seconds, **values}
            with open(self.directory / METRICS, "ab") as file:
                file.write(json.dumps(line).encode() + b"\n")

    def summary(self, figures: dict[str, Any]) -> None:
        """Write summary.json."""
        if self._writes:
            write_atomically(self.directory / SUMMARY, _json(figures))

    def results(
        self, run: str, summary: dict[str, Any], global_batch_size: int, num_nodes: int, spread: float | None
    ) -> None:
        """Append this run's line to results.csv; `spread` is the throughput's standard deviation over its mean."""
        if not self._writes:
            return
        path = self.directory / RESULTS
        world_size, rates = summary["world_size"], summary["throughput"]
        text = io.StringIO()
        writer = csv.writer(text)
        if not path.exists():
            writer.writerow(RESULTS_COLUMNS)
        stamp = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        writer.writerow([stamp, num_nodes, global_batch_size, rates["samples_per_second"], spread, run, world_size,
                         global_batch_size // world_size, rates["samples_per_second_per_device"],
                         summary["status"]])  # fmt: skip
        with open(path, "a", newline="") as file:
            file.write(text.getvalue())

    def _rewind(self, step: int) -> None:
        path = self.directory / METRICS
        if path.exists():
            lines = [line for line in path.read_bytes().splitlines(keepends=True) if _step_of(line) <= step]
            write_atomically(path, b"".join(lines))


def read_config(directory: Path) -> dict[str, Any]:
    """The resolved configuration of a run.

    Raises:
        UserError: the directory is not a run's.
    """
    try:
        content = yaml.safe_load((directory / CONFIG).read_bytes())
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"run={directory}: not a run's directory (no readable {CONFIG})") from error
    if not isinstance(content, dict):
        raise UserError(f"run={directory}: {CONFIG} is not a configuration")
    return content


def read_summary(directory: Path) -> dict[str, Any] | None:
    """The summary of a run, or None if it has none yet."""
    try:
        return json.loads((directory / SUMMARY).read_bytes())
    except (OSError, ValueError):
        return None


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + os.linesep).encode()


def _step_of(line: bytes) -> float:
    """The step of an event; a line cut off by a kill is dropped."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
