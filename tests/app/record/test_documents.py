"""Documents of a run: as they are written, and as they are read."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.runtime.platform import Runtime
from app.training import stop
from tests.app.conftest import SMALL
from tests.app.in_process import train_here
from tests.once import made_once

LAYOUT = Path(__file__).parents[2] / "golden" / "documents.txt"  # written by the release before documents had types
# Whose keys may vary from machine to machine, or are those of other documents.
LEAVES = ("environment", "versions", "devices", "files", "tables", "t_cat_0", "fingerprint", "phases")


@pytest.fixture(scope="session")
def trained(here: Runtime, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped and resumed, evaluated on both splits."""

    def train(root: Path) -> None:
        overrides = [*SMALL, f"data.path={dataset}", "record.tensorboard=false", "run.name=x", f"run.dir={root}/x",
                     "train.log_every_steps=4", "train.eval_every_steps=5", "eval.train_split=true",
                     "train.max_steps=8", "runtime.platform=cpu"]  # fmt: skip
        with pytest.MonkeyPatch.context() as stopped:
            stopped.setattr(stop.StopCheck, "requested", lambda _, step: step == 6)
            assert train_here(here, *overrides) == "interrupted"
        assert train_here(here, *overrides) == "completed"

    return made_once(tmp_path_factory, "documents", train) / "x"


def key_paths(document: Any, path: str = "") -> Iterator[str]:
    """The dotted keys of a document in its order."""
    entries = list(document.items()) if isinstance(document, dict) else []
    if isinstance(document, list) and document and isinstance(document[0], dict):
        entries = [("0", document[0])]
    for key, value in entries:
        yield f"{path}{key}"
        if key not in LEAVES:
            yield from key_paths(value, f"{path}{key}.")


def layout_of(run: Path) -> list[str]:
    """Each document's keys in the order of the file, of events one of each kind."""
    lines = []
    for path in ("manifest.json", "summary.json", "curves.json", "step_times.json", "state.json"):
        file = run / path
        if path == "state.json":
            file = sorted(run.glob("checkpoints/step_*/state.json"))[-1]
        lines += [f"{path} {key}" for key in key_paths(json.loads(file.read_bytes()))]
    by_kind = {}
    for line in (run / "metrics.jsonl").read_bytes().splitlines():
        event = json.loads(line)
        by_kind[event["event"]] = event
    return lines + [f"metrics.jsonl {kind}.{key}" for kind in sorted(by_kind) for key in key_paths(by_kind[kind])]


def test_documents_are_written_as_ever(trained: Path) -> None:
    """Keys and their order, by the layout that an earlier release wrote; every byte but values by the json module."""
    assert layout_of(trained) == LAYOUT.read_text().splitlines()
    for name in ("manifest.json", "summary.json"):
        content = (trained / name).read_text()
        assert content == json.dumps(json.loads(content), indent=1) + "\n"
    for name in ("curves.json", "step_times.json"):
        content = (trained / name).read_text()
        assert content == json.dumps(json.loads(content))
    for path in trained.glob("checkpoints/step_*/state.json"):
        assert path.read_text() == json.dumps(json.loads(path.read_bytes()), indent=1)
    for line in (trained / "metrics.jsonl").read_text().splitlines():
        assert line == json.dumps(json.loads(line))


