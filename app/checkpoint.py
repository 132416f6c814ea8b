"""Checkpoints: torch.distributed.checkpoint for tensors, state.json for the rest; whole or not there.

A checkpoint is written beside its final name and renamed when all of it is on disk. It is never overwritten:
torch.distributed.checkpoint would leave the old metadata over new, truncated data if it were killed then.
"""

import json
import os
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from numpy.typing import NDArray
from torch.distributed.checkpoint.api import CheckpointException
from torchrec.distributed import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer

from common.errors import UserError
from data_prep.format import write_atomically

LATEST = "latest"
STATE = "state.json"
ARRAYS = "arrays.npz"


@dataclass
class Saved:
    """What a checkpoint holds beside tensors: JSON values, and arrays by name."""

    state: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def save(
    directory: Path,
    step: int,
    model: DistributedModelParallel,
    optimizer: CombinedOptimizer,
    saved: Saved,
    keep: int,
) -> Path:
    """Write `directory`/step_<step>; a collective call. The `keep` newest stay.

    A checkpoint of the same step is left as it is: it has the same content.
    """
    final = directory / f"step_{step:08d}"
    if final.exists():
        return final
    part = final.with_suffix(".part")
    if dist.get_rank() == 0:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
    dist.barrier()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own deprecated storage calls
        dcp.save(_tensors(model, optimizer), checkpoint_id=part)
    if dist.get_rank() == 0:
        np.savez(part / ARRAYS, allow_pickle=False, **saved.arrays)
        write_atomically(part / STATE, json.dumps(saved.state, indent=1).encode())
        for path in (*part.iterdir(), part):
            _fsync(path)
        os.rename(part, final)
        write_atomically(directory / LATEST, final.name.encode())
        for old in whole_checkpoints(directory)[:-keep]:
            shutil.rmtree(old)
    dist.barrier()
    return final


def whole_checkpoints(directory: Path) -> list[Path]:
    """The checkpoints under a run's checkpoint directory that are complete, oldest first."""
    return sorted(path for path in directory.glob("step_*") if path.suffix != ".part" and (path / STATE).is_file())


def newest(directory: Path) -> Path | None:
    """The newest whole checkpoint, whatever `latest` says: a kill may come between the rename and it."""
    return next(reversed(whole_checkpoints(directory)), None)


def read_state(checkpoint: Path) -> Saved:
    """What a checkpoint holds beside tensors.

    Raises:
        UserError: there is no checkpoint here, or it is damaged.
    """
    try:
        state = json.loads((checkpoint / STATE).read_bytes())
        with np.load(checkpoint / ARRAYS, allow_pickle=False) as arrays:
            return Saved(state, dict(arrays))
    except FileNotFoundError as error:
        raise UserError(f"{checkpoint}: no checkpoint here ({error.filename} is missing)") from error
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{checkpoint}: damaged checkpoint ({error}); remove it to use the one before") from error


def load_tensors(checkpoint: Path, model: DistributedModelParallel, optimizer: CombinedOptimizer | None) -> None:
    """Load tables, dense parameters and, if given, the optimizer's state in place; a collective call.

    The layout may differ from the one that was saved.

    Raises:
        UserError: the checkpoint does not fit this model and optimizer, or is damaged.
    """
    tensors = _tensors(model, optimizer)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.load(tensors, checkpoint_id=checkpoint)
    except (CheckpointException, OSError, ValueError, RuntimeError) as error:  # the first is a BaseException
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{checkpoint}: does not load into this model ({reason}); remove it or resume=never") from error
    model.load_state_dict(tensors["model"])
    if optimizer is not None:
        optimizer.load_state_dict(tensors["optimizer"])


def _tensors(model: DistributedModelParallel, optimizer: CombinedOptimizer | None) -> dict[str, Any]:
    tensors: dict[str, Any] = {"model": model.state_dict()}
    if optimizer is not None:
        tensors["optimizer"] = optimizer.state_dict()
    return tensors


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
