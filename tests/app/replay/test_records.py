"""Whatever is altered in a run's record, verify finds it, or names it among what it does not compare."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from app import verify
from app.config.app_config import AppConfig
from app.record.documents import RunManifest
from app.runtime.platform import Runtime
from app.verify import BY_LAUNCHER, NOT_COMPARED, Launch, Record, changes, compare_records, is_compared, launches_of
from common.documents import convert
from common.errors import UserError
from tests.app.conftest import SMALL
from tests.app.in_process import command_here, train_here, train_until
from tests.app.run_files import LEAST_MANIFEST, events, summary
from tests.error_lines import refused

JSON_FILES = ("summary.json", "manifest.json", "curves.json")
REMOVED = object()


class Alteration(NamedTuple):
    """New content of a file, None: it is removed. name: of the value, with dots between its parts; empty: the file.

    is_empty: the value that is removed was null, or an empty object or list.
    """

    file: str
    name: str
    what: str
    content: bytes | None
    is_empty: bool = False

    def apply(self, run: Path) -> None:
        path = run / self.file
        if self.content is None:
            path.unlink()
        else:
            path.write_bytes(self.content)


def places(content: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values of nested dictionaries and lists that are neither."""
    entries = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in entries:
        if isinstance(value, (dict, list)) and value:
            yield from places(value, (*prefix, key))
        else:
            yield (*prefix, key)


def other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 1.01 + 0.001
    if isinstance(value, str):
        return f"{value}x"
    return {} if value is None else None


def changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy in which the value at a path is another, or removed; it shares what is not on the path."""
    key, *below = path
    result = content.copy()
    if below:
        result[key] = changed(content[key], tuple(below), value)
    elif value is REMOVED:
        del result[key]
    else:
        result[key] = value
    return result


def of_document(content: Any) -> Iterator[tuple[str, str, Any]]:
    """Names of a document's values, what is done to each, and the altered document."""
    for path in places(content):
        value = content
        for key in path:
            value = value[key]
        name = ".".join(map(str, path))
        yield name, "altered", changed(content, path, other(value))
        yield name, "empty removed" if value in (None, {}, []) else "removed", changed(content, path, REMOVED)


def of_json(run: Path) -> Iterator[Alteration]:
    files = [*JSON_FILES, *(str(path.relative_to(run)) for path in sorted((run / "scores").glob("*.json")))]
    for file in files:
        content = json.loads((run / file).read_text())
        for name, what, result in of_document(content):
            yield Alteration(file, name, what, json.dumps(result).encode(), what == "empty removed")


