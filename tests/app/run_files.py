"""Files of a run, as they are so far; and the least that a summary.json and a run's manifest.json hold."""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from app.checkpoint.files import STATE, STATE_SUM, checksum_line
from app.record.documents import SUMMARY_VERSION
from tests.waits import wait_until


def summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_bytes())


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [event for event in events if event["event"] == kind]


def losses(run: Path) -> list[float]:
    return [event["loss"] for event in events(run, "train")]


def contents(directory: Path) -> dict[str, str]:
    """Digests of all files under a directory, by path."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def rewrite_state(checkpoint: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint's state.json anew, with a checksum that fits."""
    content = json.dumps(state).encode()
    (checkpoint / STATE).write_bytes(content)
    (checkpoint / STATE_SUM).write_bytes(checksum_line(content))


def wait_for(path: Path, condition: Any, forks: list[Any]) -> None:
    def holds() -> bool:
        with contextlib.suppress(ValueError):  # a line half-written
            return path.exists() and bool(condition())
        return False

    wait_until(holds, lambda: all(fork.exitcode is None for fork in forks))


BY_AUC = {"monitor": None, "value": None}  # of the best evaluation
LEAST: dict[str, Any] = {
    "status": "completed",
    "version": SUMMARY_VERSION,
    "steps": 0,
    "samples": 0,
    "world_size": 1,
    "parameters": {"embedding": 0, "dense": 0, "total": 0},
    "train": {"loss": None, "logloss": None, "skipped_steps": 0},
    "best": None,
    "early_stop": None,
    "eval": {"auc": None},
    "last": {"auc": None},
    "throughput": {},
    "covers": {"train": {"steps": 0}},
}
HARDWARE = {"machine": "x86_64", "system": "Linux", "cpu": "a CPU", "cpu_instructions": "AVX2", "cores": 2}
HARDWARE |= {"cpu_quota": None, "memory_bytes": 1 << 30, "memory_limit_bytes": None, "devices": [], "driver": None}
LEAST_MANIFEST: dict[str, Any] = {
    "code": {"git_sha": "a", "dirty_diff_sha256": None, "sources_sha256": "b"},
    "dataset": {"path": "x", "digest": "d"},
    "hardware": HARDWARE,
    "argv": [],
    **{name: {} for name in ("versions", "environment", "files", "seeds", "plan", "tables")},
    **dict.fromkeys(("image", "base_image")),
    **dict.fromkeys(("world_size", "num_threads", "local_world_size"), 1),
    "platform": "cpu",
    "compile": "none",
    "pipeline": "none",
    "began": "2026-01-02T03:04:05+00:00",
    "from_step": 0,
    "results_before": 0,
}
