"""A checkpoint from somebody else runs nothing of theirs, however well its sums fit."""

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import metadata as dcp

from app.checkpoint.files import whole_checkpoints
from app.checkpoint.saver import METADATA, SafeReader
from common.files import digest_file
from tests.app.conftest import Command
from tests.app.run_files import rewrite_state


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
