"""Documents of a run, as they are written and read: its scores, its checkout, its views for other tools."""

import errno
import hashlib
import json
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from app.checkpoint.files import read_state
from app.config.sharding import Plan
from app.metrics.documents import TrainEvent, decode_event
from app.record import documents, provenance
from app.record.directory import ProgressDisplay, ignoring_full_disk
from app.sharding.plan import load_plan
from common.documents import plain, plain_object
from common.errors import UserError
from tests.app.conftest import Command
from tests.app.run_files import events, rewrite_state
from tests.error_lines import refused


class Kind(NamedTuple):
    """A document: its file in a run, its reader, a key that it needs, and one of a type that can be wrong."""

    path: str
    read: Callable[[Path], Any]
    required: str
    number: str


def _plan(run: Path) -> Any:
    return load_plan("sharding.plan", run / "plan.json", Plan)


KINDS = {
    "manifest": Kind("manifest.json", documents.read_manifest, "world_size", "num_threads"),
    "summary": Kind("summary.json", documents.read_summary, "steps", "eval.samples"),
    "curves": Kind("curves.json", documents.read_curves, "samples", "roc.fpr"),
    "step times": Kind("step_times.json", documents.read_step_times, "counts", "counts"),
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
    refused("manifest.json" if name == "manifest" else str(run / kind.path), kind.read, run)


def test_events_are_read_as_they_are_written(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines += [
        '{"event": "of another version", "step": 8, "samples": 512, "seconds": 2.5, "new": {"x": [1]}}',
        '{"event": "eval", "step": 9, "samples": 576, "seconds": 3.5, "eval_samples": 64, "split": "val", "auc": null, '
        '"ndcg": 0.25, "method": "exact", "eval_seconds": null}',
    ]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    events = documents.read_events(run)
    assert [plain(event) for event in events] == [json.loads(line) for line in lines]
    assert [events[-1].figure(name) for name in ("auc", "ndcg", "none")] == [None, 0.25, None]
    with pytest.raises(ValueError, match="key 'method' is \"exact\": not a number"):
        events[-1].figure("method")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"event": "train"}', "key 'step' is missing"),
        ('{"event": "train", "step": 1, "phase_seconds": {"forward": "y"}}', "phase_seconds.forward' is \"y"),
        ('{"event": "train", "st', "Unterminated string"),
    ],
)
def test_a_line_that_is_no_event_is_named_unless_a_kill_cut_it_off(line: str, reason: str, run: Path) -> None:
    with pytest.raises(ValueError, match=reason.replace("[", r"\[")):
        decode_event(line.encode())
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*lines, line]))
    assert len(documents.read_events(run)) == len(lines)
    (run / "metrics.jsonl").write_text("\n".join([line, *lines]))
    refused(r"metrics.jsonl: line 1 is not an event .*; delete the line", documents.read_events, run)


def test_an_array_of_another_writing_is_no_part_of_it(tmp_path: Path) -> None:
    logits, labels = np.array([0.5, -1.0, 2.0], np.float32), np.array([1.0, 0.0, 1.0], np.float32)
    documents.write_scores(tmp_path, "test", 7, "d", logits, labels)
    np.save(tmp_path / "scores/test.labels.npy", labels[:-1])
    refused(r"test\.labels\.npy: damaged .*keep_scores=3", documents.read_scores, tmp_path, "test")


def git(cwd: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@y", *arguments]
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()


def test_whatever_lies_in_a_checkout_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Untracked files of the packages count, by name and content, others do not; a link to a directory, one that leads
    nowhere, and another checkout."""

    def code() -> dict[str, str | None]:
        code_version = provenance.describe_run().code
        assert code_version
        return {name: code_version[name] for name in ("git_sha", "dirty_diff_sha256")}

    monkeypatch.setattr(provenance, "REPOSITORY", tmp_path)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "first")
    clean_commit = git(tmp_path, "rev-parse", "HEAD")
    clean = code()
    assert clean == {"git_sha": clean_commit, "dirty_diff_sha256": None}
    for name in ("ads.tsv", "mine.py"):
        (tmp_path / name).write_text("x")
    (tmp_path / "logs").symlink_to("/usr")
    assert code() == clean
    app = tmp_path / "app"
    app.mkdir()
    (app / "data").symlink_to("/usr")
    (app / "nowhere").symlink_to("gone")
    (app / "other").mkdir()
    git(app / "other", "init", "--quiet")
    (app / "the.py").write_bytes(b"x")
    names = b"app/data/usr" + b"app/nowheregone" + b"app/other/" + b"app/the.pyx"
    assert code()["dirty_diff_sha256"] == hashlib.sha256(names).hexdigest()


def board(run: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "histograms": 0})
    accumulator.Reload()
    return accumulator


def assert_board_shows(run: Path) -> None:
    """Every figure of metrics.jsonl once, and nothing else."""
    accumulator = board(run)
    for tag in ("train/loss", "train/accuracy", "eval/auc", "train/lr"):
        kind, key = tag.split("/")
        expected = [(event["step"], event[key]) for event in events(run, kind)]
        points = [(event.step, event.value) for event in accumulator.Scalars(tag)]
        assert [step for step, _ in points] == [step for step, _ in expected], tag
        assert [value for _, value in points] == pytest.approx([value for _, value in expected], rel=1e-6), tag
    for tag in ("eval/probabilities of clicks", "eval/probabilities of no clicks"):
        assert [event.step for event in accumulator.Histograms(tag)] == [event["step"] for event in events(run, "eval")]


@pytest.mark.slow("processes")
def test_tensorboard_shows_a_killed_and_resumed_run_once(run_app: Command, small: list[str], tmp_path: Path) -> None:
    overrides = [*small, "run.name=board", "checkpoint.every_steps=20", "train.eval_every_steps=20"]
    run = tmp_path / "runs/board"
    run_app("train", *overrides, "train.max_steps=70", fault="in the step:47", status=-signal.SIGKILL)
    assert max(event["step"] for event in events(run, "train")) > 40  # these steps come again
    assert "resume: from" in run_app("train", *overrides, "train.max_steps=70").stderr
    assert_board_shows(run)
    run_app("train", *overrides, "train.max_steps=25", "checkpoint.resume=never", "checkpoint.overwrite=true")
    assert_board_shows(run)


@pytest.mark.parametrize(
    ("accuracy", "shown"), [(None, "loss 0.5000 8 sa"), (0.25, "loss 0.5000 accuracy 25.00% 8 sa")]
)
def test_a_line_of_progress(
    accuracy: float | None, shown: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("app.record.directory.FIRST_SECONDS", 0.0)
    display = ProgressDisplay(4, visible=True)
    display.start(0)
    event = TrainEvent(event="train", step=1, epoch=0, loss=0.5, accuracy=accuracy, samples_per_second=8.0)
    with caplog.at_level("INFO", "clickwork"):
        display.update(event, None)
    assert shown in caplog.text


def test_a_full_disk_does_not_hide_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("ERROR", "clickwork"), ignoring_full_disk():
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caplog.messages == ["the last figures were not written: No space left on device"]
