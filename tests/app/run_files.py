"""Files of a run, as they are so far."""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from app.checkpoint.files import STATE, STATE_SUM, checksum_line
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
