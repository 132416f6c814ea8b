"""What is written behind training's back is what was there when the save began; it goes on elsewhere."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app.checkpoint import saver as model_state
from app.checkpoint.files import BEST, pointed_to, verify, whole_checkpoints
from app.checkpoint.saver import METADATA, Saver, local_tensors, stage, tensors_of
from app.runtime import platform
from app.runtime.platform import Runtime
from app.training import checkpointer, session
from app.training.state import RunState
from tests.app.conftest import SMALL, built
from tests.app.group import train_group
from tests.app.run_files import losses, summary
from tests.error_lines import refused
from tests.once import made_once


@pytest.fixture(scope="module")
def this(runtime: Runtime, dataset: Path) -> session.Session:
    return built(runtime, dataset)


def save(saver: Saver, this: session.Session, step: int, best: bool = False) -> None:
    saver.save(step, this.model, this.optimizer, checkpointer.checkpoint_state(this, RunState(step=step), {}), best)


def tensors(this: session.Session) -> dict[str, Any]:
    return tensors_of(this.model, this.optimizer)


def values(nest: Any) -> list[np.ndarray]:
    return [local.values.numpy().copy() for local in local_tensors(nest)]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_it_holds_what_was_there_when_the_save_began(asynchronous: bool, this: session.Session, tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=2, asynchronous=asynchronous, local_world_size=1)
    before = values(tensors(this))
    save(saver, this, 3)
    for local in local_tensors(tensors(this)):
        local.values.detach().add_(1)  # training continues
    saver.wait()
    assert [(one.step, one.path.name) for one in saver.finished()] == [(3, "step_00000003")]
    verify(tmp_path / "step_00000003")
    checkpoint_tensors = stage(tensors(this))
    model_state.read_tensors(tmp_path / "step_00000003", checkpoint_tensors)
    assert all(np.array_equal(a, b) for a, b in zip(before, values(checkpoint_tensors), strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(values(checkpoint_tensors), values(tensors(this)), strict=True))
    saver.close()


def test_metadata_hold_no_path(this: session.Session, tmp_path: Path) -> None:
    """Python 3.13 pickles paths by another name than those before, and other machines have other directories."""
    saver = Saver(tmp_path, keep=1, asynchronous=False, local_world_size=1)
    save(saver, this, 1)
    metadata = (tmp_path / "step_00000001" / METADATA).read_bytes()
    assert b"pathlib" not in metadata
    assert tmp_path.name.encode() not in metadata
    saver.close()


def test_saves_come_one_after_the_other_and_the_best_stays(this: session.Session, tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=2, asynchronous=True, local_world_size=1)
    for step in range(1, 6):
        save(saver, this, step, best=step == 2)
    saver.wait()
    assert [one.step for one in saver.finished()] == [1, 2, 3, 4, 5]
    assert [path.name[-1] for path in whole_checkpoints(tmp_path)] == ["2", "4", "5"]
    assert pointed_to(tmp_path, BEST) == tmp_path / "step_00000002"
    saver.mark_best(5)
    save(saver, this, 6)
    saver.wait()
    assert [path.name[-1] for path in whole_checkpoints(tmp_path)] == ["5", "6"]
    saver.close()


def test_what_goes_wrong_behind_comes_back(this: session.Session, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    saver = Saver(tmp_path / "file", keep=2, asynchronous=True, local_world_size=1)
    save(saver, this, 1)
    while not saver.failed():
        pass
    assert saver.finished() == []
    refused(r"step_00000001.part: the checkpoint was not written: .*Not a directory", save, saver, this, 2)
    saver.wait()  # the error was raised, once
    saver.close()


def test_what_is_not_finite_is_not_saved(runtime: Runtime, dataset: Path, tmp_path: Path) -> None:
    this = built(runtime, dataset)
    saver = Saver(tmp_path, keep=2, asynchronous=True, local_world_size=1)
    save(saver, this, 1)
    for local in local_tensors(tensors(this)):
        if "t_cat_2.weight" in local.path:
            local.values[17, 3] = float("nan")
    save(saver, this, 2)
    refused(r"step 2: model\..*t_cat_2.weight is not finite; lower .*; not saved", saver.wait)
    assert [path.name for path in whole_checkpoints(tmp_path)] == ["step_00000001"]
    assert not list(tmp_path.glob("*.part"))
    saver.close()


def test_without_room_for_a_copy_training_waits(
    this: session.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("app.checkpoint.saver.host_bytes_available", lambda: 1)
    saver = Saver(tmp_path, keep=2, asynchronous=True, local_world_size=1)
    save(saver, this, 1)
    assert [one.step for one in saver.finished()] == [1]  # without waiting
    save(saver, this, 2)
    assert caplog.text.count("not enough host memory for a copy") == 1
    saver.close()


def test_finite_values_whose_sum_is_not_are_finite() -> None:
    large = torch.full((4,), 3e38)
    assert model_state.first_not_finite({"a": {"b": large}, "c": [torch.arange(3)]}) is None
    assert model_state.first_not_finite({"a": {"b": large}, "c": [torch.tensor([1.0, float("-inf")])]}) == "c[0]"


def test_generators_go_on_where_they_were() -> None:
    def draw() -> list[float]:
        return [random.random(), random.gauss(0, 1), *np.random.normal(size=3), *torch.randn(3).tolist()]  # noqa: NPY002

    draw()  # leaves a second Gaussian waiting in Python's and in NumPy's
    states = platform.capture(torch.device("cpu"))
    expected = draw()
    platform.restore(states, torch.device("cpu"))
    assert draw() == expected


COMMON = ["train.global_batch_size=48", "train.epochs=2"]  # 1, 2 and 3 processes have equal parts of 48 rows


def train(cwd: Path, dataset: Path, processes: int, *overrides: str) -> None:
    config = [*SMALL, f"data.path={dataset}", "run.name=x", "baselines=false", *overrides]
    assert train_group(config, processes, cwd) == [0] * processes, (cwd / "group.log").read_text()


@pytest.fixture
def whole(algorithm: str, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The optimizer's run of one process, not interrupted."""

    def make(cwd: Path) -> None:
        train(cwd, dataset, 1, *COMMON, f"optimizer={algorithm}", "train.max_steps=30")

    return made_once(tmp_path_factory, f"resharding_{algorithm}", make) / "runs/x"


