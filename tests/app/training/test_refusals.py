"""What is refused changes no file; machines of a job that differ are refused before the first step."""

import os
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.checkpoint import saver
from app.commands import COMMANDS
from app.record.directory import RunDirectory
from app.runtime import environment
from app.runtime.platform import Runtime
from app.training import meta_build
from common.cli import run
from common.errors import UserError
from common.files import FileDigest
from tests.app.conftest import SMALL, composed
from tests.app.datasets import write_dataset
from tests.app.group import start_group
from tests.app.in_process import command_here, train_until
from tests.app.run_files import contents, summary
from tests.once import made_once

BASE = [*SMALL, "record.tensorboard=false", "optimizer.lr=0.1"]
TRAIN = [*BASE, "data.path=data", "train.max_steps=9"]
OVER = "checkpoint.resume=never checkpoint.overwrite=true"
MANY = "train.max_steps=1000000000000 checkpoint.every_steps=1 checkpoint.keep=1000000000000"
BACK = "checkpoint.resume=runs/x/checkpoints/step_00000003"
NO_SPACE = r"^runs/\w+/checkpoints: [\d.,]+ \wB needed for checkpoints of [\d.]+ kB, up to 1000000000002 at a time, "
NO_SPACE += r"[\d.]+ \wB free; free some, or give run.dir on another disk, checkpoint.keep=1 or "
KEPT = "in runs/x/checkpoints; give another run.name, or checkpoint.overwrite=true to remove them$"
FOREIGN = "^run.dir=data: contains test and is not a run's directory; choose another"
NO_CHECKPOINT = "^/no/checkpoint: no checkpoint here"
OTHER_DATA = "^other: not the dataset that runs/x.* was trained on, data; give that, or another run; "
ANOTHERS = r"^checkpoint=runs/z/.*: was trained with optimizer\.lr=0\.2, and run=runs/x with 0\.1; give its own"
# What is typed, and the message.
QUICK = {
    "train run.name=x train.max_steps=3": "step_00000005 is at step 5 already.*give train.max_steps=5",
    "train run.name=x optimizer.lr=0.77": "^optimizer.lr=0.77: .* with 0.1; give another run.name, or",
    "train run.name=new checkpoint.resume=runs/x optimizer.lr=0.77": "give optimizer.lr=0.1 to continue it, with its",
    "train run.name=x checkpoint.resume=runs/y": f"would remove step_00000003, step_00000005 {KEPT}",
    f"train run.name=new {MANY}": NO_SPACE,
    "train run.name=x train.global_batch_size=5000": "^train.global_batch_size=5000: no whole batch",
    "train run.name=x runtime.compile=step": "runtime.compile=step: CUDA graphs need a GPU; give runtime.compile=none",
    "train run.name=new eval.split=tomorrow": "^data: no split 'tomorrow'; it has train, val, test",
    "train run.name=new checkpoint.resume=/no/checkpoint": NO_CHECKPOINT,
    "train run.name=new data.max_ind_range=9": "^data.max_ind_range=9: the dataset at data.path=",
    f"train run.name=x run.dir=data {OVER}": FOREIGN,
    "evaluate run=runs/x checkpoint=runs/z/checkpoints/step_00000005": ANOTHERS,
    "verify run=runs/x data.path=other": OTHER_DATA,
}
SLOW = {
    "train run.name=x eval.split=test": "^eval.split=test: runs/x evaluates val.*app.evaluate run=runs/x",
    f"train run.name=x {BACK}": f"would remove step_00000005 {KEPT}",
    "recommend run=runs/x candidates=none.csv out=x.json": "^data: imported or generated",
}


