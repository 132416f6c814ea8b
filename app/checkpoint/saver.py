"""Writes checkpoints, by default in a thread while training goes on; never two at once."""

import logging
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torchrec.distributed import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer

from app.checkpoint import files, model_state
from app.checkpoint.files import OLD, PART, CheckpointState
from common.errors import UserError
from common.streams import without_native_stdout
from data_prep.dataset.format import digest_file

log = logging.getLogger("clickwork")


@dataclass
class WrittenCheckpoint:
    """A checkpoint that is whole on disk: its path, and how long the writing took in seconds."""

    path: Path
    step: int
    seconds: float


class Saver:
    """Saves a model's and its optimizer's state under one directory, the same steps on every process.

    A save copies the tensors to host memory, which is all that training waits for, and a thread writes the copy. The
    thread talks to the other processes' over a gloo group of its own: training's collectives do not meet it.
    """

    def __init__(self, directory: Path, keep: int, asynchronous: bool, local_world_size: int) -> None:
        """keep: so many newest checkpoints stay, and the best. A collective call."""
        self._directory, self._keep, self._asynchronous = directory, keep, asynchronous
        self._local_world_size = local_world_size
        with without_native_stdout():
            self._group = dist.new_group(backend="gloo")
        self._thread: ThreadPoolExecutor | None = None
        self._pending: Future[WrittenCheckpoint] | None = None
        self._done: list[WrittenCheckpoint] = []
        self._told_of_memory = False

    def save(
        self,
        step: int,
        model: DistributedModelParallel,
        optimizer: CombinedOptimizer,
        saved: CheckpointState,
        best: bool,
    ) -> None:
        """Begin to write `directory`/step_<step>; waits for the one before. A collective call.

        best: `best` shall name this one, once it is whole.

        Raises:
            UserError: the one before could not be written (a full disk, say), or, where it is not written behind
                training's back, this one. Checkpoints that were there are as they were.
        """
        self.wait()
        tensors = model_state.tensors_of(model, optimizer)
        if not self._asynchronous or not self._has_room(model_state.num_bytes(tensors)):
            self._done.append(self._write(step, tensors, saved, best))
            return
        self._thread = self._thread or ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending = self._thread.submit(self._write, step, model_state.stage(tensors), saved, best)

    def wait(self) -> None:
        """Until nothing is being written. Raises UserError as `save` does, for the one that was."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._done.append(pending.result())

    def failed(self) -> bool:
        """Whether `wait` would raise at once."""
        return self._pending is not None and self._pending.done() and self._pending.exception() is not None

    def finished(self) -> list[WrittenCheckpoint]:
        """What became whole since the last call."""
        if self._pending is not None and self._pending.done() and not self.failed():
            self.wait()
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Wait for the thread after something else went wrong; what goes wrong with it, too, is only logged."""
        try:
            self.wait()
        except Exception as error:  # noqa: BLE001  # whatever it is, it came second
            log.error("checkpoint: %s", files.last_line(error))
        if self._thread is not None:
            self._thread.shutdown()

    def _has_room(self, size: int) -> bool:
        enough = size * self._local_world_size < model_state.host_bytes_available()
        if not enough and not self._told_of_memory:
            self._told_of_memory = True
            log.warning("checkpoint: no host memory for a copy of %.1f GiB; training waits for each checkpoint",
                        size / 2**30)  # fmt: skip
        return enough

    def mark_best(self, step: int) -> None:
        """Let `best` name the checkpoint of this step, which was saved; waits until it is whole. A collective call."""
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
        """All of a checkpoint, or nothing; every process gets the same outcome."""
        began, final = time.perf_counter(), self._directory / files.checkpoint_name(step)
        part = final.with_suffix(PART)
        try:
            self._write_part(step, part, tensors)
            failure, digests = self._digest_mine(part)
            digests = {name: digest for theirs in self._agree(failure, digests) for name, digest in theirs.items()}
            self._agree(self._complete(part, final, saved, digests, best))
        except UserError:
            if dist.get_rank() == 0:
                shutil.rmtree(part, ignore_errors=True)  # on a full disk it would be in the way of everything else
            raise
        return WrittenCheckpoint(final, step, time.perf_counter() - began)

    def _write_part(self, step: int, part: Path, tensors: dict[str, Any]) -> None:
        if bad := model_state.first_not_finite(tensors):
            bad = f"step {step}: {bad} is not finite; not saved, the checkpoints before it are as they were"
        self._agree(bad or self._begin(part))
        try:
            dcp.save(tensors, checkpoint_id=part, process_group=self._group)
        except (CheckpointException, OSError) as error:  # the first is a BaseException; all processes get it
            raise _unwritable(part, error) from error

    def _digest_mine(self, part: Path) -> tuple[str | None, dict[str, Any]]:
        """Size and sum of what this process wrote, by torch's name for it; and what is wrong, if anything."""
        try:
            mine = sorted(part.glob(f"__{dist.get_rank()}_*"))
            return None, {path.name: asdict(digest_file(path)) for path in mine}
        except OSError as error:
            return str(_unwritable(part, error)), {}

    def _begin(self, part: Path) -> str | None:
        """On rank 0, make an empty directory; what is wrong, if anything."""
        if dist.get_rank() == 0:
            try:
                for leftover in (*self._directory.glob("*" + PART), *self._directory.glob("*" + OLD)):
                    shutil.rmtree(leftover)
                part.mkdir(parents=True)
            except OSError as error:
                return str(_unwritable(part, error))
        return None

    def _complete(
        self, part: Path, final: Path, saved: CheckpointState, digests: dict[str, Any], best: bool
    ) -> str | None:
        """On rank 0, make it a checkpoint and remove those that are no longer wanted; what is wrong, if anything."""
        if dist.get_rank() == 0:
            try:
                files.publish(part, final, saved, digests)
                if best:
                    files.point_to_best(self._directory, final.name)
                files.prune(self._directory, self._keep)
            except OSError as error:
                return str(_unwritable(part, error))
        return None

    def _agree(self, failure: str | None, value: Any = None) -> list[Any]:
        """Everyone's value. Raises UserError on all processes if one has a failure to tell."""
        everyones: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, (failure, value), group=self._group)
        for told, _ in everyones:
            if told is not None:
                raise UserError(told)
        return [theirs for _, theirs in everyones]


def _unwritable(part: Path, error: BaseException) -> UserError:
    return UserError(f"{part}: the checkpoint cannot be written: {files.last_line(error)}")
