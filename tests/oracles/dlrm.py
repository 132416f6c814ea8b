"""DLRM's training step by step in float64, from plain parts (tests/reference.py); imports nothing of ours."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests import reference

Bags = list[Tensor]  # the ids of each sample


@dataclass
class Feature:
    """How a feature's bags become a vector: parameters by name, none where it has none."""

    tables: list[str]
    kind: str = "plain"
    pooling: str = "sum"
    row_weights: str | None = None
    projection: str | None = None


@dataclass
class OracleDLRM:
    """A model whose parameters have a name; `features` are in the model's order.

    interaction: a name of INTERACTIONS.
    """

    parameters: dict[str, Tensor]
    features: dict[str, Feature]
    interaction: str
    lr: list[float]  # of each step
    table_lr: list[float]
    optimizer: str
    eps: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    max_grad_norm: float | None = None
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parameters = {name: value.double().requires_grad_() for name, value in self.parameters.items()}
        tables = {name for feature in self.features.values() for name in feature.tables}
        self._tables = [value for name, value in self.parameters.items() if name in tables]
        self._dense = [value for name, value in self.parameters.items() if name not in tables]
        self._update = reference.Optimizer(self.optimizer, self._tables, self._dense, self.eps, self.betas)

    def step(self, dense: Tensor, bags: dict[str, Bags], labels: Tensor) -> None:
        loss = reference.bce(self.logits(dense.double(), bags), labels.double())
        loss.backward()
        if self.max_grad_norm is not None:
            gradients = [value.grad for value in self._dense if value.grad is not None]
            norm = torch.stack([(gradient**2).sum() for gradient in gradients]).sum().sqrt()
            if norm > self.max_grad_norm:
                for gradient in gradients:
                    gradient.mul_(self.max_grad_norm / norm)
        number = len(self.losses)
        self._update.step(self.lr[number], self.table_lr[number])
        self.losses.append(loss.item())

    def logits(self, dense: Tensor, bags: dict[str, Bags]) -> Tensor:
        vectors = [self._vector(feature, bags[name]) for name, feature in self.features.items()]
        hidden = reference.perceptron(dense, self.layers("dense_arch"), last_relu=True)
        outputs = INTERACTIONS[self.interaction](self, hidden, vectors)
        return reference.perceptron(outputs, self.layers("over_arch"), last_relu=False)[:, 0]

    def _vector(self, feature: Feature, bags: Bags) -> Tensor:
        tables = [self.parameters[name] for name in feature.tables]
        weights = None if feature.row_weights is None else self.parameters[feature.row_weights]
        vector = reference.pool(bags, tables, feature.kind, feature.pooling, weights)
        return vector if feature.projection is None else vector @ self.parameters[feature.projection].T

    def layers(self, prefix: str) -> reference.Layers:
        numbers = sorted({int(name.split(".")[-2]) for name in self.parameters if name.startswith(f"{prefix}.")})
        return [tuple(self.parameters[f"{prefix}.{n}.{part}"] for part in ("weight", "bias")) for n in numbers]  # type: ignore[misc]

    def numbered(self, prefix: str) -> list[Tensor]:
        names = [name for name in self.parameters if name.startswith(f"{prefix}.")]
        return [self.parameters[name] for name in sorted(names, key=lambda name: int(name.split(".")[-1]))]


def _cross(oracle: OracleDLRM, dense: Tensor, vectors: list[Tensor]) -> Tensor:
    parts = [oracle.numbered(f"interaction.crossnet.{name}") for name in ("W_kernels", "V_kernels", "bias")]
    return reference.cross(dense, vectors, list(zip(*parts, strict=True)))


def _project(oracle: OracleDLRM, dense: Tensor, vectors: list[Tensor]) -> Tensor:
    return reference.project(dense, vectors, *(oracle.layers(f"interaction.branch{number}") for number in (1, 2)))


# What becomes of dense [B, D] and F vectors [B, D], by the name of a model that tests draw.
INTERACTIONS: dict[str, Callable[[OracleDLRM, Tensor, list[Tensor]], Tensor]] = {
    "dot": lambda _, dense, vectors: reference.interact(dense, vectors, "dot", itself=False),
    "dot_itself": lambda _, dense, vectors: reference.interact(dense, vectors, "dot", itself=True),
    "cat": lambda _, dense, vectors: reference.interact(dense, vectors, "cat", itself=False),
    "dcn": _cross,
    "projection": _project,
    "scalar_pairs": lambda _, dense, vectors: reference.scalar_pairs(dense, vectors, mixed=False),
    "mixed_pairs": lambda _, dense, vectors: reference.scalar_pairs(dense, vectors, mixed=True),
}
