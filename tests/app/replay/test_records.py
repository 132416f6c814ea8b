"""A figure of a record that was not computed is found, wherever it stands; what no replay repeats is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.record.documents import RunManifest
from app.replay import launches
from app.replay.launches import Launch
from app.runtime.platform import Runtime
from app.training import stop
from common.documents import convert
from common.errors import UserError
from tests.app.conftest import SMALL
from tests.app.in_process import command_here, train_here
from tests.app.run_files import events, summary
from tests.app.summaries import LEAST_MANIFEST
from tests.once import made_once

Report = dict[str, Any]


@pytest.fixture(scope="session")
def trained(runtime: Runtime, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped, resumed and trained further; evaluated four times, on both splits."""

    def train(root: Path) -> None:
        overrides = [*SMALL, f"data.path={dataset}", "record.tensorboard=false", "run.name=x", f"run.dir={root}/x"]
        overrides += ["train.log_every_steps=4", "train.eval_every_steps=5", "eval.train_split=true"]
        with pytest.MonkeyPatch.context() as stopped:
            stopped.setattr(stop.StopCheck, "requested", lambda _, step: step == 6)
            assert train_here(runtime, *overrides, "train.max_steps=12") == "interrupted"
        for steps in (12, 14):
            assert train_here(runtime, *overrides, f"train.max_steps={steps}") == "completed"

    return made_once(tmp_path_factory, "recorded", train) / "x"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    shutil.copytree(trained, tmp_path / "x")
    return tmp_path / "x"


@pytest.fixture
def verified(runtime: Runtime, run: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Report]]:
    """The exit status and the report."""

    def verify(*overrides: str) -> tuple[int, Report]:
        capsys.readouterr()
        status = command_here(runtime, "verify", f"run={run}", *overrides)
        return status, json.loads(capsys.readouterr().out)

    return verify


def test_every_figure_is_repeated(run: Path, verified: Callable[..., tuple[int, Report]]) -> None:
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
    lines = [
        json.loads(line) for line in ([path.read_text()] if path.suffix == ".json" else path.read_text().splitlines())
    ]
    path.write_text("".join(json.dumps(change(line)) + "\n" for line in lines))


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


def without_schedule(manifest: Any) -> Any:
    """As of a run that was built and not trained."""
    launches = [{**one, "schedule": None} for one in manifest["earlier"]]
    return {**manifest, "schedule": None, "earlier": launches}


CHANGED: dict[str, tuple[Callable[[Path], None], str]] = {
    "the AUC of the summary": (in_summary("eval", "auc", 0.9077), "auc"),
    "its logloss": (in_summary("eval", "logloss", 0.1), "logloss"),
    "its status": (in_summary(None, "status", "target_reached"), "status"),
    "its steps": (in_summary(None, "steps", 13), "steps"),
    "its samples": (in_summary(None, "samples", 9), "samples"),
    "its parameters": (in_summary("parameters", "dense", 1), "dense"),
    "its skipped steps": (in_summary("train", "skipped_steps", 1), "skipped_steps"),
    "its training loss": (in_summary("train", "loss", 0.5), "loss"),
    "the step of its evaluation": (in_summary("eval", "step", 10), "step"),
    "its last evaluation": (in_summary("last", "ne", 0.5), "ne"),
    "the step of its last evaluation": (in_summary("last", "step", 10), "step"),
    "its best": (in_summary("best", "auc", 0.99), "auc"),
    "the loss of a window": (in_event("train", 8, "loss", lambda loss: 0.01), "loss"),
    "a loss a little": (in_event("train", 8, "loss", lambda loss: loss * 1.001), "loss"),
    "the rate of a window": (in_event("train", 8, "lr", lambda lr: 2 * lr), "lr"),
    "an earlier evaluation": (in_event("eval", 5, "pr_auc", lambda auc: auc + 0.1), "pr_auc"),
    "an evaluation of the training split": (in_event("eval_train", 10, "accuracy", lambda old: old - 0.1), "accuracy"),
}
FAST = (
    "the AUC of the summary",
    "its last evaluation",
    "its status",
    "a loss a little",
    "an evaluation of the training split",
)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in FAST else pytest.mark.slow) for case in CHANGED]
)
def test_a_changed_figure_is_found(case: str, run: Path, verified: Callable[..., tuple[int, Report]]) -> None:
    change, figure = CHANGED[case]
    change(run)
    status, report = verified()
    assert (status, report["verdict"]) == (1, "different")
    assert figure in [one["figure"] for one in report["figures"]]


