"""Composition: what training reads, batch after batch on this process's device, and their forward."""

from collections.abc import Iterator
from itertools import chain, repeat

from torch import Tensor

from app.data.batch import Batch
from app.training import pipeline
from app.training.run_length import Course
from app.training.session import Session


class Feed:
    """A session's training batches in their order; with or without a pipeline, the bits are the same."""

    def __init__(self, session: Session, course: Course) -> None:
        self._session, self._course = session, course
        self._pipeline: pipeline.SparseDistPipeline | None = None
        device, world_size = session.runtime.device, session.runtime.world_size
        self.name = "none"  # of the pipeline, as train.pipeline has it
        if pipeline.is_wanted(course.train.pipeline, device, world_size):
            arch, self.name = session.model.module.sparse_arch, "sparse_dist"
            self._pipeline = pipeline.SparseDistPipeline(arch.collections, arch.table_ids, session.optimizer, device)

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """The rest of an epoch from its step `first` on."""
        train, split = self._course.train, self._session.split("train")
        source = split.train_batches(train.global_batch_size, train.seed, epoch, first)
        if self._pipeline is None:
            return self._session.on_device(source)
        return self._pipeline.run(source, self._pieces(epoch * self._course.steps_per_epoch + first))

    def forward(self, batch: Batch) -> Tensor:
        """Logits [B] of the batch that came last."""
        if self._pipeline is None:
            return self._session.forward(batch)
        return self._pipeline.forward(self._session.forward, batch)

    def close(self) -> None:
        """No more batches are wanted; a collective call."""
        if self._pipeline is not None:
            self._pipeline.close()

    def _pieces(self, step: int) -> Iterator[int]:
        """Numbers of steps to each next evaluation: what is under way then would meet the evaluation's batches."""
        left, every = self._course.total_steps - step, self._course.train.eval_every_steps
        pieces = repeat(left) if every is None else chain([every - step % every], repeat(every))
        while left > 0:
            piece = min(next(pieces), left)
            left -= piece
            yield piece
