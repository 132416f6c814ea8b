"""What a checkpoint is on disk.

A checkpoint is written beside its final name and renamed when all of it is on disk, with the sizes and sums of
its files. It is never overwritten in place: torch.distributed.checkpoint would leave the old metadata over new,
truncated data if it were killed then.
"""

import json
import os
import shutil
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed.checkpoint as dcp
from numpy.typing import NDArray
from torch.distributed.checkpoint import StorageReader
from torch.distributed.checkpoint.api import CheckpointException
from torchrec.distributed import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer

from common.errors import UserError
from data_prep.dataset.format import FileDigest, digest_file, sync, write_atomically

LATEST, BEST = "latest", "best"  # files that name the newest checkpoint, and that of the highest eval AUC
STATE = "state.json"
ARRAYS = "arrays.npz"
PART, OLD = ".part", ".old"  # not yet, and no longer, a checkpoint
FILES = "files"  # key of state.json: size and sum of every other file


@dataclass
class Saved:
    """What a checkpoint holds beside tensors: JSON values, and arrays by name."""

    state: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def name_of(step: int) -> str:
    """The name of a step's checkpoint."""
    return f"step_{step:08d}"


def whole_checkpoints(directory: Path) -> list[Path]:
    """The checkpoints under a run's checkpoint directory that were completed, oldest first."""
    return sorted(path for path in directory.glob("step_*") if not path.suffix and (path / STATE).is_file())


def prune(directory: Path, keep: int) -> None:
    """Remove all but the `keep` newest checkpoints and the best."""
    best = pointed_to(directory, BEST)
    for old in whole_checkpoints(directory)[:-keep]:
        if old != best:
            remove(old)


def pointed_to(directory: Path, pointer: str) -> Path | None:
    """The checkpoint that `latest` or `best` names, if it is there."""
    try:
        path = directory / (directory / pointer).read_text().strip()
    except FileNotFoundError:
        return None
    return path if path in whole_checkpoints(directory) else None


def point_to_best(directory: Path, name: str | None) -> None:
    """Let `best` name a checkpoint of `directory`, or none."""
    if name is not None:
        write_atomically(directory / BEST, name.encode())
    else:
        (directory / BEST).unlink(missing_ok=True)


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint so that a kill on the way does not leave something that looks like one."""
    old = checkpoint.with_suffix(OLD)
    os.rename(checkpoint, old)
    shutil.rmtree(old)


def newest(directory: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole and undamaged, and what is wrong with each newer one.

    `latest` is for people: a kill may come between the renaming of a checkpoint and it.
    """
    skipped = []
    for checkpoint in reversed(whole_checkpoints(directory)):
        try:
            verify(checkpoint)
        except UserError as error:
            skipped.append(str(error))
        else:
            return checkpoint, skipped
    return None, skipped


def verify(checkpoint: Path) -> None:
    """Compare a checkpoint's files with the sizes and sums written when it was made.

    Raises:
        UserError: there is no checkpoint here, or a file is missing or differs; the message names it.
    """
    for name, expected in _read_state(checkpoint)[FILES].items():
        path = checkpoint / name
        try:
            damaged = path.stat().st_size != expected["bytes"] or digest_file(path) != FileDigest(**expected)
        except OSError as error:
            raise UserError(f"{path}: checkpoint file not readable ({error.strerror})") from error
        if damaged:
            raise UserError(f"{path}: damaged, its size or sum is not the one it was written with")


def read(checkpoint: Path) -> Saved:
    """What a checkpoint holds beside tensors.

    Raises:
        UserError: there is no checkpoint here, or it is damaged.
    """
    try:
        with np.load(checkpoint / ARRAYS, allow_pickle=False) as arrays:
            return Saved(_read_state(checkpoint), dict(arrays))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{checkpoint / ARRAYS}: damaged ({error}); remove the checkpoint to use another") from error


def load_tensors(
    checkpoint: Path, reader: StorageReader, model: DistributedModelParallel, optimizer: CombinedOptimizer | None
) -> None:
    """Load tables, dense parameters and, if given, the optimizer's state in place; a collective call.

    The layout may differ from the one that was saved. `reader` reads the files of `checkpoint`.

    Raises:
        UserError: the checkpoint does not fit this model and optimizer.
    """
    tensors = tensors_of(model, optimizer)
    read_tensors(checkpoint, reader, tensors)
    model.load_state_dict(tensors["model"])
    if optimizer is not None:
        optimizer.load_state_dict(_filled(optimizer.state_dict(), tensors.get("optimizer", {})))


def read_tensors(checkpoint: Path, reader: StorageReader, tensors: dict[str, Any]) -> None:
    """Overwrite tensors such as `tensors_of` gives by a checkpoint's; a collective call. Raises as `load_tensors`."""
    try:
        dcp.load(tensors, storage_reader=reader)
    except (CheckpointException, OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{checkpoint}: does not load into this model: {last_line(error)}") from error


def tensors_of(model: DistributedModelParallel, optimizer: CombinedOptimizer | None) -> dict[str, Any]:
    """A checkpoint's tensors: the model's and, if given, the optimizer's, in place."""
    tensors: dict[str, Any] = {"model": model.state_dict()}
    if optimizer is not None:
        tensors["optimizer"] = optimizer.state_dict()
    return _without_empty(tensors)


def _without_empty(nest: dict[str, Any]) -> dict[str, Any]:
    """Without empty dicts (SGD keeps no state): torch saves those of rank 0 only, and misses the others' in loading."""
    kept = {key: _without_empty(value) if isinstance(value, dict) else value for key, value in nest.items()}
    return {key: value for key, value in kept.items() if not isinstance(value, dict) or value}


def _filled(nest: dict[str, Any], loaded: dict[str, Any]) -> dict[str, Any]:
    """A nest as it was before `_without_empty`, with the values that were loaded."""
    return {
        key: _filled(value, loaded.get(key, {})) if isinstance(value, dict) else loaded[key]
        for key, value in nest.items()
    }


def last_line(error: BaseException) -> str:
    """torch puts whole tracebacks of all ranks into the message; their last line says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


def complete(part: Path, final: Path, saved: Saved, digests: dict[str, Any]) -> None:
    """Write what is missing, bring all to the disk, and give the checkpoint its name.

    digests: size and sum of the tensors' files by name, where they are known already.
    """
    np.savez(part / ARRAYS, allow_pickle=False, **saved.arrays)
    for path in sorted(part.iterdir()):
        if path.name not in digests:
            sync(path)
            digests[path.name] = asdict(digest_file(path))
    write_atomically(part / STATE, json.dumps({**saved.state, FILES: digests}, indent=1).encode())
    if final.exists():
        remove(final)
    os.rename(part, final)
    write_atomically(final.parent / LATEST, final.name.encode())


def _read_state(checkpoint: Path) -> dict[str, Any]:
    path = checkpoint / STATE
    try:
        state = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{checkpoint}: no checkpoint here ({STATE} is missing)") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: damaged ({error}); remove the checkpoint to use another") from error
    if not isinstance(state, dict) or not isinstance(state.get(FILES), dict):
        raise UserError(f"{path}: damaged (no key {FILES!r}); remove the checkpoint to use another")
    return state
