"""Documents of a run: as they are written, and as they are read; its directory."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from app.checkpoint.files import read_state
from app.metrics.documents import decode_event
from app.record import directory
from app.record.directory import RunDirectory
from app.record.documents import read_curves, read_events, read_manifest, read_step_times, read_summary
from app.sharding.documents import PlanFile
from app.sharding.plan import load_plan
from common.documents import plain, plain_object
from common.errors import UserError
from tests.app.run_files import rewrite_state

LAYOUT = Path(__file__).parents[2] / "golden" / "documents.txt"
# Whose keys may vary from machine to machine, or are those of other documents.
LEAVES = ("environment", "versions", "devices", "files", "tables", "t_cat_0", "fingerprint", "phases")


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
    by_kind = {event["event"]: event for event in map(json.loads, (run / "metrics.jsonl").open())}
    return lines + [f"metrics.jsonl {kind}.{key}" for kind in sorted(by_kind) for key in key_paths(by_kind[kind])]


def test_documents_are_written_as_recorded(recorded: Path) -> None:
    """Keys and their order, as recorded; every byte but values by the json module."""
    assert layout_of(recorded) == LAYOUT.read_text().splitlines()
    for name in ("manifest.json", "summary.json"):
        content = (recorded / name).read_text()
        assert content == json.dumps(json.loads(content), indent=1) + "\n"
    for name in ("curves.json", "step_times.json"):
        content = (recorded / name).read_text()
        assert content == json.dumps(json.loads(content))
    for path in recorded.glob("checkpoints/step_*/state.json"):
        assert path.read_text() == json.dumps(json.loads(path.read_bytes()), indent=1)
    for line in (recorded / "metrics.jsonl").read_text().splitlines():
        assert line == json.dumps(json.loads(line))


class Kind(NamedTuple):
    """A document: its file in a run, its reader, a key that it needs, and one of a type that can be wrong."""

    path: str
    read: Callable[[Path], Any]
    required: str
    number: str


def _plan(run: Path) -> Any:
    return load_plan("sharding.plan", run / "plan.json", PlanFile)[1]


KINDS = {
    "manifest": Kind("manifest.json", read_manifest, "world_size", "num_threads"),
    "summary": Kind("summary.json", read_summary, "steps", "eval.samples"),
    "curves": Kind("curves.json", read_curves, "samples", "roc.fpr"),
    "step times": Kind("step_times.json", read_step_times, "counts", "counts"),
    "state": Kind("state.json", read_state, "fingerprint", "measured.joules"),
    "plan": Kind("plan.json", _plan, "tables", "tables.t_cat_0.ranks"),
}


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    """A copy that a test may change, with the state of its newest checkpoint and its plan beside its other files."""
    for path in recorded.glob("*.json*"):
        shutil.copy(path, tmp_path)
    shutil.copy(sorted(recorded.glob("checkpoints/step_*/state.json"))[-1], tmp_path)
    tables = json.loads((recorded / "manifest.json").read_bytes())["plan"]
    plan = {"format": 1, "world_size": 1, "local_world_size": 1, "tables": tables}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    rewrite(tmp_path, KINDS["state"], lambda document: None)
    return tmp_path


def rewrite(run: Path, kind: Kind, change: Callable[[Any], object]) -> None:
    """Change a document in its file."""
    document = json.loads((run / kind.path).read_bytes())
    change(document)
    if kind.path == "state.json":
        rewrite_state(run, document)
    else:
        (run / kind.path).write_text(json.dumps(document))


def parent_of(document: Any, key: str) -> tuple[Any, str]:
    *above, last = key.split(".")
    for name in above:
        document = document[name]
    return document, last


@pytest.mark.parametrize("name", KINDS)
def test_a_document_is_read_as_it_is_written_and_further_keys_stay(name: str, run: Path) -> None:
    kind = KINDS[name]
    rewrite(run, kind, lambda document: None if name == "step times" else document.update(brand_new={"x": [1, "y"]}))
    assert plain_object(kind.read(run)) == json.loads((run / kind.path).read_bytes())


@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_document_is_refused_in_one_line(name: str, run: Path) -> None:
    """By file and key, with what to do: a key is missing, or of another type; the file is cut short."""
    kind = KINDS[name]
    whole = (run / kind.path).read_bytes()

    def remove(document: Any) -> None:
        parent, key = parent_of(document, kind.required)
        del parent[key]

    def misstate(document: Any) -> None:
        parent, key = parent_of(document, kind.number)
        parent[key] = "many"

    for change, key, words in ((remove, kind.required, "is missing"), (misstate, kind.number, 'is "many": expected')):
        (run / kind.path).write_bytes(whole)
        rewrite(run, kind, change)
        with pytest.raises(UserError) as error:
            kind.read(run)
        text = str(error.value)
        assert str(run / kind.path) in text
        assert f"key '{key}' {words}" in text
        assert "\n" not in text
        assert any(remedy in text for remedy in ("; remove", "train the run again", "app.plan plan.out=FILE"))
    (run / kind.path).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="manifest.json" if name == "manifest" else str(run / kind.path)):
        kind.read(run)


def test_events_are_read_as_they_are_written(run: Path) -> None:
    """Whatever their kind; a number is found by its name wherever it stands, and none is made of a text."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines += [
        '{"event": "of another version", "step": 8, "samples": 512, "seconds": 2.5, "new": {"x": [1]}}',
        '{"event": "eval", "step": 9, "samples": 576, "seconds": 3.5, "eval_samples": 64, "split": "val", "auc": null, '
        '"ndcg": 0.25, "method": "exact", "eval_seconds": null, "measured": null}',
    ]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    events = read_events(run)
    assert [plain(event) for event in events] == [json.loads(line) for line in lines]
    assert [events[-1].figure(name) for name in ("auc", "ndcg", "none")] == [None, 0.25, None]
    with pytest.raises(ValueError, match="key 'method' is \"exact\": not a number"):
        events[-1].figure("method")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"event": "train"}', "key 'step' is missing"),
        ('{"event": "train", "step": "x"}', "key 'step' is \"x\": expected `int`"),
        ('{"event": "eval", "step": 1, "measured": {"phases": {"forward": "y"}}}', "measured.phases.forward' is \"y"),
        ('{"event": "train", "st', "Unterminated string"),
        ("[1]", "expected `object`"),
    ],
)
def test_a_line_that_is_no_event_is_named_unless_a_kill_cut_it_off(line: str, reason: str, run: Path) -> None:
    with pytest.raises(ValueError, match=reason.replace("[", r"\[")):
        decode_event(line.encode())
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*lines, line]))
    assert len(read_events(run)) == len(lines)
    (run / "metrics.jsonl").write_text("\n".join([line, *lines]))
    with pytest.raises(UserError, match=r"metrics.jsonl: line 1 is not an event .*; delete the line"):
        read_events(run)


