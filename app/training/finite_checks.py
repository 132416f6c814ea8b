"""Whether a step's numbers are finite, without waiting for the device: one sum of each tensor that tells.

A sum is NaN or infinite if one of its terms is. (It is, too, where finite terms add up beyond float32, 3e38: such a
model is lost as well.) Tables' own gradients are never seen: FBGEMM's backward updates rows as it goes.
"""

from typing import Any

import torch
from torch import Tensor, nn


class Health:
    """Watches the interaction's inputs, the loss and the dense parameters' gradients."""

    def __init__(self, interaction: nn.Module, parameters: dict[str, nn.Parameter], loss_name: str) -> None:
        """`interaction` is called with the output of dense_arch and what came out of the tables."""
        self._parameters = list(parameters.values())
        self._seen: list[Tensor] = []
        self.names = ("the output of dense_arch", "what the tables gave", loss_name,
                      *(f"the gradient of {name}" for name in parameters))  # fmt: skip
        interaction.register_forward_pre_hook(self._note)

    def __call__(self, loss: Tensor) -> Tensor:
        """[K] float32 on the device, in the order of `names`; a gradient that was not computed counts as 0."""
        zero = torch.zeros((), device=loss.device)
        gradients = [zero if p.grad is None else p.grad.sum(dtype=torch.float32) for p in self._parameters]
        return torch.stack([*self._seen, loss.detach().float(), *gradients])

    def _note(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if torch.is_grad_enabled():
            self._seen = [values.detach().sum(dtype=torch.float32) for values in inputs]
