"""Ids to the quotients and remainders that index quotient-remainder tables."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec import KeyedJaggedTensor

from app.model.embeddings.spec import REMAINDER


class QuotientsAndRemainders(nn.Module):
    """Each quotient-remainder feature's ids become quotients; its remainders follow under a key of their own."""

    collisions: Tensor

    def __init__(self, features: Sequence[str], collisions: Sequence[int]) -> None:
        """features: the keys that come in, in order; collisions: the divisor of each, 1 where there is none."""
        super().__init__()
        self._keys = [*features, *(f + REMAINDER for f, c in zip(features, collisions, strict=True) if c > 1)]
        self._divided = [number for number, divisor in enumerate(collisions) if divisor > 1]
        self.register_buffer("collisions", torch.tensor(collisions, dtype=torch.int32), persistent=False)

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """F keys of B bags to F keys and one more for each quotient-remainder feature, bags of the same lengths."""
        ids, lengths, stride = features.values(), features.lengths(), features.stride()
        counts, starts = features.length_per_key(), features.offset_per_key()
        per_key = lengths.view(-1, stride).sum(dim=1)
        divisors = self.collisions.to(ids.dtype).repeat_interleave(per_key, output_size=ids.numel())
        quotients = torch.div(ids, divisors, rounding_mode="floor")
        remainders = ids - quotients * divisors
        return KeyedJaggedTensor(
            keys=self._keys,
            values=torch.cat([quotients, *(remainders[starts[f] : starts[f + 1]] for f in self._divided)]),
            lengths=torch.cat([lengths, *(lengths[f * stride : (f + 1) * stride] for f in self._divided)]),
            stride=stride,
            length_per_key=[*counts, *(counts[f] for f in self._divided)],
        )
