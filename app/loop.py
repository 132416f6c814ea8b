"""The one training loop: the same on CPU, CUDA and ROCm, with one process or many.

It knows nothing of files, layouts or processes; `Parts` brings what it drives.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from app.batch import Batch
from app.config import TrainConfig
from common.errors import UserError

AGREE_EVERY_STEPS = 10  # how often processes ask each other whether to stop; alone, every step


@dataclass
class State:
    """All that the next step depends on beside tensors, and the run's history."""

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    losses: list[NDArray[np.float32]] = field(default_factory=list)  # mean over the global batch, each step
    step_seconds: list[NDArray[np.float32]] = field(default_factory=list)  # of the steps that count
    input_wait: float = 0.0  # seconds, of the steps that count
    evaluation: dict[str, Any] | None = None  # the last one, with its step

    def all_losses(self) -> NDArray[np.float32]:
        """[steps] float32."""
        return np.concatenate([np.empty(0, np.float32), *self.losses])

    def all_step_seconds(self) -> NDArray[np.float32]:
        """[steps that count] float32."""
        return np.concatenate([np.empty(0, np.float32), *self.step_seconds])


class Steps(NamedTuple):
    """Consecutive steps that are done, [steps] float32 each."""

    lr: float  # of the last
    losses: NDArray[np.float32]  # mean over the global batch
    accuracies: NDArray[np.float32]  # share of the global batch on the right side of probability 0.5
    seconds: NDArray[np.float32]  # of this process
    input_wait: float  # seconds of them all, of this process


class Meter(Protocol):
    """See app.meter."""

    def start(self) -> None: ...
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
        optimizer: zero_grad() and step() for all parameters.
        set_learning_rate: sets the rate of a step and returns it.
        mean_over_ranks: this process's losses and accuracies [2, steps] to the global batches'.
        evaluate: metrics of the evaluation split.
        save: writes a checkpoint of the state.
        report: steps are done; the state's step is that of the last.
        interrupted: whether any process was asked to stop; the argument says whether to ask the others.
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
    evaluate: Callable[[State], dict[str, Any] | None] = lambda state: None
    save: Callable[[State], None] = lambda state: None
    report: Callable[[State, Steps], None] = lambda state, steps: None
    interrupted: Callable[[int], bool] = lambda step: False
    checkpoint_due: Callable[[int], bool] = lambda step: False


def train(parts: Parts, config: TrainConfig, state: State) -> str:
    """Train from `state` to the end; return the run's status: completed, target_reached or interrupted."""
    if evaluation_due(parts, config, state):  # the checkpoint was made at this step, before its evaluation
        state.evaluation = parts.evaluate(state)
    if reached(state, config):
        return "target_reached"
    window = _Window(parts, state, first_counted_step=state.step + config.warmup_steps_excluded)
    parts.meter.start()
    while state.step < parts.total_steps:
        waiting_since = time.perf_counter()
        for batch in parts.batches(state.epoch, state.step_in_epoch):
            input_wait = time.perf_counter() - waiting_since
            window.lr = parts.set_learning_rate(state.step)
            parts.optimizer.zero_grad()
            logits = parts.forward(batch)
            loss = parts.loss(logits, batch.labels)
            loss.backward()
            parts.optimizer.step()
            window.add(loss, logits, batch.labels)
            state.step += 1
            state.step_in_epoch += 1
            parts.meter.step_done(input_wait)
            status = _after_step(parts, config, state, window)
            if status is not None:
                return status
            waiting_since = time.perf_counter()
        state.epoch, state.step_in_epoch = state.epoch + 1, 0
    return "completed"


class _Window:
    """The steps since the device was last waited for."""

    def __init__(self, parts: Parts, state: State, first_counted_step: int) -> None:
        self.lr = 0.0
        self.first_counted_step = first_counted_step
        self._losses: list[Tensor] = []
        self._accuracies: list[Tensor] = []
        self._parts, self._state = parts, state

    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Note what a step gave, without waiting for it."""
        self._losses.append(loss.detach().float())
        self._accuracies.append(((logits.detach() > 0) == (labels > 0.5)).float().mean())

    def close(self) -> None:
        """Bring losses and times to the host: the one place where the loop waits for the device."""
        parts, state = self._parts, self._state
        seconds, wait = parts.meter.take()
        mine = torch.stack(self._losses + self._accuracies).view(2, -1).cpu().numpy()
        losses, accuracies = parts.mean_over_ranks(mine)
        self._losses.clear()
        self._accuracies.clear()
        _require_finite(losses, state.step)
        state.losses.append(losses)
        if state.step - len(losses) >= self.first_counted_step:
            state.step_seconds.append(seconds)
            state.input_wait += wait
        parts.report(state, Steps(self.lr, losses, accuracies, seconds, wait))


def _after_step(parts: Parts, config: TrainConfig, state: State, window: _Window) -> str | None:
    """Log, save and evaluate where that is due; return the status if the run ends here."""
    done = state.step == parts.total_steps
    stop = parts.interrupted(state.step)
    evaluate = evaluation_due(parts, config, state)
    save = done or stop or parts.checkpoint_due(state.step)
    logged = _every(config.log_every_steps, state.step) or state.step == window.first_counted_step
    if evaluate or save or logged:
        window.close()
    if save:
        parts.save(state)
    if done or (evaluate and not stop):  # whoever goes on from a stop evaluates first
        state.evaluation = parts.evaluate(state)
    if reached(state, config):
        parts.save(state)
        return "target_reached"
    if done:
        return "completed"
    return "interrupted" if stop else None


def predict(batches: Iterator[Batch], forward: Callable[[Batch], Tensor]) -> tuple[Tensor, Tensor]:
    """Logits and labels [n] float32 of this process's valid samples, on the CPU."""
    logits, labels = [torch.empty(0)], [torch.empty(0)]
    with torch.no_grad():
        for batch in batches:
            logits.append(forward(batch)[: batch.num_valid].cpu())
            labels.append(batch.labels[: batch.num_valid].cpu())
    return torch.cat(logits), torch.cat(labels)


def _every(interval: int | None, step: int) -> bool:
    return interval is not None and step % interval == 0


def evaluation_due(parts: Parts, config: TrainConfig, state: State) -> bool:
    """Whether the state's step is one to be evaluated and has not been."""
    due = state.step > 0 and (state.step == parts.total_steps or _every(config.eval_every_steps, state.step))
    return due and (state.evaluation is None or state.evaluation["step"] != state.step)


def reached(state: State, config: TrainConfig) -> bool:
    """Whether this step's evaluation reached a target."""
    result = state.evaluation
    if result is None or result["step"] != state.step:
        return False
    targets = (("auc", config.target_auc), ("accuracy", config.target_accuracy))
    return any(target is not None and result[key] is not None and result[key] >= target for key, target in targets)


def _require_finite(losses: NDArray[np.float32], step: int) -> None:
    bad = np.flatnonzero(~np.isfinite(losses))
    if len(bad):
        first = step - len(losses) + int(bad[0]) + 1
        raise UserError(f"step {first}: the loss is {losses[bad[0]]}; training cannot go on: lower optimizer.lr")
