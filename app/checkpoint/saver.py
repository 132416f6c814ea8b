"""Writing of checkpoints, one at a time, by default in a thread while training continues."""

import logging
import resource
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import StorageMeta
from torchrec.distributed import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer

from app.checkpoint import files, model_state
from app.checkpoint.files import OLD, PART, CheckpointState
from app.runtime import shared_files
from app.runtime.background import background_thread
from common.errors import UserError, last_line
from common.files import FileDigest, digest_file
from common.limits import host_bytes_available
from common.sizes import in_words
from common.streams import without_native_stdout

log = logging.getLogger("clickwork")

# Signs of torch's archive writer, and EFBIG.
SHORT_WRITE = ("inline_container", "PytorchStreamWriter", "File too large")


class _PathlessWriter(FileSystemWriter):
    """Writes metadata without a path, since releases of Python pickle paths under different names."""

    def storage_meta(self) -> StorageMeta | None:
        """Return the usual ids without the checkpoint's path."""
        usual = super().storage_meta()
        return None if usual is None else replace(usual, checkpoint_id=None)


@dataclass
class WrittenCheckpoint:
    """A complete checkpoint: its path and step, and the seconds that writing it took."""

    path: Path
    step: int
    seconds: float


class Saver:
    """Saves a model's and its optimizer's state under one directory, the same steps on every process.

    A save copies the tensors to host memory, and a thread writes the copy; training waits only for the copying. The
    threads of all processes use their own gloo group, apart from training's collectives.
    """

    def __init__(self, directory: Path, keep: int, asynchronous: bool, local_world_size: int) -> None:
        """keep: number of newest checkpoints to keep, besides the best. A collective call."""
        self._directory, self._keep, self._asynchronous = directory, keep, asynchronous
        self._local_world_size = local_world_size
        with without_native_stdout():
            self._group = dist.new_group(backend="gloo")
        self._thread: ThreadPoolExecutor | None = None
        self._pending: Future[WrittenCheckpoint] | None = None
        self._checkpoints: list[WrittenCheckpoint] = []
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
        self.wait()
        tensors = model_state.tensors_of(model, optimizer)
        if not self._asynchronous or not self._fits_in_memory(model_state.num_bytes(tensors)):
            self._checkpoints.append(self._write(step, tensors, saved, best))
            return
        if self._thread is None:
            on_gpu = torch.cuda.is_initialized()
            device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else None
            self._thread = background_thread("checkpoint", device)
        self._pending = self._thread.submit(self._write, step, model_state.stage(tensors), saved, best)

    def wait(self) -> None:
        """Wait until nothing is being written. Raises UserError if writing failed."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._checkpoints.append(pending.result())

    def failed(self) -> bool:
        """Return whether `wait` would raise immediately."""
        return self._pending is not None and self._pending.done() and self._pending.exception() is not None

    def finished(self) -> list[WrittenCheckpoint]:
        """Return the checkpoints completed since the last call."""
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
        enough = size * self._local_world_size < host_bytes_available()
        if not enough and not self._warned_of_memory:
            self._warned_of_memory = True
            log.warning(
                "checkpoint: not enough host memory for a copy of %.1f GiB; training waits for each checkpoint",
                size / 2**30,
            )
        return enough

    def mark_best(self, step: int) -> None:
        """Let `best` name this step's saved checkpoint, once it is complete. A collective call."""
        self.wait()
        failure = None
        if dist.get_rank() == 0:
            try:
                files.point_to_best(self._directory, files.checkpoint_name(step))
                files.prune(self._directory, self._keep)
            except OSError as error:
                failure = str(_unwritable(self._directory / files.BEST, error))
        self._agree(failure)

    def _write(self, step: int, tensors: dict[str, Any], saved: CheckpointState, best: bool) -> WrittenCheckpoint:
        """Write a whole checkpoint, or nothing; every process gets the same outcome."""
        began, final = time.perf_counter(), self._directory / files.checkpoint_name(step)
        part = final.with_suffix(PART)
        try:
            self._write_part(step, part, tensors)
            failure, digests = self._digest_files_of_rank(part)
            digests = {name: digest for of_rank in self._agree(failure, digests) for name, digest in of_rank.items()}
            self._agree(self._complete(part, final, saved, digests, best))
        except UserError:
            if dist.get_rank() == 0:
                shutil.rmtree(part, ignore_errors=True)  # the files so far may fill the disk
            raise
        return WrittenCheckpoint(final, step, time.perf_counter() - began)

    def _write_part(self, step: int, part: Path, tensors: dict[str, Any]) -> None:
        if bad := model_state.first_not_finite(tensors):
            bad = (
                f"step {step}: {bad} is not finite; lower optimizer.lr (optimizer.sparse_lr, if it is set); not "
                "saved, earlier checkpoints stay as they were"
            )
        self._agree(bad or self._begin(part))
        try:
            writer = _PathlessWriter(part)
            dcp.save(tensors, checkpoint_id=part, storage_writer=writer, process_group=self._group)
        except (CheckpointException, OSError) as error:  # CheckpointException is a BaseException; all processes get it
            raise _unwritable(part, error) from error

    def _digest_files_of_rank(self, part: Path) -> tuple[str | None, dict[str, FileDigest]]:
        """Return an error message, if any, and size and digest of each file that this process wrote, by name."""
        try:
            files_of_rank = sorted(part.glob(f"__{dist.get_rank()}_*"))
            return None, {path.name: digest_file(path) for path in files_of_rank}
        except OSError as error:
            return str(_unwritable(part, error)), {}

    def _begin(self, part: Path) -> str | None:
        """Make an empty directory, on rank 0. Return an error message, if any."""
        if dist.get_rank() == 0:
            try:
                for leftover in (*self._directory.glob("*" + PART), *self._directory.glob("*" + OLD)):
                    shutil.rmtree(leftover)
                part.mkdir(parents=True)
            except OSError as error:
                return str(_unwritable(part, error))
        return None

    def _complete(
        self, part: Path, final: Path, saved: CheckpointState, digests: dict[str, FileDigest], best: bool
    ) -> str | None:
        """Publish the checkpoint and prune old ones, on rank 0. Return an error message, if any."""
        if dist.get_rank() == 0:
            try:
                if fault := _missing_files(part, digests):
                    return fault
                files.publish(part, final, saved, digests)
                if best:
                    files.point_to_best(self._directory, final.name)
                files.prune(self._directory, self._keep)
            except OSError as error:
                return str(_unwritable(part, error))
        return None

    def _agree(self, failure: str | None, value: Any = None) -> list[Any]:
        """Return every process's value. Raises UserError on all processes if one reports a failure."""
        of_ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of_ranks, (failure, value), group=self._group)
        for message, _ in of_ranks:
            if message is not None:
                raise UserError(message)
        return [of_rank for _, of_rank in of_ranks]


def _missing_files(part: Path, digests: dict[str, FileDigest]) -> str | None:
    """Return an error message if other processes' files are still not whole on this machine after a while."""

    def missing() -> list[str]:
        sizes = {path.name: path.stat().st_size for path in part.iterdir()}
        return [name for name, digest in digests.items() if sizes.get(name) != digest.bytes]

    if shared_files.wait_until(lambda: not missing()):
        return None
    return (
        f"{part}: the checkpoint was not written: {', '.join(missing()[:1])}, which another process has written, is "
        f"not whole on this machine after {shared_files.SHARED_SECONDS:.0f} s; give run.dir on a file system that all "
        "machines share"
    )


def _unwritable(part: Path, error: BaseException) -> UserError:
    return UserError(f"{part}: the checkpoint was not written: {_reason(part, error)}")


def _reason(part: Path, error: BaseException) -> str:
    """Return why a file could not be written; errors of torch's archive writer tell only positions in the file."""
    line = last_line(str(error), type(error).__name__)
    if not any(sign in line for sign in SHORT_WRITE):
        return line
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY:
        return f"a file may have {in_words(limit)} at most here; raise that limit (ulimit -f)"
    return f"no space left on device ({in_words(shutil.disk_usage(part.parent).free)} free)"
