"""The steps that run without the host waiting for the device, and what is wrong with them, if anything."""

import logging

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from app.config import OnNan, TrainConfig
from app.training.state import LOSS, Parts, State, Steps
from common.errors import UserError

log = logging.getLogger("clickwork")

MOST_SKIPPED = 10  # steps in a row; more are not a bad batch but a model that is lost
ADVICE = "training cannot go on: lower optimizer.lr; checkpoints are from before it"


class Window:
    """The steps since the device was last waited for, and those not yet told of."""

    def __init__(self, parts: Parts, config: TrainConfig, state: State) -> None:
        self.lr = 0.0
        self.first_counted_step = state.step + config.warmup_steps_excluded
        self._parts, self._config, self._state = parts, config, state
        self._values: list[Tensor] = []  # of each step: its health, and its accuracy
        self._losses = [state.all_losses()[state.step - len(state.accuracies) :]]  # of the steps not yet told of
        self._seconds: list[NDArray[np.float32]] = []
        self._input_wait = 0.0
        self._skipped: list[int] = []  # the last steps that were skipped, one after the other

    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Note what a step gave, without waiting for it."""
        accuracy = ((logits.detach() > 0) == (labels > 0.5)).float().mean()
        self._values.append(torch.cat([self._parts.health(loss), accuracy.unsqueeze(0)]))

    def skip(self) -> None:
        """Note that this step makes no update."""
        state = self._state
        self._skipped = [*self._skipped, state.step] if state.step - 1 in self._skipped[-1:] else [state.step]
        state.skipped += 1
        log.warning("%s: the loss is not finite: skipped, no parameter is updated", self._place(state.step + 1))
        if len(self._skipped) > MOST_SKIPPED:
            raise UserError(f"step {state.step + 1}: {len(self._skipped)} steps in a row were skipped, {ADVICE}")

    def close(self, tell: bool) -> None:
        """Bring losses and times to the host: the one place where the loop waits for the device.

        Raises:
            UserError: a loss, or with it what a step computed before or after, is not finite.
        """
        parts, state = self._parts, self._state
        seconds, wait = parts.meter.take()
        values = parts.mean_over_ranks(torch.stack(self._values).cpu().numpy())
        self._values.clear()
        health, accuracies = values[:, :-1], values[:, -1]
        self._require_finite(health)
        losses = np.ascontiguousarray(health[:, parts.health_names.index(LOSS)])
        state.losses.append(losses)
        if state.step - len(losses) >= self.first_counted_step:
            state.step_seconds.append(seconds)
            state.input_wait += wait
        state.accuracies = np.concatenate([state.accuracies, accuracies])
        self._losses.append(losses)
        self._seconds.append(seconds)
        self._input_wait += wait
        if tell:
            steps = Steps(self.lr, np.concatenate(self._losses), state.accuracies, np.concatenate(self._seconds),
                          self._input_wait)  # fmt: skip
            state.accuracies = np.empty(0, np.float32)
            self._losses, self._seconds, self._input_wait = [], [], 0.0
            parts.report(state, steps)

    def _require_finite(self, health: NDArray[np.float32]) -> None:
        """`health` is [steps, K]; a skipped step's is not finite before its loss, but nothing followed from it."""
        bad = ~np.isfinite(health)
        if self._config.on_nan is OnNan.skip:
            bad[:, : self._parts.health_names.index(LOSS) + 1] = False
        if bad.any():
            place, first = divmod(int(bad.argmax()), bad.shape[1])
            name = self._parts.health_names[first]
            where = self._place(self._state.step - len(health) + place + 1)
            raise UserError(f"{where}: first not finite: {name} ({health[place, first]}); {ADVICE}")

    def _place(self, step: int) -> str:
        epoch, batch = divmod(step - 1, self._parts.steps_per_epoch)
        return f"step {step} (epoch {epoch}, batch {batch} of {self._parts.steps_per_epoch}, counted from 0)"
