"""Contents of a batch of histories besides ids."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torchrec.streamable import Pipelineable


@dataclass
class Sequences(Pipelineable):
    """Contents of a batch of B histories besides ids: E events of all histories, M candidates of all samples.

    Attributes:
        times: [E] int64 seconds of the histories' events, sample by sample, oldest first.
        actions: [E] uint8, a bit for each action of the dataset's schema.
        candidate_times: [M] int64 seconds, of the history's last event or of the candidate itself
            (sequences.candidate_time).
        history_lengths, num_candidates: [B] on the host.
        divisor: N of the attention (extensions.sequences.keys.AttentionScale), on the host.
    """

    times: Tensor
    actions: Tensor
    candidate_times: Tensor
    history_lengths: list[int]
    num_candidates: list[int]
    divisor: float

    def to(self, device: torch.device, non_blocking: bool = False) -> "Sequences":
        """Copy to a device."""
        return self._with(lambda part: part.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Sequences":
        """Copy to page-locked memory."""
        return self._with(Tensor.pin_memory)

    def record_stream(self, stream: torch.Stream) -> None:
        """Tell the allocator that `stream` uses these tensors."""
        for part in (self.times, self.actions, self.candidate_times):
            part.record_stream(stream)

    def _with(self, change: Callable[[Tensor], Tensor]) -> "Sequences":
        times, actions, candidate_times = map(change, (self.times, self.actions, self.candidate_times))
        return replace(self, times=times, actions=actions, candidate_times=candidate_times)