@pytest.mark.slow("processes")
@pytest.mark.parametrize(
    ("algorithm", "first", "second"),
    [
        ("rowwise_adagrad", (2, "row_wise"), (1, "table_wise")),
        ("rowwise_adagrad", (3, "data_parallel"), (2, "table_row_wise")),
        ("adagrad", (2, "column_wise"), (3, "data_parallel")),
        ("sgd", (2, "table_column_wise"), (2, "grid_shard")),
    ],
)
def test_a_checkpoint_goes_on_elsewhere(
    algorithm: str, first: tuple[int, str], second: tuple[int, str], whole: Path, dataset: Path, tmp_path: Path
) -> None:
    for (processes, kind), steps in ((first, 15), (second, 30)):
        keys = [f"optimizer={algorithm}", f"train.max_steps={steps}", f"sharding.types={kind}"]
        train(tmp_path, dataset, processes, *COMMON, *keys)
    moved = tmp_path / "runs/x"
    assert summary(moved)["world_size"] == second[0]
    assert len(losses(moved)) == 30
    np.testing.assert_allclose(losses(moved), losses(whole), rtol=1e-5)
    assert summary(moved)["eval"]["auc"] == pytest.approx(summary(whole)["eval"]["auc"], rel=1e-5)
    log = (tmp_path / "group.log").read_text()
    assert "results agree with an uninterrupted run within rounding only" in log
