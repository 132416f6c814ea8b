"""TorchRec's sparse-dist pipeline: while a batch is computed, ids of the next travel to the processes with their rows.

Three batches are under way: one is computed, one's ids are exchanged, one is copied to the device; on a GPU each in a
stream of its own. The stages are TorchRec's (torchrec.distributed.train_pipeline). Its `progress` makes a whole step
of them; here a loop makes the step, and takes batches as if there were no pipeline.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn
from torchrec import KeyedJaggedTensor
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.streamable import Pipelineable

from app.config import Pipeline
from app.data.batch import Batch

Ids = Callable[[KeyedJaggedTensor], KeyedJaggedTensor]


def is_wanted(setting: Pipeline, device: torch.device, world_size: int) -> bool:
    """Whether the setting means the pipeline here: `auto` where several processes have a GPU each."""
    if setting is Pipeline.auto:
        return device.type != "cpu" and world_size > 1
    return setting is Pipeline.sparse_dist


@dataclass
class _Staged(Pipelineable):
    """A batch under way, and what its tables are indexed by once it is on the device."""

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
    """All of a model that TorchRec has to trace: its lookups, and that each takes a batch's ids."""

    def __init__(self, lookups: Iterable[nn.Module]) -> None:
        super().__init__()
        self.lookups = nn.ModuleList(lookups)

    def forward(self, staged: _Staged) -> list[object]:
        return [lookup(staged.ids) for lookup in self.lookups]


class SparseDistPipeline(TrainPipelineSparseDist[_Staged, None]):
    """Batches one after the other, and what must happen around the forward of each."""

    def __init__(
        self, lookups: Iterable[nn.Module], ids_of: Ids, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> None:
        """lookups: the model's sharded collections of tables; ids_of: a batch's sparse features to what they take."""
        super().__init__(_Lookups(lookups), optimizer, device, execute_all_batches=True)
        self._ids_of = ids_of

    def run(self, source: Iterator[Batch], pieces: Iterable[int | None]) -> Iterator[Batch]:
        """Yield the batches of `source`, on the device, each to be given to `forward` before the next is asked for.

        pieces: after so many batches each (None: all) the pipeline runs empty, and the model may be used otherwise.
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

    def forward(self, score: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
        """What `score` gives of the batch that came last; the next one's ids are sent before its backward."""
        logits = score(batch)
        if len(self.batches) > 1:
            self.wait_sparse_data_dist(self.contexts[1])
        self.dequeue_batch()
        if not self.batches:
            self.detach()
        return logits

    def close(self) -> None:
        """Wait for what is under way, of batches that will not be computed; a collective call."""
        for context in list(self.contexts)[:1]:
            for request in context.input_dist_tensors_requests.values():
                request.wait()
        if self.batches:
            self.detach()
        self.reset()
