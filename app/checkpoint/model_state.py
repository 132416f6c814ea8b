"""Tensors of a checkpoint: the model's and optimizer's, their copy in host memory, and loading them.

The copy lets training change its own tensors while a checkpoint is written.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor
from torch.distributed.checkpoint.api import CheckpointException
from torchrec.distributed import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer

from app.checkpoint.safe_reader import SafeReader
from common.errors import UserError, last_line

COPY_BYTES = 1 << 26  # size of a page-locked buffer; larger tensors come from the device block by block


def stage(tensors: Any) -> Any:
    """Copy nested dicts and lists of tensors to host memory; of a sharded tensor, this process's shards.

    torch's own stager fails on ShardedTensors.
    """
    if isinstance(tensors, dict):
        return {key: stage(value) for key, value in tensors.items()}
    if isinstance(tensors, (list, tuple)):
        return type(tensors)(stage(value) for value in tensors)
    if isinstance(tensors, ShardedTensor):
        return _staged_shards(tensors)
    if isinstance(tensors, Tensor):
        return _on_host(tensors)
    return copy.deepcopy(tensors)


class LocalTensor(NamedTuple):
    """A tensor or a shard: its path in the nested dicts, its offsets in the whole tensor, its values."""

    path: str
    offsets: tuple[int, ...]
    values: Tensor


def local_tensors(tensors: Any, path: str = "") -> Iterator[LocalTensor]:
    """Yield the tensors and shards on this process."""
    if isinstance(tensors, dict):
        for key, value in tensors.items():
            yield from local_tensors(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tensors, (list, tuple)):
        for number, value in enumerate(tensors):
            yield from local_tensors(value, f"{path}[{number}]")
    elif isinstance(tensors, ShardedTensor):
        for shard in tensors.local_shards():
            yield LocalTensor(path, tuple(shard.metadata.shard_offsets), shard.tensor)
    elif isinstance(tensors, Tensor):
        yield LocalTensor(path, (0,) * tensors.dim(), tensors)


def num_bytes(tensors: Any) -> int:
    """Return the bytes that a staged copy takes on this process."""
    return sum(local.values.numel() * local.values.element_size() for local in local_tensors(tensors))


def stored_bytes(tensors: Any) -> int:
    """Return the bytes of these tensors in a checkpoint, which holds each of all processes' tensors once."""
    if isinstance(tensors, dict):
        return sum(stored_bytes(value) for value in tensors.values())
    if isinstance(tensors, (list, tuple)):
        return sum(stored_bytes(value) for value in tensors)
    return int(tensors.size().numel()) * tensors.dtype.itemsize if isinstance(tensors, Tensor) else 0


def first_not_finite(tensors: Any) -> str | None:
    """Return the path of the first tensor on this process with a NaN or an infinity; None without one."""
    for path, _, tensor in local_tensors(tensors):
        # A sum is NaN or infinite if one of its terms is. Only then (or if the sum overflowed) check each term.
        suspect = tensor.is_floating_point() and not bool(torch.isfinite(tensor.sum()))
        if suspect and not bool(torch.isfinite(tensor).all()):
            return path
    return None


def _on_host(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if tensor.device.type == "cpu":
        return tensor.clone()
    return tensor.cpu() if tensor.nbytes <= COPY_BYTES else _copied_in_blocks(tensor.contiguous())


def _copied_in_blocks(tensor: Tensor) -> Tensor:
    """Copy a device's tensor to pageable host memory by two page-locked buffers: one is filled, the other emptied."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype)
    size = COPY_BYTES // tensor.itemsize
    buffers = [torch.empty(size, dtype=tensor.dtype, pin_memory=True) for _ in range(2)]
    arrived = [torch.cuda.Event() for _ in buffers]
    sources, targets = tensor.view(-1).split(size), copy.view(-1).split(size)
    for block in range(len(sources) + 1):
        if block < len(sources):
            buffers[block % 2][: len(sources[block])].copy_(sources[block], non_blocking=True)
            arrived[block % 2].record()
        if block > 0:
            last = targets[block - 1]
            arrived[(block - 1) % 2].synchronize()
            last.copy_(buffers[(block - 1) % 2][: len(last)])
    return copy


def _staged_shards(tensor: ShardedTensor) -> ShardedTensor:
    shards = [Shard(_on_host(shard.tensor), _placed_on_host(shard.metadata)) for shard in tensor.local_shards()]
    whole = copy.deepcopy(tensor.metadata())
    whole.shards_metadata = [_placed_on_host(shard) for shard in whole.shards_metadata]
    return ShardedTensor._init_from_local_shards_and_global_metadata(
        shards, sharded_tensor_metadata=whole, process_group=tensor._process_group
    )


def _placed_on_host(metadata: Any) -> Any:
    metadata = copy.deepcopy(metadata)
    metadata.placement._device = torch.device("cpu")
    return metadata


def load_tensors(checkpoint: Path, model: DistributedModelParallel, optimizer: CombinedOptimizer | None) -> None:
    """Load tables, dense parameters and, if given, the optimizer's state in place; a collective call.

    The sharding plan may differ from the one at saving. Nothing in the checkpoint is executed.
    """
    tensors = tensors_of(model, optimizer)
    read_tensors(checkpoint, tensors)
    model.load_state_dict(tensors["model"])
    if optimizer is not None:
        optimizer.load_state_dict(_filled(optimizer.state_dict(), tensors.get("optimizer", {})))


def read_tensors(checkpoint: Path, tensors: dict[str, Any]) -> None:
    """Overwrite tensors as from `tensors_of` with a checkpoint's; a collective call. Raises as `load_tensors`."""
    reader = SafeReader(checkpoint)
    reader.read_metadata()  # raises its own one-line error here; torch would wrap that in tracebacks
    try:
        dcp.load(tensors, storage_reader=reader)
    except (CheckpointException, OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{checkpoint}: does not load into this model: {last_line(str(error), type(error).__name__)}"
        ) from error


def tensors_of(model: DistributedModelParallel, optimizer: CombinedOptimizer | None) -> dict[str, Any]:
    """Return a checkpoint's tensors in place: the model's and, if given, the optimizer's."""
    tensors: dict[str, Any] = {"model": model.state_dict()}
    if optimizer is not None:
        tensors["optimizer"] = optimizer.state_dict()
    return _without_empty(tensors)


def _without_empty(nest: dict[str, Any]) -> dict[str, Any]:
    """Leave out empty dicts (SGD has no state).

    torch saves only rank 0's, and misses those of the others when it loads.
    """
    children = {key: _without_empty(value) if isinstance(value, dict) else value for key, value in nest.items()}
    return {key: value for key, value in children.items() if not isinstance(value, dict) or value}


def _filled(nest: dict[str, Any], loaded: dict[str, Any]) -> dict[str, Any]:
    """Return nested dicts as before `_without_empty`, with the loaded values."""
    return {
        key: _filled(value, loaded.get(key, {})) if isinstance(value, dict) else loaded[key]
        for key, value in nest.items()
    }
