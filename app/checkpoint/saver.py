"""Tensors of checkpoints: their copies in host memory, writing in a thread beside training, and safe loading.

The metadata is a pickle, and torch would also unpickle an entry that the metadata calls bytes. Here the metadata may
name only the classes that it normally consists of, and every entry must be a tensor; torch reads tensors with
weights_only.

The copy lets training change its own tensors while a checkpoint is written.
"""

import copy
import pickle
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorStorageMetadata
from torchrec.distributed import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer

from app.checkpoint import files
from app.checkpoint.files import OLD, PART, CheckpointState
from app.data.batch import background_thread
from app.runtime import environment
from app.sharding.plan import local_shards
from common.command import log
from common.errors import UserError, last_line
from common.files import FileDigest, digest_file, format_bytes
from common.machine import host_bytes_available
from common.signals import discard_native_stdout

METADATA = ".metadata"
# Unpickling can call anything that can be imported, so all names are refused but those of a usual checkpoint.
ALLOWED_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
ALLOWED_NAMES = {
    *(("torch", name) for name in ("Size", "float32", "float16", "bfloat16", "int64", "int32")),
    *(("pathlib", "PosixPath"), ("pathlib", "PurePosixPath"), ("collections", "OrderedDict")),
    ("torch.serialization", "_get_layout"),
}
ALLOWED_KINDS = {
    *("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties"),
    *("MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING", "_StorageInfo", "_StoragePrefix"),
}


class SafeReader(FileSystemReader):
    """A FileSystemReader for checkpoints of tensors alone."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__(checkpoint)
        self._metadata_path = checkpoint / METADATA

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the checkpoint's metadata. Raises UserError if it has other entries than tensors, or other classes."""
        try:
            with open(self._metadata_path, "rb") as file:
                metadata = _Unpickler(file).load()
        except (pickle.UnpicklingError, EOFError, AttributeError, ValueError, TypeError) as error:
            raise UserError(f"{self._metadata_path}: not loaded: {error}") from error
        if not isinstance(metadata, Metadata):
            raise UserError(f"{self._metadata_path}: not a checkpoint's metadata")
        for key, entry in metadata.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):
                raise UserError(f"{self._metadata_path}: not loaded: {key} is not a tensor")
        # The method that this one replaces sets both, too.
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def map_shards(self, name: str) -> Iterator[tuple[tuple[int, ...], Tensor]]:
        """Yield offsets and values of a tensor's stored shards, which may be larger than memory: mapped, not read."""
        metadata = self.read_metadata()
        entry = metadata.state_dict_metadata[name]
        assert isinstance(entry, TensorStorageMetadata)
        for chunk in entry.chunks:
            stored = metadata.storage_data[MetadataIndex(name, chunk.offsets)]
            path = self._metadata_path.parent / stored.relative_path
            with open(path, "rb") as file, FakeTensorMode():  # loads where the values are, not the values
                values = torch.load(self._slice_file(file, stored), map_location="cpu", weights_only=True)
            start = stored.offset + values.untyped_storage()._checkpoint_offset
            # Copy-on-write, as torch warns of arrays that must not be written; the file does not change.
            content = torch.from_numpy(np.memmap(path, np.uint8, "c", start, (values.nbytes,)))
            yield tuple(chunk.offsets), content.view(entry.properties.dtype).view(chunk.sizes)


class _Unpickler(pickle.Unpickler):
    """Unpickles metadata made of the allowed classes alone."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle names. Raises UnpicklingError for a name that is not allowed."""
        if (module, name) == ("builtins", "getattr"):
            return self._enum_member
        if (module, name) in ALLOWED_NAMES or (module in ALLOWED_MODULES and name in ALLOWED_KINDS):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it contains {module}.{name}, which no checkpoint of Clickwork contains")

    @staticmethod
    def _enum_member(kind: Any, name: str) -> Any:
        """Return an enum's member, the only allowed getattr: early Python 3.11 (Debian 12's too) pickles members so."""
        if isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__:
            return kind[name]
        raise pickle.UnpicklingError(f"it contains {name} of {kind}, which no checkpoint of Clickwork contains")


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
        # torch refuses a shard on another device than its metadata places it on.
        shards = [
            Shard(_copy_to_host(shard.tensor), _place_on_host(shard.metadata)) for shard in tensors.local_shards()
        ]
        metadata = copy.deepcopy(tensors.metadata())
        metadata.shards_metadata = [_place_on_host(shard) for shard in metadata.shards_metadata]
        # This constructor takes the local shards as they are, without an exchange between the processes.
        return ShardedTensor._init_from_local_shards_and_global_metadata(
            shards, sharded_tensor_metadata=metadata, process_group=tensors._process_group
        )
    if isinstance(tensors, Tensor):
        return _copy_to_host(tensors)
    return copy.deepcopy(tensors)