def test_the_golden_run_is_read_whole() -> None:
    golden = LAYOUT.parent / "run"
    assert plain(read_manifest(golden)) == json.loads((golden / "manifest.json").read_bytes())
    assert plain(read_summary(golden)) == json.loads((golden / "summary.json").read_bytes())
    lines = (golden / "metrics.jsonl").read_text().splitlines()
    assert [plain(event) for event in read_events(golden)] == [json.loads(line) for line in lines]


@pytest.mark.medium
def test_reading_a_run_needs_neither_torch_nor_the_configuration() -> None:
    modules = "app.report.page, app.report.compare, app.checkpoint.files, app.sharding.documents"
    heavy = "import sys; print([name for name in ('torch', 'omegaconf', 'hydra') if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", f"import {modules}; {heavy}"], text=True) == "[]\n"


def test_a_run_that_did_not_begin_leaves_no_directory(tmp_path: Path) -> None:
    record = RunDirectory(tmp_path / "runs/a", rank=0)
    record.open()
    record.release()
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told(logged: pytest.LogCaptureFixture) -> None:
    for error, reason in ((OSError(28, "No space left on device"), "No space left on device"), (OSError("odd"), "odd")):
        with directory.ignoring_full_disk():
            raise error
        assert logged.messages[-1] == f"the last figures were not written: {reason}"
