"""What a command refuses changes no file: neither of a run that is there, nor of a dataset, nor anything new."""

import shutil
from pathlib import Path

import pytest

from app.record.directory import RunDirectory
from app.runtime.platform import Runtime
from app.training import meta_build
from common.errors import UserError
from tests.app.conftest import SMALL, composed
from tests.app.datasets import write_dataset
from tests.app.in_process import command_here, train_until
from tests.app.run_files import contents
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
    f"train run.name=x {MANY} checkpoint.overwrite=true {BACK}": NO_SPACE,
    "train run.name=x train.global_batch_size=5000": "^train.global_batch_size=5000: no whole batch",
    f"train run.name=x train.global_batch_size=5000 {OVER}": "^train.global_batch_size=5000: no whole batch",
    "train run.name=new eval.split=tomorrow": "^data: no split 'tomorrow'; it has train, val, test",
    "train run.name=new checkpoint.resume=/no/checkpoint": NO_CHECKPOINT,
    "train run.name=new data.source=synthetic data.path=new checkpoint.resume=/no/checkpoint": NO_CHECKPOINT,
    "train run.name=new data.path=/no/such/place": "^/no/such/place: no dataset here; give data.path=",
    "train run.name=new data.max_ind_range=9": "^data.max_ind_range=9: the dataset at data.path=",
    "train run.name=x run.dir=data": FOREIGN,
    f"train run.name=x run.dir=data {OVER}": FOREIGN,
    "evaluate run=runs/x checkpoint=runs/z/checkpoints/step_00000005": ANOTHERS,
    "verify run=runs/x data.path=other": OTHER_DATA,
}
SLOW = {
    "train run.name=x eval.split=test": "^eval.split=test: runs/x evaluates val.*app.evaluate run=runs/x",
    "train run.name=x data.path=other": OTHER_DATA,
    "train run.name=x checkpoint.resume=never": f"would remove step_00000003, step_00000005 {KEPT}",
    f"train run.name=x {BACK}": f"would remove step_00000005 {KEPT}",
    f"train run.name=x {MANY}": NO_SPACE,
    f"train run.name=x {MANY} {OVER}": NO_SPACE,
    "train run.name=x run.dir=data data.source=synthetic data.path=new": FOREIGN,
    "train run.name=new train.log_every_steps=0": "^train.log_every_steps=0: must be at least 1",
    "train run.name=new sharding.types=column_wise optimizer=rowwise_adagrad": "would look at each shard's columns",
    "evaluate run=runs/x data.path=other out=x.json": OTHER_DATA,
    "evaluate run=runs/x split=tomorrow out=x.json": "^data: no split 'tomorrow'; it has train",
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
