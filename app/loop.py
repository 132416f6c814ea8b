"""The one training loop: the same on CPU, CUDA and ROCm, with one process or many.

It knows nothing of files, layouts or processes; `Parts` brings what it drives.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

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


class Meter(Protocol):
    """See app.meter."""

    def start(self) -> None: ...
    def step_done(self, input_wait: float) -> None: ...
    def take(self) -> tuple[NDArray[np.float32], float]: ...


@dataclass
class Parts:
    """What the loop drives.

    Attributes:
        batches: (epoch, first step) to this process's batches of the rest of that epoch, on its device.
        total_steps, steps_per_epoch: of the whole run.
        forward: dense_features, sparse_features to logits [B].
        loss: logits [B], labels [B] to the mean loss.
        optimizer: zero_grad() and step() for all parameters.
        set_learning_rate: sets the rate of a step and returns it.
        mean_over_ranks: this process's losses [steps] to the global batches'.
        evaluate: metrics of the evaluation split.
        save: writes a checkpoint of the state.
        report: a window of steps is done: learning rate, losses, seconds.
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
    evaluate: Callable[[State], dict[str, Any]]
    save: Callable[[State], None]
    report: Callable[[State, float, NDArray[np.float32], NDArray[np.float32]], None]
    interrupted: Callable[[int], bool]
    checkpoint_due: Callable[[int], bool]
    meter: Meter


def train(parts: Parts, config: TrainConfig, state: State) -> str:
    """Train from `state` to the end; return the run's status: completed, target_reached or interrupted."""
    pending: list[Tensor] = []
    first_step = state.step
    lr = 0.0

    def flush() -> None:
        """Bring the window's losses and times to the host: the one place where the loop waits for the device."""
        seconds, wait = parts.meter.take()
        if not pending:
            return
        losses = parts.mean_over_ranks(torch.stack(pending).cpu().numpy())
        pending.clear()
        _require_finite(losses, state.step)
        state.losses.append(losses)
        if state.step - len(losses) >= first_step + config.warmup_steps_excluded:
            state.step_seconds.append(seconds)
            state.input_wait += wait
        parts.report(state, lr, losses, seconds)

    parts.meter.start()
    while state.step < parts.total_steps:
        waiting_since = time.perf_counter()
        for batch in parts.batches(state.epoch, state.step_in_epoch):
            input_wait = time.perf_counter() - waiting_since
            lr = parts.set_learning_rate(state.step)
            parts.optimizer.zero_grad()
            loss = parts.loss(parts.forward(batch), batch.labels)
            loss.backward()
            parts.optimizer.step()
            pending.append(loss.detach())
            state.step += 1
            state.step_in_epoch += 1
            parts.meter.step_done(input_wait)

            done = state.step == parts.total_steps
            stop = parts.interrupted(state.step)
            evaluate = done or _every(config.eval_every_steps, state.step)
            save = done or stop or parts.checkpoint_due(state.step)
            last_of_warmup = state.step == first_step + config.warmup_steps_excluded
            if evaluate or save or last_of_warmup or _every(config.log_every_steps, state.step):
                flush()
            if done or (evaluate and not stop):
                state.evaluation = parts.evaluate(state)
            reached = _reached(state, config)
            if save or reached:
                parts.save(state)
            if reached or (stop and not done):
                return "target_reached" if reached else "interrupted"
            if done:
                break
            waiting_since = time.perf_counter()
        if state.step_in_epoch == parts.steps_per_epoch:
            state.epoch, state.step_in_epoch = state.epoch + 1, 0
    return "completed"


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


def _reached(state: State, config: TrainConfig) -> bool:
    """Whether this step's evaluation reached the target."""
    if config.target_auc is None or state.evaluation is None or state.evaluation["step"] != state.step:
        return False
    return state.evaluation["auc"] is not None and state.evaluation["auc"] >= config.target_auc


def _require_finite(losses: NDArray[np.float32], step: int) -> None:
    bad = np.flatnonzero(~np.isfinite(losses))
    if len(bad):
        first = step - len(losses) + int(bad[0]) + 1
        raise UserError(f"step {first}: the loss is {losses[bad[0]]}; training cannot go on: lower optimizer.lr")
