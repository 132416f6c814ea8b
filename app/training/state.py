"""What the loop drives, and the state that it takes from step to step."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from app.data.batch import Batch

AGREE_EVERY_STEPS = 10  # how often processes ask each other whether to stop; alone, every step
LOSS = "the loss"


@dataclass
class State:
    """All that the next step depends on beside tensors, and the run's history."""

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    losses: list[NDArray[np.float32]] = field(default_factory=list)  # mean over the global batch, each step
    step_seconds: list[NDArray[np.float32]] = field(default_factory=list)  # of the steps that count
    input_wait: float = 0.0  # seconds, of the steps that count
    accuracies: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))  # of steps not yet told of
    skipped: int = 0  # steps without an update, since their loss was not finite (train.on_nan=skip)
    evaluation: dict[str, Any] | None = None  # the last one, with its step
    best: dict[str, Any] | None = None  # step and AUC of the evaluation with the highest one

    def all_losses(self) -> NDArray[np.float32]:
        """[steps] float32."""
        return np.concatenate([np.empty(0, np.float32), *self.losses])

    def all_step_seconds(self) -> NDArray[np.float32]:
        """[steps that count] float32."""
        return np.concatenate([np.empty(0, np.float32), *self.step_seconds])


class Steps(NamedTuple):
    """Consecutive steps that are done, [steps] each."""

    lr: float  # of the last
    losses: NDArray[np.float32]  # mean over the global batch
    accuracies: NDArray[np.float32]  # share of the global batch on the right side of probability 0.5
    seconds: NDArray[np.float32]  # of this process; of fewer steps, where some were before a resumption
    input_wait: float  # seconds of them all, of this process


class Stopped(Exception):
    """Raised inside an evaluation when the run was asked to stop: it begins again when the run goes on."""


class Meter(Protocol):
    """See app.meter."""

    def start(self) -> None: ...
    def step_begins(self) -> None: ...
    def phase_done(self, phase: str) -> None: ...
    def step_done(self, input_wait: float) -> None: ...
    def take(self) -> tuple[NDArray[np.float32], float]: ...


@dataclass
class Parts:
    """What the loop drives; what is left out is not done.

    Attributes:
        batches: (epoch, first step) to this process's batches of the rest of that epoch, on its device.
        total_steps, steps_per_epoch: of the whole run.
        forward: dense_features, sparse_features to logits [B].
        loss: logits [B], labels [B] to the mean loss.
        health: what the step's numbers came to, [K] float32 on the device, not finite where the step went wrong.
        health_names: names of its K, in the order in which a step computes them; "the loss" is one of them.
        optimizer: zero_grad() and step() for all parameters.
        set_learning_rate: sets the rate of a step and returns it.
        step_begins: told the number of each step, counted from 1, when its batch is there.
        mean_over_ranks: this process's values, of any shape, to all processes' mean; NaN where one is.
        evaluate: metrics of the evaluation split; raises Stopped if asked to stop on the way.
        save: begins to write a checkpoint of the state, if that step has none yet.
        keep_best: marks, and writes if need be, the checkpoint of the state as the best.
        report: steps are done; the state's step is that of the last.
        interrupted: whether any process was asked to stop; the argument says whether to ask the others.
        not_finite: whether this loss is not finite on any process.
        checkpoint_due: whether a checkpoint is due at this step; all processes get the same answer.
    """

    batches: Callable[[int, int], Iterator[Batch]]
    total_steps: int
    steps_per_epoch: int
    forward: Callable[[Batch], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: Any
    set_learning_rate: Callable[[int], float]
    mean_over_ranks: Callable[[NDArray[np.float32]], NDArray[np.float32]]
    meter: Meter
    health: Callable[[Tensor], Tensor] = lambda loss: loss.detach().unsqueeze(0)
    health_names: tuple[str, ...] = (LOSS,)
    evaluate: Callable[[State], dict[str, Any] | None] = lambda state: None
    save: Callable[[State], None] = lambda state: None
    keep_best: Callable[[State], None] = lambda state: None
    report: Callable[[State, Steps], None] = lambda state, steps: None
    interrupted: Callable[[int], bool] = lambda step: False
    checkpoint_due: Callable[[int], bool] = lambda step: False
    step_begins: Callable[[int], None] = lambda step: None
    not_finite: Callable[[Tensor], bool] = lambda loss: not bool(torch.isfinite(loss))