def _place_on_host(metadata: Any) -> Any:
    """Return a copy of a shard's metadata that places it in host memory."""
    metadata = copy.deepcopy(metadata)
    metadata.placement._device = torch.device("cpu")
    return metadata


# A tensor or a shard: its path in the nested dicts, its offsets in the whole tensor, its values.
LocalTensor: TypeAlias = tuple[str, tuple[int, ...], Tensor]


def whole_tensors(tensors: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the tensors of nested dicts and lists by their paths, sharded ones undivided, in the order of both."""
    if isinstance(tensors, (dict, list, tuple)):
        is_named = isinstance(tensors, dict)
        for key, value in tensors.items() if is_named else enumerate(tensors):  # type: ignore[union-attr]
            name = f"{path}[{key}]" if not is_named else f"{path}.{key}" if path else str(key)
            yield from whole_tensors(value, name)
    elif isinstance(tensors, Tensor):
        yield path, tensors


def local_tensors(tensors: Any) -> Iterator[LocalTensor]:
    """Yield the tensors and shards that this process holds, in the order of `whole_tensors`."""
    for path, tensor in whole_tensors(tensors):
        for offsets, values in local_shards(tensor):
            yield path, offsets, values


def num_bytes(tensors: Any) -> int:
    """Return the bytes of this process's own tensors and shards, which a staged copy takes."""
    return sum(values.numel() * values.element_size() for _, _, values in local_tensors(tensors))


def stored_bytes(tensors: Any) -> int:
    """Return the bytes of whole tensors in a checkpoint, all processes' shards together; replicated ones count once."""
    return sum(int(tensor.size().numel()) * tensor.dtype.itemsize for _, tensor in whole_tensors(tensors))


def first_not_finite(tensors: Any) -> str | None:
    """Return the path of the first tensor on this process with a NaN or an infinity; None without one."""
    for path, _, tensor in local_tensors(tensors):
        # A sum is NaN or infinite if one of its terms is. Only then (or if the sum overflowed) check each term.
        suspect = tensor.is_floating_point() and not bool(torch.isfinite(tensor.sum()))
        if suspect and not bool(torch.isfinite(tensor).all()):
            return path
    return None


def _copy_to_host(tensor: Tensor) -> Tensor:
    """Return a copy in pageable host memory, of a tensor on any device."""
    tensor = tensor.detach()
    if tensor.device.type == "cpu":
        # A copy, even on the CPU: training changes the tensors in place while the thread writes.
        return tensor.clone()
    if tensor.nbytes <= COPY_BYTES:
        return tensor.cpu()
    tensor, size = tensor.contiguous(), COPY_BYTES // tensor.itemsize
    copy = torch.empty(tensor.shape, dtype=tensor.dtype)
    # Page-locked memory cannot be swapped, so two buffers of it serve tensors of any size: one is filled, the other
    # emptied.
    buffers = [torch.empty(size, dtype=tensor.dtype, pin_memory=True) for _ in range(2)]
    arrived = [torch.cuda.Event() for _ in buffers]
    sources, targets = tensor.view(-1).split(size), copy.view(-1).split(size)
    for block in range(len(sources) + 1):
        if block < len(sources):
            buffers[block % 2][: len(sources[block])].copy_(sources[block], non_blocking=True)
            arrived[block % 2].record()
        if block > 0:
            target = targets[block - 1]
            arrived[(block - 1) % 2].synchronize()
            target.copy_(buffers[(block - 1) % 2][: len(target)])
    return copy


def load_tensors(checkpoint: Path, model: DistributedModelParallel, optimizer: CombinedOptimizer | None) -> None:
    """Load tables, dense parameters and, if given, the optimizer's state in place; a collective call.

    The sharding plan may differ from the one at saving. Nothing in the checkpoint is executed.
    """
    tensors = tensors_of(model, optimizer)
    read_tensors(checkpoint, tensors)
    set_tensors(model, optimizer, tensors)


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


def set_tensors(model: DistributedModelParallel, optimizer: CombinedOptimizer | None, tensors: dict[str, Any]) -> None:
    """Set a model's and, if given, an optimizer's tensors to those of `tensors_of`, after they were overwritten."""
    model.load_state_dict(tensors["model"])
    if optimizer is not None:
        optimizer.load_state_dict(_fill_dicts(optimizer.state_dict(), tensors.get("optimizer", {})))


def tensors_of(model: DistributedModelParallel, optimizer: CombinedOptimizer | None) -> dict[str, Any]:
    """Return a checkpoint's tensors in place: the model's and, if given, the optimizer's."""
    tensors: dict[str, Any] = {"model": model.state_dict()}
    if optimizer is not None:
        tensors["optimizer"] = optimizer.state_dict()
    return _drop_empty_dicts(tensors)


def _drop_empty_dicts(nest: dict[str, Any]) -> dict[str, Any]:
    """Leave out empty dicts (SGD has no state).

    torch saves only rank 0's, and misses those of the others when it loads.
    """
    children = {key: _drop_empty_dicts(value) if isinstance(value, dict) else value for key, value in nest.items()}
    return {key: value for key, value in children.items() if not isinstance(value, dict) or value}


def _fill_dicts(nest: dict[str, Any], loaded: dict[str, Any]) -> dict[str, Any]:
    """Return the loaded values in dicts nested as `nest`, with the empty ones that `_drop_empty_dicts` has left out."""
    return {
        key: _fill_dicts(value, loaded.get(key, {})) if isinstance(value, dict) else loaded[key]
        for key, value in nest.items()
    }


# Signs of torch's archive writer, and EFBIG.
SHORT_WRITE = ("inline_container", "PytorchStreamWriter", "File too large")


class _PathlessWriter(FileSystemWriter):
    """Writes metadata without a path, since releases of Python pickle paths under different names."""

    def storage_meta(self) -> StorageMeta | None:
        """Return torch's ids without the checkpoint's path."""
        meta = super().storage_meta()
        return None if meta is None else replace(meta, checkpoint_id=None)


class Saver:
    """Saves a model's and its optimizer's state under one directory, the same steps on every process.

    A save copies the tensors to host memory, and a thread writes the copy; training waits only for the copying. The
    threads of all processes use their own gloo group, apart from training's collectives.
    """

    def __init__(self, directory: Path, keep: int, asynchronous: bool, local_world_size: int) -> None:
        """keep: number of newest checkpoints to keep, besides the best. A collective call."""
        self._directory, self._keep, self._asynchronous = directory, keep, asynchronous
        self._local_world_size = local_world_size
        # Collectives of two threads in one group would mix, so the saving threads have a group of their own.
        with discard_native_stdout():
            self._group = dist.new_group(backend="gloo")
        self._thread: ThreadPoolExecutor | None = None
        self._pending: Future[tuple[int, float]] | None = None
        self._checkpoints: list[tuple[int, float]] = []
        self._warned_of_memory = False

    def save(
        self,
        step: int,
        model: DistributedModelParallel,
        optimizer: CombinedOptimizer,
        saved: CheckpointState,
        best: bool,
    ) -> None:
        """Begin to write `directory`/step_<step> after waiting for the one before. A collective call.

        best: let `best` name this checkpoint once it is complete.
        """
        # Two saves never overlap, as their collectives share a group and their copies would double the memory.
        self.wait()
        tensors = tensors_of(model, optimizer)
        if not self._asynchronous or not self._fits_in_memory(num_bytes(tensors)):
            self._checkpoints.append(self._write(step, tensors, saved, best))
            return
        if self._thread is None:
            # A new thread starts with GPU 0, and must copy from this process's own.
            on_gpu = torch.cuda.is_initialized()
            device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else None
            self._thread = background_thread("checkpoint", device)
        self._pending = self._thread.submit(self._write, step, stage(tensors), saved, best)

    def wait(self) -> None:
        """Wait until nothing is being written. Raises UserError if writing failed."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._checkpoints.append(pending.result())

    def failed(self) -> bool:
        """Return whether `wait` would raise immediately."""
        return self._pending is not None and self._pending.done() and self._pending.exception() is not None

    def finished(self) -> list[tuple[int, float]]:
        """Return step and seconds of writing of the checkpoints completed since the last call; do not wait for one."""
        if self._pending is not None and self._pending.done() and not self.failed():
            self.wait()
        checkpoints, self._checkpoints = self._checkpoints, []
        return checkpoints

    def close(self) -> None:
        """Wait for the thread after another failure; its own failure is only logged."""
        try:
            self.wait()
        except Exception as error:  # noqa: BLE001  # a second failure, whatever it is
            log.error("checkpoint: %s", last_line(str(error), type(error).__name__))
        if self._thread is not None:
            self._thread.shutdown()

    def _fits_in_memory(self, size: int) -> bool:
        """Return whether each process has memory for a copy of `size` bytes; warn once if not."""
        # All processes of a machine make their copies at the same time.
        enough = size * self._local_world_size < host_bytes_available()
        if not enough and not self._warned_of_memory:
            self._warned_of_memory, gib = True, size / 2**30
            log.warning(
                "checkpoint: not enough host memory for a copy of %.1f GiB; training waits for each checkpoint", gib
            )
        return enough

    def mark_best(self, step: int) -> None:
        """Let `best` name this step's saved checkpoint, once it is complete. A collective call."""
        self.wait()

        def mark() -> None:
            files.point_to_best(self._directory, files.checkpoint_name(step))
            files.prune(self._directory, self._keep)

        self._together(self._directory / files.BEST, mark, everywhere=False)

    def _write(self, step: int, tensors: dict[str, Any], saved: CheckpointState, best: bool) -> tuple[int, float]:
        """Write a whole checkpoint, or nothing, alike on every process; return its step and the seconds taken."""
        began, rank, final = time.perf_counter(), dist.get_rank(), self._directory / files.checkpoint_name(step)
        part = final.with_suffix(PART)

        def begin() -> None:
            """Refuse tensors of this process that are not finite; on rank 0, make an empty directory."""
            if path := first_not_finite(tensors):
                raise UserError(
                    f"step {step}: {path} is not finite; lower optimizer.lr (optimizer.sparse_lr, if it is set); not "
                    "saved, earlier checkpoints stay as they were"
                )
            if rank == 0:
                # Leftovers of killed saves take space, and their names would be in the way.
                for leftover in (*self._directory.glob("*" + PART), *self._directory.glob("*" + OLD)):
                    shutil.rmtree(leftover)
                part.mkdir(parents=True)

        def digest_own_files() -> dict[str, FileDigest]:
            # The names of torch's files begin with the rank that writes them.
            return {path.name: digest_file(path) for path in sorted(part.glob(f"__{rank}_*"))}

        def publish() -> None:
            # Network file systems may show files late, and all must be whole before the directory gets its name.
            require_whole(part, digests)
            files.publish(part, final, saved, digests)
            if best:
                files.point_to_best(self._directory, final.name)
            # The new checkpoint has its name before old ones are removed, so that one is whole at any time.
            files.prune(self._directory, self._keep)

        try:
            # All processes agree before the first byte is written, so that no file of a refused step is left.
            self._together(part, begin)
            try:
                writer = _PathlessWriter(part)
                dcp.save(tensors, checkpoint_id=part, storage_writer=writer, process_group=self._group)
            except (CheckpointException, OSError) as error:  # CheckpointException, a BaseException, comes to all
                raise _write_error(part, error) from error
            # Each process hashes the files that it wrote, so that the hashing is divided, too.
            digests = dict(chain.from_iterable(own.items() for own in self._together(part, digest_own_files)))
            self._together(part, publish, everywhere=False)
        except UserError:
            if rank == 0:
                shutil.rmtree(part, ignore_errors=True)  # the files so far may fill the disk
            raise
        return step, time.perf_counter() - began

    def _together(self, path: Path, action: Callable[[], Any], everywhere: bool = True) -> list[Any]:
        """Call `action` on all processes, or on rank 0, and return its values; all raise UserError if one fails."""
        failure = value = None
        try:
            value = action() if everywhere or dist.get_rank() == 0 else None
        except (OSError, UserError) as error:
            failure = str(error if isinstance(error, UserError) else _write_error(path, error))
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, (failure, value), group=self._group)
        for message, _ in gathered:
            if message is not None:
                raise UserError(message)
        return [value_of_rank for _, value_of_rank in gathered]


