"""A figure of a record that was not computed is found, wherever it stands; what no replay repeats is named."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from app import verify as compare
from app.checkpoint.saver import Saver
from app.record.directory import RunDirectory
from app.record.documents import RunManifest
from app.runtime.platform import Runtime
from app.training.loop import TrainingRun
from app.verify import Launch, ReplayComparison, changes
from common.documents import convert
from common.errors import UserError
from tests.app.conftest import built
from tests.app.in_process import command_here
from tests.app.run_files import events, summary
from tests.app.summaries import LEAST_MANIFEST

Report = dict[str, Any]
Verified = Callable[..., tuple[int, Report]]


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(recorded, tmp_path / "x"))


@pytest.fixture
def verified(runtime: Runtime, run: Path, capsys: pytest.CaptureFixture[str]) -> Verified:
    def verify(*overrides: str) -> tuple[int, Report]:
        capsys.readouterr()
        status = command_here(runtime, "verify", f"run={run}", *overrides)
        return status, json.loads(capsys.readouterr().out)

    return verify


def test_every_figure_is_repeated(run: Path, verified: Verified) -> None:
    assert [event["step"] for event in events(run, "train")] == [4, 8, 12, 14]
    assert [event["step"] for event in events(run, "eval")] == [5, 10, 12, 14]
    status, report = verified()
    assert (status, report["verdict"], report["figures"]) == (0, "identical", [])
    assert report["compared_at"][-1] == 14
    assert report["figures_compared"] > 4 * 8 + 8 * 8 + 10
    of_the_machine = {"seconds", "samples_per_second", "host_bytes", "eval_seconds", "memory", "power", "throughput"}
    not_compared = {name for names in report["not_compared"].values() for name in names}
    assert of_the_machine <= not_compared
    assert not {"auc", "loss", "accuracy", "lr", "steps", "status"} & not_compared


def rewritten(path: Path, change: Callable[[Any], Any]) -> None:
    """Change the content of a JSON file, or of each line of one."""
    text = path.read_text(encoding="utf-8")
    lines = map(json.loads, [text] if path.suffix == ".json" else text.splitlines())
    path.write_text("".join(json.dumps(change(line)) + "\n" for line in lines), encoding="utf-8")


def in_summary(part: str | None, key: str, value: Any) -> Callable[[Path], None]:
    def change(summary: Any) -> Any:
        of = summary if part is None else summary[part]
        of[key] = value
        return summary

    return lambda run: rewritten(run / "summary.json", change)


def in_event(kind: str, step: int, key: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def changed(event: Any) -> Any:
        is_target = (event["event"], event["step"]) == (kind, step)
        return {**event, key: change(event[key])} if is_target else event

    return lambda run: rewritten(run / "metrics.jsonl", changed)


Changes = dict[str, tuple[Callable[[Path], None], str]]
QUICK: Changes = {
    "the AUC of the summary": (in_summary("eval", "auc", 0.9077), "auc"),
    "the summary's status": (in_summary(None, "status", "target_reached"), "status"),
    "the summary's last evaluation": (in_summary("last", "ne", 0.5), "ne"),
    "a loss a little": (in_event("train", 8, "loss", lambda loss: loss * 1.001), "loss"),
    "an evaluation of the training split": (in_event("eval_train", 10, "accuracy", lambda old: old - 0.1), "accuracy"),
}
SLOW: Changes = {
    "the summary's logloss": (in_summary("eval", "logloss", 0.1), "logloss"),
    "the summary's steps": (in_summary(None, "steps", 13), "steps"),
    "the summary's samples": (in_summary(None, "samples", 9), "samples"),
    "the summary's parameters": (in_summary("parameters", "dense", 1), "dense"),
    "the summary's skipped steps": (in_summary("train", "skipped_steps", 1), "skipped_steps"),
    "the summary's training loss": (in_summary("train", "loss", 0.5), "loss"),
    "the step of its evaluation": (in_summary("eval", "step", 10), "step"),
    "the step of its last evaluation": (in_summary("last", "step", 10), "step"),
    "the summary's best": (in_summary("best", "auc", 0.99), "auc"),
    "the loss of a window": (in_event("train", 8, "loss", lambda loss: 0.01), "loss"),
    "the rate of a window": (in_event("train", 8, "lr", lambda lr: 2 * lr), "lr"),
    "an earlier evaluation": (in_event("eval", 5, "pr_auc", lambda auc: auc + 0.1), "pr_auc"),
}


@pytest.mark.parametrize("case", [*QUICK, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)])
def test_a_changed_figure_is_found(case: str, run: Path, verified: Verified) -> None:
    change, figure = {**QUICK, **SLOW}[case]
    change(run)
    status, report = verified()
    assert (status, report["verdict"]) == (1, "different")
    assert figure in [one["figure"] for one in report["figures"]]


@pytest.mark.slow("processes")
@pytest.mark.parametrize("digest", ["parameters", "losses"])
def test_a_changed_digest_is_found(digest: str, run: Path, verified: Verified) -> None:
    in_summary("digest", digest, "0" * 64)(run)
    rewritten(run / "manifest.json", lambda manifest: {**manifest, "code": {**manifest["code"], "git_sha": "another"}})
    status, report = verified()
    assert (status, report["same_digests"][digest]) == (1, False)


@pytest.mark.slow("processes")
def test_without_checkpoints_the_same_is_compared(run: Path, verified: Verified) -> None:
    shutil.rmtree(run / "checkpoints")
    report = verified()[1]
    assert (report["verdict"], report["same_digests"]) == ("identical", {"parameters": True, "losses": True})
    in_event("train", 8, "loss", lambda loss: loss * 1.01)(run)
    status, report = verified()
    assert (status, report["losses"]["first_step"]) == (1, 8)


@pytest.mark.parametrize("version", [1, 99])
def test_a_summary_of_another_version_is_refused(version: int, runtime: Runtime, run: Path) -> None:
    in_summary(None, "version", version)(run)
    with pytest.raises(UserError, match=rf"summary\.json is of version {version}, and this one reads 3"):
        command_here(runtime, "verify", f"run={run}")


@pytest.mark.parametrize("key", ["version", "last", "early_stop"])
def test_a_summary_that_lacks_a_key_is_refused(key: str, runtime: Runtime, run: Path) -> None:
    rewritten(run / "summary.json", lambda old: {name: value for name, value in old.items() if name != key})
    with pytest.raises(UserError, match=rf"summary\.json: damaged \(key '{key}' is missing\); remove it, and the run"):
        command_here(runtime, "verify", f"run={run}")


def test_conditions_are_compared_launch_by_launch() -> None:
    def launches_of(document: dict[str, Any]) -> list[Launch]:
        return compare.launches_of(convert(document, RunManifest))

    def changes(parts: list[Launch], document: dict[str, Any]) -> tuple[list[str], int | None]:
        return compare.changes(parts, convert(document, RunManifest))

    now = {**LEAST_MANIFEST, "world_size": 1}
    two, one = {**now, "world_size": 2, "from_step": 0}, {**now, "from_step": 40}
    both = launches_of({**one, "earlier": [two]})
    assert [(launch.start, launch.end) for launch in both] == [(0, 40), (40, None)]
    assert changes(both, now) == (["steps 1 to 40: world_size: 2 then, 1 now"], 0)
    assert changes(both, {**now, "world_size": 2}) == (["steps from 41 on: world_size: 1 then, 2 now"], 40)
    assert changes(launches_of(two), now) == (["world_size: 2 then, 1 now"], 0)
    assert changes(launches_of({**one, "from_step": 0}), now) == ([], None)
    # Killed after step 40, resumed at 20: of the first launch 20 steps are left, of one resumed again at 20 none.
    killed = {**one, "from_step": 20, "earlier": [two, {**two, "from_step": 20}]}
    assert [(launch.start, launch.end) for launch in launches_of(killed)] == [(0, 20), (20, None)]
    (start, another) = launches_of(one)
    assert start == Launch(0, 40, None)
    by_another = "steps 1 to 40: trained by another run, from whose checkpoint this one started"
    assert changes([start, another], now) == ([by_another], 0)


def test_bits_are_promised_up_to_where_the_threads_changed(run: Path, verified: Verified) -> None:
    """By the record, of which the last launch alone had two threads here; the replay takes the first one's."""
    rewritten(run / "manifest.json", lambda manifest: {**manifest, "num_threads": 2})
    path = run / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["runtime"]["num_threads"] = 2
    path.write_text(yaml.safe_dump(config))
    status, report = verified()
    assert (status, report["bits_can_be_equal_until"]) == (0, 12)
    assert report["changed_since"] == ["steps from 13 on: num_threads: 2 then, 1 now"]
    assert summary(run)["steps"] == 14


