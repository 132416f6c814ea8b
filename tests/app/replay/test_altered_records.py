"""Whatever is altered in a run's record, verify notices it, or names it among what it does not compare."""

import json
import re
import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from app import verify
from app.runtime.platform import Runtime
from app.verify import (
    BY_LAUNCHER,
    NOT_COMPARED,
    Replay,
    changes,
    compare_records,
    is_compared,
    launches_of,
    read_record,
)
from common.errors import UserError
from tests.app.conftest import SMALL
from tests.app.in_process import command_here, train_here, train_until
from tests.oracles import alterations
from tests.oracles.alterations import Alteration

BASE = ["record.tensorboard=false", "run.name=x", "train.log_every_steps=4", "train.eval_every_steps=5"]
RUNS = {
    "resumed": ["eval.train_split=true", "eval.keep_scores=10000", "checkpoint.every_steps=5", "checkpoint.keep=9"],
    "stopped early": ["train.early_stop_patience=1", "schedule.threshold=0.5", "train.monitor=logloss"],
}
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

    def kept(record: Any, replay: Replay) -> Any:
        replays.append(replay)
        return compare_records(record, replay)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(verify, "compare_records", kept)
        assert command_here(runtime, "verify", f"run={run}") == 0
    return run, replays[0]


def faults(run: Path, replay: Replay) -> list[str]:
    """Differences that verify finds in a record, compared with this replay."""
    try:
        record = read_record(run)
        differences, _, same_digests, _ = compare_records(record, replay)
    except UserError as error:
        return [str(error)]
    digests = [f"digest of {name}" for name, same in same_digests.items() if not same]
    return [
        *map(str, differences),
        *digests,
        *changes(launches_of(record.manifest), replay.record.manifest)[0],
    ]


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
    kinds = (alterations.of_files, alterations.of_lines, alterations.of_json)
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


@pytest.mark.medium
def test_verify_prints_what_is_not_compared_and_ends_with_the_verdict(
    replayed: Replayed, runtime: Runtime, logged: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_here(runtime, "verify", f"run={replayed[0]}") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["not_compared"] == {file: list(names) for file, names in NOT_COMPARED.items()}
    assert any("not_compared in the JSON" in message for message in logged.messages)
    assert ": identical (" in logged.messages[-1]
