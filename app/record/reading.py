"""Reading a run's directory: names of its files, and their content."""

import contextlib
import json
from pathlib import Path
from typing import Any

import yaml

from common.errors import UserError

FORMAT_NAME = "clickwork-run"
SUMMARY_VERSION = 1  # of summary.json: `eval` is the newest evaluation. Older ones name no version and mean the same
CONFIG, MANIFEST, METRICS, SUMMARY = "config.yaml", "manifest.json", "metrics.jsonl", "summary.json"
RESULTS, LOG, LOCK = "results.csv", "log.txt", ".lock"
CURVES, STEP_TIMES = "curves.json", "step_times.json"


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


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a run.

    Raises:
        UserError: the directory is not a run's.
    """
    manifest = read_json(directory / MANIFEST)
    if manifest is None or manifest.get("format") != FORMAT_NAME:
        raise UserError(f"run={directory}: not a run's directory (no readable {MANIFEST})")
    return manifest


def read_events(directory: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """A run's events, of one kind or all; a line that was cut off by a kill is left out."""
    events = []
    with contextlib.suppress(FileNotFoundError):
        for line in (directory / METRICS).read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and kind in (None, event.get("event")):
                    events.append(event)
    return events


def read_summary(directory: Path) -> dict[str, Any] | None:
    """The summary of a run, or None if it has none yet."""
    summary = read_json(directory / SUMMARY)
    return summary if summary and {"status", "steps", "eval"} <= summary.keys() else None


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file, or None if there is no complete one."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