def test_a_resumption_that_no_launch_began_with_is_found(run: Path, verified: Verified) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    resumption = next(line for line in map(json.loads, lines) if line["event"] == "resume")
    forged = json.dumps({**resumption, "step": 1})
    (run / "metrics.jsonl").write_text("\n".join([forged, *lines]) + "\n")
    status, report = verified()
    assert status == 1
    assert "summary.json, events" in {difference["where"] for difference in report["figures"]}


A, B = "a" * 40, "b" * 40
Code = tuple[str | None, str | None, str]  # the commit, the digest of changes, the digest of modules


@pytest.mark.parametrize(
    ("then", "now", "differing"),
    [
        ((A, None, "1"), (A, None, "1"), []),
        ((None, None, "1"), (A, None, "1"), ["git_sha"]),
        ((None, None, "1"), (A, "9", "1"), ["dirty_diff_sha256", "git_sha"]),
        ((None, None, "1"), (A, None, "2"), ["git_sha", "sources_sha256"]),
        ((A, None, "1"), (None, None, "2"), ["git_sha", "sources_sha256"]),
        ((A, None, "1"), (B, None, "1"), ["git_sha"]),
        ((A, None, "1"), (A, "9", "2"), ["dirty_diff_sha256", "sources_sha256"]),
    ],
)
def test_code_is_compared_by_all_that_the_run_knows(then: Code, now: Code, differing: list[str]) -> None:
    def manifest(*code: str | None) -> RunManifest:
        names = ("git_sha", "dirty_diff_sha256", "sources_sha256")
        return convert({**LEAST_MANIFEST, "code": dict(zip(names, code, strict=True))}, RunManifest)

    lines, until = changes([Launch(0, None, manifest(*then))], manifest(*now))
    assert [line.split()[1].rstrip(":") for line in lines] == differing
    assert until == (0 if differing else None)


def test_a_replay_makes_one_checkpointer_and_that_compares(
    runtime: Runtime, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each makes a process group for its writer."""
    calls: list[tuple[object, ...]] = []
    make_saver = Saver.__init__

    def counted(saver: Saver, *arguments: Any) -> None:
        calls.append(arguments)
        make_saver(saver, *arguments)

    monkeypatch.setattr(Saver, "__init__", counted)
    this = built(runtime, dataset)
    make = partial(ReplayComparison, checkpoints={7: tmp_path}, scored={})
    run = TrainingRun(this, RunDirectory(tmp_path, 0), 0.0, make_checkpointer=make)
    assert isinstance(run.checkpointer, ReplayComparison)
    assert [step for step in range(10) if run.checkpointer.due(step)] == [7]
    assert len(calls) == 1
