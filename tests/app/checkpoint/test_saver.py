"""What is written behind training's back is what was there; damage is noticed, and nothing in a checkpoint is run."""

import json
import os
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint import metadata as dcp

from app.checkpoint import files
from app.checkpoint import saver as model_state
from app.checkpoint.saver import METADATA, Saver, local_tensors, stage, tensors_of
from app.config.train import CheckpointConfig
from app.runtime.platform import Runtime
from app.training import checkpointer, session
from app.training.state import RunState
from common.errors import UserError
from common.files import digest_file
from tests.app.conftest import SMALL, Command, built
from tests.app.group import train_group
from tests.app.run_files import losses, rewrite_state, summary
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
    return [part.numpy().copy() for _, _, part in local_tensors(nest)]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_it_holds_what_was_there_when_the_save_began(asynchronous: bool, this: session.Session, tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=2, asynchronous=asynchronous, local_world_size=1)
    before = values(tensors(this))
    save(saver, this, 3)
    for _, _, part in local_tensors(tensors(this)):
        part.detach().add_(1)  # training continues
    saver.wait()
    assert [step for step, _ in saver.finished()] == [3]
    files.verify(tmp_path / "step_00000003")
    checkpoint_tensors = stage(tensors(this))
    model_state.read_tensors(tmp_path / "step_00000003", checkpoint_tensors)
    assert all(np.array_equal(a, b) for a, b in zip(before, values(checkpoint_tensors), strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(values(checkpoint_tensors), values(tensors(this)), strict=True))
    saver.close()


def test_saves_come_one_after_the_other_and_the_best_stays(this: session.Session, tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=2, asynchronous=True, local_world_size=1)
    for step in range(1, 6):
        save(saver, this, step, best=step == 2)
    saver.wait()
    assert [step for step, _ in saver.finished()] == [1, 2, 3, 4, 5]
    assert [path.name[-1] for path in files.whole_checkpoints(tmp_path)] == ["2", "4", "5"]
    assert files.pointed_to(tmp_path, files.BEST) == tmp_path / "step_00000002"
    saver.mark_best(5)
    save(saver, this, 6)
    saver.wait()
    assert [path.name[-1] for path in files.whole_checkpoints(tmp_path)] == ["5", "6"]
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
    for path, _, part in local_tensors(tensors(this)):
        if "t_cat_2.weight" in path:
            part[17, 3] = float("nan")
    save(saver, this, 2)
    refused(r"step 2: model\..*t_cat_2.weight is not finite; lower .*; not saved", saver.wait)
    assert [path.name for path in files.whole_checkpoints(tmp_path)] == ["step_00000001"]
    assert not list(tmp_path.glob("*.part"))
    saver.close()


def test_finite_values_whose_sum_is_not_are_finite() -> None:
    large = torch.full((4,), 3e38)
    assert model_state.first_not_finite({"a": {"b": large}, "c": [torch.arange(3)]}) is None
    assert model_state.first_not_finite({"a": {"b": large}, "c": [torch.tensor([1.0, float("-inf")])]}) == "c[0]"


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


@pytest.fixture(scope="module")
def checkpoints(runtime: Runtime, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two."""
    this, root = built(runtime, dataset), tmp_path_factory.mktemp("checkpoints")
    saver = Saver(root, keep=2, asynchronous=False, local_world_size=1)
    for step in (10, 20):
        save(saver, this, step)
    saver.close()
    return root


@pytest.fixture
def newest(checkpoints: Path, tmp_path: Path) -> Path:
    """The newer of two checkpoints that a test may damage."""
    shutil.copytree(checkpoints, tmp_path / "checkpoints")
    return tmp_path / "checkpoints/step_00000020"


def flips(path: Path, count: int) -> Iterator[int]:
    """Flip single bits of a file in turn, drawn at random; the last one is flipped back."""
    content = path.read_bytes()
    for bit in sorted(random.Random(0).sample(range(8 * len(content)), min(count, 8 * len(content)))):
        corrupt_content = bytearray(content)
        corrupt_content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(corrupt_content)
        yield bit
    path.write_bytes(content)


@pytest.mark.medium
@pytest.mark.parametrize("name", ["state.json", "state.json.sha256", "arrays.npz", ".metadata", "__0_0.distcp"])
def test_a_flipped_bit_is_damage(name: str, newest: Path, caplog: pytest.LogCaptureFixture) -> None:
    for bit in flips(newest / name, 3_000 if name.startswith("state") else 40):
        refused(newest.name, files.verify, newest)
        if bit % 100 == 0:
            assert next(files.undamaged_checkpoints(newest.parent)).name == "step_00000010"
            assert newest.name in caplog.messages[-1]
    files.verify(newest)
    (newest / name).unlink()
    refused(newest.name, files.verify, newest)
    assert next(files.undamaged_checkpoints(newest.parent)) == newest.with_name("step_00000010")


@pytest.mark.medium
def test_a_checkpoint_of_another_version_is_refused_and_kept(newest: Path) -> None:
    """Not passed over as damage is: a run would start over, and remove what another version can read."""
    rewrite_state(newest, {**json.loads((newest / "state.json").read_bytes()), "format": 2, "of_version_2": 1})
    with pytest.raises(UserError, match="format 2, and this version reads 3; use the version that wrote it"):
        files.choose(CheckpointConfig(), newest.parent)
    assert newest.exists()


@pytest.mark.medium
def test_each_name_has_its_checkpoint(uninterrupted: Path, tmp_path: Path) -> None:
    """Of two checkpoints, of steps 48 and 60, of which the first is the best."""
    run = Path(shutil.copytree(uninterrupted, tmp_path / "x"))
    files.point_to_best(run / "checkpoints", files.checkpoint_name(48))
    names = {None: 48, "best": 48, "last": 60, "latest": 60, "60": 60, "48": 48}
    for choice, step in names.items():
        assert files.find_checkpoint(run, choice) == run / "checkpoints" / files.checkpoint_name(step)
    refused(r"^checkpoint=7: .* no checkpoint of this step; it has of steps: 48, 60$", files.find_checkpoint, run, "7")
    (run / "checkpoints/step_00000048/state.json").write_bytes(b"{")
    assert files.find_checkpoint(run, None).name == files.checkpoint_name(60)
    for choice in ("best", "48"):
        refused("damaged", files.find_checkpoint, run, choice)
    files.point_to_best(run / "checkpoints", None)
    refused(r"^checkpoint=best: .*keeps none .* use checkpoint=last", files.find_checkpoint, run, "best")


class _Command:
    """What unpickles as a call of os.system."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


def _call_a_tensor_bytes(metadata: Any, command: str) -> Any:
    key = next(key for key in metadata.state_dict_metadata if "over_arch" in key)
    metadata.state_dict_metadata[key] = dcp.BytesStorageMetadata()
    return metadata


@pytest.mark.slow("processes")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda metadata, command: replace(metadata, planner_data=_Command(command)), "it contains posix.system"),
        (lambda metadata, command: _Command(command), "it contains posix.system"),
        (_call_a_tensor_bytes, "is not a tensor"),
        (lambda metadata, command: {}, "not a checkpoint's metadata"),
    ],
)
def test_what_is_no_tensor_is_not_loaded(
    change: Callable[[Any, str], Any], message: str, run_app: Command, small: list[str], tmp_path: Path
) -> None:
    run_app("train", *small, "run.name=run", "train.max_steps=2")
    (checkpoint,) = files.whole_checkpoints(tmp_path / "runs/run/checkpoints")
    metadata = pickle.loads((checkpoint / METADATA).read_bytes())
    (checkpoint / METADATA).write_bytes(pickle.dumps(change(metadata, f"touch {tmp_path}/ran")))
    state = json.loads((checkpoint / "state.json").read_bytes())
    state["files"][METADATA] = asdict(digest_file(checkpoint / METADATA))
    rewrite_state(checkpoint, state)
    for command in (["evaluate", "run=runs/run"], ["train", *small, "run.name=run"]):
        assert message in run_app(*command, status=2).stderr
    assert not (tmp_path / "ran").exists()