@pytest.mark.slow("processes")
@pytest.mark.parametrize("digest", ["parameters", "losses"])
def test_a_changed_digest_is_found(digest: str, run: Path, verified: Callable[..., tuple[int, Report]]) -> None:
    in_summary("digest", digest, "0" * 64)(run)
    rewritten(run / "manifest.json", lambda manifest: {**manifest, "code": {**manifest["code"], "git_sha": "another"}})
    status, report = verified()
    assert (status, report["same_digests"][digest]) == (1, False)


@pytest.mark.slow("processes")
def test_without_checkpoints_the_same_is_compared(run: Path, verified: Callable[..., tuple[int, Report]]) -> None:
    shutil.rmtree(run / "checkpoints")
    assert verified()[1]["verdict"] == "identical"
    in_event("eval", 5, "auc", lambda auc: auc + 0.1)(run)
    assert verified()[0] == 1


@pytest.mark.parametrize("version", [1, 99])
def test_a_summary_of_another_version_is_refused(version: int, runtime: Runtime, run: Path) -> None:
    in_summary(None, "version", version)(run)
    with pytest.raises(UserError, match=rf"summary\.json is of version {version}, and this one reads 3"):
        command_here(runtime, "verify", f"run={run}")


@pytest.mark.parametrize("key", ["version", "last"])
def test_a_summary_that_lacks_a_key_is_refused(key: str, runtime: Runtime, run: Path) -> None:
    rewritten(run / "summary.json", lambda old: {name: value for name, value in old.items() if name != key})
    with pytest.raises(UserError, match=rf"summary\.json: damaged \(key '{key}' is missing\); remove it, and the run"):
        command_here(runtime, "verify", f"run={run}")


def test_a_manifest_without_the_schedule_is_refused(runtime: Runtime, run: Path) -> None:
    rewritten(run / "manifest.json", without_schedule)
    with pytest.raises(
        UserError, match=r"manifest\.json has no schedule, as of a run that was built and not trained; give a run that"
    ):
        command_here(runtime, "verify", f"run={run}")


def test_conditions_are_compared_launch_by_launch() -> None:
    same = LEAST_MANIFEST

    def launches_of(document: dict[str, Any]) -> list[Launch]:
        return launches.launches_of(convert(document, RunManifest))

    def changes(parts: list[Launch], document: dict[str, Any]) -> tuple[list[str], int | None]:
        return launches.changes(parts, convert(document, RunManifest))

    now = {**same, "world_size": 1}
    two, one = {**same, "world_size": 2, "from_step": 0}, {**same, "world_size": 1, "from_step": 40}
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
    assert changes([start, another], now) == (
        ["steps 1 to 40: trained by another run, from whose checkpoint this one started"],
        0,
    )


def test_bits_are_promised_up_to_where_the_threads_changed(
    run: Path, verified: Callable[..., tuple[int, Report]], caplog: pytest.LogCaptureFixture
) -> None:
    """By the record, of which the last launch alone had two threads here; the replay takes the first one's."""
    rewritten(run / "manifest.json", lambda manifest: {**manifest, "num_threads": 2})
    path = run / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["runtime"]["num_threads"] = 2
    path.write_text(yaml.safe_dump(config))
    with caplog.at_level("INFO", "clickwork"):
        status, report = verified()
    assert (status, report["bits_can_be_equal_until"]) == (0, 12)
    assert report["changed_since"] == ["steps from 13 on: num_threads: 2 then, 1 now"]
    assert summary(run)["steps"] == 14


def test_a_resumption_that_no_launch_began_with_is_found(
    run: Path, verified: Callable[..., tuple[int, Report]]
) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    resumption = next(line for line in map(json.loads, lines) if line["event"] == "resume")
    forged = json.dumps({**resumption, "step": 1})
    (run / "metrics.jsonl").write_text("\n".join([forged, *lines]) + "\n")
    status, report = verified()
    assert status == 1
    assert "metrics.jsonl, resume" in {difference["where"] for difference in report["figures"]}