@pytest.fixture(scope="module")
def place(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two datasets and three interrupted runs."""

    def make(root: Path) -> None:
        for seed, name in enumerate(("data", "other")):
            write_dataset(root / name, seed=seed)
        with pytest.MonkeyPatch.context() as patched:
            patched.chdir(root)
            for name, lr in (("x", 0.1), ("y", 0.1), ("z", 0.2)):
                arguments = [f"run.name={name}", f"optimizer.lr={lr}", "train.eval_every_steps=3"]
                assert train_until(runtime, "stop:5", *TRAIN, *arguments) == "interrupted"

    return made_once(tmp_path_factory, "refusals", make)


@pytest.fixture
def before(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The contents of a copy of the place, in which the test runs."""
    shutil.copytree(place, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    return contents(Path())


@pytest.mark.parametrize("typed", [*QUICK, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)])
def test_a_refusal_changes_nothing(typed: str, runtime: Runtime, before: dict[str, str]) -> None:
    command, *overrides = typed.split()
    with pytest.raises(UserError, match={**QUICK, **SLOW}[typed]):
        command_here(runtime, command, *(TRAIN if command == "train" else []), *overrides)
    assert contents(Path()) == before


def test_a_run_that_is_built_only_does_not_replace_a_trained_one(runtime: Runtime, before: dict[str, str]) -> None:
    config = composed("recipe=mlperf_v1", "run.name=x", "train.max_steps=0")
    assert meta_build.is_wanted(config)
    with pytest.raises(UserError, match="contains a trained run"):
        meta_build.write(config, runtime, RunDirectory(Path("runs/x"), 0), 0.0)
    assert contents(Path()) == before


BRIEF = [*SMALL, "train.max_steps=4", "checkpoint.every_steps=2", "train.eval_every_steps=null", "run.name=x"]
BRIEF += ["sharding.types=row_wise", "baselines=false"]


Outcome = tuple[list[int | None], list[str]]  # statuses, and lines of stderr


def _train_apart(root: str, overrides: Sequence[Sequence[str]]) -> None:
    """One machine a process: `root`/a and `root`/b are their disks."""
    rank = int(os.environ["RANK"])
    os.chdir(Path(root) / "ab"[rank])
    environment.SHARED_SECONDS = 4.0
    sys.argv = ["app.train", *overrides[rank]]
    run(COMMANDS["train"])


def train_apart(root: Path, *more: Sequence[str]) -> Outcome:
    """Train on two machines, with settings of each; statuses and stderr's lines."""
    for name in "ab":
        (root / name).mkdir(exist_ok=True)
    overrides = [[*BRIEF, *settings] for settings in (more if len(more) == 2 else (*more, *more))]
    log = root / "log"
    log.unlink(missing_ok=True)
    statuses = start_group(_train_apart, (str(root), overrides), 2, 1, log)
    return statuses, log.read_text().splitlines()


def refused(outcome: Outcome, *words: str) -> None:
    """Both machines end with 2 and the same line, which has these words."""
    statuses, lines = outcome
    errors = [line for line in lines if line.startswith("error: ")]
    assert statuses == [2, 2], lines
    assert len(errors) == 2, lines
    assert errors[0] == errors[1]
    for word in words:
        assert word in errors[0]


@pytest.fixture
def shared(dataset: Path, tmp_path: Path) -> list[str]:
    """Overrides of a dataset and a run directory that both see."""
    return [f"data.path={dataset}", f"run.dir={tmp_path}/shared"]


def paths_in(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.name != "log")


@pytest.mark.medium
def test_another_setting_is_refused_before_anything_is_written(shared: list[str], tmp_path: Path) -> None:
    outcome = train_apart(tmp_path, [*shared, "optimizer.lr=0.5"], [*shared, "optimizer.lr=0.25"])
    refused(outcome, "the machines differ: optimizer.lr: 0.5 on ", ", 0.25 on ")
    assert paths_in(tmp_path) == ["a", "b"]


@pytest.mark.slow("processes")
def test_another_dataset_and_none_are_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path / "a/data")
    overrides = ["data.path=data", f"run.dir={tmp_path / 'shared'}"]
    refused(train_apart(tmp_path, overrides), "error: on ", "data: no dataset here")
    write_dataset(tmp_path / "b/data", seed=1)
    refused(train_apart(tmp_path, overrides), "the machines have different datasets (digest ")
    assert not (tmp_path / "shared").exists()


@pytest.mark.slow("processes")
def test_an_equal_dataset_is_read_and_checked_on_each_machine(dataset: Path, tmp_path: Path) -> None:
    for name in "ab":
        shutil.copytree(dataset, tmp_path / name / "data")
    overrides = ["data.path=data", f"run.dir={tmp_path}/shared"]
    assert train_apart(tmp_path, overrides)[0] == [0, 0]
    assert summary(tmp_path / "shared")["status"] == "completed"
    shard = tmp_path / "b/data/train/00001.sparse.npy"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\1")
    fresh_run = ["data.path=data", f"run.dir={tmp_path}/again"]
    refused(train_apart(tmp_path, fresh_run), "error: on ", "data/train/00001.sparse.npy")
    assert not (tmp_path / "again").exists()


@pytest.mark.slow("processes")
def test_a_run_directory_that_is_not_shared_is_refused(dataset: Path, tmp_path: Path) -> None:
    """Half of what an exchange may take is waited."""
    keys = [f"data.path={dataset}", "runtime.timeout_minutes=0.1"]
    refused(train_apart(tmp_path, keys), "run.dir=runs/x: files of ", " after 3 s", "all machines share")
    assert paths_in(tmp_path) == ["a", "b"]


@pytest.mark.medium
def test_a_checkpoint_waits_for_files_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of known sizes: one is there, one grows, one is missing for good."""
    (tmp_path / "__0_0.distcp").write_bytes(bytes(10))
    (tmp_path / "__1_0.distcp").write_bytes(bytes(5))
    sizes = {name: FileDigest(10, "") for name in ("__0_0.distcp", "__1_0.distcp")}
    threading.Timer(0.5, lambda: (tmp_path / "__1_0.distcp").write_bytes(bytes(10))).start()
    saver.require_whole(tmp_path, sizes)
    monkeypatch.setattr(environment, "SHARED_SECONDS", 0.3)
    missing = {**sizes, "__2_0.distcp": FileDigest(1, "")}
    reason = "__2_0.distcp, which another process has written, is not whole on this machine"
    with pytest.raises(UserError, match=reason):
        saver.require_whole(tmp_path, missing)
