"""The field's models in float64, from plain parts of torch, as FuxiCTR 2.3 defines them; imports nothing of ours.

Shapes: B samples, N dense features, F sparse ones, D width of vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

EPSILON, MOMENTUM = 1e-5, 0.1


def mask(seed: int, step: int, layer: int, first_row: int, rows: int, width: int, rate: float) -> NDArray[np.bool_]:
    """Which values a dropout keeps, value by value: lowbias32 of a row's and a column's key, without its last step."""

    def mixed(number: int) -> int:
        number = ((number ^ (number >> 16)) * 0x7FEB352D) % 2**32
        return int(((number ^ (number >> 15)) * 0x846CA68B) % 2**32)

    first, second = (int(word) for word in np.random.SeedSequence([seed, step, layer]).generate_state(2))
    row_keys = [mixed(mixed((first_row + row + first) % 2**32) ^ second) for row in range(rows)]
    columns = [mixed(column) for column in range(width)]
    numbers = [[mixed((row + column) % 2**32) for column in columns] for row in row_keys]
    signed = np.array(numbers, np.uint32).view(np.int32).astype(np.int64)
    return signed >= round(rate * 2**32) - 2**31


@dataclass
class Perceptron:
    """Layers by name in `parameters`; hidden ones with batch norm and dropout: FuxiCTR's MLP_Block."""

    name: str
    num_layers: int
    num_hidden: int
    batch_norm: bool
    rates: Sequence[float]
    final_relu: bool


@dataclass
class Model:
    """A model whose parameters have a name, trained by Adam with L2 inside it, after clipping all gradients together.

    tables: names of the F tables. statistics: running means and variances of batch norms, by name.
    """

    parameters: dict[str, Tensor]
    statistics: dict[str, Tensor]
    tables: list[str]
    interaction: str
    dense_arch: Perceptron | None
    over_arch: Perceptron | None
    deep_arch: Perceptron | None = None
    num_cross: int = 0
    seed: int = 0
    decays: dict[str, float] = field(default_factory=dict)  # by parameter
    max_norm: float | None = None
    lr: float = 1e-3
    eps: float = 1e-8
    micro_batch: int | None = None  # rows that share statistics of batch norm; None: all of a batch

    def __post_init__(self) -> None:
        self.parameters = {name: value.double().requires_grad_() for name, value in self.parameters.items()}
        self.statistics = {name: value.double() for name, value in self.statistics.items()}
        self.optimizer = torch.optim.Adam(list(self.parameters.values()), lr=self.lr, eps=self.eps)

    def logits(self, dense: Tensor, ids: Tensor, step: int | None) -> Tensor:
        """[B]; step: of training, None for evaluation. dense [B, N] and ids [B, F]."""
        self._dropouts = 0
        sparse = torch.stack([self.parameters[name][ids[:, number]] for number, name in enumerate(self.tables)], dim=1)
        vectors, hidden = sparse, None
        if self.dense_arch is not None:
            hidden = self._perceptron(self.dense_arch, dense, step)
            vectors = torch.cat([hidden.unsqueeze(1), sparse], dim=1)
        elif "dense_arch.weight" in self.parameters:
            vectors = torch.cat([dense.unsqueeze(2) * self.parameters["dense_arch.weight"], sparse], dim=1)
        flat = vectors.flatten(1)
        if self.interaction == "sum":
            return flat.sum(1) + self.parameters["over_arch.bias"]
        if self.interaction == "dot":
            pairs = combinations(vectors.unbind(1), 2)
            outputs = torch.stack([(one * other).sum(1) for one, other in pairs], dim=1)
            outputs = outputs if hidden is None else torch.cat([hidden, outputs], dim=1)
        elif self.interaction == "cat":
            outputs = flat
        else:
            outputs = flat
            for layer in range(self.num_cross):
                name = f"interaction.crossnet.layers.{layer}"
                weight, bias = self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"]
                outputs = outputs + flat * (outputs @ weight.T + bias)
            if self.deep_arch is not None:
                outputs = torch.cat([outputs, self._perceptron(self.deep_arch, flat, step)], dim=1)
        assert self.over_arch is not None
        return self._perceptron(self.over_arch, outputs, step).squeeze(1)

    def _perceptron(self, stack: Perceptron, x: Tensor, step: int | None) -> Tensor:
        for layer in range(stack.num_layers):
            layer_name = f"{stack.name}.{2 * layer}"
            x = x @ self.parameters[f"{layer_name}.weight"].T + self.parameters[f"{layer_name}.bias"]
            is_hidden = layer < stack.num_hidden
            if is_hidden and stack.batch_norm:
                x = self._batch_norm(f"{stack.name}.{2 * layer + 1}.0", x, step)
            if stack.final_relu or layer < stack.num_layers - 1:
                x = functional.relu(x)
            rate = stack.rates[layer] if is_hidden else 0.0
            if rate and step is not None:
                keep_mask = mask(self.seed, step, self._dropouts, 0, x.shape[0], x.shape[1], rate)
                x = x * torch.from_numpy(keep_mask) / (1 - rate)
            self._dropouts += rate > 0
        return x

    def _batch_norm(self, name: str, x: Tensor, step: int | None) -> Tensor:
        mean, var = self.statistics[f"{name}.running_mean"], self.statistics[f"{name}.running_var"]
        if step is not None:
            parts = x.split(self.micro_batch or len(x))
            with torch.no_grad():
                mean.mul_(1 - MOMENTUM).add_(x.mean(0), alpha=MOMENTUM)
                own_var = sum(len(part) / len(x) * part.var(0) for part in parts)
                var.mul_(1 - MOMENTUM).add_(own_var, alpha=MOMENTUM)
            mean = torch.cat([part.mean(0).expand_as(part) for part in parts])
            var = torch.cat([part.var(0, correction=0).expand_as(part) for part in parts])
        return (x - mean) / (var + EPSILON).sqrt() * self.parameters[f"{name}.weight"] + self.parameters[f"{name}.bias"]

    def step(self, dense: Tensor, ids: Tensor, labels: Tensor, number: int) -> float:
        """One update; returns the loss without L2."""
        logits = self.logits(dense.double(), ids, number)
        loss = functional.binary_cross_entropy_with_logits(logits, labels.double())
        penalty = sum(self.decays.get(name, 0.0) / 2 * value.square().sum() for name, value in self.parameters.items())
        self.optimizer.zero_grad()
        (loss + penalty).backward()
        if self.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.max_norm)
        self.optimizer.step()
        return loss.item()
