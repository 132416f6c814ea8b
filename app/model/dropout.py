"""Dropout whose masks are a pure function of seed, step, layer and row of the global batch.

A run that is resumed, replayed or spread over another number of processes therefore draws the same masks. The number
of each value is a 32-bit hash (C. Wellons' lowbias32) of its row's key plus its column's, in int32 arithmetic, which
all devices have. On a CPU this is faster than torch's generator, which cannot begin at a row.

Shapes: B samples, W values of a layer's outputs.
"""

import numpy as np
import torch
from torch import Tensor, nn

_FACTORS = (0x7FEB352D, 0x846CA68B - (1 << 32))  # those of lowbias32, as int32
_SHIFTS = (16, 15)


class Dropout(nn.Module):
    """Sets a share `rate` of values to 0 in training and divides the others by 1 - rate (Srivastava et al. 2014).

    Call `draw` before each step.
    """

    keys: Tensor
    columns: Tensor

    def __init__(self, width: int, rate: float) -> None:
        """width: W; rate in [0, 1)."""
        super().__init__()
        self.rate = rate
        self.register_buffer("keys", torch.zeros(3, dtype=torch.int32), persistent=False)
        self.register_buffer("columns", hashed(torch.arange(width, dtype=torch.int32)), persistent=False)

    def draw(self, seed: int, step: int, layer: int, first_row: int) -> None:
        """Draw the masks of a step for rows of the global batch from `first_row` on."""
        words = np.random.SeedSequence([seed, step, layer]).generate_state(2).view(np.int32)
        keys = torch.from_numpy(np.append(words, np.int32(first_row)))
        keys = keys.pin_memory() if self.keys.is_cuda else keys  # otherwise the copy would wait for the device
        self.keys.copy_(keys, non_blocking=True)

    def mask(self, rows: int) -> Tensor:
        """Return which values are kept, [rows, W] bool."""
        first, second, first_row = self.keys.unbind()
        numbers = torch.arange(rows, dtype=torch.int32, device=self.keys.device) + first_row
        row_keys = hashed(hashed(numbers + first) ^ second)
        lowest_kept = round(self.rate * (1 << 32)) - (1 << 31)  # the numbers are uniform in [-2^31, 2^31)
        return hashed(row_keys.unsqueeze(1) + self.columns) >= lowest_kept

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply dropout to inputs [B, W]."""
        if not self.training or self.rate == 0:
            return inputs
        factors = self.mask(len(inputs)).to(inputs.dtype).mul_(1 / (1 - self.rate))
        return inputs * factors


def hashed(numbers: Tensor) -> Tensor:
    """Return lowbias32 of int32 numbers without its last step, which leaves the high bits as they are."""
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=True):
        unsigned = (numbers >> shift) & ((1 << (32 - shift)) - 1)  # int32's own shift repeats the sign
        numbers = (numbers ^ unsigned) * factor
    return numbers
