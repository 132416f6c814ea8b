"""Dropout whose masks are a pure function of seed, step, layer and row of the global batch.

So a run that is resumed, replayed or spread over another number of processes draws the same masks. Each value's number
comes from a hash of 32 bits (C. Wellons' lowbias32) of a key of its row plus one of its column, in the arithmetic of
int32 that all devices have; on a CPU this is faster than torch's generator, which cannot begin at a row.

Shapes: B samples, W values of a layer's outputs.
"""

import numpy as np
import torch
from torch import Tensor, nn

_FACTORS = (0x7FEB352D, 0x846CA68B - (1 << 32))  # lowbias32's, as int32
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
        keys = keys.pin_memory() if self.keys.is_cuda else keys  # or the copy would wait for the device
        self.keys.copy_(keys, non_blocking=True)

    def mask(self, rows: int) -> Tensor:
        """Which values are kept, [rows, W] bool."""
        first, second, first_row = self.keys.unbind()
        numbers = torch.arange(rows, dtype=torch.int32, device=self.keys.device) + first_row
        row_keys = hashed(hashed(numbers + first) ^ second)
        lowest_kept = round(self.rate * (1 << 32)) - (1 << 31)  # of numbers uniform in [-2^31, 2^31)
        return hashed(row_keys.unsqueeze(1) + self.columns) >= lowest_kept

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, W] to the same."""
        if not self.training or self.rate == 0:
            return inputs
        factors = self.mask(len(inputs)).to(inputs.dtype).mul_(1 / (1 - self.rate))
        return inputs * factors


def hashed(numbers: Tensor) -> Tensor:
    """lowbias32 of int32 numbers, without its last step, which leaves the high bits as they are."""
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=True):
        unsigned = (numbers >> shift) & ((1 << (32 - shift)) - 1)  # int32's own shift repeats the sign
        numbers = (numbers ^ unsigned) * factor
    return numbers