def of_lines(run: Path) -> Iterator[Alteration]:
    """Alterations of each value of metrics.jsonl; removed, repeated and exchanged lines."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    for number, line in enumerate(lines):
        event = json.loads(line)
        before, after = lines[:number], lines[number + 1 :]

        def joined(*middle: str, before: list[str] = before, after: list[str] = after) -> bytes:
            return "".join(f"{each}\n" for each in (*before, *middle, *after)).encode()

        place = f"{event['event']}.{event['step']}"
        for name, what, result in of_document(event):
            yield Alteration("metrics.jsonl", f"{place}.{name}", what, joined(json.dumps(result)))
        yield Alteration("metrics.jsonl", f"{place}", "line removed", joined())
        yield Alteration("metrics.jsonl", f"{place}", "line repeated", joined(line, line))


def of_files(run: Path) -> Iterator[Alteration]:
    """Files that are removed; a kept score that is another."""
    for file in ("curves.json", *(str(each.relative_to(run)) for each in (run / "scores").iterdir())):
        yield Alteration(file, "", "file removed", None)
    for path in (run / "scores").glob("*.npy"):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        yield Alteration(str(path.relative_to(run)), "", "a bit flipped", bytes(content))


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


def test_a_summary_of_another_version_is_refused(runtime: Runtime, run: Path) -> None:
    rewritten(run / "summary.json", lambda old: {**old, "version": 99})
    message = r"summary\.json is of version 99, and this one reads 3"
    refused(message, command_here, runtime, "verify", f"run={run}")


def test_conditions_are_compared_launch_by_launch() -> None:
    def launches(document: dict[str, Any]) -> list[Launch]:
        return launches_of(convert(document, RunManifest))

    def changed(parts: list[Launch], document: dict[str, Any]) -> tuple[list[str], int | None]:
        return changes(parts, convert(document, RunManifest))

    now = {**LEAST_MANIFEST, "world_size": 1}
    two, one = {**now, "world_size": 2, "from_step": 0}, {**now, "from_step": 40}
    both = launches({**one, "earlier": [two]})
    assert [(launch.start, launch.end) for launch in both] == [(0, 40), (40, None)]
    assert changed(both, now) == (["steps 1 to 40: world_size: 2 then, 1 now"], 0)
    assert changed(both, {**now, "world_size": 2}) == (["steps from 41 on: world_size: 1 then, 2 now"], 40)
    assert changed(launches(two), now) == (["world_size: 2 then, 1 now"], 0)
    assert changed(launches({**one, "from_step": 0}), now) == ([], None)
    # Killed after step 40, resumed at 20: of the first launch 20 steps are left, of one resumed again at 20 none.
    killed = {**one, "from_step": 20, "earlier": [two, {**two, "from_step": 20}]}
    assert [(launch.start, launch.end) for launch in launches(killed)] == [(0, 20), (20, None)]
    (start, another) = launches(one)
    assert start == Launch(0, 40, None)
    by_another = "steps 1 to 40: trained by another run, from whose checkpoint this one started"
    assert changed([start, another], now) == ([by_another], 0)


def test_bits_are_promised_up_to_where_the_threads_changed(run: Path, verified: Verified) -> None:
    rewritten(run / "manifest.json", lambda manifest: {**manifest, "num_threads": 2})
    path = run / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["runtime"]["num_threads"] = 2
    path.write_text(yaml.safe_dump(config))
    status, report = verified()
    assert (status, report["bits_can_be_equal_until"]) == (0, 12)
    assert report["changed_since"] == ["steps from 13 on: num_threads: 2 then, 1 now"]
    assert summary(run)["steps"] == 14


A, B = "a" * 40, "b" * 40
Code = tuple[str | None, str | None, str]  # the commit, the digest of changes, the digest of modules


@pytest.mark.parametrize(
    ("then", "now", "differing"),
    [
        ((A, None, "1"), (A, None, "1"), []),
        ((None, None, "1"), (A, "9", "1"), ["dirty_diff_sha256", "git_sha"]),
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


BASE = ["record.tensorboard=false", "run.name=x", "train.log_every_steps=4", "train.eval_every_steps=5"]
RUNS = {
    "resumed": ["eval.train_split=true", "eval.keep_scores=10000", "checkpoint.every_steps=5", "checkpoint.keep=9"],
    "stopped early": ["train.early_stop_patience=1", "schedule.threshold=0.5", "train.monitor=logloss"],
}
Replay = tuple[Record, AppConfig, str | None]  # what `compare_records` takes beside the run's record
Replayed = tuple[Path, Replay]


def train(runtime: Runtime, case: str, dataset: Path, run: Path) -> None:
    """A run that was stopped, resumed and extended; one that ends early."""
    overrides = [*SMALL, *BASE, *RUNS[case], f"data.path={dataset}", f"run.dir={run}"]
    if case == "resumed":
        assert train_until(runtime, "stop:6", *overrides, "train.max_steps=12") == "interrupted"
        assert train_here(runtime, *overrides, "train.max_steps=12") == "completed"
    assert train_here(runtime, *overrides, "train.max_steps=14") == "completed"
    assert command_here(runtime, "evaluate", f"run={run}", "split=test", "keep_scores=10000") == 0


@pytest.fixture(scope="module", params=RUNS)
def replayed(
    request: pytest.FixtureRequest, runtime: Runtime, dataset: Path, tmp_path_factory: pytest.TempPathFactory
) -> Replayed:
    """A run, and what its replay left."""
    run = tmp_path_factory.mktemp("altered") / "x"
    train(runtime, request.param, dataset, run)
    replays: list[Replay] = []

    def kept(record: Record, *replay: Any) -> Any:
        replays.append(replay)
        return compare_records(record, *replay)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(verify, "compare_records", kept)
        assert command_here(runtime, "verify", f"run={run}") == 0
    return run, replays[0]


def faults(run: Path, replay: Replay) -> list[str]:
    """Differences that verify finds in a record, compared with this replay."""
    try:
        record = verify.read_record(run)
        compared = compare_records(record, *replay)
    except UserError as error:
        return [str(error)]
    digests = [f"digest of {name}" for name, same in compared["same_digests"].items() if not same]
    return [*map(str, compared["figures"]), *digests, *changes(launches_of(record.manifest), replay[0].manifest)[0]]


def is_listed(alteration: Alteration) -> bool:
    """Whether the value is among what is not compared."""
    file, name = alteration.file, alteration.name
    if file == "metrics.jsonl":
        kind, _, key = (*name.split(".", 2), "")[:3]
        return not is_compared(file, key) or not is_compared(file, f"{kind}.{key}" if key else kind)
    if file == "manifest.json":
        name = re.sub(r"^earlier\.\d+\.", "", name)
        part, _, key = name.partition(".")
        if alteration.is_empty or (part == "environment" and key in BY_LAUNCHER):
            return True
    return file in NOT_COMPARED and not is_compared(file, name)


def every(run: Path) -> Iterator[Alteration]:
    kinds = (of_files, of_lines, of_json)
    return chain.from_iterable(alter(run) for alter in kinds)


@pytest.mark.medium
@pytest.mark.parametrize("stride", [211, pytest.param(7, marks=pytest.mark.slow)])
def test_each_alteration_is_noticed_or_listed(stride: int, replayed: Replayed, tmp_path: Path) -> None:
    run, replay = replayed
    assert faults(run, replay) == []
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    unnoticed, count = [], 0
    for alteration in list(every(run))[::stride]:
        alteration.apply(copy)
        if not faults(copy, replay) and not is_listed(alteration):
            unnoticed.append(f"{alteration.file} {alteration.name}: {alteration.what}")
        shutil.copy2(run / alteration.file, copy / alteration.file)
        count += 1
    assert count > 3000 / stride
    assert unnoticed == [], "\n".join(unnoticed)


@pytest.mark.slow("processes")
def test_nothing_is_listed_that_is_compared(replayed: Replayed, tmp_path: Path) -> None:
    """For each name of the list, some value of the run can be altered unnoticed."""
    run, replay = replayed
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    noticed: dict[tuple[str, str], bool] = {}
    for alteration in filter(is_listed, every(run)):
        names = [name for name in NOT_COMPARED[alteration.file] if f".{name}" in f".{alteration.name}"]
        if not any(noticed.get((alteration.file, name), True) for name in names):
            continue  # one alteration that is not noticed is enough
        alteration.apply(copy)
        is_noticed = bool(faults(copy, replay))
        shutil.copy2(run / alteration.file, copy / alteration.file)
        for name in names:
            noticed[alteration.file, name] = noticed.get((alteration.file, name), True) and is_noticed
    assert [place for place, always in noticed.items() if always] == []
