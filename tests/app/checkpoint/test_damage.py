"""Whatever happens to a checkpoint's files, it is noticed, and nothing in it is run; which one commands take."""

import json
import os
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import metadata as dcp

from app.checkpoint import files
from app.checkpoint.files import checkpoint_name, find_checkpoint, point_to_best, whole_checkpoints
from app.checkpoint.saver import METADATA, SafeReader, Saver
from app.config.train import CheckpointConfig
from app.runtime.platform import Runtime
from app.training import checkpointer
from app.training.state import RunState
from common.errors import UserError
from common.files import digest_file
from tests.app.conftest import Command, built
from tests.app.run_files import rewrite_state
from tests.error_lines import refused


@pytest.fixture(scope="module")
def checkpoints(runtime: Runtime, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two."""
    this, root = built(runtime, dataset), tmp_path_factory.mktemp("checkpoints")
    saver = Saver(root, keep=2, asynchronous=False, local_world_size=1)
    for step in (10, 20):
        saver.save(
            step, this.model, this.optimizer, checkpointer.checkpoint_state(this, RunState(step=step), {}), best=False
        )
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
def test_a_flipped_bit_is_damage(name: str, newest: Path) -> None:
    for bit in flips(newest / name, 3_000 if name.startswith("state") else 40):
        refused(newest.name, files.verify, newest)
        if bit % 100 == 0:
            path, [reason] = files.newest_undamaged(newest.parent)
            assert path is not None
            assert path.name == "step_00000010"
            assert newest.name in reason
    files.verify(newest)


@pytest.mark.medium
@pytest.mark.parametrize("name", ["state.json", "state.json.sha256", "arrays.npz", ".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("length", [-1, 0, None])
def test_a_file_that_is_cut_short_or_gone_is_damage(name: str, length: int | None, newest: Path) -> None:
    content = (newest / name).read_bytes()
    (newest / name).unlink()
    if length is not None:
        (newest / name).write_bytes(content[:length])
    refused(newest.name, files.verify, newest)
    assert files.newest_undamaged(newest.parent)[0] == newest.with_name("step_00000010")


@pytest.mark.medium
def test_a_checkpoint_of_another_version_is_refused_and_kept(newest: Path) -> None:
    """Not passed over as damage is: a run would start over, and remove what another version can read."""
    rewrite_state(newest, {**json.loads((newest / "state.json").read_bytes()), "format": 2, "of_version_2": 1})
    with pytest.raises(UserError, match="format 2, and this version reads 3; use the version that wrote it"):
        files.choose(CheckpointConfig(), newest.parent)
    assert newest.exists()


@pytest.mark.medium
@pytest.mark.parametrize("key", ["format", "files", "measured", "monitored"])
def test_a_state_without_a_key_is_damaged(key: str, newest: Path) -> None:
    state = json.loads((newest / "state.json").read_bytes())
    rewrite_state(newest, {name: value for name, value in state.items() if name != key})
    refused(rf"state\.json: damaged \(key '{key}' is missing\); remove the checkpoint to", files.verify, newest)


@pytest.mark.medium
@pytest.mark.parametrize("pointer", [files.LATEST, files.BEST])
def test_a_pointer_that_is_no_text_points_to_nothing(pointer: str, newest: Path) -> None:
    (newest.parent / pointer).write_bytes(b"step_\xb00000020")
    assert files.pointed_to(newest.parent, pointer) is None


@pytest.fixture
def run(uninterrupted: Path, tmp_path: Path) -> Path:
    """A run of two checkpoints, of steps 48 and 60, of which the first is the best."""
    copy = tmp_path / "runs/x"
    shutil.copytree(uninterrupted, copy)
    checkpoints = copy / "checkpoints"
    assert {path.name for path in whole_checkpoints(checkpoints)} >= {checkpoint_name(48), checkpoint_name(60)}
    point_to_best(checkpoints, checkpoint_name(48))
    return copy


@pytest.mark.medium
@pytest.mark.parametrize(
    ("choice", "step"), [(None, 48), ("best", 48), ("last", 60), ("latest", 60), ("60", 60), ("48", 48)]
)
def test_each_name_has_its_checkpoint(run: Path, choice: str | None, step: int) -> None:
    assert find_checkpoint(run, choice) == str(run / "checkpoints" / checkpoint_name(step))


@pytest.mark.medium
def test_a_path_is_one_too_wherever_it_lies(run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "kept"
    shutil.copytree(run / "checkpoints" / checkpoint_name(60), elsewhere)
    assert find_checkpoint(run, str(elsewhere)) == str(elsewhere)


@pytest.mark.medium
def test_without_a_best_it_is_the_last(run: Path) -> None:
    point_to_best(run / "checkpoints", None)
    assert Path(find_checkpoint(run, None)).name == checkpoint_name(60)
    refused(r"^checkpoint=best: .*keeps none .* use checkpoint=last", find_checkpoint, run, "best")


@pytest.mark.medium
def test_a_damaged_best_is_skipped_and_refused_by_name(run: Path, logged: pytest.LogCaptureFixture) -> None:
    (run / "checkpoints/step_00000048/state.json").write_bytes(b"{")
    assert Path(find_checkpoint(run, None)).name == checkpoint_name(60)
    assert "skipped the best" in logged.text
    for choice in ("best", "48"):
        refused("damaged", find_checkpoint, run, choice)


@pytest.mark.medium
@pytest.mark.parametrize("choice", ["7", "600"])
def test_a_step_without_one_is_refused_with_those_there_are(run: Path, choice: str) -> None:
    refused(rf"^checkpoint={choice}: .* has no checkpoint of this step; .*48, 60$", find_checkpoint, run, choice)


@pytest.mark.medium
def test_a_command_s_json_says_which_it_took(run: Path, run_app: Command) -> None:
    for overrides, step in (([], 48), (["checkpoint=60"], 60)):
        process = run_app("evaluate", f"run={run}", "split=val", *overrides)
        about = json.loads(process.stdout)
        assert (about["step"], about["best"], about["last"]) == (step, step == 48, step == 60)


class _Command:
    """What unpickles as a call of os.system."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


class _Attribute:
    """What unpickles as getattr(owner, name): how Python 3.11.0 to 3.11.3 write an enum's member."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, str]]:
        return getattr, (self.owner, self.name)


METHOD = _Attribute(dcp.Metadata, "__init__")


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
        (lambda metadata, command: replace(metadata, planner_data=METHOD), "it contains __init__ of"),
        (_call_a_tensor_bytes, "is not a tensor"),
        (lambda metadata, command: {}, "not a checkpoint's metadata"),
    ],
)
def test_what_is_no_tensor_is_not_loaded(
    change: Callable[[Any, str], Any], message: str, run_app: Command, small: list[str], tmp_path: Path
) -> None:
    run_app("train", *small, "run.name=run", "train.max_steps=2")
    (checkpoint,) = whole_checkpoints(tmp_path / "runs/run/checkpoints")
    metadata = pickle.loads((checkpoint / METADATA).read_bytes())
    (checkpoint / METADATA).write_bytes(pickle.dumps(change(metadata, f"touch {tmp_path}/ran")))
    state = json.loads((checkpoint / "state.json").read_bytes())
    state["files"][METADATA] = asdict(digest_file(checkpoint / METADATA))
    rewrite_state(checkpoint, state)

    for command in (["evaluate", "run=runs/run"], ["train", *small, "run.name=run"]):
        assert message in run_app(*command, status=2).stderr
    assert not (tmp_path / "ran").exists()


class _OlderPickler(pickle.Pickler):
    def reducer_override(self, instance: object) -> Any:
        return (getattr, (type(instance), instance.name)) if isinstance(instance, Enum) else NotImplemented


def test_an_enums_member_may_be_written_as_an_attribute(tmp_path: Path) -> None:
    properties = dcp.TensorProperties(memory_format=torch.channels_last)
    entry = dcp.TensorStorageMetadata(properties, torch.Size([2]), [])
    with open(tmp_path / METADATA, "wb") as file:
        _OlderPickler(file).dump(dcp.Metadata(state_dict_metadata={"x": entry}))
    assert b"getattr" in (tmp_path / METADATA).read_bytes()
    tensor_metadata = SafeReader(tmp_path).read_metadata().state_dict_metadata["x"]
    assert isinstance(tensor_metadata, dcp.TensorStorageMetadata)
    assert tensor_metadata.properties.memory_format is torch.channels_last