def require_whole(part: Path, digests: dict[str, FileDigest]) -> None:
    """Raise UserError if other processes' files are still not whole on this machine after a while."""

    def unfinished_files() -> list[str]:
        sizes = {path.name: path.stat().st_size for path in part.iterdir()}
        return [name for name, digest in digests.items() if sizes.get(name) != digest.bytes]

    if not environment.wait_until(lambda: not unfinished_files()):
        raise UserError(
            f"{part}: the checkpoint was not written: {', '.join(unfinished_files()[:1])}, which another process has "
            f"written, is not whole on this machine after {environment.SHARED_SECONDS:.0f} s; give run.dir on a file "
            "system that all machines share"
        )


def _write_error(part: Path, error: BaseException) -> UserError:
    """Return the error for a checkpoint that could not be written to `part`."""
    reason = last_line(str(error), type(error).__name__)
    # Errors of torch's archive writer tell only positions in the file.
    if any(sign in reason for sign in SHORT_WRITE):
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        reason = f"no space left on device ({format_bytes(shutil.disk_usage(part.parent).free)} free)"
        if limit != resource.RLIM_INFINITY:
            reason = f"a file may have {format_bytes(limit)} at most here; raise that limit (ulimit -f)"
    return UserError(f"{part}: the checkpoint was not written: {reason}")
