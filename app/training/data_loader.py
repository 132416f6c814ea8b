"""Training batches on this process's device, with or without TorchRec's sparse-dist pipeline."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import nn
from torchrec import KeyedJaggedTensor
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.streamable import Pipelineable

from app.config import Pipeline
from app.data.batch import Batch, pinned_ahead
from app.data.staging import checked_room, gpu_address
from app.training.session import Session
from app.training.state import RunLength

Ids = Callable[[KeyedJaggedTensor], KeyedJaggedTensor]


class DataLoader:
    """Provides a session's training batches in order; the bits are the same with and without the pipeline."""

    def __init__(self, session: Session, length: RunLength) -> None:
        self._session, self._length = session, length
        self._pipeline: SparseDistPipeline | None = None
        self.pipeline, self._is_checked = Pipeline.none, False
        device, world_size = session.runtime.device, session.runtime.world_size
        if uses_pipeline(length.train.pipeline, device, world_size):
            arch, self.pipeline = session.model.module.sparse_arch, Pipeline.sparse_dist
            self._pipeline = SparseDistPipeline(arch.collections, arch.table_ids, session.optimizer, device)

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Return the rest of an epoch's batches, from its step `first` on."""
        train, split = self._length.train, self._session.predictor.split("train")
        source = split.train_batches(train.global_batch_size, train.seed, epoch, first)
        device = self._session.runtime.device
        if device.type != "cpu" and not self._is_checked:
            self._is_checked = True
            splits = self._session.manifest.splits.values()
            files = [file for split in splits for shard in split.shards for file in shard.files.values()]
            processes = self._session.runtime.local_world_size
            source = checked_room(source, gpu_address(device), processes, sum(file.bytes for file in files))
        if self._pipeline is None:
            return self._session.predictor.on_device(source)
        source = source if device.type == "cpu" else pinned_ahead(source, device)
        return self._pipeline.run(source, self._steps_to_evaluations(epoch * self._length.steps_per_epoch + first))

    def forward_done(self) -> None:
        """Tell the pipeline that the model has computed the logits of the last batch."""
        if self._pipeline is not None:
            self._pipeline.forward_done()

    def close(self) -> None:
        """Stop the pipeline; a collective call. Take no more batches afterwards."""
        if self._pipeline is not None:
            self._pipeline.close()

    def _steps_to_evaluations(self, step: int) -> Iterator[int]:
        """Yield the number of steps up to each evaluation.

        The pipeline must be empty there, because its batches would meet the evaluation's in the same model.
        """
        while step < self._length.total_steps:
            step, before = self._length.next_evaluation(step), step
            yield step - before


def uses_pipeline(setting: Pipeline, device: torch.device, world_size: int) -> bool:
    """Return whether to use the pipeline: `auto` uses it where several processes have a GPU each."""
    if setting is Pipeline.auto:
        return device.type != "cpu" and world_size > 1
    return setting is Pipeline.sparse_dist


@dataclass
class _Staged(Pipelineable):
    """A batch in the pipeline, and the ids that index its tables once it is on the device."""

    batch: Batch
    ids_of: Ids
    ids: KeyedJaggedTensor | None = None

    def to(self, device: torch.device, non_blocking: bool = False) -> "_Staged":
        batch = self.batch.to(device, non_blocking)
        return _Staged(batch, self.ids_of, self.ids_of(batch.sparse_features))

    def record_stream(self, stream: torch.Stream) -> None:
        self.batch.record_stream(stream)
        if self.ids is not None:
            self.ids.record_stream(stream)


class _Lookups(nn.Module):
    """The part of a model that TorchRec has to trace: its lookups, which all take a batch's ids."""

    def __init__(self, lookups: Iterable[nn.Module]) -> None:
        super().__init__()
        self.lookups = nn.ModuleList(lookups)

    def forward(self, staged: _Staged) -> list[object]:
        return [lookup(staged.ids) for lookup in self.lookups]


class SparseDistPipeline(TrainPipelineSparseDist[_Staged, None]):
    """TorchRec's sparse-dist pipeline: while a batch is computed, the next one's ids travel to the ranks of their rows.

    The pipeline holds three batches: one is computed, the ids of the second are exchanged, the third is copied to the
    device; on a GPU each has its own stream. The stages are TorchRec's (torchrec.distributed.train_pipeline).
    TorchRec's `progress` makes a whole step of them; here a loop makes the step, and takes batches as if there were no
    pipeline.
    """

    def __init__(
        self, lookups: Iterable[nn.Module], ids_of: Ids, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> None:
        """lookups: the model's sharded table collections; ids_of: turns a batch's features into the ids they take."""
        super().__init__(_Lookups(lookups), optimizer, device, execute_all_batches=True)
        self._ids_of = ids_of

    def run(self, source: Iterator[Batch], pieces: Iterable[int | None]) -> Iterator[Batch]:
        """Yield the batches of `source` on the device; call `forward_done` before asking for the next.

        pieces: numbers of batches (None: all). The pipeline runs empty after each piece, and the model is then free for
        other use.
        """
        for size in pieces:
            piece = (_Staged(batch, self._ids_of) for batch in islice(source, size))
            self.attach()
            self.fill_pipeline(piece)
            if not self.batches:
                return
            assert len(self._pipelined_modules) == len(self._model.lookups), "TorchRec left a lookup out"
            while self.batches:
                self._wait_for_batch()
                if len(self.batches) > 1:
                    self.start_sparse_data_dist(self.batches[1], self.contexts[1])
                self.enqueue_batch(piece)
                yield self.batches[0].batch

    def forward_done(self) -> None:
        """Send the next batch's ids, before this one's backward."""
        if len(self.batches) > 1:
            self.wait_sparse_data_dist(self.contexts[1])
        self.dequeue_batch()
        if not self.batches:
            self.detach()

    def close(self) -> None:
        """Wait for the exchanges of batches that will not be computed; a collective call."""
        for context in list(self.contexts)[:1]:
            for request in context.input_dist_tensors_requests.values():
                request.wait()
        if self.batches:
            self.detach()
        self.reset()
